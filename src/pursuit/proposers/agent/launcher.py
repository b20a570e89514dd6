"""Starts a command in its isolation, with limits and with the listening sockets that are its only network.

It runs inside, with the standard library alone: `launcher.py FD PORTS PROCESSES MEMORY WORD…`. It listens on loopback,
for a proxy and for each port, sends the listening sockets over `FD`, if there is one, to the process that drives the
mission, and becomes the command. So no process inside forwards anything, and the agent can end none that does.
"""

import _socket as socket
import os
import resource
import sys

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
HERE = "127.0.0.1,localhost,::1"


def joined(driver: int, ports: list[int]) -> dict[str, str]:
    """Sends the sockets; returns the environment of their command."""
    listening: list[socket.socket] = []
    for port in (0, *ports):
        listening.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listening[-1].bind(("127.0.0.1", port))
        listening[-1].listen(128)
    sent = b"".join(one.fileno().to_bytes(4, sys.byteorder) for one in listening)
    socket.socket(fileno=driver).sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
    address = f"http://127.0.0.1:{listening[0].getsockname()[1]}"
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, **dict.fromkeys(PROXIES, address), "NO_PROXY": HERE, "no_proxy": HERE, "NODE_USE_ENV_PROXY": "1"}


def main(driver: str, ports: str, processes: str, memory: str, *words: str) -> None:
    """Sets the limits, sends the sockets and becomes the command. A limit that is lower already stays."""
    for limit, most in ((resource.RLIMIT_NPROC, int(processes)), (resource.RLIMIT_AS, int(memory))):
        hard = resource.getrlimit(limit)[1]
        if most and (hard == resource.RLIM_INFINITY or hard > most):
            resource.setrlimit(limit, (most, most))
    environment = joined(int(driver), [int(one) for one in ports.split()]) if driver else os.environ
    os.execvpe(words[0], words, environment)  # noqa: S606 - to become the command is its job


if __name__ == "__main__":
    main(*sys.argv[1:])

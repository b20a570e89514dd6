"""Starts an isolated agent with sockets as its only network: `network_launcher.py SOCKET PORTS WORD…`.

It runs inside, as a script that needs only the standard library. It listens on loopback, for a proxy and for each of
the ports, sends the listening sockets over a Unix socket to the process that drives the mission, and becomes the agent.
So no process inside forwards data, and the agent cannot end such a process.
"""

from __future__ import annotations

import json
import os
import socket
import sys

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
HERE = "127.0.0.1,localhost,::1"


def main(path: str, ports: list[int], words: list[str]) -> None:
    """Sends the sockets and becomes the agent."""
    listening: list[socket.socket] = []
    for port in (0, *ports):
        listening.append(socket.socket())
        listening[-1].bind(("127.0.0.1", port))
        listening[-1].listen(128)
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(path)
        socket.send_fds(driver, [json.dumps([0, *ports]).encode()], [one.fileno() for one in listening])
        driver.recv(1)  # clients can connect from now on
    address = f"http://127.0.0.1:{listening[0].getsockname()[1]}"
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {**dict.fromkeys(PROXIES, address), "NO_PROXY": HERE, "no_proxy": HERE, "NODE_USE_ENV_PROXY": "1"}
    os.execvpe(words[0], words, environment)  # noqa: S606 - to become the agent is its job


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])

"""The peer: FastMCP's proxy as its documentation makes one, `create_proxy(URL)`, served over HTTP.

Owns: how FastMCP is installed and run. Knows nothing of Pursuit: it runs in a process of its own, with an interpreter
that has FastMCP, and says its version and its URL on the first two lines of its standard output.

Run: python benchmarks/fastmcp_peer.py URL
"""

from __future__ import annotations

import socket
import sys

from environment import interpreter

PACKAGE = "fastmcp>=4"


def fastmcp_python() -> str:
    """A Python that has FastMCP."""
    return interpreter("fastmcp", ["fastmcp"], [PACKAGE])


def serve(url: str) -> None:
    from importlib.metadata import version

    import uvicorn
    from fastmcp.server import create_proxy

    door = socket.create_server(("127.0.0.1", 0))
    door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvicorn has it where it opens the port itself
    print(version("fastmcp"), f"http://127.0.0.1:{door.getsockname()[1]}/mcp", sep="\n", flush=True)
    app = create_proxy(url).http_app(path="/mcp")
    uvicorn.Server(uvicorn.Config(app, log_config=None, http="h11", ws="none")).run(sockets=[door])


if __name__ == "__main__":
    serve(sys.argv[1])

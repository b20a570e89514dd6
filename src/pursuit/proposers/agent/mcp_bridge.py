"""Connects the standard streams of this process with a Unix socket: the MCP server that an agent starts.

It runs as a script that needs only the standard library: `python mcp_bridge.py SOCKET`. The actual server is the
process that drives the mission, at the other end of the socket.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys

CHUNK = 1 << 16


def main(path: str) -> None:
    """Copies in both directions until one side ends."""
    joined = socket.socket(socket.AF_UNIX)
    joined.connect(path)
    ready = selectors.DefaultSelector()
    ready.register(0, selectors.EVENT_READ)
    ready.register(joined, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            data = os.read(key.fd, CHUNK)
            if not data:
                return
            if key.fd == 0:
                joined.sendall(data)
            else:
                while data:
                    data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(sys.argv[1])

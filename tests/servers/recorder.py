"""An MCP server over stdio that leaves a mark in a file for every execution."""

from __future__ import annotations

import os
import time

from pursuit.testing import SmallServer

RECORD = os.environ["RECORD"]


def mark(kind: str, key: str) -> None:
    line = f"{kind} {key} {os.getpid()}\n".encode()
    descriptor = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def step(key: str, ms: float = 5) -> str:
    """Changes the world: never to be repeated."""
    mark("step", key)
    time.sleep(ms / 1000)
    return "done"


def look(key: str) -> str:
    """Changes nothing."""
    mark("look", key)
    return "seen"


if __name__ == "__main__":
    mark("born", "-")
    SmallServer("recorder", step, look).run()

"""An MCP server over stdio that writes every execution into a file and measures what it was told."""

from __future__ import annotations

import os
import time
from typing import Any

from pursuit.testing import SmallServer

TALLY = os.environ["TALLY"]


def step(key: str, number: float = 0, ms: float = 5) -> dict[str, Any]:
    """Changes the world: never to be repeated."""
    descriptor = os.open(TALLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{key}\n".encode())
    finally:
        os.close(descriptor)
    time.sleep(ms / 1000)
    return {"metrics": {"number": number}, "key": key}


if __name__ == "__main__":
    SmallServer("tally", step).run()

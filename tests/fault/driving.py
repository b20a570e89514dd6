"""Drives one mission in a process of its own, with tools that leave marks in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio

from pursuit.config.configuration import Configuration
from pursuit.errors import PursuitError
from pursuit.runtime import Runtime


def tools(record: Path) -> list[Any]:
    async def step(key: str, ms: float) -> dict[str, Any]:
        descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{key}\n".encode())
        os.close(descriptor)
        await anyio.sleep(ms / 1000)
        return {"done": key}

    return [step]


def runtime(state: Path, record: Path) -> Runtime:
    return Runtime(state=state, config=Configuration(), servers={"world": tools(record)})


async def main(state: str, record: str, mission_id: str) -> int:
    async with runtime(Path(state), Path(record)) as here:
        try:
            result = await here.runner.run(mission_id)
        except PursuitError as error:
            sys.stdout.write(error.code)
            return 2
    sys.stdout.write(result.status)
    return 0


if __name__ == "__main__":
    from pursuit.sandbox import leave

    code = anyio.run(main, *sys.argv[1:])
    leave(code)

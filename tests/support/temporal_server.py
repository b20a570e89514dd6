"""Temporal's dev server from a wheel."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest


@pytest.fixture(scope="session")
def temporal() -> Iterator[str]:
    """The address of a server that Temporal's dev server, from a wheel, has for the tests of this process."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "never"]
    process = subprocess.Popen([Path(sys.executable).with_name("temporal"), *words], stdout=subprocess.DEVNULL)
    address = f"127.0.0.1:{port}"

    async def up() -> None:
        from temporalio.client import Client  # every test worker imports this module

        with anyio.fail_after(60):
            while True:
                try:
                    await Client.connect(address)
                    return
                except RuntimeError:
                    await anyio.sleep(0.1)

    try:
        anyio.run(up)
        yield address
    finally:
        process.terminate()
        process.wait()

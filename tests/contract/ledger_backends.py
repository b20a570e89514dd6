"""The backends of the ledger, and how the contract suites open them here and in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from postgres_server import VERSIONS

from pursuit.ledger.contract import Draft, Ledger
from pursuit.ledger.postgres import PostgresLedger
from pursuit.ledger.sqlite import SqliteLedger

GENEROUS = 120


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How to open a ledger kept in a folder, here and in the source of another process."""

    name: str
    open: Callable[[Path], Ledger]
    source: str


SQLITE = Backend(
    name="sqlite",
    open=lambda folder: SqliteLedger.open(folder / "ledger.db"),
    source="from pursuit.ledger.sqlite import SqliteLedger\nledger = SqliteLedger.open(folder / 'ledger.db')\n",
)


def on_postgres(name: str, new_database: Callable[[], str]) -> Backend:
    """A backend whose folder holds the address of a database, which the first opening makes."""

    def open_(folder: Path) -> Ledger:
        address = folder / "address"
        if not address.exists():
            address.write_text(new_database())
        return PostgresLedger.open(address.read_text())

    source = (
        "from pursuit.ledger.postgres import PostgresLedger\n"
        "ledger = PostgresLedger.open((folder / 'address').read_text())\n"
    )
    return Backend(name=name, open=open_, source=source)


BACKENDS = {"sqlite": None, **{f"postgres-{version}": version for version in VERSIONS}}
every_backend = pytest.mark.parametrize("backend", BACKENDS, indirect=True)


@asynccontextmanager
async def check(backend: Backend, folder: Path) -> AsyncIterator[Ledger]:
    """A new ledger, which must still verify afterwards."""
    async with opened(backend, folder) as ledger:
        with anyio.fail_after(GENEROUS):
            yield ledger
        found = await ledger.verify()
        assert found.ok, found.faults


@asynccontextmanager
async def opened(backend: Backend, folder: Path) -> AsyncIterator[Ledger]:
    ledger = backend.open(folder)
    try:
        yield ledger
    finally:
        await ledger.close()


@contextmanager
def another_process(backend: Backend, folder: Path, body: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the ledger open as `ledger`, runs the body of an async function and obeys its stdin."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    source = (
        "import sys, anyio\nfrom pathlib import Path\nfrom pursuit.ledger.contract import ANY, Draft\n"
        f"folder = Path(sys.argv[1])\n{backend.source}"
        "def say(word): print(word, flush=True)\n"
        "def told(): return sys.stdin.readline().strip()\n"
        f"async def main():\n{indented}\n    await ledger.close()\nanyio.run(main)\n"
    )
    command = [sys.executable, "-c", source, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def tell(process: subprocess.Popen[str], word: str) -> None:
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


async def heard(process: subprocess.Popen[str]) -> str:
    return (await anyio.to_thread.run_sync(process.stdout.readline)).strip()


def drafts(*numbers: int) -> list[Draft]:
    return [Draft("numbered", b"%d" % number) for number in numbers]


def digest(body: bytes) -> str:
    return sha256(body).hexdigest()

"""A ledger whose process is killed at a random moment keeps everything that it has acknowledged."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pursuit.ledger.sqlite import SqliteLedger

APPENDER = """
import os, sys, anyio
from pathlib import Path
from hashlib import sha256
from pursuit.ledger.contract import Draft
from pursuit.ledger.sqlite import SqliteLedger

async def write(ledger, stream):
    row = await ledger.row(stream)
    seq = row.head.seq if row else 0
    while True:
        body = b"%s %d " % (stream.encode(), seq + 1) + b"x" * (seq % 7 * 300)
        blobs = {sha256(body).hexdigest(): body} if seq % 10 == 0 else None
        events = [Draft("numbered", body), Draft("numbered", b"")]
        seq = (await ledger.append(stream, seq, events, status=str(seq), blobs=blobs)).seq
        os.write(1, b"%s %d\\n" % (stream.encode(), seq))

async def main():
    ledger = SqliteLedger.open(Path(sys.argv[1]))
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(write, ledger, f"m{number}")

anyio.run(main)
"""


def acknowledged_until_killed(path: Path, lines: int) -> dict[str, int]:
    """Lets the appender run until it has said so many lines, kills it, and returns the last word on each stream."""
    heads: dict[str, int] = {}
    with subprocess.Popen([sys.executable, "-c", APPENDER, str(path)], stdout=subprocess.PIPE) as process:
        for count, line in enumerate(process.stdout):
            stream, _, seq = line.decode().partition(" ")
            # A line cut in the middle by the kill would be no acknowledgement; os.write of so few bytes is whole.
            heads[stream] = int(seq)
            if count == lines:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return heads


@pytest.mark.parametrize("seed", [11])
async def test_no_acknowledged_event_is_lost_by_kill_9(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "ledger.db"

    async def check(heads: dict[str, int]) -> None:
        ledger = SqliteLedger.open(path)
        found = await ledger.verify()
        assert found.ok, found.faults
        for stream, seq in heads.items():
            events = await ledger.read(stream)
            assert len(events) >= seq
            assert len(events) % 2 == 0, "half an append was stored"
            for event in events[::2]:
                assert event.body.startswith(b"%s %d " % (stream.encode(), event.seq))
            row = await ledger.row(stream)
            assert row.status == str(row.head.seq - 2)
        await ledger.close()

    for _ in range(6):
        heads = acknowledged_until_killed(path, chance.randrange(1, 1500))
        assert heads
        await check(heads)

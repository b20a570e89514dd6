"""What the ledger costs over the least that SQLite needs, measured in one run on one disk.

The floor is two commits of one row each (WAL, synchronous=FULL). Rounds of all candidates are interleaved, so that a
noisy neighbour disturbs all of them, and medians are printed as ratios.

Run: python benchmarks/ledger_floor.py [--check | --smoke] [folder on the disk to measure]
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
from figures import Figure, finish, ratio_of_rounds, sized

from pursuit.ledger.contract import Draft
from pursuit.ledger.sqlite import SqliteLedger

ROUNDS = sized(9, 1)
PAIRS = sized(100, 3)
WRITERS = sized(50, 2)
PAIRS_EACH = sized(40, 2)
EVENTS_TO_LOAD = sized(40_000, 2_000)

INTENT = Draft("call_intended", json.dumps({"v": 1, "call": "c" * 26, "arguments": {"q": "x" * 170}}).encode())
SETTLED = Draft("call_settled", json.dumps({"v": 1, "call": "c" * 26, "outcome": {"text": "y" * 220}}).encode())


def open_floor(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")
    return connection


def floor_pair_seconds(connection: sqlite3.Connection) -> float:
    begin = time.perf_counter()
    for _ in range(PAIRS):
        for draft in (INTENT, SETTLED):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows (body) VALUES (?)", (draft.body,))
            connection.execute("COMMIT")
    return (time.perf_counter() - begin) / PAIRS


async def append_pairs(ledger: SqliteLedger, stream: str, pairs: int) -> None:
    row = await ledger.row(stream)
    seq = row.head.seq if row else 0
    for _ in range(pairs):
        seq = (await ledger.append(stream, seq, [INTENT])).seq
        seq = (await ledger.append(stream, seq, [SETTLED])).seq


async def one_stream_pair_seconds(ledger: SqliteLedger) -> float:
    begin = time.perf_counter()
    await append_pairs(ledger, "alone", PAIRS)
    return (time.perf_counter() - begin) / PAIRS


async def concurrent_pair_seconds(ledger: SqliteLedger) -> float:
    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(WRITERS):
            tasks.start_soon(append_pairs, ledger, f"m{number}", PAIRS_EACH)
    return (time.perf_counter() - begin) / (WRITERS * PAIRS_EACH)


async def load_seconds(ledger: SqliteLedger) -> float:
    begin = time.perf_counter()
    events = await ledger.read("long")
    assert len(events) == EVENTS_TO_LOAD
    return time.perf_counter() - begin


async def measure(folder: Path) -> list[Figure]:
    floor = open_floor(folder)
    ledger = SqliteLedger.open(folder / "ledger.db")
    for start in range(0, EVENTS_TO_LOAD, 2000):
        await ledger.append("long", start, [SETTLED] * 2000)
    floors: list[float] = []
    alone: list[float] = []
    together: list[float] = []
    loads: list[float] = []
    for _ in range(ROUNDS):
        floors.append(floor_pair_seconds(floor))
        alone.append(await one_stream_pair_seconds(ledger))
        together.append(await concurrent_pair_seconds(ledger))
        loads.append(await load_seconds(ledger))
    found = await ledger.verify()
    await ledger.close()
    floor.close()
    assert found.ok, found.faults
    rate = 1 / statistics.median(together)
    return [
        Figure(what="the floor: two commits of one row", value=statistics.median(floors) * 1e6, unit="us"),
        Figure(what="one stream", value=ratio_of_rounds(alone, floors), unit="x the floor", limit=2.5),
        Figure(what=f"{WRITERS} streams at once", value=rate, unit="pairs/s"),
        Figure(what="  by the floor's rate", value=statistics.median(floors) * rate, unit="x"),
        Figure(
            what=f"loading {EVENTS_TO_LOAD:,} events", value=statistics.median(loads), unit="s", rule="<", limit=0.5
        ),
    ]


def main() -> None:
    where = next((word for word in sys.argv[1:] if not word.startswith("--")), None)
    with tempfile.TemporaryDirectory(dir=where) as folder:
        figures = anyio.run(measure, Path(folder))
    finish(f"The ledger alone ({ROUNDS} interleaved rounds)", figures)


if __name__ == "__main__":
    main()

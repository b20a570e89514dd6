"""How long it takes to find a lesson among those of ten thousand missions.

The missions have texts as `model.lessons` writes them, made up of a few hundred words of which some are in every second
text; every search is for all words of one mission's goal, of which one is its own, and must find it first. A second
kind is for two words that thousands of texts have. A second ledger holds one mission that ran ten thousand times, where
every word that is looked for is in every text. The floor is what anybody would write without an index: a scan with LIKE
for the same words over the same texts in a plain table.

Run: python benchmarks/memory.py [--check | --smoke]
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
from figures import Figure, finish, ratio_of_rounds, sized

from pursuit.engine.lessons import recall
from pursuit.ledger.contract import Draft
from pursuit.ledger.sqlite import SqliteLedger, search_words

MISSIONS = sized(10_000, 200)
SEARCHES = sized(200, 8)
AT_ONCE = 200
PARTS = ["checkout", "billing", "search", "ingest", "render", "export"]
THINGS = [f"{one}{two}" for one in PARTS for two in ("", " service")]
QUALITIES = ["latency", "throughput", "accuracy", "coverage", "cost", "memory", "errors", "availability"]
VERBS = ["lowered", "raised", "broke", "improved", "slowed", "doubled", "halved", "stabilised"]
CAUSES = [f"{one} {two}" for one in ("cache", "batch", "index", "shard") for two in ("size", "depth", "limit")]


def text_of(number: int) -> str:
    """What one mission leaves; its odd words are its own."""
    pick = random.Random(number)
    thing, quality = pick.choice(THINGS), pick.choice(QUALITIES)
    lines = [
        f"Bring the {quality} of the {thing} under {pick.randrange(10, 900)} for customer{number}",
        pick.choice(("completed: criteria_met", "terminated: max_iterations")),
        f"{quality}_ms < {pick.randrange(10, 900)}; event certified; world.tune; world.measure",
    ]
    lines += [
        f"Changing the {pick.choice(CAUSES)} {pick.choice(VERBS)} the {pick.choice(QUALITIES)} of region{number % 977} "
        f'by world.tune with {{"x":{pick.random():.4f}}} in iteration {pick.randrange(40)}.'
        for _ in range(6)
    ]
    return "\n".join(lines)


NIGHTLY = (
    "Get the checkout service p95 latency below 200 ms while the error rate stays under 1 percent and the throughput "
    "of orders stays above 500 requests per second"
)
ABOUT = "p95_latency_ms < 200; error_rate_percent < 1; throughput_rps >= 500; shop.tune; shop.measure; shop.deploy"


def same_text(number: int) -> str:
    """What the same mission leaves each time; only its numbers are its own."""
    pick = random.Random(number)
    lessons = [
        f"p95_latency_ms < 200 was met: the best p95_latency_ms was {pick.randrange(100, 200)}, from shop.tune with "
        f'{{"cache_mb":{pick.randrange(1000)}}} in iteration {pick.randrange(40)}.',
        "error_rate_percent < 1 was met: the best error_rate_percent was 0.5, from shop.measure in iteration 3.",
        "shop.tune failed 3 of 20 times: ValueError: cache_mb must not be negative (3 times).",
    ]
    return "\n".join([NIGHTLY, "completed: criteria_met", ABOUT, *lessons])


async def fill(ledger: SqliteLedger, text_of: Callable[[int], str] = text_of) -> None:
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def one(number: int) -> None:
        async with limiter:
            await ledger.append(f"mission-{number:016x}", 0, [Draft("x", b"{}")], text=text_of(number))

    async with anyio.create_task_group() as tasks:
        for number in range(MISSIONS):
            tasks.start_soon(one, number)


def scanned(connection: sqlite3.Connection, words: list[str]) -> list[int]:
    """The floor: every word by LIKE, the most words first."""
    score = " + ".join("(text LIKE ?)" for _ in words)
    query = f"SELECT rowid FROM plain ORDER BY {score} DESC LIMIT 5"
    return [row[0] for row in connection.execute(query, [f"%{word}%" for word in words])]


async def repeated(folder: Path) -> float:
    """How long the lessons of the same mission take to be found, 95th percentile; the newest come first."""
    ledger = SqliteLedger.open(folder / "nightly.db")
    await fill(ledger, same_text)
    took: list[float] = []
    for number in range(SEARCHES):
        words = (f"{ABOUT} {NIGHTLY}", NIGHTLY, "checkout latency", "cache negative")[number % 4]
        begin = time.perf_counter()
        found = await recall(ledger, words, limit=6)
        took.append(time.perf_counter() - begin)
        assert len(found) == 6
    await ledger.close()
    return statistics.quantiles(took, n=20)[-1]


async def measure(folder: Path) -> list[Figure]:
    path = folder / "ledger.db"
    ledger = SqliteLedger.open(path)
    await fill(ledger)
    ours: list[float] = []
    theirs: list[float] = []
    with closing(sqlite3.connect(folder / "plain.db")) as floor:
        floor.execute("CREATE TABLE plain (text TEXT)")
        floor.executemany("INSERT INTO plain (rowid, text) VALUES (?, ?)", ((n, text_of(n)) for n in range(MISSIONS)))
        floor.commit()
        for number in random.Random(1).sample(range(MISSIONS), SEARCHES):
            directive = text_of(number).split("\n")[0]
            begin = time.perf_counter()
            found = await recall(ledger, directive, limit=5)
            ours.append(time.perf_counter() - begin)
            assert found[0].row.name == f"mission-{number:016x}", directive
            begin = time.perf_counter()
            rows = scanned(floor, search_words(directive))
            theirs.append(time.perf_counter() - begin)
            assert number in rows
    common: list[float] = []
    for part in PARTS:
        for quality in QUALITIES:
            begin = time.perf_counter()
            assert len(await recall(ledger, f"{part} {quality}", limit=5)) == 5
            common.append(time.perf_counter() - begin)
    await ledger.close()
    alike = await repeated(folder)
    worst = statistics.quantiles(ours, n=20)[-1]
    many = statistics.quantiles(common, n=20)[-1]
    return [
        Figure(what="a lesson found, median", value=statistics.median(ours) * 1e3, unit="ms", rule="<", limit=50),
        Figure(what="the same, 95th percentile", value=worst * 1e3, unit="ms", rule="<", limit=50),
        Figure(what="by two common words, 95th percentile", value=many * 1e3, unit="ms", rule="<", limit=50),
        Figure(what="of one mission run each night, 95th percentile", value=alike * 1e3, unit="ms", rule="<", limit=50),
        Figure(what="by a LIKE scan of the same texts", value=ratio_of_rounds(ours, theirs), unit="x", limit=0.5),
        Figure(what="the LIKE scan, median", value=statistics.median(theirs) * 1e3, unit="ms"),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        figures = anyio.run(measure, Path(name))
    finish(f"Lessons of {MISSIONS:,} missions, searched by the words of a goal", figures)


if __name__ == "__main__":
    main()

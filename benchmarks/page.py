"""What the page costs: long histories, many missions, many viewers.

The page is served by `pursuit page` in a process of its own, over ledgers that are filled first. A viewer of the last
two figures is an open live connection: one in a real Chromium, where there is one, the others in a further process. The
mission that they watch is driven by a third process, as `pursuit run` drives it.

Run: python benchmarks/page.py [--check | --smoke]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized

from pursuit import Budget, Mission, RepeatProposer, Runtime, metric
from pursuit.config.configuration import Configuration
from pursuit.core.events import IterationEnded, MissionCreated, MissionEnded, decode, encode
from pursuit.core.fold import advance, summary_of
from pursuit.ledger.contract import Draft
from pursuit.service.queries import new_mission_id

LONG, SHORT = sized(10_000, 40), 10
MANY, FEW = sized(10_000, 30), sized(100, 10)
VIEWERS = sized(99, 3)
ROUNDS = sized(15, 2)
DRIVE_SECONDS = sized(8, 1)
WATCHED_ITERATIONS = sized(60, 4)
STEP_SECONDS = 0.15
FORM = ["--smoke"] if SMOKE else []
INTERVAL = 0.2
"""Seconds between two updates of a viewer."""


def measure_part(x: float = 1.0) -> dict[str, Any]:
    """One measurement of the work."""
    return {"metrics": {"loss": 1.0 + x}}


async def pause_and_measure(x: float = 1.0) -> dict[str, Any]:
    """The same, slowly."""
    await anyio.sleep(STEP_SECONDS)
    return measure_part(x)


def opened(state: Path) -> Runtime:
    return Runtime(state=state, config=Configuration(), servers={"bench": [measure_part, pause_and_measure]})


def mission(iterations: int, tool: str = "measure_part") -> Mission:
    return Mission(
        directive="Bring the loss to zero",
        criteria=[metric("loss") <= 0],
        budget=Budget(max_iterations=iterations),
        tool_allowlist=[f"bench.{tool}"],
        stagnation_threshold="off",
        proposer=RepeatProposer(tool_name=tool),
    )


async def long_and_short(state: Path) -> list[str]:
    """Two missions in one ledger, one with a long history."""
    async with opened(state) as runtime:
        ids = [(await runtime.runner.start(mission(count))).session_id for count in (LONG, SHORT)]
        for mission_id in ids:
            await runtime.runner.run(mission_id)
        return ids


async def many(state: Path, count: int) -> None:
    """Missions that ended, as the ledger has them, and a few that did not."""
    turn = anyio.CapacityLimiter(100)

    async def one(number: int) -> None:
        created = MissionCreated(
            at=time.time(), mission=mission(1).model_dump(mode="json"), tools=["bench.measure_part"]
        )
        state = advance(None, created)
        drafts = [Draft(*encode(created))]
        if number % 20:
            ended = MissionEnded(at=time.time(), status="terminated", verdict="terminate", reason="user_abort")
            state = advance(state, ended)
            drafts.append(Draft(*encode(ended)))
        async with turn:
            summary = summary_of(state)
            await runtime.runner.ledger.append(new_mission_id(), 0, drafts, status=state.status, summary=summary)

    async with opened(state) as runtime, anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)


@contextmanager
def served(state: Path) -> Iterator[httpx2.Client]:
    """The page of a ledger, and a client that is signed in."""
    words = [sys.executable, "-m", "pursuit", "page", "--no-browser", "--json", "--state", str(state)]
    trusting = {**os.environ, "PURSUIT_TRUST": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=trusting) as process:
        try:
            assert process.stdout is not None
            link = json.loads(process.stdout.readline())["page"]
            parts = urlsplit(link)
            with httpx2.Client(base_url=f"http://{parts.netloc}", timeout=120, trust_env=False) as wire:
                assert wire.get(f"{parts.path}?{parts.query}").status_code == 303
                yield wire
        finally:
            process.terminate()
            process.wait(timeout=30)


def origin(wire: httpx2.Client) -> str:
    return str(wire.base_url).rstrip("/")


def seconds_for(wire: httpx2.Client, path: str) -> float:
    began = time.perf_counter()
    answer = wire.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - began


@contextmanager
def chromium(wire: httpx2.Client) -> Iterator[Any]:
    """A page of a real browser that is signed in, or None where there is no browser."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "page"))
    try:
        from browser import INSTALLED, open_chromium  # Debian's, or the one that `make test` installs
    except ImportError:
        yield None
        return
    if shutil.which("chromium") is None and not (INSTALLED / ".installed").exists():
        yield None
        return
    with open_chromium() as browser:
        context = browser.new_context()
        (cookie,) = wire.cookies.jar
        context.add_cookies([{"name": cookie.name, "value": cookie.value or "", "url": origin(wire) + "/page"}])
        yield context.new_page()


PAINT = """() => new Promise((done) => {
  const look = () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    paint ? done(paint.startTime) : setTimeout(look, 5);
  };
  look();
})"""


def first_paint(tab: Any, wire: httpx2.Client, path: str) -> float:
    """Seconds from the request to the first content on the screen; without a browser, to the end of the answer."""
    if tab is None:
        return seconds_for(wire, path)
    tab.goto(origin(wire) + path)
    return tab.evaluate(PAINT) / 1_000


def painted(folder: Path) -> list[Figure]:
    """First paint of a long history by that of a short one."""
    state = folder / "long.db"
    long, short = anyio.run(long_and_short, state)
    figures: list[Figure] = []
    with served(state) as wire, chromium(wire) as tab:
        for what, path in (("mission", "/page/missions/{}"), ("timeline", "/page/missions/{}/timeline")):
            spent: dict[str, list[float]] = {long: [], short: []}
            for mission_id in (long, short):
                seconds_for(wire, path.format(mission_id))  # a server folds a history once
            for _ in range(ROUNDS):
                for mission_id, seconds in spent.items():
                    seconds.append(first_paint(tab, wire, path.format(mission_id)))
            ratio = ratio_of_rounds(spent[long], spent[short])
            where = "first paint" if tab is not None else "answer"
            name = f"{where} of the {what}, {LONG:,} iterations by {SHORT}"
            figures.append(Figure(what=name, value=ratio, unit="x", limit=1.5))
    return figures


def listed(folder: Path) -> Figure:
    """The list of many missions by that of few."""
    spent: dict[int, list[float]] = {}
    with ExitStack() as stack:
        wires: dict[int, httpx2.Client] = {}
        for count in (MANY, FEW):
            state = folder / f"{count}.db"
            anyio.run(many, state, count)
            wires[count] = stack.enter_context(served(state))
            seconds_for(wires[count], "/page/missions")
        for _ in range(ROUNDS):
            for count, wire in wires.items():
                spent.setdefault(count, []).append(seconds_for(wire, "/page/missions"))
    ratio = ratio_of_rounds(spent[MANY], spent[FEW])
    return Figure(what=f"{MANY:,} missions listed by {FEW}", value=ratio, unit="x", limit=2)


@contextmanager
def watching(wire: httpx2.Client, path: str) -> Iterator[None]:
    """So many viewers of a live view, in a process of their own, which says when all of them have it."""
    (cookie,) = wire.cookies.jar
    words = [
        sys.executable,
        __file__,
        "--viewers",
        origin(wire) + path,
        f"{cookie.name}={cookie.value}",
        *FORM,
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "all\n"
            yield
        finally:
            process.kill()


async def view(url: str, cookie: str) -> None:
    """Keeps the live connections open and reads what comes."""
    ready = 0

    async def one() -> None:
        nonlocal ready
        async with wire.stream("GET", url) as stream:
            first = True
            async for _ in stream.aiter_raw():
                ready += first
                if first and ready == VIEWERS:
                    print("all", flush=True)
                first = False

    limits = httpx2.Limits(max_connections=None)
    headers = {"Cookie": cookie}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=None, trust_env=False, limits=limits) as wire,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(VIEWERS):
            tasks.start_soon(one)


async def drive(state: Path, mission_id: str, seconds: float) -> None:
    """Drives a mission for some time, and prints how many iterations a second it did."""
    async with opened(state) as runtime:
        before = (await runtime.runner.state(mission_id)).iteration_count
        began = time.perf_counter()
        with anyio.move_on_after(seconds):
            await runtime.runner.run(mission_id)
        spent = time.perf_counter() - began
        after = (await runtime.runner.state(mission_id)).iteration_count
        print((after - before) / spent, flush=True)


def driven(state: Path, mission_id: str, seconds: float) -> float:
    words = [sys.executable, __file__, "--drive", str(state), mission_id, str(seconds), *FORM]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


async def start(state: Path, tool: str) -> str:
    async with opened(state) as runtime:
        return (await runtime.runner.start(mission(1_000_000, tool))).session_id


async def ended(state: Path, mission_id: str) -> dict[int, float]:
    """When each iteration ended, by the wall clock of its driver."""
    async with opened(state) as runtime:
        stored = [decode(one.type, one.body) for one in await runtime.runner.ledger.read(mission_id)]
    return {one.iteration: one.at for one in stored if isinstance(one, IterationEnded)}


SEEN = """() => {
  window.seen = [];
  const look = () => {
    const head = document.querySelector('[data-head]');
    if (head) window.seen.push([Number(head.dataset.head.split(' ')[0]), Date.now() / 1000]);
  };
  const all = {subtree: true, childList: true, attributes: true, characterData: true};
  new MutationObserver(look).observe(document.getElementById('live'), all);
}"""


def watched(folder: Path) -> list[Figure]:
    """The driver's speed with viewers by that without, and how long an event takes to the screen."""
    state = folder / "watched.db"
    fast, slow = anyio.run(start, state, "measure_part"), anyio.run(start, state, "pause_and_measure")
    speeds: dict[bool, list[float]] = {True: [], False: []}
    figures: list[Figure] = []
    with served(state) as wire:
        path = "/page/missions/{}/live"
        for _ in range(sized(3, 1)):
            speeds[False].append(driven(state, fast, DRIVE_SECONDS))
            with watching(wire, path.format(fast)):
                speeds[True].append(driven(state, fast, DRIVE_SECONDS))
        ratio = ratio_of_rounds(speeds[True], speeds[False])
        name = f"steps a second of a driver with {VIEWERS} viewers by none"
        figures.append(Figure(what=name, value=ratio, unit="x", rule=">=", limit=0.8))
        with chromium(wire) as tab:
            if tab is None:
                return figures
            with watching(wire, path.format(slow)):
                tab.goto(f"{origin(wire)}/page/missions/{slow}")
                tab.evaluate(SEEN)
                driven(state, slow, WATCHED_ITERATIONS * STEP_SECONDS * 1.2)
                tab.wait_for_timeout(1_000)
                seen = tab.evaluate("window.seen")
    waits: list[float] = []
    for iteration, at in anyio.run(ended, state, slow).items():
        shown = next((when for count, when in seen if count > iteration), None)
        if shown is not None:
            waits.append(shown - at)
    p95 = statistics.quantiles(waits, n=20)[-1] if len(waits) > 1 else 0.0
    what = f"event to screen, p95 with {VIEWERS + 1} viewers, in intervals of {INTERVAL * 1_000:.0f} ms"
    return [*figures, Figure(what=what, value=p95 / INTERVAL, unit="intervals", limit=2)]


def main() -> None:
    if "--viewers" in sys.argv:
        at = sys.argv.index("--viewers")
        with suppress(KeyboardInterrupt):
            anyio.run(view, *sys.argv[at + 1 : at + 3])
        return
    if "--drive" in sys.argv:
        state, mission_id, seconds = sys.argv[sys.argv.index("--drive") + 1 :][:3]
        anyio.run(drive, Path(state), mission_id, float(seconds))
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        figures = [*painted(place), listed(place), *watched(place)]

    finish("the page", figures)


if __name__ == "__main__":
    main()

"""What a conversation with a model costs: tokens against other agents, and our own time for a request.

Tokens: Pursuit, pydantic-ai's `Agent` and LangGraph's ReAct agent do the same coding task of forty steps with the same
scripted model, behind the stand-ins of the tests (`tests/servers`), which validate our requests, count the tokens and
simulate the provider's prompt cache. The peers' requests are only counted, and their caches are on. Compared are the
requests that every agent makes.

Time: a mission with a model that answers at once. Our time for a request is what passes outside of the model between
the phases `propose` and `execute`: fold, build, record. The floor is `json.dumps` of the same messages and one commit
of one row (WAL, synchronous=FULL), measured at the same request. How our time grows is measured with small steps and
without the floor, whose work grows with the conversation; the first request of each run is measured on its own, because
a run must not make the conversation anew.

Run: python benchmarks/models.py [--check | --smoke]
"""

from __future__ import annotations

import json
import operator
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized
from ledger_floor import open_floor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "servers"))
os.environ["TASK_STEPS"] = str(sized(40, 9))  # for this process and those that it starts

from coding_task import GOAL, INSTRUCTIONS, MODELS, STEPS, Workspace, plan  # noqa: E402
from model_endpoint import EndpointProcess  # noqa: E402
from react_peer import react_python  # noqa: E402

from pursuit import Budget, Mission, Runtime, metric  # noqa: E402
from pursuit.config.configuration import Configuration  # noqa: E402
from pursuit.core.events import ModelAnswer, WantedCall  # noqa: E402
from pursuit.core.state import MissionState  # noqa: E402
from pursuit.engine.driver import Driver, RunOrder  # noqa: E402
from pursuit.proposers.language import AssistantMessage, Message, ModelAccess, Terms  # noqa: E402

SHAPES = ("openai-chat",) if SMOKE else tuple(MODELS)
FROM = sized(10, 4)
"""The request from which on the cache must hold most of what is sent."""
ROUNDS, PAIRS = sized(5, 1), sized(15, 1)
"""How often the task is timed, and a young mission beside the old one."""
BEFORE, SLICE = sized(3, 1), sized(2, 1)
"""Iterations of the young mission before it is measured, up to about 200 events, and runs that a round measures."""
LATE = sized(1_800, 100)
"""Events of the old mission before it is measured, up to about 2,200."""
PROPOSERS = {
    "openai-chat": "openai:gpt-4o-mini",
    "openai-responses": "openai-responses:gpt-5-mini",
    "anthropic": "anthropic:claude-haiku-4-5",
}


# -- tokens


def coding_mission(proposer: Any) -> Mission:
    return Mission(
        directive=GOAL,
        criteria=[metric("failed") <= 0],
        budget=Budget(max_iterations=10 * STEPS),
        allow_all_tools=True,
        stagnation_threshold="off",
        proposer=proposer,
    )


def by_pursuit(shape: str, folder: Path) -> None:
    async def run() -> None:
        servers = {"code": Workspace().tools}
        async with Runtime(state=folder / "ledger.db", config=Configuration(), servers=servers) as runtime:
            proposer = {"kind": "model", "model": PROPOSERS[shape], "instructions": INSTRUCTIONS}
            report = await runtime.pursue(coding_mission(proposer))
            assert report.verdict_reason == "criteria_met", report.verdict_reason

    anyio.run(run)


def by_pydantic_ai(shape: str, _folder: Path) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.usage import UsageLimits

    cached = ("anthropic_cache_instructions", "anthropic_cache_tool_definitions", "anthropic_cache_messages")
    settings: Any = dict.fromkeys(cached, True) if shape == "anthropic" else {}
    name = f"{shape}:{MODELS[shape]}"
    agent = Agent(name, tools=Workspace().tools, instructions=INSTRUCTIONS, model_settings=settings)
    agent.run_sync(GOAL, usage_limits=UsageLimits(request_limit=None))


def by_langgraph(shape: str, _folder: Path) -> None:
    words = [react_python(), str(HERE / "react_peer.py"), shape]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "LANGSMITH_TRACING": "false"})


PEERS: dict[str, Callable[[str, Path], None]] = {"pydantic-ai": by_pydantic_ai}
if not SMOKE:
    PEERS["LangGraph"] = by_langgraph


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Input tokens of the requests that every agent makes."""

    total: int
    uncached: int
    share: float
    """What the cache held of them from the request `FROM` on."""


def tokens_of(agent: Callable[[str, Path], None], shape: str) -> Tokens:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, strict = HERE / "coding_task.py", agent is by_pursuit
        with EndpointProcess.serving(script, "model", folder / "seen.jsonl", strict=strict) as endpoint:
            os.environ.update(endpoint.environment)
            agent(shape, folder)
        seen = endpoint.seen()[:STEPS]
    assert [request["shape"] for request in seen] == [shape] * STEPS, f"{len(seen)} requests instead of {STEPS}"
    used = [request["usage"] for request in seen]
    cached = [one["cached"] for one in used]
    totals = [sum(one.values()) for one in used]
    return Tokens(
        total=sum(totals),
        uncached=sum(totals) - sum(cached),
        share=sum(cached[FROM - 1 :]) / sum(totals[FROM - 1 :]),
    )


def compared() -> list[Figure]:
    figures: list[Figure] = []
    for shape in SHAPES:
        ours = tokens_of(by_pursuit, shape)
        print(f"{shape}: {ours}", flush=True)
        theirs = {name: tokens_of(run, shape) for name, run in PEERS.items()}
        for name, one in {"Pursuit": ours, **theirs}.items():
            figures.append(Figure(what=f"{shape}: input tokens of {name}", value=one.total / 1_000, unit="k"))
            figures.append(Figure(what="  not from the cache", value=one.uncached / 1_000, unit="k"))
            figures.append(Figure(what=f"  from the cache, from request {FROM} on", value=one.share * 100, unit="%"))
        least, fresh = min(one.total for one in theirs.values()), min(one.uncached for one in theirs.values())
        figures += [
            Figure(what=f"{shape}: input tokens", value=ours.total / least, unit="x the better peer", limit=1.1),
            Figure(what="  not from the cache", value=ours.uncached / fresh, unit="x the better peer", limit=1.1),
            Figure(what="  from the cache", value=ours.share * 100, unit="%", rule=">=", limit=80),
        ]
    return figures


# -- time


@dataclass(slots=True, kw_only=True)
class Instant:
    """A model that answers at once with the next call; and the clock of our own time around it."""

    call: Callable[[int], tuple[str, dict[str, Any]]]
    floor: sqlite3.Connection | None = None
    name: str = "instant:model"
    terms: Terms = field(default_factory=Terms)
    ours: list[float] = field(default_factory=list[float])
    floors: list[float] = field(default_factory=list[float])
    asked: int = 0
    began: float = 0.0
    before: float = 0.0
    ended: float = 0.0

    def open(self, _name: str) -> Instant:
        return self

    async def check(self, _name: str) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def priced(self, _name: str) -> bool:
        return False

    async def answer(self, request: Any) -> ModelAnswer:
        self.before = time.perf_counter() - self.began
        if self.floor is not None:
            self.floors.append(floor_of(self.floor, request))
        place, self.asked = self.asked, self.asked + 1
        name, args = self.call(place)
        call = WantedCall(name=f"code__{name}", args=args, id=f"call_{place}")
        answer = ModelAnswer(calls=[call], text=f"Step {place}.", model=self.name, input_tokens=100, output_tokens=10)
        self.ended = time.perf_counter()
        return answer

    def observe(self, _mission: str, phase: str, _state: MissionState) -> None:
        now = time.perf_counter()
        if phase == "propose":
            self.began = now
        elif phase == "execute" and len(self.ours) < self.asked:
            self.ours.append(self.before + now - self.ended)


def seen(message: Message) -> Any:
    """A message as a model sees it: for an answer the provider's own parts, if it gave any."""
    if not isinstance(message, AssistantMessage):
        return message
    native = message.answer.native
    return [message.answer.text, message.answer.calls] if native is None else native.get("parts")


def floor_of(ledger: sqlite3.Connection, request: Any) -> float:
    """The time for `json.dumps` of the messages of a request and one commit."""
    plain = msgspec.to_builtins([request.system, *map(seen, request.messages)])
    begin = time.perf_counter()
    body = json.dumps(plain).encode()
    ledger.execute("BEGIN IMMEDIATE")
    ledger.execute("INSERT INTO rows (body) VALUES (?)", (body[-500:],))
    ledger.execute("COMMIT")
    return time.perf_counter() - begin


def step(number: int) -> dict[str, Any]:
    """One small step."""
    return {"text": f"step {number} is done", "metrics": {"failed": 1}}


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A mission whose requests are timed."""

    model: Instant
    driver: Driver
    mission_id: str

    @classmethod
    async def begin(cls, runtime: Runtime, model: Instant) -> Timed:
        place = replace(runtime.runner.driver.place, access=ModelAccess(models=model))
        driver = replace(runtime.runner.driver, place=place)
        service = replace(runtime.runner, driver=driver, models=model)
        started = await service.start(coding_mission({"kind": "model", "model": model.name}))
        return cls(model=model, driver=driver, mission_id=started.session_id)

    async def drive(self, iterations: int | None = None) -> list[float]:
        """Our times for the requests of one run of so many iterations."""
        first = len(self.model.ours)
        await self.driver.drive(RunOrder(self.mission_id, iterations=iterations, observer=self.model.observe))
        return self.model.ours[first:]

    async def events(self) -> int:
        return len(await self.driver.ledger.read(self.mission_id))


async def against_the_floor(folder: Path) -> float:
    """Our time for a request of the task by the floor, as the median of the rounds."""
    floor = open_floor(folder)
    medians: list[float] = []
    for number in range(ROUNDS + 1):
        servers = {"code": Workspace().tools}
        async with Runtime(state=folder / f"{number}.db", config=Configuration(), servers=servers) as runtime:
            run = await Timed.begin(runtime, Instant(call=plan, floor=floor))
            times = await run.drive()
            assert len(times) == STEPS, f"{len(times)} requests instead of {STEPS}"
            medians.append(statistics.median(map(operator.truediv, times, run.model.floors)))
    floor.close()
    return statistics.median(medians[1:])  # the first round warms everything up


def little(place: int) -> tuple[str, dict[str, Any]]:
    return "step", {"number": place}


async def growth(folder: Path) -> list[Figure]:
    """Our time for a small request in a young mission and in an old one, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in ("young", "old", "young first", "old first")}
    async with Runtime(state=folder / "old.db", config=Configuration(), servers={"code": [step]}) as runtime:
        ageing = await Timed.begin(runtime, Instant(call=little))
        while await ageing.events() < LATE:
            await ageing.drive(SLICE)
        for _ in range(PAIRS):
            youth = await Timed.begin(runtime, Instant(call=little))
            await youth.drive(BEFORE)
            runs = [(await youth.drive(1), await ageing.drive(1)) for _ in range(SLICE)]
            for name, some in zip(("young", "old"), zip(*runs, strict=True), strict=True):
                times[name].append(statistics.median(one for run in some for one in run))
                times[f"{name} first"].append(statistics.median(run[0] for run in some))
        early, late = await youth.events(), await ageing.events()
    small = ratio_of_rounds(times["old"], times["young"])
    again = ratio_of_rounds(times["old first"], times["young first"])
    shown = statistics.median(times["young"]) * 1e3
    return [
        Figure(what=f"our time for a small request, up to {early:,} events", value=shown, unit="ms"),
        Figure(what=f"  at {late:,} events, by that", value=small, unit="x", limit=1.3),
        Figure(what="  the first request of a run, by that", value=again, unit="x", limit=1.3),
    ]


async def in_time(folder: Path) -> list[Figure]:
    spent = await against_the_floor(folder)
    task = Figure(what="our time for a request of the task", value=spent, unit="x the floor", limit=2)
    return [task, *await growth(folder)]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        spent = anyio.run(in_time, Path(name))
    for figure in spent:
        print(*figure.row(), flush=True)
    finish(f"A coding task of {STEPS} steps with a scripted model", [*compared(), *spent])


if __name__ == "__main__":
    main()

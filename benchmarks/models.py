"""What a conversation with a model costs: tokens against other agents, and our own time for a request.

Tokens: Pursuit, pydantic-ai's `Agent` and LangGraph's ReAct agent do the same coding task of forty steps with the same
scripted model, behind the stand-ins of the tests (`tests/servers`), which validate our requests, count the tokens and
simulate the provider's prompt cache. The peers' requests are only counted, and their caches are on. Compared are the
requests that every agent makes.

Time: a mission with a model that answers at once. Our time for a request is what passes outside of the model between
the phases `propose` and `execute`: fold, build, record. The floor is `json.dumps` of the same messages and one commit
of one row (WAL, synchronous=FULL), measured at the same request.

Run: python benchmarks/models.py [--check | --smoke]
"""

from __future__ import annotations

import json
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
from figures import SMOKE, Figure, finish, sized
from ledger_floor import open_floor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "servers"))
os.environ["TASK_STEPS"] = str(sized(40, 9))  # for this process and those that it starts

from coding_task import GOAL, INSTRUCTIONS, MODELS, STEPS, Workspace, plan  # noqa: E402
from model_endpoint import EndpointProcess  # noqa: E402
from react_peer import interpreter  # noqa: E402

from pursuit import Budget, Mission, Runtime, metric  # noqa: E402
from pursuit.config.configuration import Configuration  # noqa: E402
from pursuit.core.events import ModelAnswer, ModelAnswered, WantedCall  # noqa: E402
from pursuit.core.state import MissionState  # noqa: E402
from pursuit.proposers.choice import Choice  # noqa: E402
from pursuit.proposers.language import Terms  # noqa: E402

SHAPES = ("openai-chat",) if SMOKE else tuple(MODELS)
FROM = sized(10, 4)
"""The request from which on the cache must hold most of what is sent."""
ROUNDS = sized(3, 1)
EARLY, LATE = sized(200, 40), sized(2_000, 80)
NEAR = sized(100, 10)
"""How many events around `EARLY` and `LATE` are measured."""
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
    words = [interpreter(), str(HERE / "react_peer.py"), shape]
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

    floor: sqlite3.Connection
    call: Callable[[int], tuple[str, dict[str, Any]]]
    name: str = "instant:model"
    terms: Terms = field(default_factory=Terms)
    ours: list[float] = field(default_factory=list[float])
    floors: list[float] = field(default_factory=list[float])
    ends: float = 0.0
    began: float = 0.0
    before: float = 0.0
    events: list[int] = field(default_factory=list[int])
    """How many events the mission had at each answer."""

    def near(self, age: int) -> list[float]:
        """Our times for the requests around this number of events."""
        found = [ours for ours, events in zip(self.ours, self.events, strict=True) if abs(events - age) <= NEAR]
        assert found, f"no request has about {age} events"
        return found

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
        plain = msgspec.to_builtins([request.system, *(message.sent for message in request.messages)])
        begin = time.perf_counter()
        body = json.dumps(plain).encode()
        self.floor.execute("BEGIN IMMEDIATE")
        self.floor.execute("INSERT INTO rows (body) VALUES (?)", (body[-500:],))
        self.floor.execute("COMMIT")
        self.floors.append(time.perf_counter() - begin)
        place = len(self.floors) - 1
        name, args = self.call(place)
        call = WantedCall(name=f"code__{name}", args=args, id=f"call_{place}")
        answer = ModelAnswer(calls=[call], text=f"Step {place}.", model=self.name, input_tokens=100, output_tokens=10)
        self.ends = time.perf_counter()
        return answer

    def observe(self, _mission: str, phase: str, _state: MissionState) -> None:
        now = time.perf_counter()
        if phase == "propose":
            self.began = now
        elif phase == "execute" and len(self.ours) < len(self.floors):
            self.ours.append(self.before + now - self.ends)


async def timed(folder: Path, call: Callable[[int], tuple[str, dict[str, Any]]], requests: int) -> Instant:
    """A mission of so many requests; the first of them warm everything up."""
    folder.mkdir()
    floor = open_floor(folder)
    model = Instant(floor=floor, call=call)

    def step(number: int) -> dict[str, Any]:
        """One small step."""
        if number == requests - 1:
            return {"text": "the last one", "metrics": {"failed": 0}}
        return {"text": f"step {number} is done", "metrics": {"failed": requests - number}}

    servers = {"code": [*Workspace().tools, step]}
    async with Runtime(state=folder / "ledger.db", config=Configuration(), servers=servers) as runtime:
        service = runtime.service
        choice = Choice(models=model)
        driver = replace(service.driver, proposer_for=choice, ready=choice.ready)
        service = replace(service, driver=driver, models=model)
        started = await service.start(coding_mission({"kind": "model", "model": model.name}))
        await driver.drive(started.session_id, observer=model.observe)
        state = await service.state(started.session_id)
        assert (state.verdict_reason, len(model.ours)) == ("criteria_met", requests), state.verdict_reason
        kinds = [event.type for event in await service.ledger.read(started.session_id)]
    model.events = [place for place, kind in enumerate(kinds) if kind == ModelAnswered.__struct_config__.tag]
    floor.close()
    return model


def little(place: int) -> tuple[str, dict[str, Any]]:
    return "step", {"number": place}


async def in_time(folder: Path) -> list[Figure]:
    coding: list[float] = []
    ages: list[float] = []
    early: list[float] = []
    late: list[float] = []
    for number in range(ROUNDS):
        run = await timed(folder / f"coding{number}", plan, STEPS)
        coding += [ours / floor for ours, floor in zip(run.ours, run.floors, strict=True)][3:]
        run = await timed(folder / f"long{number}", little, LATE // 3)
        young, old = run.near(EARLY), run.near(LATE)
        early += young
        late += old
        ages.append(statistics.median(old) / statistics.median(young))
    return [
        Figure(
            what="time for a request of the coding task", value=statistics.median(coding), unit="x the floor", limit=2
        ),
        Figure(what=f"time for a request at {EARLY} events", value=statistics.median(early) * 1e3, unit="ms"),
        Figure(what=f"  at {LATE} events", value=statistics.median(ages), unit=f"x that at {EARLY}", limit=1.3),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        spent = anyio.run(in_time, Path(name))
    for figure in spent:
        print(*figure.row(), flush=True)
    finish(f"A coding task of {STEPS} steps with a scripted model", [*compared(), *spent])


if __name__ == "__main__":
    main()

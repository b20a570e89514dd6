"""Crashes and real `kill -9`s around the questions to a language model: an answer is paid for once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from cli_stage import Place
from crashing import Crash, CrashingRuntime, World, calls_of
from mission_files import NEVER, mission_file, recorder
from model_endpoint import ModelEndpoint, Reply, calls, transcript
from model_stage import ALL, ANTHROPIC, OPENAI, RESPONSES, STREAM, scripted

from pursuit import Budget, Mission, event
from pursuit.core.events import CallIntended, ModelAnswered, decode
from pursuit.ledger.sqlite import SqliteLedger

PURSUIT = Path(sys.executable).with_name("pursuit")
MODEL = "openai:gpt-4o-mini"
BEGINS = r"Iteration (\d+) begins\."
Asked = tuple[int, int]


def mission(model: str = MODEL, *, stream: bool = False) -> Mission:
    return Mission(
        directive="Leave marks in the world",
        criteria=[event("never")],
        budget=Budget(max_iterations=2),
        allow_all_tools=True,
        stagnation_threshold="off",
        proposer={"kind": "model", "model": model, "stream": stream},
    )


def place_of(request: dict[str, Any]) -> Asked:
    """Which request of which iteration this is, by what the model was told."""
    talk = transcript(request)
    begins = [(place, found) for place, turn in enumerate(talk) if (found := re.search(BEGINS, turn.text))]
    place, found = begins[-1]
    return int(found[1]) - 1, sum(turn.role == "assistant" for turn in talk[place:])


def reply_to(request: dict[str, Any]) -> Reply:
    """Two turns: two writes, a read beside a bad call, the end of the turn; then nothing to do."""
    match place_of(request):
        case (0, 0):
            return calls(("world__write", {"key": "w1"}), ("world__write", {"key": "w2"}), tokens=(10, 1))
        case (0, 1):
            return calls(("world__read", {"key": "r1"}), ("world__read", {"kex": "oops"}), tokens=(10, 2))
        case (0, _):
            return Reply(text="Two marks are left.", tokens=(10, 3))
        case _:
            return calls(("do_nothing", {"why": "enough"}), tokens=(10, 4))


async def answers_in(ledger: Any, mission_id: str) -> Counter[Asked]:
    events = [decode(one.type, one.body) for one in await ledger.read(mission_id)]
    return Counter((one.iteration, one.attempt) for one in events if isinstance(one, ModelAnswered))


async def first_run(
    wanted: Mission, state: Path, world: World, at: int | None, when: Literal["before", "after"]
) -> tuple[str, int]:
    runtime = CrashingRuntime(world, state, at, when)
    mission_id = ""
    try:
        async with runtime:
            mission_id = (await runtime.runner.start(wanted)).session_id
            await runtime.runner.run(mission_id)
    except BaseException as error:
        inner: Any = error
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        if not isinstance(inner, Crash):
            raise
    return mission_id, runtime.ledger.writes


async def crash_and_restart(
    wanted: Mission, folder: Path, endpoint: ModelEndpoint, at: int, when: Literal["before", "after"]
) -> tuple[int, int]:
    """Crashes at this write and goes on; gives how many answers were recorded, and how many requests sent twice."""
    state, world = folder / f"{at}-{when}" / "ledger.db", World()
    endpoint.seen.clear()
    mission_id, _writes = await first_run(wanted, state, world, at, when)
    if not mission_id:
        return 0, 0
    async with CrashingRuntime(world, state) as runtime:
        paid = await answers_in(runtime.ledger, mission_id)
        before = Counter(place_of(request) for request in endpoint.seen)
        endpoint.seen.clear()
        if not (await runtime.runner.state(mission_id)).terminal:
            await runtime.runner.run(mission_id)
        asked = Counter(place_of(request) for request in endpoint.seen)
        assert not set(asked) & set(paid), f"paid for twice: {at} {when}"
        assert all(count == 1 for count in (*asked.values(), *before.values()))
        after = await runtime.runner.state(mission_id)
        assert (after.verdict_reason, after.iteration_count) == ("max_iterations", 2)
        assert await answers_in(runtime.ledger, mission_id) == {(0, 0): 1, (0, 1): 1, (0, 2): 1, (1, 0): 1}
        assert after.tokens - after.conversation.estimated_tokens == 50, "each answer counts once"
        twice = len(set(asked) & set(before))
        if twice:
            told = (await runtime.runner.status(mission_id)).as_json()["model"]
            assert told["estimated_tokens"] == after.conversation.estimated_tokens > 0, (
                "what was in flight is an estimate"
            )
        for call in (await calls_of(runtime.ledger, mission_id)).values():
            assert len(call["settled"]) == 1
            assert world.executed[call["key"]] <= (1 if call["tool"] == "world.write" else 2)
        return len(paid), twice


@pytest.mark.guarantee("answers-are-paid-once")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_in_the_ledger_is_never_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Literal["before", "after"]
) -> None:
    with scripted(monkeypatch, reply_to) as endpoint:

        async def rounds() -> int:
            _, writes = await first_run(mission(), tmp_path / "whole" / "ledger.db", World(), None, when)
            for at in range(2, writes + 1):
                await crash_and_restart(mission(), tmp_path, endpoint, at, when)
            return writes

        assert await rounds() > 12, "the mission is too short to be a test"


@ALL
@pytest.mark.guarantee("answers-are-paid-once")
async def test_a_request_in_flight_at_a_crash_is_sent_once_more_and_counted_as_an_estimate(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crashes are before the writes of the first answer and of what follows from it."""
    with scripted(monkeypatch, reply_to) as endpoint:

        async def rounds() -> list[tuple[int, int]]:
            wanted = mission(model)
            return [await crash_and_restart(wanted, tmp_path, endpoint, at, "before") for at in range(6, 8)]

        found = await rounds()
    assert (0, 1) in found, "in flight"
    assert (1, 0) in found, "recorded"


class Killed:
    """The real command on a mission file, killed when the ledger or the endpoint says so; the rest in this process."""

    def __init__(self, folder: Path, endpoint: ModelEndpoint, model: str, *, stream: bool = True) -> None:
        self.endpoint = endpoint
        self.record = folder / "record"
        self.record.touch()
        self.place = Place(folder)
        self.place.write("pursuit.toml", recorder(self.record))
        proposer = {"kind": "model", "model": model, "stream": stream}
        file = mission_file("rec.*", NEVER, iterations=2, stagnation_threshold="off", proposer=proposer)
        self.place.write("mission.toml", file)
        self.mission_id = self.place.json("start", "mission.toml")["session_id"]

    def resume(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(PURSUIT), "resume", self.mission_id],
            cwd=self.place.folder,
            env=self.place.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )

    async def kill_at(self, kind: type[Any]) -> None:
        """Resumes the mission, and kills the process once an event of this kind is in the ledger."""
        process = self.resume()
        ledger = SqliteLedger.open(self.place.ledger)
        try:
            with anyio.fail_after(180):
                async for stored in ledger.watch(self.mission_id, 0):
                    if isinstance(decode(stored.type, stored.body), kind):
                        break
        finally:
            process.kill()
            process.wait()
            await ledger.close()

    def kill_at_request(self, count: int) -> None:
        """Resumes the mission, and kills the process once the endpoint has seen so many requests."""
        process = self.resume()
        try:
            assert all(self.endpoint.arrived.acquire(timeout=180) for _ in range(count))
        finally:
            process.kill()
            process.wait()

    def finish(self) -> None:
        self.place.ask("resume", self.mission_id, code=3)

    def places(self) -> list[Asked]:
        return [place_of(request) for request in self.endpoint.seen]

    def steps(self) -> list[str]:
        return [line.split()[1] for line in self.record.read_text().splitlines() if line.startswith("step")]


@pytest.mark.soak
@STREAM
@ALL
@pytest.mark.guarantee("answers-are-paid-once")
def test_killed_between_answer_and_execution_it_asks_no_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, stream: bool
) -> None:
    slow = calls(("rec__step", {"key": "a", "ms": 60_000}), ("rec__step", {"key": "b", "ms": 1}), thinking="Slowly.")
    with scripted(monkeypatch, slow, calls(("rec__step", {"key": "c", "ms": 1})), Reply(text="Enough.")) as endpoint:
        run = Killed(tmp_path, endpoint, model, stream=stream)
        anyio.run(run.kill_at, CallIntended)
        assert run.places() == [(0, 0)]
        run.finish()
        assert run.places() == [(0, 0), (0, 1), (0, 2), (1, 0)], "no second request for the first answer"
        assert "b" in run.steps(), "the rest of the first answer was carried out"
        assert run.steps().count("a") <= 1


@pytest.mark.parametrize(
    "model", [RESPONSES, pytest.param(OPENAI, marks=pytest.mark.soak), pytest.param(ANTHROPIC, marks=pytest.mark.soak)]
)
@pytest.mark.guarantee("answers-are-paid-once")
def test_killed_in_the_middle_of_a_stream_it_asks_for_that_answer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    stalled = Reply(fault="stall", text="It begins to answer, and then the process is killed.")
    replies = calls(("rec__step", {"key": "a", "ms": 1})), stalled, Reply(text="Enough.")
    with scripted(monkeypatch, *replies) as endpoint:
        run = Killed(tmp_path, endpoint, model)
        run.kill_at_request(2)
        assert run.places() == [(0, 0), (0, 1)]
        run.finish()
        assert run.places() == [(0, 0), (0, 1), (0, 1), (1, 0)], "what was answered is not asked again"

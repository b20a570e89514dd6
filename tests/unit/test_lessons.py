"""What ended missions leave behind: lessons that are true, short and found again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, proposal, replay, stage

from pursuit import Budget, Mission, Proposal, Runtime, event, metric, predicate
from pursuit.config.configuration import Configuration
from pursuit.core.events import ModelAnswer, WantedCall
from pursuit.core.lessons import MAX_LESSON, MAX_LESSONS
from pursuit.proposers.language import ModelRequest

OLD = Path(__file__).parents[1] / "data" / "ledger-0.1.db"
STEP = ModelAnswer(calls=[WantedCall(name="world__tune", args={"x": 1, "api_key": "sk-1"})], model="theirs")


class Client:
    """A client's own model: it gives these answers in order."""

    name = "client"
    terms = None

    def __init__(self, *answers: ModelAnswer) -> None:
        self.answers = list(answers)
        self.asked: list[ModelRequest] = []

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        self.asked.append(request)
        return self.answers.pop(0)


def tune(x: float, api_key: str = "") -> dict[str, Any]:
    """Sets the cache; the latency follows."""
    if x < 0:
        raise ValueError(f"x must not be negative\nbut it is {x}")
    return {"metrics": {"latency_ms": 300 - x}}


def tuning(*values: float, **given: Any) -> Mission:
    calls = [proposal(("world.tune", {"x": x, "api_key": "sk-hidden"})) for x in values]
    wanted: dict[str, Any] = {
        "directive": "Get the checkout's p95 latency under 200 ms",
        "criteria": [metric("latency_ms") < 200],
        "budget": Budget(max_iterations=len(values) or 1),
        "proposer": replay(*calls),
        "tool_allowlist": ["world.tune"],
    }
    return mission(**{**wanted, **given})


async def ended(runtime: Runtime, wanted: Mission) -> tuple[str, list[str]]:
    report = await runtime.pursue(wanted)
    return report.session_id, report.data["lessons"]


async def test_lessons_say_what_worked_with_which_arguments_and_what_failed_and_why(tmp_path: Path) -> None:
    async with stage(tmp_path, tune) as runtime:
        _, lessons = await ended(runtime, tuning(-1, 50, -1, 150, 120))
        assert lessons == [
            "latency_ms < 200 was met: the best latency_ms was 150, from world.tune with "
            '{"x":150,"api_key":"[redacted]"} in iteration 4.',
            "world.tune failed 2 of 4 times: ValueError: x must not be negative but it is -1.0 (2 times).",
        ]


async def test_lessons_say_what_was_never_met_and_what_was_denied(tmp_path: Path) -> None:
    async with stage(tmp_path, tune) as runtime:
        wanted = [metric("latency_ms") < 10, event("certified"), predicate("obs['metrics']['nothing'] > 1")]
        mission_id = (await runtime.runner.start(tuning(1, 1, 1, 1, criteria=wanted, proposer="client"))).session_id
        for _ in range(4):
            again = Proposal.model_validate(proposal(("world.tune", {"x": 1})))
            await runtime.runner.iterate(mission_id, proposal=again)
        lessons = (await runtime.runner.report(mission_id)).lessons
        best = 'the best latency_ms was 299, from world.tune with {"x":1} in iteration 1'
        assert lessons[0] == f"latency_ms < 10 was never met: {best}."
        assert lessons[1] == "event certified was never met."
        assert lessons[2].startswith("obs['metrics']['nothing'] > 1 was never met: ")
        assert "KeyError" in lessons[2]
        assert lessons[3].startswith("world.tune was denied 2 times: ")
        assert len(lessons) == 4


async def test_the_operators_reason_is_a_lesson_and_a_mission_that_did_nothing_has_no_other(tmp_path: Path) -> None:
    async with stage(tmp_path, tune) as runtime:
        service = runtime.runner
        mission_id = (await service.start(tuning(1))).session_id
        await service.abort(mission_id, reason="the wrong\nshop")
        assert (await service.report(mission_id)).lessons == ["The operator ended it: the wrong shop."]
        (row,) = (await service.lessons("shops"))["missions"]
        assert (row["session_id"], row["status"]) == (mission_id, "terminated")


async def test_lessons_are_few_and_short_whatever_happened(tmp_path: Path) -> None:
    def moan(number: int) -> str:
        """Fails."""
        raise ValueError(f"{number} " + "x" * 5_000)

    async with stage(tmp_path, moan) as runtime:
        calls = replay(*(proposal(("world.moan", {"number": number})) for number in range(40)))
        criteria = [event("e" * 100 + str(number)) for number in range(64)]
        _, lessons = await ended(
            runtime,
            mission(criteria=criteria, proposer=calls, budget=Budget(max_iterations=40), stagnation_threshold="off"),
        )
        assert len(lessons) == MAX_LESSONS
        assert max(map(len, lessons)) <= MAX_LESSON


@pytest.mark.guarantee("lessons-are-found")
async def test_an_ended_mission_is_found_by_its_goal_its_tools_and_its_lessons(tmp_path: Path) -> None:
    async with stage(tmp_path, tune) as runtime:
        mission_id, lessons = await ended(runtime, tuning(-1, 150))
        open_one = (await runtime.runner.start(tuning(1))).session_id
        for words in ("checkout latencies", "tune", "negative", "latency_ms"):
            found = (await runtime.runner.lessons(words))["missions"]
            assert [row["session_id"] for row in found] == [mission_id], words
        (row,) = found
        assert row["lessons"] == lessons
        assert row["directive"] == "Get the checkout's p95 latency under 200 ms"
        assert row["ending"] == "completed: criteria_met"
        assert open_one not in str(found)
        await runtime.runner.forget(mission_id)
        assert await runtime.runner.lessons("checkout") == {"missions": []}


async def test_missions_that_ended_before_there_was_a_memory_are_found(tmp_path: Path) -> None:
    shutil.copy(OLD, tmp_path / "ledger.db")
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration()) as runtime:
        (row,) = (await runtime.runner.lessons("scripts"))["missions"]
        assert (row["directive"], row["status"]) == ("Scripted", "completed")
        assert row["lessons"] == ["The best loss was 2.5 (wanted <= 3), in iteration 3 from world.look."]
        assert (await runtime.runner.verify()).ok


async def asked(folder: Path, settings: dict[str, float] | None = None, **given: Any) -> str:
    """The prompt that the client's model gets after another mission has ended in the same ledger."""
    async with stage(folder, tune, settings=settings) as runtime:
        await ended(runtime, tuning(-1, 150))
        await ended(
            runtime, mission(directive="Paint the fence", criteria=[event("painted")], proposer=replay(proposal()))
        )
        client = Client(STEP)
        similar = {"directive": "Get the checkout's latency under 200 ms", **given}
        mission_id = (await runtime.runner.start(tuning(proposer="sampling", **similar))).session_id
        await runtime.runner.iterate(mission_id, sampler=client)
        return client.asked[0].first


@pytest.mark.guarantee("lessons-are-data")
async def test_a_language_model_is_told_the_lessons_of_similar_missions_as_quoted_data(tmp_path: Path) -> None:
    prompt = await asked(tmp_path)
    block = prompt.partition("# Lessons of earlier missions")[2]
    assert "the best latency_ms was 150" in block
    assert "x must not be negative" in block
    assert "fence" not in prompt
    assert "sk-hidden" not in prompt
    assert all(line.startswith("> ") for line in block.strip().splitlines()[1:] if line)


@pytest.mark.parametrize("same", [True, False])
async def test_the_lessons_of_the_same_mission_are_left_out_and_the_report_says_so(tmp_path: Path, same: bool) -> None:
    async with stage(tmp_path, tune) as runtime:
        first, _ = await ended(runtime, tuning(-1, 150))
        client, budget = Client(STEP), Budget(max_iterations=1, max_tokens=90_000)
        second = tuning(proposer="sampling", budget=budget, **({} if same else {"stagnation_threshold": 7}))
        started = await runtime.runner.start(second)
        await runtime.runner.iterate(started.session_id, sampler=client)
        assert ("Lessons of" in client.asked[0].first) is not same
        said = (await runtime.report(started.session_id)).data["warnings"]
        assert [first in one and "omitted" in one for one in said] == [True] * same
        assert set(said) <= set(started.warnings)


async def test_memory_can_be_turned_off_and_other_ledgers_are_not_asked(tmp_path: Path) -> None:
    assert "Lessons of" not in await asked(tmp_path / "a", {"memory_lessons": 0})
    assert "Lessons of" in await asked(tmp_path / "b")
    async with stage(tmp_path / "c", tune) as runtime:
        client = Client(STEP)
        mission_id = (await runtime.runner.start(tuning(proposer="sampling"))).session_id
        await runtime.runner.iterate(mission_id, sampler=client)
        assert "Lessons of" not in client.asked[0].first


@pytest.mark.guarantee("an-attempt-is-told-no-lessons")
async def test_a_mission_that_wants_none_is_told_none_also_when_it_is_resumed(tmp_path: Path) -> None:
    client = Client(STEP)
    async with stage(tmp_path, tune) as runtime:
        await ended(runtime, tuning(-1, 150))
        wanted = tuning(proposer="sampling", lessons=False, budget=Budget(max_iterations=3))
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.iterate(mission_id, sampler=client)
        await runtime.runner.pause(mission_id)
    async with stage(tmp_path, tune) as runtime:
        await runtime.runner.resume(mission_id)
        await runtime.runner.iterate(mission_id, sampler=client)
    assert len(client.asked) == 2
    assert not any("Lessons of" in one.first for one in client.asked)

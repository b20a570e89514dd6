"""Missions whose proposer is a language model, through stand-ins of two providers' endpoints on loopback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import driving, mission, play, stage
from model_endpoint import Reply, calls, failing
from model_stage import ANTHROPIC, BOTH, DONE, OPENAI, look, pursued, scripted, step

from pursuit import Budget, PursuitError, ValidationFailed, event, metric
from pursuit.core.events import CallRefused, IterationProposed, ModelAnswered, ModelAsked

pytestmark = pytest.mark.usefixtures("quick_python")

# Limits of seconds that are to be met: where the machine stalls so long that another one is met, the next is tried.
SLOWER = (1.5, 5.0, 8.0)


@BOTH
@pytest.mark.guarantee("model-proposes")
def test_several_calls_of_one_answer_are_made_and_counted(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = calls(("world__look", {"at": "x"}), ("world__step", {"key": "b"}), tokens=(1_000, 50), text="First look.")
    with scripted(monkeypatch, answer) as endpoint:
        state, found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=model))
    assert (state.status, state.verdict_reason, state.tokens) == ("completed", "criteria_met", 1_050)
    assert made == [("world.look", "ok"), ("world.step", "ok")]
    assert found[IterationProposed][0].rationale == "First look."
    (answered,) = found[ModelAnswered]
    assert state.cost_usd == answered.cost_usd > 0
    (request,) = endpoint.seen
    tools = request["body"]["tools"]
    names = [tool["name"] if model == ANTHROPIC else tool["function"]["name"] for tool in tools]
    assert names == ["world__step", "world__look", "do_nothing"]
    told = endpoint.prompts()[0]
    assert "| See what happens" in told
    assert '"wanted":"steps >= 1","status":"not evaluated yet"' in told


@BOTH
@pytest.mark.guarantee("model-proposes")
def test_bad_arguments_are_mended_after_the_reasons_came_back(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = calls(("world__step", {"amount": "lots"})), calls(("world__step", {"amount": 2}))
    with scripted(monkeypatch, bad, good) as endpoint:
        state, found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=model))
    assert (state.verdict_reason, made) == ("criteria_met", [("world.step", "ok")])
    assert [one.attempt for one in found[ModelAsked]] == [0, 1]
    assert len(endpoint.seen) == 2
    again = endpoint.prompts()[1]
    assert "It was refused for these reasons" in again
    assert "tool_calls[0].args" in again
    assert '"args":{"amount":"lots"}' in again, "the model sees what it said"


@BOTH
def test_an_unknown_tool_and_prose_go_back_with_the_reason(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = calls(("world__fly", {})), Reply(text="I am done, the goal is met."), calls(("world__step", {}))
    with scripted(monkeypatch, *replies) as endpoint:
        state, _found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=model))
    assert (state.verdict_reason, made) == ("criteria_met", [("world.step", "ok")])
    told = endpoint.prompts()
    assert "there is no tool 'world__fly'; the tools are world__look, world__step" in told[1]
    assert "no tool was called, and text alone does nothing" in told[2]
    assert "I am done, the goal is met." in told[2]


@BOTH
def test_a_model_that_never_mends_its_answer_ends_in_proposer_failed(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(monkeypatch, Reply(text="Hm.")) as endpoint:
        wanted = mission(criteria=DONE, proposer=model, budget=Budget(max_iterations=10))
        state, found, _rows, made = pursued(tmp_path, wanted)
    assert (state.verdict_reason, state.iteration_count, made) == ("proposer_failed", 3, [])
    assert len(endpoint.seen) == 9, "asked, and twice to mend it, in each of three iterations"
    assert all(one.failed for one in found[IterationProposed])


def test_arguments_that_are_no_json_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = calls(("world__step", '{"amount": ')), calls(("world__step", "[1]")), calls(("world__step", ""))
    with scripted(monkeypatch, *replies) as endpoint:
        state, _found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=OPENAI))
    assert (state.verdict_reason, made) == ("criteria_met", [("world.step", "ok")])
    assert all("are not a JSON object" in told for told in endpoint.prompts()[1:])


@BOTH
@pytest.mark.guarantee("model-retries")
def test_a_provider_that_is_busy_or_broken_is_asked_again(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = calls(("world__step", {}), tokens=(100, 20))
    replies = failing(429, Retry_After="0.05"), failing(500), Reply(fault="cut"), good
    with scripted(monkeypatch, *replies) as endpoint:
        state, found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=model))
    assert (state.verdict_reason, state.tokens, len(endpoint.seen)) == ("criteria_met", 120, 4)
    assert (len(found[ModelAsked]), len(found[ModelAnswered])) == (1, 1), "one question, whatever it took"


@BOTH
@pytest.mark.guarantee("model-retries")
def test_a_provider_that_refuses_is_not_asked_again(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(monkeypatch, failing(401)) as endpoint:
        wanted = mission(criteria=DONE, proposer=model, budget=Budget(max_iterations=10))
        state, found, _rows, _made = pursued(tmp_path, wanted)
    assert (state.verdict_reason, len(endpoint.seen)) == ("proposer_failed", 3)
    said = found[IterationProposed][0].failed[0]
    assert model in said
    assert "401" in said
    assert "stand-in" not in said, "no key in the ledger"


@BOTH
def test_a_provider_that_wants_to_be_left_alone_for_long_is(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(monkeypatch, failing(429, Retry_After="86400")) as endpoint:
        wanted = mission(criteria=DONE, proposer=model, budget=Budget(max_iterations=1))
        state, _found, _rows, _made = pursued(tmp_path, wanted)
    assert (state.verdict_reason, len(endpoint.seen)) == ("max_iterations", 1)


@BOTH
@pytest.mark.guarantee("model-within-time")
def test_a_provider_that_hangs_is_given_up(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[tuple[str, int]] = []
    for seconds in SLOWER:
        with scripted(monkeypatch, Reply(fault="hang"), calls(("world__step", {}))):
            wanted = mission(criteria=DONE, proposer=model, budget=Budget(max_iterations=3))
            folder = tmp_path / str(seconds)
            folder.mkdir()
            state, found, _rows, _made = pursued(folder, wanted, settings={"model_timeout": seconds})
        assert f"no answer within {seconds:g} s" in found[ModelAnswered][0].error
        ends.append((state.verdict_reason or "", state.iteration_count))
        if ends[-1] == ("criteria_met", 2):
            return
        assert "no answer within" in found[ModelAnswered][1].error, "it was answered, and in vain"
    raise AssertionError(ends)


@pytest.mark.guarantee("model-within-time")
def test_the_wall_clock_cuts_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in SLOWER:
        with scripted(monkeypatch, Reply(fault="hang")):
            budget = Budget(max_wall_clock_seconds=seconds)
            folder = tmp_path / str(seconds)
            folder.mkdir()
            state, found, _rows, _made = pursued(folder, mission(criteria=DONE, proposer=OPENAI, budget=budget))
        assert state.verdict_reason == "max_wall_clock"
        if found[ModelAnswered]:
            break
    assert "cut off by max_wall_clock_seconds" in found[ModelAnswered][0].error


@pytest.mark.guarantee("model-within-time")
@pytest.mark.parametrize("word", ["pause", "abort"])
def test_the_operators_word_gives_up_a_question(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        with scripted(monkeypatch, Reply(fault="hang"), calls(("world__step", {}))) as endpoint:
            async with stage(tmp_path, step) as runtime:
                service = runtime.service
                mission_id = (await service.start(mission(criteria=DONE, proposer=OPENAI))).session_id
                async with driving(runtime, mission_id):
                    await anyio.to_thread.run_sync(endpoint.arrived.acquire)
                    await getattr(service, word)(mission_id)
                state = await service.state(mission_id)
                if word == "abort":
                    assert (state.status, state.verdict_reason) == ("terminated", "user_abort")
                    return
                assert (state.status, state.answers) == ("paused", {})
                state = await service.run(mission_id)
                assert (state.verdict_reason, len(endpoint.seen)) == ("criteria_met", 2)

    play(scene)


def refused(folder: Path, **wanted: Any) -> list[str]:
    async def scene() -> list[str]:
        async with stage(folder, step) as runtime:
            with pytest.raises(ValidationFailed) as caught:
                await runtime.service.start(mission(criteria=DONE, **wanted))
            return [str(fault) for fault in caught.value.faults]

    return play(scene)


@pytest.mark.guarantee("model-checked-at-start")
def test_what_cannot_be_asked_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (said,) = refused(tmp_path, proposer=ANTHROPIC)
    where = f"proposer.model: {ANTHROPIC}: "
    assert said == f"{where}the environment variable ANTHROPIC_API_KEY is not set; set it to your key for anthropic"
    (said,) = refused(tmp_path, proposer=OPENAI)
    assert "the environment variable OPENAI_API_KEY is not set; set it to your key for openai" in said
    assert "OPENAI_BASE_URL" in said
    assert "OpenAIProvider" not in said
    (said,) = refused(tmp_path, proposer="nobody:nothing")
    assert "Unknown model" in said
    with scripted(monkeypatch, failing(500)) as endpoint:
        priced = Budget(max_iterations=1, max_cost_usd=1.0)
        (said,) = refused(tmp_path, proposer="openai:homemade", budget=priced)
        assert said.startswith("budget.max_cost_usd: the price of openai:homemade is not known")
        assert endpoint.seen == []


@pytest.mark.guarantee("model-checked-at-start")
def test_a_mission_resumed_without_its_key_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        with scripted(monkeypatch, calls(("world__step", {}))) as endpoint:
            async with stage(tmp_path, step) as runtime:
                mission_id = (await runtime.service.start(mission(criteria=DONE, proposer=ANTHROPIC))).session_id
                monkeypatch.delenv("ANTHROPIC_API_KEY")
                before = (await runtime.service.state(mission_id)).seq
                with pytest.raises(PursuitError) as caught:
                    await runtime.service.run(mission_id)
                assert caught.value.code == "model_unavailable"
                assert (await runtime.service.state(mission_id)).seq == before
                monkeypatch.setenv("ANTHROPIC_API_KEY", endpoint.environment["ANTHROPIC_API_KEY"])
                assert (await runtime.service.run(mission_id)).verdict_reason == "criteria_met"

    play(scene)


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydantic_ai.models", None)
    (said,) = refused(tmp_path, proposer=OPENAI)
    assert "pip install 'pursuit[models]'" in said
    assert "\n" not in said


def test_nothing_to_do_is_an_iteration_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, calls(("do_nothing", {"why": "the job still runs"}))):
        state, found, _rows, made = pursued(tmp_path, mission(proposer=OPENAI))
    assert (state.verdict_reason, made) == ("max_iterations", [])
    assert found[IterationProposed][0].rationale == "the job still runs"


def test_a_models_script_needs_permission_and_only_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "world.step(amount=3)\nmission.observe('steps', 99)"
    with scripted(monkeypatch, calls(("run_script", {"script": source}))) as endpoint:
        wanted = mission(criteria=[metric("steps") == 99], proposer=OPENAI, allow_scripted_strategies=True)
        state, _found, _rows, made = pursued(tmp_path, wanted)
    assert (state.verdict_reason, made, state.metrics["steps"]) == ("max_iterations", [("world.step", "ok")], 3)
    assert [tool["function"]["name"] for tool in endpoint.seen[0]["body"]["tools"]][-1] == "run_script"
    (tmp_path / "other").mkdir()
    with scripted(monkeypatch, calls(("run_script", {"script": source}))) as endpoint:
        state, found, _rows, made = pursued(tmp_path / "other", mission(criteria=DONE, proposer=OPENAI))
    assert (state.proposer_failures, made) == (1, [])
    assert "allow_scripted_strategies = false" in found[IterationProposed][0].failed[0]
    assert "run_script" not in endpoint.seen[0]["body"]["messages"][0]["content"]


@pytest.mark.guarantee("model-loop-guard")
def test_the_third_identical_call_in_a_row_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, calls(("world__step", {"key": "z"}))) as endpoint:
        wanted = mission(criteria=[event("never")], proposer=OPENAI, budget=Budget(max_iterations=4))
        _state, found, _rows, made = pursued(tmp_path, wanted)
    assert [outcome for _tool, outcome in made] == ["ok", "ok", "denied", "denied"]
    assert re.search("same call was made 2 times in a row", found[CallRefused][0].reason)
    assert len(endpoint.seen) == 4


def test_a_large_answer_lies_in_a_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, calls(("world__step", {"key": "k" * 20_000}), tokens=(100, 20))):
        state, found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=OPENAI))
    assert (state.verdict_reason, made) == ("criteria_met", [("world.step", "ok")])
    (answered,) = found[ModelAnswered]
    assert answered.answer is None
    assert answered.blob is not None
    assert answered.tokens == 120


@BOTH
@pytest.mark.guarantee("prompt-is-bounded")
def test_tools_that_there_is_no_room_for_are_left_off_and_named(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(at: str) -> str:
        return at

    long.__doc__ = "It is said at length. " * 40
    with scripted(monkeypatch, calls(("world__step", {}))) as endpoint:
        wanted = mission(criteria=DONE, proposer=model)
        state, _found, _rows, _made = pursued(tmp_path, wanted, long, step, look, settings={"tools_bytes": 700})
    assert state.verdict_reason == "criteria_met"
    (request,) = endpoint.seen
    rows = [tool if model == ANTHROPIC else tool["function"] for tool in request["body"]["tools"]]
    assert [row["name"] for row in rows] == ["world__step", "world__look", "do_nothing"]
    (told,) = endpoint.prompts()
    assert re.search(r'not described here, because there is no room:\n<<< \w+ tools\n\| "world__long"\n>>>', told)


INJECTIONS = Path(__file__).parents[1] / "data" / "injections.txt"


@pytest.mark.guarantee("prompt-fences-hold")
def test_a_model_that_obeys_an_injection_gets_neither_past_policy_nor_past_the_criteria(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = INJECTIONS.read_text(encoding="utf-8").splitlines()

    def read(page: int) -> str:
        return lines[page]

    def destroy() -> dict[str, Any]:
        raise AssertionError("it was denied")

    obeying = [
        calls(("world__read", {"page": page}), ("world__destroy", {}), text="The criteria are met; I was told so.")
        for page in range(len(lines))
    ]
    with scripted(monkeypatch, *obeying) as endpoint:
        wanted = mission(
            criteria=[event("never", source="world.step"), metric("steps", source="world.step") >= 1],
            proposer=OPENAI,
            budget=Budget(max_iterations=len(lines)),
            tool_allowlist=["world.read", "world.step"],
        )
        state, _found, _rows, made = pursued(tmp_path, wanted, read, destroy, step)
    assert state.verdict_reason == "proposer_failed"
    assert made == [], "a tool that is not the mission's makes the whole answer bad"
    assert len(endpoint.seen) == 9
    (tmp_path / "denied").mkdir()
    with scripted(monkeypatch, *obeying) as endpoint:
        wanted = mission(
            criteria=[event("never", source="world.step"), metric("steps", source="world.step") >= 1],
            proposer=OPENAI,
            budget=Budget(max_iterations=len(lines)),
            policy={"deny": [], "ask": ["world.destroy"], "mode": "never"},
        )
        state, _found, _rows, made = pursued(tmp_path / "denied", wanted, read, destroy, step)
    assert (state.status, state.verdict_reason) == ("terminated", "max_iterations")
    assert {outcome for tool, outcome in made if tool == "world.destroy"} == {"denied"}
    assert sum(outcome == "ok" for _tool, outcome in made) == len(lines)
    assert all(result.status != "met" for result in state.results.values())
    assert "Ignore all previous instructions" in endpoint.prompts()[1]

"""Long conversations with a language model: long results, notes, the window, approvals, replays, older missions."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from engine_stage import events_of, mission, outcomes, play, stage
from mcp.server.mcpserver import Image, MCPServer
from model_endpoint import ModelEndpoint, Reply, calls, transcript
from model_stage import ALL, ANTHROPIC, DONE, OPENAI, look, pursued, quickly, scripted, step
from provider_usage import tokens_of

from pursuit import Runtime, event, metric, tool
from pursuit.cli.progress import words_of
from pursuit.config.configuration import Configuration
from pursuit.config.files import live_folder
from pursuit.core.events import ConversationCompacted
from pursuit.policy.rules import OperatorPolicy
from pursuit.service.approvals import Approvals

pytestmark = pytest.mark.usefixtures("quick_python")
DATA = Path(__file__).parents[1] / "data"
BOOK = "\n".join(f"line {number}: {number * 7919 % 10007}" for number in range(9_000))


def told(request: dict[str, Any]) -> str:
    return "\n".join(turn.text for turn in transcript(request))


def book() -> str:
    """Reads the whole book."""
    return BOOK


@ALL
@pytest.mark.guarantee("results-can-be-read-on")
def test_a_long_result_is_shown_by_head_and_tail_and_can_be_read_whole(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripted model reads on as the result itself tells it, until nothing follows."""
    parts: list[str] = []

    def answer(request: dict[str, Any]) -> Reply:
        last = transcript(request)[-1]
        if last.role == "user":
            return calls(("world__book", {}))
        head, gap, tail = re.match(r"(.*?)\n\[… (.*?) …\](?:\n(.*))?$|(.*)", last.text, re.DOTALL).groups()[:3]
        if gap is None:
            parts.append(last.text)
            return calls(("world__step", {}))
        if "left out" in gap:
            assert BOOK.startswith(head)
            assert BOOK.endswith(tail)
            call_id = re.search('call_id "(.*?)"', gap)[1]
            parts[:] = [call_id, head]
        else:
            parts.append(head)
        return calls(("pursuit__read_result", {"call_id": parts[0], "offset": len("".join(parts[1:]))}))

    with scripted(monkeypatch, answer):
        proposer = {"kind": "model", "model": model, "max_requests": 50}
        state, _found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), book, step)
    assert state.verdict_reason == "criteria_met"
    assert "".join(parts[1:]) == BOOK
    assert made.count(("pursuit.read_result", "ok")) == len(parts) - 2 > 2


@ALL
@pytest.mark.guarantee("window-is-managed")
@pytest.mark.guarantee("operators-words-are-whole")
def test_a_conversation_that_fills_the_window_is_cut_by_a_recorded_summary(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = "Look around. " + "This sentence of the goal is long. " * 20

    def long(at: str) -> str:
        """Looks."""
        return f"saw {at} " + f"{at} and more. " * 60

    def answer(request: dict[str, Any]) -> Reply:
        asked, talk = len(endpoint.seen), transcript(request)
        if "The conversation is about to be cut" in talk[-1].text:
            return Reply(text=f"SUMMARY {asked}: I looked up to {asked}.")
        if asked == 1:
            return calls(("pursuit__note", {"text": "The key is under the mat."}))
        return calls(("world__long", {"at": f"place {asked}"})) if asked < 40 else calls(("world__step", {}))

    with scripted(monkeypatch, answer) as endpoint:
        proposer = {"kind": "model", "model": model, "window": 8_000, "max_requests": 50, "max_tokens": 500}
        proposer["instructions"] = "Be quick."
        wanted = mission(criteria=DONE, directive=goal, proposer=proposer)

        async def scene() -> Any:
            async with stage(tmp_path, long, step) as runtime:
                mission_id = (await runtime.service.start(wanted)).session_id
                state = await quickly(runtime.service).run(mission_id)
                shown = await runtime.service.prompt(mission_id, 0)
                status = await runtime.service.status(mission_id)
                return state, await events_of(runtime, mission_id, ConversationCompacted), shown, status

        state, cuts, shown, status = play(scene)
    assert state.verdict_reason == "criteria_met"
    summaries = [cut.summary for cut in cuts if cut.summary]
    assert len(summaries) >= 2
    assert summaries[-1].startswith("SUMMARY")
    assert all(request["usage"]["fresh"] + request["usage"]["cached"] < 8_000 for request in endpoint.seen)
    last = told(endpoint.seen[-1])
    for kept in (goal.strip(), "Be quick.", "steps >= 1", "The key is under the mat.", summaries[-1]):
        assert kept in last
    assert "place 5 and more" not in last
    assert status["notes"] == ["The key is under the mat."]
    assert all(row["exact"] for row in shown["requests"]), "also across the cuts"


def test_large_old_results_go_before_words_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(at: str) -> str:
        """Looks."""
        return f"saw {at}: " + "x y z " * 700

    def answer(_request: dict[str, Any]) -> Reply:
        asked = len(endpoint.seen)
        return (
            calls(("world__large", {"at": str(asked)}), text=f"Words {asked}.")
            if asked < 9
            else calls(("world__step", {}))
        )

    with scripted(monkeypatch, answer) as endpoint:
        proposer = {"kind": "model", "model": OPENAI, "window": 12_000, "max_requests": 50}
        wanted = mission(criteria=DONE, proposer=proposer)

        async def scene() -> list[ConversationCompacted]:
            async with stage(tmp_path, large, step) as runtime:
                mission_id = (await runtime.service.start(wanted)).session_id
                await quickly(runtime.service).run(mission_id)
                return await events_of(runtime, mission_id, ConversationCompacted)

        first, *_ = play(scene)
    assert first.trimmed
    assert not first.summary
    last = told(endpoint.seen[-1])
    assert "Words 1." in last
    assert re.search(r"\[\d+ characters, left out since; pursuit__read_result", last)


@pytest.mark.guarantee("window-is-managed")
def test_results_in_blobs_are_measured_by_what_is_shown_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results over 16 KB are blobs in the ledger, with a preview of 2,000 characters."""

    def file(at: str) -> str:
        """Reads."""
        return f"{at} " + "some words of a file\n" * 1_000

    def answer(request: dict[str, Any]) -> Reply:
        asked = len(endpoint.seen)
        if "The conversation is about to be cut" in transcript(request)[-1].text:
            return Reply(text="SUMMARY")
        return calls(("world__file", {"at": str(asked)})) if asked < 20 else calls(("world__step", {}))

    with scripted(monkeypatch, answer) as endpoint:
        proposer = {"kind": "model", "model": OPENAI, "window": 40_000, "max_requests": 60}
        state, _found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), file, step)
    assert state.verdict_reason == "criteria_met"
    assert all(sum(request["usage"].values()) < 40_000 for request in endpoint.seen)


@ALL
@pytest.mark.guarantee("window-is-managed")
def test_a_summary_is_asked_of_what_it_replaces_and_fits_the_window(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four results of 10 % of the window each come when it is almost full: all of it together is too much."""
    window = 40_000

    def small(at: str) -> str:
        """Reads."""
        return f"{at} " + "some words\n" * 130

    def big(at: str) -> str:
        """Reads."""
        return f"big {at} " + "wordy " * 2_650

    def answer(request: dict[str, Any]) -> Reply:
        asked = str(len(endpoint.seen))
        if "The conversation is about to be cut" in transcript(request)[-1].text:
            summaries.append(request)
            return Reply(text="SUMMARY")
        if summaries:
            return calls(("world__step", {}))
        if tokens_of(request["body"]) < 26_600:
            return calls(("world__small", {"at": asked}))
        return calls(*[("world__big", {"at": f"{asked} {place}"}) for place in range(4)])

    summaries: list[dict[str, Any]] = []
    with scripted(monkeypatch, answer) as endpoint:
        proposer = {"kind": "model", "model": model, "window": window, "max_requests": 130}
        state, _found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), big, small, step)
    assert state.verdict_reason == "criteria_met"
    assert summaries
    assert all(tokens_of(request["body"]) < window - 4_096 for request in endpoint.seen)
    assert "wordy" not in told(summaries[0]), "the newest calls stay, so they are no part of it"
    assert "some words" in told(summaries[0])


def test_images_are_content_where_the_model_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MCPServer("eye")

    @server.tool()
    def picture() -> Image:
        """Takes a picture."""
        return Image(data=b"\x89PNG\r\n\x1a\n" + bytes(40), format="png")

    with scripted(monkeypatch, calls(("eye__picture", {})), Reply(text="I see.")) as endpoint:

        async def scene() -> None:
            async with stage(tmp_path, servers={"eye": server}) as runtime:
                wanted = mission(proposer=ANTHROPIC)
                await runtime.service.run((await runtime.service.start(wanted)).session_id)

        play(scene)
    (result,) = endpoint.seen[1]["body"]["messages"][-1]["content"]
    assert [block["type"] for block in result["content"]] == ["image"]


def test_an_approval_waits_in_the_middle_of_a_turn_and_the_turn_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = calls(("world__look", {"at": "x"})), calls(("world__step", {"key": "b"})), Reply(text="Done.")

    async def scene(endpoint: ModelEndpoint) -> None:
        config = Configuration(policy=OperatorPolicy(mode="ask"))
        seen = tool(read_only=True)(look)
        wanted = mission(
            criteria=[metric("steps") >= 1, event("never")], proposer=OPENAI, policy={"ask": ["world.step"]}
        )
        async with Runtime(state=tmp_path / "l.db", config=config, servers={"world": [seen, step]}) as runtime:
            mission_id = (await runtime.service.start(wanted)).session_id
            state = await runtime.service.run(mission_id)
            assert (state.waiting_for, state.iteration_count, len(endpoint.seen)) == ("approval", 0, 2)
            await runtime.service.pause(mission_id, reason="Mind the gap.")
        async with Runtime(state=tmp_path / "l.db", config=config, servers={"world": [seen, step]}) as runtime:
            (asked,) = (await runtime.service.status(mission_id))["pending_approvals"]
            await Approvals(runtime.service).answer(asked["approval_id"], "once", mission_id=mission_id)
            await runtime.service.resume(mission_id)
            state = await runtime.service.run(mission_id)
            assert (state.iteration_count, len(endpoint.seen)) == (1, 3), "in the same turn"
            assert await outcomes(runtime, mission_id) == [("world.look", "ok"), ("world.step", "ok")]
        assert "The operator says: Mind the gap." in transcript(endpoint.seen[2])[-1].text

    with scripted(monkeypatch, *replies) as endpoint:
        play(lambda: scene(endpoint))


def test_the_words_are_there_while_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Reply(fault="stall", text="These words come one after the other, " * 4)

    async def scene() -> None:
        with scripted(monkeypatch, stalled) as endpoint:
            async with stage(tmp_path, step) as runtime:
                mission_id = (await runtime.service.start(mission(criteria=DONE, proposer=OPENAI))).session_id
                live = live_folder(runtime.state_path)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(runtime.service.run, mission_id)
                    await anyio.to_thread.run_sync(endpoint.halfway.acquire)
                    with anyio.fail_after(30):
                        while "These words come" not in words_of(live, mission_id):
                            await anyio.sleep(0.01)
                    await runtime.service.abort(mission_id)
                assert words_of(live, mission_id) == ""

    play(scene)


@pytest.mark.guarantee("old-model-missions-go-on")
def test_model_missions_of_the_release_before_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was paused between iterations; one died after an answer was stored that mended a refused one."""
    shutil.copy(DATA / "ledger-0.1-models.db", tmp_path / "ledger.db")
    paused, killed = json.loads((DATA / "ledger-0.1-models.json").read_text())["missions"]

    async def scene() -> None:
        with scripted(monkeypatch, calls(("world__step", {"amount": 3}))) as endpoint:
            async with stage(tmp_path, step) as runtime:
                service = runtime.service
                assert (await service.state(paused)).mission.proposer.turn == "single"
                state = await service.run(killed)
                assert (state.verdict_reason, state.iteration_count, len(endpoint.seen)) == ("criteria_met", 3, 1)
                assert [call.args["amount"] for call in state.recent[1].calls.values()] == [2], "the stored answer"
                assert "The mission had 2 iterations already" in told(endpoint.seen[0])
                state = await service.run(paused)
                assert (state.verdict_reason, state.iteration_count, len(endpoint.seen)) == ("criteria_met", 2, 2)

    play(scene)


MISSION = """
directive = "Look, then step"
proposer = "openai:gpt-4o-mini"
allow_all_tools = true
[budget]
max_iterations = 3
[[criteria]]
criterion_id = "stepped"
kind = "tool_call_succeeded"
tool_name = "rec.step"
[servers.rec]
command = "__python_executable__"
args = ["{recorder}"]
env = {{ RECORD = "{record}" }}
"""


@pytest.mark.guarantee("prompt-shows-what-is-sent")
@pytest.mark.guarantee("replays-without-a-provider")
def test_prompt_and_replay_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Path(__file__).parents[1] / "servers" / "recorder.py"
    place = Place(tmp_path)
    place.write("pursuit.toml", '[policy]\nmode = "auto"\n')
    place.write("mission.toml", MISSION.format(recorder=recorder, record=tmp_path / "record"))
    replies = calls(("rec__look", {"key": "b"})), calls(("rec__step", {"key": "a", "ms": 1}))
    with scripted(monkeypatch, *replies) as endpoint:
        out, notes = place.ask("start", "mission.toml")
        mission_id = out.strip()
        assert "the budget allows at most 24 requests" in notes
        (following,) = place.json("prompt", mission_id)["requests"]
        assert (following["request"], "rec__step" in following["tools"]) == (0, True), "before anything was sent"
        place.ask("resume", mission_id)
        rows = place.json("prompt", mission_id, "--iteration", "1")["requests"]
        assert [row["exact"] for row in rows] == [True, True]
        assert rows[0]["messages"] == following["messages"]
        assert rows[0]["messages"][0]["text"] == transcript(endpoint.seen[0])[1].text
        assert rows[1]["used"]["input"] > 0
        assert "first message\t" in place.ask("prompt", mission_id, "--iteration", "1", "--tokens")[0]
        assert "-- assistant --" in place.ask("prompt", mission_id, "--iteration", "1")[0]
        place.ask("prompt", mission_id, "--iteration", "9", code=2)
    for name in endpoint.environment:
        monkeypatch.delenv(name)
    out, _ = place.ask("replay", mission_id)
    assert out.count("the same") == 2
    assert "verdict complete, as recorded" in out
    different = calls(("rec__step", {"key": "other", "ms": 1}))
    with scripted(monkeypatch, replies[0], different):
        out, _ = place.ask("replay", mission_id, "--model", ANTHROPIC, code=1)
    assert "makes the same calls" in out.splitlines()[0]
    assert "answers differently" in out
    assert '"key": "other"' in out

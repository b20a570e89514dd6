"""Long conversations with a language model: long results, notes, the window, approvals, replays, older missions."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from engine_stage import driving, events_of, mission, outcomes, repeat, stage
from mcp.server.mcpserver import MCPServer
from mcp.types import AudioContent, CallToolResult, ImageContent, TextContent
from model_endpoint import Reply, calls, transcript
from model_stage import ALL, ANTHROPIC, DONE, OPENAI, Scripted, look, pursued, quickly, step
from provider_usage import tokens_of

from pursuit import Budget, Runtime, event, metric, tool
from pursuit.cli.progress import words_of
from pursuit.config.configuration import Configuration
from pursuit.config.files import live_folder
from pursuit.core.events import ConversationCompacted, ModelAsked, WaitBegan
from pursuit.policy.rules import OperatorPolicy
from pursuit.proposers.model.conversation import result_text
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
    model: str, tmp_path: Path, scripted: Scripted
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

    with scripted(answer):
        proposer = {"kind": "model", "model": model, "max_requests": 50}
        state, _found, _rows, made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), book, step)
    assert state.verdict_reason == "criteria_met"
    assert "".join(parts[1:]) == BOOK
    assert made.count(("pursuit.read_result", "ok")) == len(parts) - 2 > 2


@ALL
@pytest.mark.guarantee("window-is-managed")
@pytest.mark.guarantee("operators-words-are-whole")
async def test_a_conversation_that_fills_the_window_is_cut_by_a_recorded_summary(
    model: str, tmp_path: Path, scripted: Scripted
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
        return calls(("world__long", {"at": f"place {asked}"})) if asked < 32 else calls(("world__step", {}))

    with scripted(answer) as endpoint:
        proposer = {
            "kind": "model",
            "model": model,
            "window": 8_000,
            "max_requests": 50,
            "max_tokens": 500,
        }
        proposer["instructions"] = "Be quick."
        wanted = mission(criteria=DONE, directive=goal, proposer=proposer)

        async def scene() -> Any:
            async with stage(tmp_path, long, step) as runtime:
                mission_id = (await runtime.runner.start(wanted)).session_id
                state = await quickly(runtime.runner).run(mission_id)
                shown = await runtime.runner.conversations.shown(mission_id, 0)
                status = (await runtime.runner.status(mission_id)).as_json()
                return state, await events_of(runtime, mission_id, ConversationCompacted), shown, status

        state, cuts, shown, status = await scene()
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
    assert all(row.exact for row in shown.requests), "also across the cuts"
    assert sum(row.purpose == "summary" for row in shown.requests) == len(summaries)


@ALL
def test_large_old_results_go_before_words_do(model: str, tmp_path: Path, scripted: Scripted) -> None:
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

    with scripted(answer) as endpoint:
        proposer = {"kind": "model", "model": model, "window": 12_000, "max_requests": 50}
        _state, found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), large, step)
    first = found[ConversationCompacted][0]
    assert first.trimmed
    assert not first.summary
    last = told(endpoint.seen[-1])
    assert "Words 1." in last
    assert re.search(r"\[\d+ characters, omitted now; pursuit__read_result", last)


@ALL
@pytest.mark.guarantee("window-is-managed")
def test_a_summary_is_asked_of_what_it_replaces_and_fits_the_window(
    model: str, tmp_path: Path, scripted: Scripted
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
        if (size := tokens_of(request["body"])) < 26_600:
            return calls(*[("world__small", {"at": f"{asked} {place}"}) for place in range(8 if size < 23_000 else 1)])
        return calls(*[("world__big", {"at": f"{asked} {place}"}) for place in range(4)])

    summaries: list[dict[str, Any]] = []
    with scripted(answer) as endpoint:
        proposer = {"kind": "model", "model": model, "window": window, "max_requests": 130}
        state, _found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), big, small, step)
    assert state.verdict_reason == "criteria_met"
    assert summaries
    assert all(tokens_of(request["body"]) < window - 4_096 for request in endpoint.seen)
    assert "wordy" not in told(summaries[0]), "the newest calls stay, so they are no part of it"
    assert "some words" in told(summaries[0])


@ALL
@pytest.mark.guarantee("window-is-managed")
def test_a_request_that_the_provider_finds_too_long_is_cut_and_sent_again(
    model: str, tmp_path: Path, scripted: Scripted
) -> None:
    """The window that the mission names is wrong: the model has a smaller one."""

    def answer(request: dict[str, Any]) -> Reply:
        asked = len(endpoint.seen)
        if (size := tokens_of(request["body"])) > 4_000:
            refusals.append(size)
            return Reply(status=400, text=f"prompt is too long: {size} tokens > 4000 maximum")
        if "The conversation is about to be cut" in transcript(request)[-1].text:
            return Reply(text="SUMMARY")
        return calls(("world__file", {"at": str(asked)})) if asked < 9 else calls(("world__step", {}))

    def file(at: str) -> str:
        """Reads."""
        return f"{at} " + "some words\n" * 350

    refusals: list[int] = []
    with scripted(answer) as endpoint:
        proposer = {"kind": "model", "model": model, "window": 40_000, "max_requests": 60}
        state, found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=proposer), file, step)
    assert state.verdict_reason == "criteria_met"
    assert 0 < len(refusals) < 5
    assert any(cut.summary for cut in found[ConversationCompacted])
    assert all(wait.until - wait.at < 0.001 for wait in found[WaitBegan]), "it is asked again at once"
    assert state.conversation.estimated_tokens == 0, "what is refused is not charged"


def test_a_first_message_that_is_too_long_fails_the_mission(tmp_path: Path, scripted: Scripted) -> None:
    with scripted(Reply(status=400, text="prompt is too long: 9 tokens > 8 maximum")) as endpoint:
        state, _found, _rows, _made = pursued(tmp_path, mission(criteria=DONE, proposer=OPENAI))
    assert (state.status, len(endpoint.seen)) == ("failed", 5)
    assert "prompt is too long" in state.failure.error


PNG = b"\x89PNG\r\n\x1a\n" + bytes(400_000)
PICTURES = {
    "image": (ImageContent, "image/png", PNG, "image"),
    "misnamed image": (ImageContent, "image/svg+xml", PNG, "image"),
    "sound": (AudioContent, "audio/wav", b"RIFF\0\0\0\0WAVEfmt " + bytes(600), None),
    "drawing": (ImageContent, "image/svg+xml", b"<svg>" + bytes(600), "left out: models take"),
    "bytes": (ImageContent, "image/png", b"\x89\xff" + bytes(600), "left out: models take"),
    "huge image": (ImageContent, "image/png", PNG * 10, "left out: it may have at most 5000000"),
}


def camera(kind: type[Any], name: str, data: bytes) -> MCPServer:
    server = MCPServer("eye")

    @server.tool()
    def picture() -> CallToolResult:
        """Takes a picture."""
        block = kind(type=name[:5], data=base64.b64encode(data).decode(), mime_type=name)
        return CallToolResult(content=[TextContent(type="text", text="Click."), block])

    return server


@ALL
@pytest.mark.guarantee("images-are-content")
def test_images_are_content_where_the_model_takes_them(model: str, tmp_path: Path, scripted: Scripted) -> None:
    """What no model takes is left out and named; an image does not count as text."""
    for place, (kind, name, data, wanted) in enumerate(PICTURES.values()):
        (tmp_path / str(place)).mkdir()
        proposer = {"kind": "model", "model": model, "window": 30_000}
        budget = Budget(max_iterations=1, max_tokens=30_000)
        with scripted(calls(("eye__picture", {})), Reply(text="I see.")) as endpoint:
            state, found, _rows, _made = pursued(
                tmp_path / str(place),
                mission(proposer=proposer, budget=budget),
                servers={"eye": camera(kind, name, data)},
            )
        assert (state.verdict_reason, len(endpoint.seen)) == ("max_iterations", 2)
        assert found[ConversationCompacted] == []
        sent = json.dumps(endpoint.seen[1]["body"])
        assert "Click." in sent
        assert "image/svg+xml" not in sent or "[image/svg+xml" in sent
        if wanted == "image":
            assert base64.b64encode(data).decode() in sent
            assert "image/png" in sent
        elif wanted is not None:
            assert wanted in told(endpoint.seen[1])


@ALL
def test_an_image_that_the_provider_cannot_read_is_left_out(model: str, tmp_path: Path, scripted: Scripted) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        if "image/png;base64" in (sent := json.dumps(request["body"])) or '"type": "base64"' in sent:
            return Reply(status=400, text="Could not process image")
        return calls(("eye__picture", {})) if len(endpoint.seen) == 1 else Reply(text="I see nothing.")

    with scripted(answer) as endpoint:
        server = camera(ImageContent, "image/png", PNG[:1_000])
        state, found, _rows, _made = pursued(
            tmp_path, mission(proposer={"kind": "model", "model": model}), servers={"eye": server}
        )
    assert (state.verdict_reason, len(endpoint.seen)) == ("max_iterations", 3)
    assert [len(cut.trimmed) for cut in found[ConversationCompacted]] == [1]
    assert "[image/png, omitted now]" in told(endpoint.seen[2])


@ALL
async def test_an_approval_waits_in_the_middle_of_a_turn_and_the_turn_goes_on(
    model: str, tmp_path: Path, scripted: Scripted
) -> None:
    replies = calls(("world__look", {"at": "x"})), calls(("world__step", {"key": "b"})), Reply(text="Done.")
    with scripted(*replies) as endpoint:
        config = Configuration(policy=OperatorPolicy(mode="ask"))
        seen = tool(read_only=True)(look)
        wanted = mission(
            criteria=[metric("steps") >= 1, event("never")],
            proposer={"kind": "model", "model": model},
            policy={"ask": ["world.step"]},
        )
        async with Runtime(state=tmp_path / "l.db", config=config, servers={"world": [seen, step]}) as runtime:
            mission_id = (await runtime.runner.start(wanted)).session_id
            state = await runtime.runner.run(mission_id)
            assert (state.waiting_for, state.iteration_count, len(endpoint.seen)) == ("approval", 0, 2)
            await runtime.runner.pause(mission_id, reason="Mind the gap.")
        async with Runtime(state=tmp_path / "l.db", config=config, servers={"world": [seen, step]}) as runtime:
            (asked,) = (await runtime.runner.status(mission_id)).as_json()["pending_approvals"]
            await Approvals(runtime.runner).answer(asked["approval_id"], "once", stream=mission_id)
            await runtime.runner.resume(mission_id)
            state = await runtime.runner.run(mission_id)
            assert (state.iteration_count, len(endpoint.seen)) == (1, 3), "in the same turn"
            assert await outcomes(runtime, mission_id) == [("world.look", "ok"), ("world.step", "ok")]
        assert "The operator says: Mind the gap." in transcript(endpoint.seen[2])[-1].text


@ALL
async def test_the_words_are_there_while_they_come(model: str, tmp_path: Path, scripted: Scripted) -> None:
    stalled = Reply(fault="stall", text="These words come one after the other, " * 4)
    with scripted(stalled) as endpoint:
        async with stage(tmp_path, step) as runtime:
            mission_id = (await runtime.runner.start(mission(criteria=DONE, proposer=model))).session_id
            live = live_folder(runtime.state_path)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.runner.run, mission_id)
                await anyio.to_thread.run_sync(endpoint.halfway.acquire)
                with anyio.fail_after(30):
                    while "These words come" not in words_of(live, mission_id):
                        await anyio.sleep(0.01)
                await runtime.runner.abort(mission_id)
            assert words_of(live, mission_id) == ""


@pytest.mark.guarantee("old-model-missions-go-on")
async def test_model_missions_of_the_release_before_go_on(tmp_path: Path, scripted: Scripted) -> None:
    """One was paused between iterations; one died after an answer was stored that mended a refused one."""
    shutil.copy(DATA / "ledger-0.1-models.db", tmp_path / "ledger.db")
    paused, killed = json.loads((DATA / "ledger-0.1-models.json").read_text())["missions"]
    with scripted(calls(("world__step", {"amount": 3}))) as endpoint:
        async with stage(tmp_path, step) as runtime:
            service = runtime.runner
            assert (await service.state(paused)).mission.proposer.turn == "single"
            state = await service.run(killed)
            assert (state.verdict_reason, state.iteration_count, len(endpoint.seen)) == ("criteria_met", 3, 1)
            assert [call.args["amount"] for call in state.recent[1].calls.values()] == [2], "the stored answer"
            assert "The mission had 2 iterations already" in told(endpoint.seen[0])
            state = await service.run(paused)
            assert (state.verdict_reason, state.iteration_count, len(endpoint.seen)) == ("criteria_met", 2, 2)


@pytest.mark.guarantee("prompt-shows-what-is-sent")
async def test_what_is_sent_next_is_known_to_the_byte(tmp_path: Path, scripted: Scripted) -> None:
    """With lessons, without the tools that do not fit, and also if a summary is due."""

    def long(at: str) -> str:
        return f"{at} " + "some words\n" * 700

    def answer(request: dict[str, Any]) -> Reply:
        if "The conversation is about to be cut" in transcript(request)[-1].text:
            return Reply(fault="hang")
        return calls(("world__long", {"at": str(len(endpoint.seen))}))

    with scripted(answer) as endpoint:
        async with stage(tmp_path, look, long, step, settings={"tools_bytes": 400}) as runtime:
            service = runtime.runner
            steps = {"directive": "Take steps", "criteria": [metric("steps") >= 1]}
            await service.run((await service.start(mission(**steps, proposer=repeat("world.step")))).session_id)
            proposer = {"kind": "model", "model": OPENAI, "window": 8_000, "max_requests": 50}
            wanted = mission(**{**steps, "criteria": [metric("steps") >= 2]}, proposer=proposer)
            mission_id = (await service.start(wanted)).session_id
            first = (await service.conversations.shown(mission_id)).requests
            async with driving(runtime, mission_id):
                while "about to be cut" not in (endpoint.prompts() or [""])[-1]:
                    await anyio.to_thread.run_sync(endpoint.arrived.acquire)
                await service.pause(mission_id)
            then = (await service.conversations.shown(mission_id)).requests
            asked = await events_of(runtime, mission_id, ModelAsked)
            assert [row.digest for row in (*first, *then)] == [asked[0].digest, asked[-1].digest]
            assert then[0].purpose == "summary"
            opening = first[0].messages[0].text
            assert "# Lessons of earlier missions" in opening
            assert "There is no room to describe these tools of the mission: world__step" in opening


@ALL
@pytest.mark.guarantee("the-model-is-told-what-changed")
def test_the_model_is_told_why_a_check_fails_and_what_runs_out(model: str, tmp_path: Path, scripted: Scripted) -> None:
    code = "print('much output ' * 500); print('AssertionError: 5 is not 6'); raise SystemExit(1)"
    check = {"criterion_id": "tests", "kind": "check", "command": [sys.executable, "-c", code]}
    looks = [calls(*[("world__look", {"at": f"{place} {more}"}) for more in range(4)]) for place in range(4)]
    with scripted(*looks, Reply(text="Done.")) as endpoint:
        wanted = mission(
            criteria=[check],
            proposer={"kind": "model", "model": model},
            budget=Budget(max_iterations=2, max_tool_calls=20),
        )
        _state, _found, rows, _made = pursued(tmp_path, wanted)
    checks = [[call["purpose"] == "check" for call in row["calls"]] for row in rows]
    assert [sum(one) for one in checks] == [1, 1], "checks run only when a turn is over"
    told_at_the_end = endpoint.prompts()
    warned = [place for place, text in enumerate(told_at_the_end) if "Running out: max_tool_calls" in text]
    assert warned == [4, 5], "once in each iteration"
    assert "> AssertionError: 5 is not 6" in told_at_the_end[5]
    assert len(told_at_the_end[5]) < 4_000


@ALL
@pytest.mark.guarantee("the-model-is-told-what-changed")
async def test_the_model_is_told_what_is_feasible_what_is_missing_and_what_was_learnt(
    model: str, tmp_path: Path, scripted: Scripted
) -> None:
    """Lessons are quoted; the best feasible point and a better one that breaks a limit have their arguments."""

    def trial(x: int) -> dict[str, Any]:
        """Tries."""
        return {"metrics": {"gain": x, "heat": 10 * x}}

    loss = {"criterion_id": "loss", "kind": "metric_threshold", "metric": "val_loss", "op": "<=", "target": 1}
    criteria = [metric("gain") >= 9, metric("heat") <= 25, {**loss, "required": False}]
    about = {"directive": "Try values of x", "criteria": criteria}
    replies = calls(("world__trial", {"x": 2}), ("world__trial", {"x": 4})), Reply(text="See."), Reply(text="So.")
    with scripted(*replies) as endpoint:
        async with stage(tmp_path, trial) as runtime:
            service = runtime.runner
            once = mission(**about, proposer=repeat("world.trial", x=1))
            await service.run((await service.start(once)).session_id)
            asks = {"kind": "model", "model": model}
            wanted = mission(**about, proposer=asks, budget=Budget(max_iterations=2), allow_scripted_strategies=True)
            await service.run((await service.start(wanted)).session_id)
    first, said = transcript(endpoint.seen[0])[1].text, endpoint.prompts()[2]
    assert re.search("# Lessons of earlier missions, which may help\n\n> .*Try values of x", first)
    assert 'The best feasible point so far: world__trial {"x":2} gave {"gain":2,"heat":20}' in said
    assert 'Infeasible: world__trial {"x":4} gave {"gain":4,"heat":40}, which violates heat' in said
    assert "no value for `val_loss` yet" in said


def test_a_model_with_too_many_notes_is_told_which_are_gone(tmp_path: Path, scripted: Scripted) -> None:
    notes = [calls(*[("pursuit__note", {"text": f"note {place}"}) for place in range(100)])]
    notes.append(calls(("pursuit__note", {"text": "one more"})))
    with scripted(*notes, Reply(text="Enough.")) as endpoint:
        state, _found, _rows, _made = pursued(tmp_path, mission(proposer=OPENAI))
    assert (len(state.conversation.notes), state.conversation.notes[0], state.conversation.notes[-1]) == (
        100,
        "note 1",
        "one more",
    )
    assert "noted; 100 notes are kept, so the oldest was dropped" in endpoint.prompts()[-1]


def test_text_beside_structured_content_is_shown_and_its_copy_is_not() -> None:
    def shown(structured: Any, *texts: str) -> str:
        blocks = [{"type": "text", "text": text} for text in texts]
        return result_text({"content": blocks, "structuredContent": structured})[0]

    assert shown({"a": [1, 2]}, '{\n "a": [1, 2]\n}') == '{"a":[1,2]}'
    assert shown({"result": [1, "x"]}, "1", "x") == '[1,"x"]'
    assert shown({"result": 3}, "3") == "3"
    assert shown({"result": ["x"]}, "x") == '["x"]'
    assert shown({"content": "line\nline"}, "line\nline") == "line\nline"
    assert (
        shown({"rows": 3}, "Only the first 3 of 900 rows.", '{"rows": 3}')
        == 'Only the first 3 of 900 rows.\n{"rows":3}'
    )


MISSION = """
directive = "Look, then step"
proposer = {{ kind = "model", model = "{model}", settings = {{ thinking = "low" }} }}
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


@ALL
@pytest.mark.guarantee("prompt-shows-what-is-sent")
@pytest.mark.guarantee("replays-without-a-provider")
def test_prompt_and_replay_on_the_command_line(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    recorder = Path(__file__).parents[1] / "servers" / "recorder.py"
    place = Place(tmp_path)
    place.write("pursuit.toml", '[policy]\nmode = "auto"\n')
    place.write(
        "mission.toml",
        MISSION.format(model=model, recorder=recorder, record=tmp_path / "record"),
    )
    looking = calls(("rec__look", {"key": "b"}), thinking="Let me see.")
    replies = looking, calls(("rec__step", {"key": "a", "ms": 1}))
    with scripted(*replies) as endpoint:
        out, notes = place.ask("start", "mission.toml")
        mission_id = out.strip()
        assert "the budget allows at most 24 requests" in notes
        (following,) = place.json("prompt", mission_id)["requests"]
        assert following["request"] == 0, "before anything was sent"
        (stepping,) = [tool for tool in following["tools"] if tool["name"] == "rec__step"]
        assert set(stepping["schema"]["properties"]) == {"key", "ms"}
        place.ask("resume", mission_id)
        rows = place.json("prompt", mission_id, "--iteration", "1")["requests"]
        assert [row["exact"] for row in rows] == [True, True]
        assert rows[0]["digest"] == following["digest"]
        assert rows[0]["messages"][0]["text"] == transcript(endpoint.seen[0])[1].text
        assert set(rows[1]["used"]) == {"input", "cached", "output", "reasoning", "cost_usd"}
        assert min(rows[1]["used"][name] for name in ("input", "output", "cost_usd")) > 0
        assert "first message\t" in place.ask("prompt", mission_id, "--iteration", "1", "--tokens")[0]
        assert "-- assistant --" in place.ask("prompt", mission_id, "--iteration", "1")[0]
        place.ask("prompt", mission_id, "--iteration", "9", code=2)
    for name in endpoint.environment:
        monkeypatch.delenv(name)
    out, _ = place.ask("replay", mission_id)
    assert out.count("the same") == 2
    assert "verdict complete, as recorded" in out
    different = calls(("rec__step", {"key": "other", "ms": 1}))
    with scripted(replies[0], different) as endpoint:
        out, _ = place.ask("replay", mission_id, "--model", ANTHROPIC, code=1)
        first, second = (request["body"] for request in endpoint.seen)
        assert first["max_tokens"] == first["thinking"]["budget_tokens"] + 4_096, "thoughts come on top of the answer"
        assert ("thinking" in second) == (model == ANTHROPIC), "it cannot begin to think after another model's calls"
    assert "makes the same calls" in out.splitlines()[0]
    assert "answers differently" in out
    assert '"key": "other"' in out

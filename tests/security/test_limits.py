"""Attacks of a client with a token: past the ceilings that the operator set for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from callers_stage import Served, serving
from engine_stage import until
from gateway_stage import ABLE
from http_stage import http
from model_endpoint import calls
from model_stage import OPENAI, scripted
from test_approval_grants import ASK
from test_callers import COMMANDS, OPEN, WIPES

from pursuit.core.mission import parse_mission
from pursuit.engine.context import Spent
from pursuit.server.tokens import Scope
from pursuit.service.approvals import Approvals
from pursuit.service.gateway_journal import gateway_lines
from pursuit.service.limits import Usage, stream_of
from pursuit.service.run_loop import POLL_SECONDS

TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def limits(each: str, **callers: str) -> str:
    tables = "".join(f"[limits.callers.{name}]\n{text}\n" for name, text in callers.items())
    return f"{OPEN}[limits]\n{each}\n{tables}"


async def refused(served: Served, who: str, mission: dict[str, Any] = WIPES) -> dict[str, Any]:
    """The error of a start that must be refused."""
    answer = await served.call(who, "mission_start", mission)
    assert answer.get("isError"), answer
    return answer["structuredContent"]


@pytest.mark.guarantee("clients-have-ceilings")
async def test_a_client_starts_more_missions_than_it_may_also_after_a_restart(tmp_path: Path) -> None:
    config = limits("missions_a_day = 2", other="missions_at_once = 1\nmissions_a_day = 5")

    shown: dict[str, str] = {}

    async def first() -> None:
        async with serving(tmp_path, config) as served:
            before = served.shown["guest"]
            for _ in range(2):
                await served.start("guest", WIPES)
            why = await refused(served, "guest")
            assert (why["code"], why["details"]["limit"]) == ("limit_reached", "missions_a_day")
            assert "missions_a_day = 2" in why["message"] and why["details"]["frees_at"].endswith("T00:00:00Z")
            served.shown["guest"] = served.tokens.rotate("guest")
            assert (await refused(served, "guest"))["code"] == "limit_reached", "a rotated token is the same subject"
            assert served.shown["guest"] != before
            mission = await served.start("other", WIPES)
            why = await refused(served, "other")
            assert (why["details"]["limit"], "when one of its missions ends" in why["message"]) == (
                "missions_at_once",
                True,
            )
            await served.call("other", "mission_abort", {"session_id": mission})
            await served.start("other", WIPES)
            await served.runtime.runner.start(parse_mission(WIPES))  # the operator has no ceilings
            shown.update(served.shown)
            assert (await served.runtime.runner.verify()).ok

    await first()
    async with serving(tmp_path, config, shown=shown) as served:
        assert (await refused(served, "guest"))["details"]["limit"] == "missions_a_day"


@pytest.mark.guarantee("clients-have-ceilings")
async def test_many_starts_at_once_do_not_pass_the_same_count(tmp_path: Path) -> None:
    async with serving(tmp_path, limits("missions_a_day = 3\nmissions_at_once = 3")) as served:
        answers: list[bool] = []

        async def start() -> None:
            answers.append(bool((await served.call("guest", "mission_start", WIPES)).get("isError")))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(start)
        assert sorted(answers) == [False] * 3 + [True] * 5


@pytest.mark.guarantee("clients-have-ceilings")
async def test_a_client_asks_for_a_mission_without_a_bound(tmp_path: Path) -> None:
    endless = {**WIPES, "budget": {"unbounded": True}}
    async with serving(tmp_path, limits("", other="unbounded = true")) as served:
        why = await refused(served, "guest", endless)
        assert why["code"] == "validation_error" and "only the operator" in str(why)
        await served.start("other", endless)
        await served.runtime.runner.start(parse_mission(endless))


@pytest.mark.guarantee("clients-have-ceilings")
async def test_a_client_makes_more_calls_in_a_minute_than_it_may(tmp_path: Path) -> None:
    async with serving(tmp_path, limits("calls_a_minute = 2", other="calls_a_minute = 9"), gateway=True) as served:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("tools/call", {"name": "wipe", "arguments": {}}),
            ("resources/read", {"uri": "world://secret"}),
        ]
        for method, params in calls:
            assert "result" in await served.ask("guest", method, params)
        for method, params in calls:
            answer = await served.ask("guest", method, params)
            assert answer["error"]["data"]["code"] == "limit_reached", answer
            assert (
                "calls_a_minute = 2" in answer["error"]["message"]
                and "available again in" in answer["error"]["message"]
            )
        assert len(served.world.reached) == 2
        assert "result" in await served.ask("guest", "tools/list", {}), "a list reaches no tool"
        assert "result" in await served.ask("other", *calls[0])


WIPE = "notifications/world/wipe"
LEGACY = "2025-11-25"
INITIALIZE = {"protocolVersion": LEGACY, "capabilities": ABLE, "clientInfo": {"name": "t", "version": "1"}}


@pytest.mark.guarantee("clients-have-ceilings")
@pytest.mark.guarantee("scopes-bound-a-token")
@pytest.mark.parametrize(("scopes", "said"), [([], 403), (None, 202)])
async def test_notifications_pass_neither_the_scopes_nor_the_calls_in_a_minute(
    tmp_path: Path, scopes: list[Scope] | None, said: int
) -> None:
    async with (
        serving(tmp_path, limits("calls_a_minute = 2"), gateway=True) as served,
        http(served.tokens.make("mallory", scopes=scopes)) as wire,
    ):
        wire.headers["Accept"] = "application/json, text/event-stream"

        async def say(method: str, **more: Any) -> Any:
            return await wire.post(served.url, json={"jsonrpc": "2.0", "method": method, **more})

        begun = await say("initialize", id=1, params=INITIALIZE)
        wire.headers.update({"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": LEGACY})
        for method in ("initialized", "cancelled", "progress", "roots/list_changed"):
            assert (await say(f"notifications/{method}")).status_code == 202
        await say("tools/list", id=2, params={})
        assert [(await say(WIPE)).status_code for _ in range(5)] == [said] * 5
        await say("ping", id=3)  # after them, in the same session
        lines, recorded = list[str](), [] if said == 403 else [f"call world.{WIPE}"] * 2
        with anyio.move_on_after(10):
            while len(lines) < len(recorded):
                lines = [line["verb"] for line in await gateway_lines(served.runtime.runner.ledger)]
        asked = await say("notifications/progress", id=4, params={})
        assert asked.status_code == 403 if said == 403 else "calls_a_minute = 2" in asked.text
        lines = [line["verb"] for line in await gateway_lines(served.runtime.runner.ledger)]
        assert lines == recorded, "one that is dropped costs nothing"


@pytest.mark.guarantee("clients-have-ceilings")
@pytest.mark.parametrize("background", [False, True])
async def test_a_client_drives_more_missions_at_once_than_it_may(tmp_path: Path, background: bool) -> None:
    async with serving(tmp_path, limits("running = 1")) as served:
        served.world.hold = anyio.Event()
        one, two = [await served.start("guest", WIPES) for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            asked = {"session_id": one, "max_iterations_this_call": 2, "background": background}
            tasks.start_soon(served.call, "guest", "mission_iterate", asked)
            with anyio.fail_after(30):
                while not served.world.reached:
                    await anyio.sleep(0.01)
            answer = await served.call("guest", "mission_iterate", {"session_id": two})
            assert answer["structuredContent"]["details"]["limit"] == "running", answer
            served.world.hold.set()
        with anyio.fail_after(30):
            while (await served.runtime.runner.state(one)).iteration_count < 2:
                await anyio.sleep(0.01)
            while (await served.call("guest", "mission_iterate", {"session_id": two})).get("isError"):
                await anyio.sleep(0.05)


@pytest.mark.guarantee("clients-have-ceilings")
async def test_a_background_run_that_waits_for_its_pace_is_driven(tmp_path: Path) -> None:
    async with serving(tmp_path, limits("running = 1")) as served:
        one, two = [await served.start("guest", {**WIPES, "pace": 60}) for _ in range(2)]
        asked = {"max_iterations_this_call": 3, "background": True}
        await served.call("guest", "mission_iterate", {"session_id": one, **asked})
        await until(served.runtime, one, lambda state: state.waiting_for == "pace")
        answer = await served.call("guest", "mission_iterate", {"session_id": two, **asked})
        assert answer["structuredContent"]["details"]["limit"] == "running", answer
        await served.call("guest", "mission_abort", {"session_id": one, "pause": True})
        with anyio.fail_after(30):
            while (await served.call("guest", "mission_iterate", {"session_id": two, **asked})).get("isError"):
                await anyio.sleep(0.05)


@pytest.mark.guarantee("clients-have-ceilings")
async def test_background_runs_whose_questions_are_answered_go_on_one_after_the_other(tmp_path: Path) -> None:
    async with serving(tmp_path, f"{ASK}[limits]\nrunning = 1\n") as served:
        approvals, names = Approvals(served.runtime.runner), list[str]()
        for _ in range(2):
            names.append(await served.start("guest", {**WIPES, "budget": {"max_iterations": 1}}))
            begun = await served.call("guest", "mission_iterate", {"session_id": names[-1], "background": True})
            assert not begun.get("isError"), begun
            await until(served.runtime, names[-1], lambda state: state.waiting_for == "approval")
            with anyio.fail_after(30):
                while await served.runtime.runner.ledger.is_claimed(names[-1]):
                    await anyio.sleep(0.01)
        served.world.hold = anyio.Event()
        for row in await approvals.open():
            await approvals.answer(row.approval_id, "once")
        with anyio.fail_after(30):
            while not served.world.reached:
                await anyio.sleep(0.01)
        await anyio.sleep(2 * POLL_SECONDS)  # the other one is looked at, and left
        assert served.world.reached == ["tools/call"]
        served.world.hold.set()
        for name in names:
            await until(served.runtime, name, lambda state: state.terminal)


@pytest.mark.guarantee("clients-have-ceilings")
async def test_a_client_has_more_tasks_at_once_than_it_may(tmp_path: Path) -> None:
    config = limits("tasks_at_once = 1") + '[commands.nap]\nargv = ["sleep", "30"]\n' + COMMANDS
    async with serving(tmp_path, config) as served:
        begun = await served.call("guest", "nap", able=TASKS)
        assert begun["resultType"] == "task", begun
        with anyio.move_on_after(1):
            answer = await served.ask("guest", "tools/call", {"name": "nap", "arguments": {}}, able=TASKS)
            assert "tasks_at_once = 1" in str(answer), answer
        rows = (await served.runtime.runner.ledger.streams(kind="task")).rows
        assert len(rows) == 1
        await served.ask("guest", "tasks/cancel", {"taskId": begun["taskId"]})


@pytest.mark.guarantee("clients-have-ceilings")
@pytest.mark.parametrize(
    ("limit", "spent"),
    [
        ("tokens_a_day = 100", Spent(100, 0.0, 0)),
        ("cost_usd_a_day = 0.5", Spent(10, 0.5, 0)),
        ("bytes_stored = 5000", Spent(0, 0.0, 5_000)),
    ],
)
async def test_a_client_uses_more_than_it_may(tmp_path: Path, limit: str, spent: Spent) -> None:
    async with serving(tmp_path, limits(limit)) as served:
        service = served.runtime.runner
        mission = await served.start("guest", WIPES)
        await service.limits.ceiling(await service.state(mission), spent)
        answer = await served.call("guest", "mission_iterate", {"session_id": mission})
        told = answer["structuredContent"]
        assert told["status"] == "paused" and limit in told["paused_reason"], told
        assert (
            "capacity is available again" in told["paused_reason"]
            and told["paused_reason"] in answer["content"][0]["text"]
        )
        assert (await refused(served, "guest"))["details"]["limit"] == limit.partition(" ")[0]
        await served.start("other", WIPES)
        assert served.world.reached == []
        assert (await service.verify()).ok


@pytest.mark.guarantee("clients-have-ceilings")
async def test_what_missions_store_is_counted_as_they_run_and_given_back_when_they_are_forgotten(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, limits("bytes_stored = 4000")) as served:
        service = served.runtime.runner
        mission = await served.start("guest", {**WIPES, "budget": {"max_iterations": 50}})
        asked = {"session_id": mission, "max_iterations_this_call": 50}
        told = (await served.call("guest", "mission_iterate", asked))["structuredContent"]
        assert told["status"] == "paused" and 0 < len(told["iterations"]) < 50
        state = await service.state(mission)
        assert state.owner is not None
        row = await service.ledger.row(stream_of(state.owner))
        assert row is not None and row.summary["bytes"] >= 4000
        await service.abort(mission)
        await service.forget(mission)
        await served.start("guest", WIPES)
        assert (await service.verify()).ok


@pytest.mark.guarantee("clients-have-ceilings")
async def test_questions_at_the_gateway_store_no_more_than_a_client_may(tmp_path: Path) -> None:
    async with serving(tmp_path, f"{ASK}[limits]\nbytes_stored = 100_000\n", gateway=True) as served:
        service = served.runtime.runner

        async def asked(who: str, size: int, number: int) -> dict[str, Any]:
            arguments = {"password": "hunter2", "text": "x" * size, "n": number}
            return await served.ask(who, "tools/call", {"name": "wipe", "arguments": arguments})

        why = (await asked("guest", 100_000, 0))["error"]["data"]
        assert (why["code"], why["details"]["limit"]) == ("limit_reached", "bytes_stored")
        answers = [await asked("guest", 30_000, number) for number in range(5)]
        assert ["error" in one for one in answers] == [False] * 3 + [True] * 2
        assert "result" in await asked("guest", 30_000, 0), "a question that was asked is not stored again"
        assert "result" in await asked("other", 30_000, 0)
        assert len(await Approvals(service).open()) == 4
        assert sum(row.summary["bytes"] for row in (await service.ledger.streams(kind="usage")).rows) < 200_000
        assert served.world.reached == [] and (await service.verify()).ok


@pytest.mark.guarantee("clients-have-ceilings")
async def test_a_mission_that_asks_a_model_stops_at_the_tokens_of_the_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = f'model = "{OPENAI}"\n{limits("tokens_a_day = 1")}'
    mission = {key: value for key, value in WIPES.items() if key != "proposer"}
    with scripted(monkeypatch, calls(("world__wipe", {}))) as endpoint:
        async with serving(tmp_path, config) as served:
            started = await served.start("guest", mission)
            asked = {"session_id": started, "max_iterations_this_call": 3}
            told = (await served.call("guest", "mission_iterate", asked))["structuredContent"]
            assert told["status"] == "paused" and "tokens_a_day = 1 " in told["paused_reason"]
            assert len(endpoint.seen) == 1, "the first answer crosses it, and no second one is asked for"
            await served.call("guest", "mission_resume", {"session_id": started})
            told = (await served.call("guest", "mission_iterate", asked))["structuredContent"]
            assert (told["status"], len(endpoint.seen)) == ("paused", 1)


def test_a_new_day_begins_at_nothing() -> None:
    used = Usage(subject="s", day="2026-11-16", missions=3, tokens=5, cost_usd=1.0, bytes=7)
    assert used.on("2026-11-16") == used
    assert used.on("2026-11-17") == Usage(subject="s", day="2026-11-17", bytes=7)

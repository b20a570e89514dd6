"""Attacks of a caller with a token: past the policy that the operator wrote for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from callers_stage import serving
from engine_stage import until
from http_stage import http
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from plain_http import TASKS

from pursuit.core.events import Identity
from pursuit.core.mission import parse_mission
from pursuit.server.missions.iterating import MissionRun
from pursuit.service.audit import Caller, local_subject
from pursuit.tasks.store import TaskRecords

POLICY = """
[policy]
mode = "auto"
[policy.callers.guest]
deny = ["world.*", "commands.*", "check.*"]
[policy.callers.reader]
mode = "never"
"""
OPEN = '[policy]\nmode = "auto"\n'
COMMANDS = """
[commands.mark]
argv = ["touch", "{path}"]
parameters = { path = { type = "string" } }
"""
NEVER: dict[str, Any] = {"criterion_id": "c", "kind": "event", "event_name": "never", "required": True}
WIPES: dict[str, Any] = {
    "directive": "Wipe",
    "criteria": [NEVER],
    "budget": {"max_iterations": 3},
    "tool_allowlist": ["world.wipe"],
    "proposer": {"kind": "repeat", "tool_name": "world.wipe", "args": {}},
}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("resources/read", {"uri": "world://secret"}),
    ("prompts/get", {"name": "plan"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "plan"}, "argument": {"name": "a", "value": "s"}},
    ),
    ("world/wipe", {}),
]


@pytest.mark.guarantee("callers-only-tighten")
async def test_a_callers_layer_holds_for_that_caller_alone_and_for_every_request(tmp_path: Path) -> None:
    async with serving(tmp_path, POLICY, gateway=True) as served:
        refused = await served.call("guest", "wipe")
        assert refused["isError"] and "the caller guest's policy says deny" in refused["content"][0]["text"]
        for method, params in REQUESTS:
            refused = await served.ask("guest", method, params)
            assert "the caller guest's policy says deny" in refused["error"]["message"], refused
        listened = {"notifications": {"resourceSubscriptions": ["world://secret"]}}
        refused = await served.ask("guest", "subscriptions/listen", listened)
        assert "the caller guest's policy says deny" in refused["error"]["message"], refused
        assert served.world.reached == []
        for method, params in REQUESTS:
            assert "result" in await served.ask("other", method, params)
        assert not (await served.call("other", "wipe")).get("isError")
        assert served.world.reached == [*(method for method, _ in REQUESTS), "tools/call"]


@pytest.mark.guarantee("callers-only-tighten")
async def test_a_mission_keeps_the_layer_of_the_caller_who_started_it(tmp_path: Path) -> None:
    async with serving(tmp_path, POLICY) as served:
        mission = await served.start("guest", WIPES)
        await served.runtime.runner.iterate(mission)  # the operator drives it, and it is the guest's still
        page = (await served.runtime.runner.history(mission, full=True)).as_json()
        (call,) = page["iterations"][0]["calls"]
        assert (call["outcome"], served.world.reached) == ("denied", [])


@pytest.mark.guarantee("callers-only-tighten")
@pytest.mark.parametrize("background", [False, True])
async def test_a_callers_layer_holds_in_the_mission_of_another_caller(tmp_path: Path, background: bool) -> None:
    async with serving(tmp_path, POLICY) as served:
        mission = await served.start("other", {**WIPES, "share": ["guest"]})
        await served.call("guest", "mission_iterate", {"session_id": mission, "background": background})
        service = served.runtime.runner
        with anyio.fail_after(30):
            while (await service.state(mission)).iteration_count < 1:
                await anyio.sleep(0.01)
        page = (await service.history(mission, full=True)).as_json()
        assert [call["outcome"] for call in page["iterations"][0]["calls"]] == ["denied"]
        assert served.world.reached == []
        await served.call("other", "mission_iterate", {"session_id": mission})
        assert served.world.reached == ["tools/call"]


@pytest.mark.guarantee("callers-only-tighten")
async def test_a_callers_layer_holds_for_commands(tmp_path: Path) -> None:
    marks = {name: tmp_path / f"{name}.mark" for name in ("guest", "reader", "other")}
    async with serving(tmp_path, POLICY + COMMANDS) as served:
        for name in ("guest", "reader"):
            for able in ({}, {"extensions": {"io.modelcontextprotocol/tasks": {}}}):
                refused = await served.call(name, "mark", {"path": str(marks[name])}, able=able)
                assert refused["isError"], refused
        await served.call("other", "mark", {"path": str(marks["other"])})
    assert {name: path.exists() for name, path in marks.items()} == {"guest": False, "reader": False, "other": True}


@pytest.mark.guarantee("callers-only-tighten")
@pytest.mark.parametrize(("who", "runs"), [("guest", False), ("other", True)])
async def test_a_callers_layer_holds_for_checks(tmp_path: Path, who: str, runs: bool) -> None:
    mark = tmp_path / "checked"
    config = f'{POLICY}[checks.mark]\ncommand = ["touch", "{mark}"]\n'
    check = {"criterion_id": "c", "kind": "check", "check": "mark", "required": True}
    mission = {**WIPES, "criteria": [check], "budget": {"max_iterations": 1}}
    async with serving(tmp_path, config) as served:
        started = await served.start(who, mission)
        await served.call(who, "mission_iterate", {"session_id": started})
        state = await served.runtime.runner.state(started)
        assert (state.results["c"].status == "met") is runs
    assert mark.exists() is runs


TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("mission_status", {}),
    ("mission_tools", {}),
    ("mission_history", {}),
    ("mission_checkpoint", {}),
    ("mission_iterate", {}),
    ("mission_iterate", {"background": True}),
    ("mission_abort", {"pause": True}),
    ("mission_resume", {}),
    ("mission_abort", {}),
    ("mission_complete", {}),
]
"""Everything that a client can do with a mission."""


@pytest.mark.guarantee("missions-have-owners")
async def test_the_mission_of_another_caller_is_not_found_and_not_touched(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN) as served:
        mission = await served.start("other", WIPES)
        never = f"mission-{'0' * 16}"
        for tool, arguments in TOOLS:
            answers = [await served.call("guest", tool, {"session_id": one, **arguments}) for one in (mission, never)]
            said = [str(answer).replace(mission, never) for answer in answers]
            assert "session_not_found" in said[0], (tool, said)
            assert said[0] == said[1], tool
        requests: list[tuple[str, dict[str, Any]]] = [
            *(("resources/read", {"uri": f"mission://{mission}{part}"}) for part in ("", "/report", "/events")),
            ("prompts/get", {"name": "review_mission", "arguments": {"session_id": mission}}),
            ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [f"mission://{mission}"]}}),
        ]
        for method, params in requests:
            assert "no mission" in str((await served.ask("guest", method, params))["error"]), method
        listed = await served.call("guest", "mission_list")
        assert listed["structuredContent"]["sessions"] == []
        assert (await served.ask("guest", "resources/list", {}))["result"]["resources"] == []
        ref = {"type": "ref/resource", "uri": "mission://{id}"}
        typed = {"ref": ref, "argument": {"name": "id", "value": "mission-"}}
        completed = await served.ask("guest", "completion/complete", typed)
        assert completed["result"]["completion"]["values"] == []
        state = await served.runtime.runner.state(mission)
        assert (state.status, served.world.reached) == ("pending", [])
        own = await served.call("other", "mission_list")
        assert [row["session_id"] for row in own["structuredContent"]["sessions"]] == [mission]


@pytest.mark.guarantee("missions-have-owners")
@pytest.mark.parametrize(
    ("share", "who", "sees"),
    [
        ([], "other", True),
        ([], "guest", False),
        (["guest"], "guest", True),
        (["guest"], "reader", False),
        (["*"], "reader", True),
        ([], "boss", True),
    ],
)
async def test_a_mission_is_seen_by_its_owner_by_operators_and_where_it_is_shared(
    tmp_path: Path, share: list[str], who: str, sees: bool
) -> None:
    async with serving(tmp_path, OPEN) as served:
        served.shown["boss"] = served.tokens.make("boss", operator=True)
        mission = await served.start("other", {**WIPES, "share": share})
        status = await served.call(who, "mission_status", {"session_id": mission})
        assert bool(status.get("isError")) is not sees


@pytest.mark.guarantee("missions-have-owners")
async def test_a_rotated_token_keeps_its_missions_and_tasks_and_one_of_the_same_name_gets_none(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN + COMMANDS) as served:

        async def seen() -> list[int]:
            missions = (await served.call("guest", "mission_list"))["structuredContent"]["sessions"]
            tasks = (await served.call("guest", "task_status"))["structuredContent"]["tasks"]
            return [len(missions), len(tasks)]

        await served.start("guest", WIPES)
        await served.call("guest", "mark", {"path": str(tmp_path / "mark")})
        assert await seen() == [1, 1]
        before = served.shown["guest"]
        served.shown["guest"] = served.tokens.rotate("guest")
        assert (served.tokens.holder(before), await seen()) == (None, [1, 1])
        served.tokens.revoke("guest")
        served.shown["guest"] = served.tokens.make("guest")
        assert await seen() == [0, 0]


@pytest.mark.guarantee("missions-have-owners")
async def test_what_has_no_owner_belongs_to_the_operator_and_the_user_of_the_ledger(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN) as served:
        service = served.runtime.runner
        started = await service.start(parse_mission(WIPES))
        refused = await served.call("guest", "mission_status", {"session_id": started.session_id})
        assert refused["isError"]
        row = await service.ledger.row(started.session_id)
        assert row is not None
        owner = (tmp_path / "ledger.db").stat().st_uid
        told = [service.is_visible(Caller(subject=local_subject(uid)), row) for uid in (owner, owner + 1)]
        assert told == [True, False]


@pytest.mark.guarantee("missions-have-owners")
@pytest.mark.parametrize("may", [True, False])
async def test_a_client_that_ends_its_mission_as_completed_is_named_or_refused(tmp_path: Path, may: bool) -> None:
    config = f"{OPEN}[callers]\nmay_force_complete = {str(may).lower()}\n"
    async with serving(tmp_path, config) as served:
        mission = await served.start("guest", WIPES)
        ended = await served.call("guest", "mission_complete", {"session_id": mission})
        assert bool(ended.get("isError")) is not may
        service = served.runtime.runner
        status, report = (await service.status(mission)).as_json(), await service.report(mission)
        assert status["status"] == ("completed" if may else "pending")
        said = {"by": "guest (http, t 1)", "unmet": ["c"]} if may else None
        assert (status.get("completed_by_client"), report.data.get("completed_by_client")) == (said, said)
        assert ("marked completed by guest" in (report.reason_text or "")) is may


@pytest.mark.guarantee("missions-have-owners")
async def test_a_client_ends_no_mission_of_another_as_completed(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN) as served:
        mission = await served.start("other", {**WIPES, "share": ["guest"]})
        refused = await served.call("guest", "mission_complete", {"session_id": mission})
        assert refused["structuredContent"]["code"] == "policy_denied", refused
        assert (await served.runtime.runner.state(mission)).status == "pending"
        assert not (await served.call("other", "mission_complete", {"session_id": mission})).get("isError")


@pytest.mark.guarantee("missions-have-owners")
@pytest.mark.parametrize(
    ("who", "shared", "learns"), [("guest", False, False), ("guest", True, False), ("other", False, True)]
)
async def test_the_model_of_a_client_reads_lessons_of_what_the_client_sees(
    tmp_path: Path, who: str, shared: bool, learns: bool
) -> None:
    read: list[str] = []

    async def model(_context: Any, params: Any) -> types.CreateMessageResult:
        read.append(params.model_dump_json())
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="{}"), model="m")

    async with serving(tmp_path, OPEN) as served:
        secret = {**WIPES, "directive": "Wipe account 4711", "budget": {"max_iterations": 1}}
        await served.call("other", "mission_iterate", {"session_id": await served.start("other", secret)})
        asks = {**WIPES, "proposer": "sampling", "share": ["guest"] if shared else []}
        asked = {"session_id": await served.start("other" if shared else who, asks)}
        async with (
            http(served.shown[who]) as wire,
            Client(
                streamable_http_client(served.url, http_client=wire), mode="legacy", sampling_callback=model
            ) as client,
        ):
            await client.call_tool("mission_iterate", asked)
        assert ["4711" in one for one in read[:1]] == [learns]


@pytest.mark.guarantee("callers-only-tighten")
@pytest.mark.guarantee("clients-have-ceilings")
@pytest.mark.parametrize("who", ["guest", "ann"])
async def test_a_task_goes_on_after_a_restart_as_the_client_that_asked_for_it(tmp_path: Path, who: str) -> None:
    config = f"{OPEN}[limits]\nrunning = 1\n"

    async def first() -> tuple[dict[str, str], str]:
        async with serving(tmp_path, config) as served:
            served.shown["ann"] = served.tokens.make("ann", operator=True)
            served.world.hold = anyio.Event()
            mission = await served.start(who, WIPES)
            asked = {"session_id": mission, "max_iterations_this_call": 2}
            assert (await served.call(who, "mission_iterate", asked, able=TASKS))["resultType"] == "task"
            with anyio.fail_after(30):
                while not served.world.reached:
                    await anyio.sleep(0.02)
            return served.shown, mission

    shown, mission = await first()
    async with serving(tmp_path, config, shown=shown) as served:
        await until(served.runtime, mission, lambda state: state.iteration_count == 2)
        service = served.runtime.runner
        state = await service.state(mission)
        assert state.driver == Identity(subject=state.owner, credential=who)
        assert (state.owner is None) is (who == "ann"), "a client's run is not the operator's"
        assert {line["who"] for line in await service.audited() if line["verb"] == "iterate"} == {who}
        (row,) = (await service.ledger.streams(kind="task")).rows
        resumed = MissionRun.of(await TaskRecords(service.ledger).get(row.name))
        assert resumed.caller.person.startswith("token:"), "nor is a token's holder the user of this machine"

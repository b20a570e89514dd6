"""Commands as tools: declared truly, told of while they run, under policy, and each requestor's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from engine_stage import mission
from mcp import Client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from tasks_stage import GENERATIONS, SECOND, Stage, World

from pursuit import Budget, Runtime, ValidationFailed, succeeded
from pursuit.server.missions.server import mission_server
from pursuit.service.audit import Caller

ERAS = ["legacy", "2026-07-28"]
CONFIG = """
[commands.count]
title = "Count"
description = "Counts."
argv = ["sh", "-c", 'for i in $(seq $0); do echo "unit $i"; done; echo "oops $KEY" >&2; exit $1', "{units}", "{code}"]
unit_pattern = 'unit (\\d+)'
total = "{units}"
disclaimer = "Only counting."
env = { KEY = "sesame-street" }
parameters = { units = { type = "integer", minimum = 1 }, code = { type = "integer", default = 0 } }
[commands.look]
argv = ["true"]
read_only = true
[commands.past]
argv = ["sh", "-c", "echo unit 1; echo unit 2; sleep 0.4"]
unit_pattern = 'unit (\\d+)'
total = 1
[commands.linger]
argv = ["sleep", "3600"]
[commands.denied]
argv = ["true"]
[commands.asked]
argv = ["true"]
[[policy.rules]]
decision = "deny"
tool = "commands.denied"
reason = "not today"
[[policy.rules]]
decision = "ask"
tool = "commands.asked"
"""

SILENT = '[commands.silent]\nargv = ["sleep", "2.5"]\nheartbeat = 1\n'


@asynccontextmanager
async def served(folder: Path, era: str, **more: Any) -> AsyncIterator[tuple[Runtime, Client]]:
    (folder / "pursuit.toml").write_text(CONFIG, encoding="utf-8")
    here = Runtime(state=folder / "ledger.db", config=folder / "pursuit.toml", **more)
    async with here as runtime, mission_server(runtime) as server, Client(server, mode=era) as client:
        yield runtime, client


@pytest.mark.parametrize("era", ERAS)
async def test_a_command_is_declared_truly_and_answers_as_declared(era: str, tmp_path: Path) -> None:
    async with served(tmp_path, era) as (_, client):
        declared = {tool.name: tool for tool in (await client.list_tools()).tools}
        count, look = declared["count"], declared["look"]
        assert count.input_schema["required"] == ["units"] and (count.description or "").startswith("Counts.")
        assert count.annotations is not None and look.annotations is not None
        assert (count.annotations.read_only_hint, count.annotations.destructive_hint) == (False, True)
        assert (look.annotations.read_only_hint, look.annotations.destructive_hint) == (True, False)
        for arguments, failed in (({"units": 2}, False), ({"units": 1, "code": 3}, True)):
            answer = await client.call_tool("count", arguments)
            assert answer.is_error is failed and count.output_schema is not None
            jsonschema.validate(answer.structured_content, count.output_schema)
        body = answer.structured_content or {}
        assert (body["exit_code"], body["stderr_tail"], body["disclaimer"]) == (3, ["oops ***"], "Only counting.")


async def test_lines_of_stderr_are_log_messages_until_the_client_wants_less(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def hear(params: Any) -> None:
        heard.append((params.level, params.logger, params.data))

    (tmp_path / "pursuit.toml").write_text(CONFIG, encoding="utf-8")
    here = Runtime(state=tmp_path / "ledger.db", config=tmp_path / "pursuit.toml")
    async with (
        here as runtime,
        mission_server(runtime) as server,
        Client(server, mode="legacy", logging_callback=hear) as client,
    ):
        await client.call_tool("count", {"units": 1})
        assert heard == [("info", "count", "oops ***")]
        await client.session.send_request(*_set_level("warning"))
        await client.call_tool("count", {"units": 1})
        assert len(heard) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("level", ["warning", "error", None])
async def test_an_abort_and_a_heartbeat_warn_a_client_that_set_a_log_level(
    tmp_path: Path, era: str, level: str | None
) -> None:
    heard: list[Any] = []

    async def hear(params: Any) -> None:
        heard.append((params.level, params.logger, params.data))

    (tmp_path / "pursuit.toml").write_text(SILENT, encoding="utf-8")
    here = Runtime(state=tmp_path / "ledger.db", config=tmp_path / "pursuit.toml")
    async with (
        here as runtime,
        mission_server(runtime) as server,
        Client(server, mode=era, logging_callback=hear) as client,
    ):
        meta: Any = {"io.modelcontextprotocol/logLevel": level} if level and era != "legacy" else None
        if level and era == "legacy":
            await client.session.send_request(*_set_level(level))
        started = await runtime.runner.start(mission(proposer={"kind": "client"}, tool_allowlist=["commands.silent"]))
        name = started.session_id
        answer = await client.call_tool("mission_abort", {"session_id": name, "reason": "enough"}, meta=meta)
        assert not answer.is_error
        await client.call_tool("silent", {}, meta=meta)
    if level != "warning":
        assert heard == []
        return
    aborted, *beats = heard
    assert aborted == ("warning", name, f"{name} was aborted: enough")
    assert beats and all(row[0] == "warning" and row[2].startswith("still running") for row in beats)


def _set_level(level: Any) -> Any:
    from mcp_types import EmptyResult, SetLevelRequest, SetLevelRequestParams

    return SetLevelRequest(params=SetLevelRequestParams(level=level)), EmptyResult


@pytest.mark.parametrize("era", ERAS)
async def test_policy_holds_for_commands(era: str, tmp_path: Path) -> None:
    async with served(tmp_path, era) as (runtime, client):
        for name, code in (("denied", "policy_denied"), ("asked", "approval_needed")):
            answer = await client.call_tool(name, {})
            assert answer.is_error and (answer.structured_content or {})["code"] == code
        assert (await runtime.tasks.list())["tasks"] == []
    async with served(tmp_path, era, mode="never") as (runtime, client):
        assert (await client.call_tool("count", {"units": 1})).is_error  # whatever would be asked is denied
        assert not (await client.call_tool("look", {})).is_error


@pytest.mark.guarantee("tasks-are-their-requestors-own")
async def test_somebody_elses_task_is_as_unknown_as_none(tmp_path: Path) -> None:
    async with served(tmp_path, "legacy") as (runtime, _):
        mine = await runtime.tasks.call("count", {"units": 1}, caller=_client("anna"))
        await runtime.tasks.wait(mine.task_id)
        assert mine.requestor == "token:anna"
        async with mission_server(runtime) as server:
            for name, sees in (("anna", True), ("bert", False), (None, False)):
                with _Shown(name):
                    async with Client(server, mode="2026-07-28") as client:
                        listed = (await client.call_tool("task_status", {})).structured_content or {}
                        assert bool(listed["tasks"]) is sees
                        for tool in ("task_status", "task_tail", "task_cancel", "task_wait"):
                            answer = await client.call_tool(tool, {"task_id": mine.task_id})
                            assert answer.is_error is not sees, (name, tool)
                            assert sees or (answer.structured_content or {})["code"] == "task_not_found"


def _client(name: str) -> Caller:
    return Caller(who=name, transport="http", credential=name, subject=f"token:{name}")


class _Shown:
    """Whoever speaks inside the block has shown this token."""

    def __init__(self, name: str | None) -> None:
        token = None if name is None else AccessToken(token="t", client_id=name, scopes=[])
        self._user = None if token is None else AuthenticatedUser(token)

    def __enter__(self) -> None:
        self._before = auth_context_var.set(self._user)

    def __exit__(self, *_: object) -> None:
        auth_context_var.reset(self._before)


async def test_a_mission_calls_a_command_under_policy(tmp_path: Path) -> None:
    async with served(tmp_path, "legacy", mode="auto") as (runtime, _):
        wanted = mission(
            directive="Count",
            criteria=[succeeded("commands.count")],
            budget=Budget(max_iterations=2),
            tool_allowlist=["commands.count"],
            proposer={"kind": "repeat", "tool_name": "commands.count", "args": {"units": 2}},
        )
        started = await runtime.runner.start(wanted)
        with anyio.fail_after(60):
            while not (state := await runtime.runner.run(started.session_id)).terminal:
                assert state.waiting_for == "task"
                (task,) = (await runtime.tasks.list())["tasks"]
                await runtime.tasks.wait(task["task_id"])
        assert state.status == "completed"
        (task,) = (await runtime.tasks.list())["tasks"]
        assert (task["title"], task["status"], task["units_done"]) == ("commands.count", "completed", 2)
        more = {"criteria": [succeeded("x")], "tool_allowlist": ["task_*"]}
        with pytest.raises(ValidationFailed) as refused:
            await runtime.runner.start(mission(directive="x", budget=Budget(max_iterations=1), **more))
        assert any("task_*" in fault.reason for fault in refused.value.faults)


@pytest.mark.parametrize("era", GENERATIONS)
async def test_as_a_task_a_command_goes_on_without_its_client(era: str, tmp_path: Path) -> None:
    (tmp_path / "pursuit.toml").write_text(CONFIG, encoding="utf-8")
    here = Runtime(state=tmp_path / "ledger.db", config=tmp_path / "pursuit.toml")
    async with here as runtime, mission_server(runtime) as server, anyio.create_task_group() as tasks:
        stage = Stage(runtime, server, World(), tasks)
        client = await stage.client(era)
        asked = {} if era == SECOND else {"task": {}}
        counted = client.task(await client.call("count", {"units": 2, "code": 3}, **asked))["taskId"]
        ended = await client.until_status(counted)
        assert ended["status"] == ("completed" if era == SECOND else "failed")  # a result with isError
        result = ended["result"] if era == SECOND else await client.result("tasks/result", {"taskId": counted})
        assert result["isError"] and result["structuredContent"]["exit_code"] == 3
        state = await runtime.tasks.get(counted)
        assert (state.kind, state.done, state.total) == ("process", 2, 2)

        lingers = client.task(await client.call("linger", {}, **asked))["taskId"]
        await client.leave()
        other = await stage.client(era)
        assert (await other.get(lingers))["status"] == "working"
        await other.result("tasks/cancel", {"taskId": lingers})
        assert (await other.until_status(lingers))["status"] == "cancelled"
        verbs = [line["verb"] for line in await runtime.runner.audited()]
        assert verbs.count("task run") == 2
        tasks.cancel_scope.cancel()


async def test_progress_never_exceeds_its_total(tmp_path: Path) -> None:
    told: list[tuple[float, float | None]] = []

    async def hear(done: float, total: float | None, _message: str | None) -> None:
        told.append((done, total))

    async with served(tmp_path, "legacy") as (_, client):
        await client.call_tool("past", {}, progress_callback=hear)
    assert told[-1][0] >= 1 and all(total is None or done <= total for done, total in told), told

"""The tools of the mission as an MCP server for its agent, so that its calls are calls of the mission.

Each call meets policy, approvals and the budget, is recorded before it is sent, and its metrics count. The agent starts
`agents/mcp_bridge.py`, which joins its standard streams with a Unix socket of this process. Calls are made only while a
turn runs: the end of the turn cancels them. Tools whose calls are tasks are not offered.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
from anyio.abc import Listener, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from pursuit.core.approvals import GRANTS, approval_id
from pursuit.core.events import ApprovalAnswered, ApprovalAsked, Event, Permission
from pursuit.core.mission import AGENT
from pursuit.core.state import MissionState
from pursuit.core.tools import Tool
from pursuit.engine.agent_permissions import hold_or_wait, unused_answer
from pursuit.engine.call_admission import MustWait, Planned, question_about
from pursuit.engine.context import Run
from pursuit.engine.execute import execute, whole_result

BRIDGE = Path(__file__).parents[1] / "agents" / "mcp_bridge.py"
LONGEST_LINE = 4 * 1024 * 1024
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
NO_METHOD = -32601
NO_ANSWER = "a person must approve this call, and has not answered yet; end your turn, and try again in the next one"

Table = Mapping[str, Any]


@asynccontextmanager
async def tools_for_agent(run: Run, tasks: TaskGroup) -> AsyncGenerator[None]:
    """Serves the tools of the mission to its agent for as long as the block; nothing if there are none."""
    tools = {name.replace(".", "__"): tool for name, tool in _offered(run).items()}
    if run.agent is None or not tools:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="pursuit-"))  # private, and short: the path of a socket has 107 bytes
    path = folder / "mcp"
    listening = anyio.CancelScope()
    try:
        tasks.start_soon(_listen, await anyio.create_unix_listener(path), partial(_serve, run, tools), listening)
        words = {"command": sys.executable, "args": ["-I", "-S", str(BRIDGE), str(path)]}
        run.agent.servers = lambda: [{"name": "pursuit", **words, "env": []}]
        yield
    finally:
        listening.cancel()
        shutil.rmtree(folder, ignore_errors=True)


async def _listen(
    listener: Listener[SocketStream], serve: Callable[[SocketStream], Awaitable[None]], until: anyio.CancelScope
) -> None:
    async with listener:
        with until:
            await listener.serve(serve)


def _offered(run: Run) -> dict[str, Tool]:
    found = {name: run.tools.get(name) for name in run.state.tools if not name.startswith(f"{AGENT}.")}
    return {name: tool for name, tool in found.items() if tool is not None and not tool.long}


async def _serve(run: Run, tools: Mapping[str, Tool], stream: SocketStream) -> None:
    """One connection: requests are answered one after the other."""
    reading = BufferedByteReceiveStream(stream)
    async with stream:
        while True:
            try:
                line = await reading.receive_until(b"\n", LONGEST_LINE)
                message: Any = json.loads(line)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.DelimiterNotFound, anyio.IncompleteRead):
                return
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict) or "method" not in message or "id" not in message:
                continue
            request = cast("dict[str, Any]", message)
            answer = await _answer(run, tools, str(request["method"]), _table(request.get("params")))
            body = {"jsonrpc": "2.0", "id": request["id"], **answer}
            try:
                await stream.send(msgspec.json.encode(body) + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _answer(run: Run, tools: Mapping[str, Tool], method: str, params: Table) -> Table:
    match method:
        case "initialize":
            wanted = params.get("protocolVersion")
            version = wanted if wanted in VERSIONS else VERSIONS[0]
            info = {"name": "pursuit", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            listed = [
                {"name": name, "description": tool.description, "inputSchema": tool.input_schema}
                for name, tool in tools.items()
            ]
            return {"result": {"tools": listed}}
        case "tools/call":
            tool = tools.get(str(params.get("name")))
            if tool is None:
                return {"result": _failed(f"there is no tool {params.get('name')!r}")}
            return {"result": await _called(run, tool, dict(_table(params.get("arguments"))))}
        case _:
            return {"error": {"code": NO_METHOD, "message": f"{method} is not offered"}}


async def _called(run: Run, tool: Tool, arguments: dict[str, Any]) -> Table:
    """Makes the call inside of the turn that runs now, which may cancel it."""
    turn, done, found = run.turn_tasks, anyio.Event(), list[Table]()
    if turn is None:
        return _failed("no turn is running now")

    async def make() -> None:
        try:
            found.append(await _made(run, tool, arguments))
        finally:
            done.set()

    turn.start_soon(make)
    await done.wait()
    return found[0] if found else _failed("the turn ended before the call did")


async def _made(run: Run, tool: Tool, arguments: dict[str, Any]) -> Table:
    iteration = run.state.open
    if iteration is None or run.stop_ordered:
        return _failed("the mission was stopped")
    if faults := run.tools.check(tool.qualified, arguments):
        return _failed("; ".join(faults))
    order = max((call.order for call in iteration.calls.values()), default=-1) + 1
    call_id = f"{run.mission_id}:{iteration.index}:{order}"
    planned = Planned(call_id=call_id, tool=tool.qualified, args=arguments, order=order)
    try:
        if not await _approved(run, planned):
            return _failed(NO_ANSWER)
        await execute(run, [planned], durable=True)
    except MustWait:
        return _failed(NO_ANSWER)
    record = run.state.call(call_id)
    if record is None:
        return _failed("the mission was stopped")
    result = await whole_result(run, record)
    if result is None or record.outcome not in ("ok", "failed"):
        return _failed(f"{record.outcome}: {record.error}")
    return result


async def _approved(run: Run, planned: Planned) -> bool:
    """Asks a person if policy wants that, and holds the call meanwhile; False without an answer in time."""
    asked = question_about(run, planned)
    if asked is None:
        return True
    again = _answered_again(run, asked)

    def build(state: MissionState) -> Sequence[Event]:
        return () if state.stopped else [asked, *again]

    await run.journal.record(build)
    approval = run.state.approvals.get(approval_id(planned.call_id))
    return approval is not None and await hold_or_wait(run, approval) is not None


def _answered_again(run: Run, asked: ApprovalAsked) -> Sequence[Event]:
    """The answer of each person to this question in an earlier turn, which was not used yet."""
    known = unused_answer(run, asked)
    if known is None or known.answer is None or known.answer == "expired":
        return []
    run.used_approvals.add(known.approval_id)
    people = known.said if known.answer in GRANTS else {}
    rows: list[tuple[str | None, Permission, str]] = [(person, yes.answer, yes.by) for person, yes in people.items()]
    rows = rows or [(None, known.answer, known.by or "operator")]
    return [
        ApprovalAnswered(
            at=run.clock.now(), approval_id=asked.approval_id, answer=answer, by=by, reason=known.why, person=person
        )
        for person, answer, by in rows
    ]


def _failed(text: str) -> Table:
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _table(value: object) -> Table:
    return cast("Table", value) if isinstance(value, Mapping) else {}

"""A started coding agent, and a client of the Agent Client Protocol, version 1: JSON-RPC in lines over stdio.

Messages are handled strictly in order, by the caller that waits for an answer: there is no other task. Unknown fields
and kinds of updates are ignored. Agents differ in their reports and questions; nothing here depends on the particular
agent.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal, cast

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from pursuit.core.tools import as_object
from pursuit.processes.groups import STOP_SECONDS, OutputTail, SubreapedProcess

VERSION = 1
METHOD_NOT_FOUND = -32601
AUTH_REQUIRED = -32000
MAX_LINE = 16 * 1024 * 1024
MAX_TEXT = 16_000
KEPT = 4_096
"""Bytes to keep of the end of standard error."""
MAX_CALLS = 200
MAX_SIGNS = 64
MAX_AMOUNT = 1e15
MAX_STRAY = 1_000
"""The number of lines that are not messages after which the program does not count as an agent."""

_WRITTEN = ("outputTokens", "output_tokens")
_CANCELLED: Mapping[str, Any] = {"outcome": {"outcome": "cancelled"}}
KINDS = frozenset({"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode"})
"""The kinds of steps for which an agent asks permission; all others are `other`."""

Table = Mapping[str, Any]


class AgentGone(Exception):
    """The agent's process has ended, or it sent an invalid message."""


class AgentRefused(Exception):
    """The agent answered with an error; `code` is that of JSON-RPC, `error` the whole of it."""

    def __init__(self, message: str, code: int = 0, error: Table | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.error = error or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The agent asks for permission; `options` holds the ids of the answers by their kind."""

    kind: str
    title: str
    arguments: Table
    options: Mapping[str, str]

    def option(self, *, allowed: bool) -> str | None:
        """The id of the narrowest yes or no; None if the agent offers no such answer."""
        verb = "allow" if allowed else "reject"
        return self.options.get(f"{verb}_once") or self.options.get(f"{verb}_always")


Answer = Callable[[Question], Awaitable[bool | None]]
"""True if the agent has permission; None ends the turn."""


@dataclass(slots=True, kw_only=True)
class TurnUpdates:
    """The reports of an agent about one turn; None means not reported."""

    text: str = ""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The known fields of each tool call: a question about a call may omit fields of its update."""
    stop_reason: str = ""
    tokens: int | None = None
    session_cost: float | None = None
    """The cost of the whole session so far, in dollars."""
    signs: deque[tuple[Literal["error", "update", "line"], Table]] = field(
        default_factory=lambda: deque(maxlen=MAX_SIGNS)
    )
    """Errors, lines and the last updates with `_meta`: they may name a usage limit."""
    updates: int = 0
    silent: bool = False
    """True if the turn was cut off because the agent gave no sign of life."""

    def learn(self, update: Table) -> None:
        self.updates += 1
        if "_meta" in update:
            self.signs.append(("update", update))
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                content = as_object(update.get("content"))
                self.text = (self.text + str(content.get("text", "")))[-MAX_TEXT:]
            case "tool_call" | "tool_call_update":
                name = str(update.get("toolCallId", ""))[:200]
                if name in self.calls or len(self.calls) < MAX_CALLS:
                    self.calls.setdefault(name, {}).update(_described(update))
            case "usage_update":
                cost = as_object(update.get("cost"))
                if (amount := _amount(cost.get("amount"))) is not None and cost.get("currency", "USD") == "USD":
                    self.session_cost = amount
            case _:
                pass

    def learn_line(self, line: bytes) -> None:
        """Reads one line of an agent without a protocol: text, or JSON that may contain the use of the turn."""
        text = line.decode(errors="replace")
        self.updates += 1
        self.text = f"{self.text}{text}\n"[-MAX_TEXT:]
        try:
            row = as_object(json.loads(text) if text.startswith("{") else None)
        except (ValueError, RecursionError):
            return
        self.signs.append(("line", row))
        self._count(as_object(row.get("usage")))
        if (cost := _amount(row.get("total_cost_usd"))) is not None:
            self.session_cost = cost

    def shown_calls(self) -> list[dict[str, str]]:
        keys = ("title", "kind", "status")
        return [{key: str(row[key])[:500] for key in keys if key in row} for row in self.calls.values()]

    def question(self, params: Table) -> Question:
        """The question in the parameters of `session/request_permission`."""
        call = as_object(params.get("toolCall"))
        whole = {**self.calls.get(str(call.get("toolCallId", ""))[:200], {}), **_described(call)}
        return _question(whole, params.get("options"))

    def end(self, answer: Table) -> None:
        self.stop_reason = str(answer.get("stopReason", ""))
        self._count(as_object(answer.get("usage")))

    def _count(self, usage: Table) -> None:
        total, read, written = (
            next((n for name in names if (n := _amount(usage.get(name))) is not None), None)
            for names in (("totalTokens", "total_tokens"), ("inputTokens", "input_tokens"), _WRITTEN)
        )
        if total is not None:
            self.tokens = int(total)
        elif read is not None and written is not None:
            self.tokens = int(read + written)


class Agent(SubreapedProcess):
    """A running agent below its subreaper. Create it with `begin`; call `initialize` first."""

    def __init__(self, process: Process, control: int) -> None:
        super().__init__(process, control)
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - it was started with pipes
        self._input, self._output = process.stdin, BufferedByteReceiveStream(process.stdout)
        self._errors = OutputTail(KEPT)
        self._reading_errors = anyio.Lock()
        self.info: Table = {}
        self.capabilities: Table = {}
        self._next = 0
        self._stray = 0
        self._question: Table | None = None
        """The question that the agent's turn waits for."""

    async def send(self, line: bytes) -> None:
        try:
            await self._input.send(line + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise AgentGone(await self.why()) from None

    async def line(self) -> bytes:
        """The next line of its standard output. Raises `AgentGone`."""
        try:
            return await self._output.receive_until(b"\n", MAX_LINE)
        except anyio.DelimiterNotFound:
            raise AgentGone(f"it sent a line of more than {MAX_LINE} bytes") from None
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            if rest := len(self._output.buffer):  # the last line may lack its line end
                return await self._output.receive_exactly(rest)
            raise AgentGone(await self.why()) from None

    @asynccontextmanager
    async def draining(self) -> AsyncGenerator[None]:
        """Reads its standard error while the block runs: a full pipe would stop the agent."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain_errors)
            yield
            tasks.cancel_scope.cancel()

    async def _drain_errors(self) -> None:
        async with self._reading_errors:  # a stream has one reader at a time
            await self._errors.read(self.process.stderr)

    async def why(self) -> str:
        """How its process ended, with the end of its standard error."""
        with anyio.move_on_after(STOP_SECONDS, shield=True):
            await self.process.wait()
            await self._drain_errors()
        code = self.process.returncode
        how = "it closed its standard output" if code is None else f"its process ended with exit code {code}"
        said = self._errors.text.strip()
        return f"{how}: {said[-800:]}" if said else how

    # The protocol.

    async def problem(self, steps: Callable[[], Awaitable[None]], seconds: float) -> str | None:
        """Why it cannot be used, found by its first steps; None if they succeed within these seconds."""
        async with self.draining():
            with anyio.move_on_after(seconds):
                try:
                    await steps()
                except AgentGone as error:
                    return str(error)
                except AgentRefused as error:
                    login = error.code == AUTH_REQUIRED
                    return f"it wants you to log in: run it once by hand ({error})" if login else str(error)
                return None
        return f"it did not answer within {seconds:g} s"

    async def initialize(self) -> None:
        """Negotiates the version. Raises `AgentRefused` or `AgentGone`."""
        client = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        ours = {"name": "pursuit", "version": version("pursuit")}
        asked = {"protocolVersion": VERSION, "clientCapabilities": client, "clientInfo": ours}
        try:
            found = await self.request("initialize", asked)
        except AgentRefused as error:
            raise AgentRefused(f"it refused to initialize: {error}", error.code) from None
        spoken = found.get("protocolVersion")
        if spoken != VERSION:
            raise AgentRefused(f"it speaks version {spoken!r} of the Agent Client Protocol; Pursuit speaks {VERSION}")
        self.info = as_object(found.get("agentInfo"))
        self.capabilities = as_object(found.get("agentCapabilities"))

    @property
    def loads(self) -> bool:
        return self.capabilities.get("loadSession") is True

    async def prompt(
        self, session_id: str, text: str, updates: TurnUpdates, *, answer: Answer, sign: Callable[[], None]
    ) -> None:
        """Runs one turn to its end. Fills `updates` during it; calls `sign` at each sign of life."""
        prompt = await self._ask(
            "session/prompt", {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]}
        )
        ended = False
        while True:
            message = await self._receive()
            if message.get("method") == "session/update":
                sign()
                updates.learn(as_object(as_object(message.get("params")).get("update")))
            elif message.get("method") == "session/request_permission":
                question = updates.question(as_object(message.get("params")))
                self._question = message
                allowed = None if ended else await self._answered(question, answer)
                sign()
                if allowed is None and not ended:
                    ended = True
                    await self.cancel(session_id)
                else:
                    await self._reply(message, _outcome(question, allowed))
                self._question = None
            elif _answers(message, prompt):  # in version 1 this ends the turn
                updates.end(_result(message))
                return
            else:
                await self._decline(message)

    async def _answered(self, question: Question, answer: Answer) -> bool | None:
        """Answers a question; an agent that dies before it needs no answer. Raises `AgentGone`."""
        found: list[bool | None] = []
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await self.process.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            found.append(await answer(question))
            tasks.cancel_scope.cancel()
        if not found:
            raise AgentGone(await self.why())
        return found[0]

    async def cancel(self, session_id: str) -> None:
        """Asks the agent to end its turn, and answers its questions: some agents do not end a turn before that."""
        await self._tell({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session_id}})
        if self._question is not None:
            await self._reply(self._question, _CANCELLED)
            self._question = None

    async def settle(self, seconds: float) -> None:
        """Gives a cancelled agent some time to save its session; cancels its questions."""
        with anyio.move_on_after(seconds):
            while True:
                message = await self._receive()
                if message.get("method") == "session/request_permission":
                    await self._reply(message, _CANCELLED)
                elif "result" in message or "error" in message:
                    return

    async def request(self, method: str, params: Table) -> Table:
        """Sends a request and waits for its answer. Raises `AgentRefused` or `AgentGone`."""
        asked = await self._ask(method, params)
        while True:
            message = await self._receive()
            if _answers(message, asked):
                return _result(message)
            await self._decline(message)

    async def _ask(self, method: str, params: Table) -> int:
        self._next += 1
        await self._tell({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        return self._next

    async def _decline(self, message: Table) -> None:
        """Refuses a request that does not fit our capabilities; ignores notifications."""
        if "method" in message and "id" in message:
            error = {"code": METHOD_NOT_FOUND, "message": f"{message['method']} is not supported by this client"}
            await self._tell({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async def _reply(self, message: Table, result: Table) -> None:
        await self._tell({"jsonrpc": "2.0", "id": message.get("id"), "result": result})

    async def _tell(self, message: Table) -> None:
        await self.send(json.dumps(message).encode())

    async def _receive(self) -> Table:
        while True:
            line = await self.line()
            try:
                found: Any = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                return cast("dict[str, Any]", found)
            self._stray += bool(line.strip())  # other programs often print there
            if self._stray > MAX_STRAY:
                raise AgentGone("it writes lines that are not messages of the Agent Client Protocol")


def _answers(message: Table, request: int) -> bool:
    return message.get("id") == request and "method" not in message


def _amount(value: object) -> float | None:
    """A number to count; None if the value is not a number or is negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MAX_AMOUNT else None


def _rows(value: object) -> list[Table]:
    return [as_object(one) for one in cast("list[Any]", value)] if isinstance(value, list) else []


def _result(message: Table) -> Table:
    if "error" in message:
        error = as_object(message["error"])
        code = error.get("code")
        data = error.get("data")
        more = f" ({json.dumps(data)[:500]})" if data else ""
        raise AgentRefused(f"{error.get('message', 'an error')}{more}", code if isinstance(code, int) else 0, error)
    return as_object(message.get("result"))


def _described(call: Table) -> dict[str, Any]:
    keys = ("kind", "title", "status", "rawInput", "locations", "content")
    return {key: call[key] for key in keys if call.get(key)}


def _question(call: Table, options: object) -> Question:
    kind = call.get("kind")
    told = [*_rows(call.get("locations")), *(row for row in _rows(call.get("content")) if row.get("type") == "diff")]
    places = dict.fromkeys(row.get("path") for row in told)
    arguments: dict[str, Any] = {"title": str(call.get("title", ""))}
    if "rawInput" in call:
        arguments["input"] = call["rawInput"]
    if paths := [one for one in places if isinstance(one, str)]:
        arguments["paths"] = paths
    return Question(
        kind=kind if isinstance(kind, str) and kind in KINDS else "other",
        title=arguments["title"],
        arguments=arguments,
        options={str(row.get("kind")): str(row.get("optionId")) for row in reversed(_rows(options))},
    )


def _outcome(question: Question, allowed: bool | None) -> Table:
    option = None if allowed is None else question.option(allowed=allowed)
    if option is None:
        return _CANCELLED
    return {"outcome": {"outcome": "selected", "optionId": option}}

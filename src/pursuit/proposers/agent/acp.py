"""A client of the Agent Client Protocol, version 1: JSON-RPC in lines over stdio.

Messages are handled strictly in their order, by the caller that waits for an answer: there is no other task. Fields and
kinds of updates that are not known are passed over. Agents differ in what they report and ask; nothing here depends on
which agent it is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast

import anyio

from pursuit.proposers.agent.process import AgentGone, AgentProcess

VERSION = 1
METHOD_NOT_FOUND = -32601
AUTH_REQUIRED = -32000
LONGEST_TEXT = 16_000
MOST_CALLS = 200
MOST_AMOUNT = 1e15
MOST_STRAY = 1_000
"""Lines that are no messages, after which it is no agent that writes them."""

_WRITTEN = ("outputTokens", "output_tokens")
_CANCELLED: Mapping[str, Any] = {"outcome": {"outcome": "cancelled"}}
KINDS = frozenset({"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode"})
"""What an agent can ask about; the rest is `other`."""

Table = Mapping[str, Any]


class AgentRefused(Exception):
    """The agent answered with an error; `code` is that of JSON-RPC."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The agent asks whether it may do something; `options` are the ids of the answers by their kind."""

    kind: str
    title: str
    arguments: Table
    options: Mapping[str, str]

    def option(self, *, allowed: bool) -> str | None:
        """The id of the narrowest yes or no; None if the agent offers none."""
        verb = "allow" if allowed else "reject"
        return self.options.get(f"{verb}_once") or self.options.get(f"{verb}_always")


Answer = Callable[[Question], Awaitable[bool | None]]
"""Whether it may; None ends the turn."""


@dataclass(slots=True, kw_only=True)
class Told:
    """What an agent said and did in one turn, as far as it tells. What it does not report is None."""

    text: str = ""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    known: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What is known of each tool call: a question about one may leave out what an update said."""
    updates: int = 0
    stop_reason: str = ""
    tokens: int | None = None
    session_cost: float | None = None
    """The cost of the whole session so far, in dollars."""

    def learn(self, update: Table) -> None:
        """Takes one `session/update`."""
        self.updates += 1
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                content = _table(update.get("content"))
                self.text = (self.text + str(content.get("text", "")))[-LONGEST_TEXT:]
            case "tool_call" | "tool_call_update":
                name = str(update.get("toolCallId", ""))[:200]
                if name in self.calls or len(self.calls) < MOST_CALLS:
                    row = self.calls.setdefault(name, {})
                    row |= {key: str(update[key])[:500] for key in ("title", "kind", "status") if update.get(key)}
                    self.known.setdefault(name, {}).update(_described(update))
            case "usage_update":
                cost = _table(update.get("cost"))
                if (amount := _amount(cost.get("amount"))) is not None and cost.get("currency", "USD") == "USD":
                    self.session_cost = amount
            case _:
                pass

    def learn_line(self, line: bytes) -> None:
        """Takes one line of an agent that speaks no protocol: text, or JSON that may say what the turn used."""
        self.updates += 1
        text = line.decode(errors="replace")
        self.text = f"{self.text}{text}\n"[-LONGEST_TEXT:]
        try:
            row = _table(json.loads(text) if text.startswith("{") else None)
        except (ValueError, RecursionError):
            return
        self._count(_table(row.get("usage")))
        if (cost := _amount(row.get("total_cost_usd"))) is not None:
            self.session_cost = cost

    def question(self, params: Table) -> Question:
        """The question in the parameters of `session/request_permission`."""
        call = _table(params.get("toolCall"))
        whole = {**self.known.get(str(call.get("toolCallId", ""))[:200], {}), **_described(call)}
        return _question(whole, params.get("options"))

    def end(self, answer: Table) -> None:
        """Takes the answer to `session/prompt`."""
        self.stop_reason = str(answer.get("stopReason", ""))
        self._count(_table(answer.get("usage")))

    def _count(self, usage: Table) -> None:
        total, read, written = (
            next((n for name in names if (n := _amount(usage.get(name))) is not None), None)
            for names in (("totalTokens", "total_tokens"), ("inputTokens", "input_tokens"), _WRITTEN)
        )
        if total is not None:
            self.tokens = int(total)
        elif read is not None and written is not None:
            self.tokens = int(read + written)


class Connection:
    """One agent that was started. `initialize` comes first."""

    def __init__(self, process: AgentProcess) -> None:
        self.process = process
        self.info: Table = {}
        self.capabilities: Table = {}
        self._next = 0
        self._stray = 0
        self._question: Table | None = None
        """The question of the agent that is held now."""

    async def initialize(self) -> None:
        """Agrees on the version. Raises `AgentRefused` or `AgentGone`."""
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
        self.info = _table(found.get("agentInfo"))
        self.capabilities = _table(found.get("agentCapabilities"))

    @property
    def loads(self) -> bool:
        """Whether it can load a session of an earlier process."""
        return self.capabilities.get("loadSession") is True

    async def prompt(self, session_id: str, text: str, told: Told, *, answer: Answer, sign: Callable[[], None]) -> None:
        """One turn: returns when it is over. `told` fills up meanwhile; `sign` is called at each sign of life."""
        prompt = await self._ask(
            "session/prompt", {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]}
        )
        ended = False
        while True:
            message = await self._receive()
            if message.get("method") == "session/update":
                sign()
                told.learn(_table(_table(message.get("params")).get("update")))
            elif message.get("method") == "session/request_permission":
                question = told.question(_table(message.get("params")))
                self._question = message
                allowed = None if ended else await self._answered(question, answer)
                sign()
                if allowed is None and not ended:
                    ended = True
                    await self.cancel(session_id)
                else:
                    await self._reply(message, _outcome(question, allowed))
                self._question = None
            elif _answers(message, prompt):  # in version 1 that is the end of the turn
                told.end(_result(message))
                return
            else:
                await self._decline(message)

    async def _answered(self, question: Question, answer: Answer) -> bool | None:
        """The answer to a question; an agent that dies meanwhile asks no more. Raises `AgentGone`."""
        found: list[bool | None] = []
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await self.process.process.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            found.append(await answer(question))
            tasks.cancel_scope.cancel()
        if not found:
            raise AgentGone(await self.process.why())
        return found[0]

    async def cancel(self, session_id: str) -> None:
        """Asks the agent to end its turn, and answers what it asked: some end no turn before that."""
        await self._send({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session_id}})
        if self._question is not None:
            await self._reply(self._question, _CANCELLED)
            self._question = None

    async def settle(self, seconds: float) -> None:
        """Gives an agent that was cancelled some time to write down its session; its questions are cancelled."""
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
        await self._send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        return self._next

    async def _decline(self, message: Table) -> None:
        """Refuses a request that a client with our capabilities never gets; notifications are passed over."""
        if "method" in message and "id" in message:
            error = {"code": METHOD_NOT_FOUND, "message": f"{message['method']} is not offered by this client"}
            await self._send({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async def _reply(self, message: Table, result: Table) -> None:
        await self._send({"jsonrpc": "2.0", "id": message.get("id"), "result": result})

    async def _send(self, message: Table) -> None:
        await self.process.send(json.dumps(message).encode())

    async def _receive(self) -> Table:
        while True:
            line = await self.process.line()
            try:
                found: Any = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                return cast("dict[str, Any]", found)
            self._stray += bool(line.strip())  # prints of other programs are common
            if self._stray > MOST_STRAY:
                raise AgentGone("it writes lines that are no messages of the Agent Client Protocol")


def _answers(message: Table, request: int) -> bool:
    return message.get("id") == request and "method" not in message


def _table(value: object) -> Table:
    return cast("Table", value) if isinstance(value, Mapping) else {}


def _amount(value: object) -> float | None:
    """A number that can be counted; what is none, or is negative, was not reported."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MOST_AMOUNT else None


def _rows(value: object) -> list[Table]:
    return [_table(one) for one in cast("list[Any]", value)] if isinstance(value, list) else []


def _result(message: Table) -> Table:
    if "error" in message:
        error = _table(message["error"])
        code = error.get("code")
        data = error.get("data")
        more = f" ({json.dumps(data)[:500]})" if data else ""
        raise AgentRefused(f"{error.get('message', 'an error')}{more}", code if isinstance(code, int) else 0)
    return _table(message.get("result"))


def _described(call: Table) -> dict[str, Any]:
    return {key: call[key] for key in ("kind", "title", "rawInput", "locations", "content") if call.get(key)}


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

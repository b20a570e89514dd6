"""What the rest of Pursuit knows of a tool, whichever transport leads to it: `Tool`, `ToolResult`, `Upstream`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from pursuit.core.base_model import Flag, Positive
from pursuit.core.mission import FLEET, NOTE, OWN_SERVER, READ_RESULT, SPAWN
from pursuit.core.pins import Changes

Folder = Callable[[str], str]
ProgressFn = Callable[[float, float | None, str | None], Awaitable[None]]
# A notification of the server: its method and its raw parameters.
NotifyFn = Callable[[str, Mapping[str, Any]], Awaitable[None]]
# The handle by which another process can pick up a call that the server has made a task of.
HandleFn = Callable[[Mapping[str, Any]], Awaitable[None]]
# The key in `_meta` of our own error results that says whether the call may have taken effect: `unknown`.
OUTCOME_META_KEY = "pursuit/outcome"
NOT_KNOWN = "whether the call took effect is not known"
# A request of the server: answered with a raw result, or refused with an `UpstreamError`.
AnswerFn = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a tool may do, as the operator declares it. Unknown means the worst."""

    read_only: bool = False
    idempotent: bool = False
    parallel_safe: bool = False
    destructive: bool = True
    timeout: float | None = None
    why: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    """Where each of the four answers came from, by its name."""

    @property
    def repeatable(self) -> bool:
        """Whether a call without a known outcome may be sent again."""
        return self.read_only or self.idempotent


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool of one server; `definition` is upstream's own JSON, untouched."""

    server: str
    name: str
    description: str = ""
    input_schema: Mapping[str, Any]
    traits: Traits = Traits()
    definition: Mapping[str, Any]
    local: bool = False
    """Whether it is a plain function of this process, not a tool of an MCP server."""
    long: bool = False
    """Whether its calls are tasks, whose answers come later."""
    operators: bool = True
    """Whether its server comes from the operator's configuration, not from a mission file."""
    method: str = "tools/call"
    """The request that sends a call of it."""
    metrics: tuple[str, ...] | None = None
    """The metrics that its results can have; None if they can have any."""
    cwd: str | None = None
    """The folder of a configured command."""
    digest: str = ""
    """The digest of its definition, which grants carry; empty for a tool of this process."""
    changes: Changes | None = None
    """What its server changed, this tool among it, since the operator accepted its tools."""
    allowed_because: str | None = None
    """Why policy allows it where no rule concerns it; only for tools that the runtime performs itself."""

    @property
    def qualified(self) -> str:
        """The name inside a mission: `server.tool`."""
        return f"{self.server}.{self.name}"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's result: MCP content blocks as JSON, structured content, and whether it is an error."""

    content: Sequence[Mapping[str, Any]] = ()
    structured: Any = None
    is_error: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON, with MCP's own keys, without absent parts."""
        body: dict[str, Any] = {"content": [dict(block) for block in self.content]}
        if self.structured is not None:
            body["structuredContent"] = self.structured
        if self.is_error:
            body["isError"] = True
        return body


class CallFailed(Exception):
    """The call did not produce a result: transport broken, server gone, or a protocol error.

    `sent` is False if the server is known not to have received it: then it may be sent again. `answered` is True if
    the server answered that the call failed.
    """

    def __init__(self, message: str, *, sent: bool = True, answered: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.answered = answered

    @property
    def outcome(self) -> Literal["failed", "unknown"]:
        """`unknown` for a call that was sent and not answered: it may have taken effect."""
        return "unknown" if self.sent and not self.answered else "failed"


def says_unknown(result: Mapping[str, Any]) -> bool:
    """Whether an error result of another Pursuit says that the call behind it may have taken effect."""
    return as_object(result.get("_meta")).get(OUTCOME_META_KEY) == "unknown"


def as_object(value: Any) -> Mapping[str, Any]:
    """A part of a message as an object; empty if it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def without_meta(message: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A message without one key of its `_meta`, and without `_meta` if that was all."""
    meta = as_object(message.get("_meta"))
    rest = {name: value for name, value in meta.items() if name != key}
    if rest or not meta:
        return {**message, "_meta": rest} if len(rest) < len(meta) else dict(message)
    return {name: value for name, value in message.items() if name != "_meta"}


class UpstreamError(Exception):
    """A JSON-RPC error, exactly as the server sent it; or the one that answers a request of the server."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeResult:
    """What a server says about itself when connected, in its own JSON."""

    protocol_version: str
    capabilities: Mapping[str, Any]
    server_info: Mapping[str, Any] | None = None
    instructions: str | None = None


class TaskCalls(Protocol):
    """Calls whose answers come later: each is a task, which runs on without a caller."""

    async def begin(
        self, tool: Tool, arguments: Mapping[str, Any], *, task_id: str, call_id: str, folder: Folder | None = None
    ) -> None:
        """Begins the task with that id, unless it has begun; `folder` moves its command. Raises `CallFailed`."""
        ...

    async def outcome(self, task_id: str, *, within: float = 0.0) -> ToolResult | None:
        """Its result, or None if it still runs after that many seconds. Raises `CallFailed` if it has none."""
        ...

    async def log(self, task_id: str) -> str:
        """The end of what its command wrote; empty for a task that is no command."""
        ...

    async def cancel(self, task_id: str, *, reason: str) -> None:
        """Stops it, unless it has ended."""
        ...


class Upstream(Protocol):
    """One server, connected when first needed. A broken one never takes another one with it."""

    @property
    def name(self) -> str:
        """The name that the operator gave it."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """All tools, over all pages. Raises `UpstreamUnavailable` with the reason and the last lines of stderr."""
        ...

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """Sends one call and waits for its result; raises `CallFailed`. Cancelling the caller reaches the server.

        `call_id` travels in `_meta` as `pursuit/callId`, so that an idempotent server can de-duplicate.
        """
        ...

    async def aclose(self) -> None:
        """Disconnects; a subprocess ends with all its children."""
        ...


@runtime_checkable
class Resumable(Upstream, Protocol):
    """A server whose calls may become tasks of its own, which go on without us."""

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str,
        on_progress: ProgressFn | None = None,
        on_handle: HandleFn | None = None,
    ) -> ToolResult:
        """Sends one call; `on_handle` gets the handle by which it can be picked up."""
        ...

    async def pick_up(
        self, tool: str, handle: Mapping[str, Any], *, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """The result of a call that another process made. Raises `CallFailed`."""
        ...


_OBJECT: Mapping[str, Any] = {"type": "object"}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "directive": {"type": "string", "description": "The child's goal in words."},
        "criteria": {"type": "array", "items": _OBJECT, "minItems": 1, "description": "As those of any mission."},
        "budget": {
            "type": "object",
            "description": "Taken out of this mission's own; each cap that this mission has must be given.",
        },
        "tool_allowlist": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Some of this mission's tools; all of them if left out.",
        },
        "proposer": {
            "type": ["object", "string"],
            "description": "The proposer; by default the parent's model.",
        },
        "checkpoint_cadence": _OBJECT,
        "stagnation_threshold": {"type": ["integer", "string"]},
        "pace": {"type": ["object", "number"]},
        "observe": {"type": "array", "items": _OBJECT},
        "policy": _OBJECT,
        "fleet": {"type": "object", "description": "Lets the child start children, where this mission's depth does."},
    },
    "required": ["directive", "criteria", "budget"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Starts a child mission out of this mission's own budget and waits for its end. Several in one answer run side by "
    "side. The result has the child's session_id, status, verdict_reason, metrics and events."
)
SPAWN_TOOL = Tool(
    server=FLEET,
    name=SPAWN.partition(".")[2],
    description=_DESCRIPTION,
    input_schema=SCHEMA,
    traits=Traits(idempotent=True, parallel_safe=True, destructive=False),
    definition={"name": SPAWN.partition(".")[2], "description": _DESCRIPTION, "inputSchema": SCHEMA},
    long=True,
    allowed_because="the mission has a fleet; each call of its children is decided on its own",
)


def _own_tool(name: str, description: str, **properties: Mapping[str, Any]) -> Tool:
    """A tool that the engine itself answers, from the ledger."""
    required = [key for key, value in properties.items() if "default" not in value]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    short = name.partition(".")[2]
    return Tool(
        server=OWN_SERVER,
        name=short,
        description=description,
        input_schema=schema,
        traits=Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False),
        definition={"name": short, "description": description, "inputSchema": schema},
    )


OWN_TOOLS = {
    tool.qualified: tool
    for tool in (
        _own_tool(
            NOTE,
            "Writes down what must not be forgotten: notes outlive every summary of the conversation.",
            text={"type": "string", "minLength": 1, "maxLength": 4_000},
        ),
        _own_tool(
            READ_RESULT,
            "Reads on in a result that was too long to be shown whole.",
            call_id={"type": "string", "description": "As the result itself says it."},
            offset={"type": "integer", "minimum": 0, "default": 0, "description": "The first character."},
        ),
    )
}
"""The tools that every language model has, besides those of its mission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """The operator's settings of one tool; None where nothing is set."""

    read_only: Flag | None = None
    idempotent: Flag | None = None
    parallel_safe: Flag | None = None
    destructive: Flag | None = None
    timeout: Positive | None = None
    long: Flag | None = None
    task_only: Flag | None = None

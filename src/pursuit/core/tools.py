"""Tools and servers independent of their transport: `Tool`, `ToolResult`, `Upstream`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from pursuit.core.base_model import Flag, Positive
from pursuit.core.mission import NOTE, READ_RESULT, SPAWN
from pursuit.core.pins import Changes

ProgressFn = Callable[[float, float | None, str | None], Awaitable[None]]
# A notification of the server: its method and its raw parameters.
NotifyFn = Callable[[str, Mapping[str, Any]], Awaitable[None]]
# The handle with which another process can pick up a call that the server turned into a task.
HandleFn = Callable[[Mapping[str, Any]], Awaitable[None]]
# The `_meta` key of our own error results; `unknown` means that the call may have taken effect.
OUTCOME_META_KEY = "pursuit/outcome"
NOT_KNOWN = "whether the call took effect is not known"
# A request of the server: answered with a raw result, or refused with an `UpstreamError`.
AnswerFn = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of a tool, as the operator declares them. Unknown means the worst."""

    read_only: bool = False
    idempotent: bool = False
    parallel_safe: bool = False
    destructive: bool = True
    timeout: float | None = None
    why: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    """The source of each of the four traits, by name."""

    @property
    def repeatable(self) -> bool:
        """True if a call without a known outcome may be sent again."""
        return self.read_only or self.idempotent


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool of one server; `definition` is the server's own JSON, unchanged."""

    server: str
    name: str
    description: str = ""
    input_schema: Mapping[str, Any]
    traits: Traits = Traits()
    definition: Mapping[str, Any]
    local: bool = False
    """True for a plain function of this process, which is not a tool of an MCP server."""
    long: bool = False
    """True if its calls are tasks, whose results come later."""
    operators: bool = True
    """True if its server comes from the operator's configuration, not from a mission file."""
    method: str = "tools/call"
    """The MCP method of its calls."""
    metrics: tuple[str, ...] | None = None
    """The metrics that its results can contain; None if they can contain any."""
    cwd: str | None = None
    """The folder of a configured command."""
    digest: str = ""
    """The digest of its definition, stored with approvals; empty for a tool of this process."""
    changes: Changes | None = None
    """The server's changes, including one of this tool, since the operator accepted its tools."""
    allowed_because: str | None = None
    """Why policy allows it if no rule matches; only for tools that the runtime performs itself."""
    qualified: str = field(init=False, repr=False, compare=False)
    """The name inside a mission: `server.tool`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "qualified", f"{self.server}.{self.name}")


def matches_tool(pattern: str, qualified: str) -> bool:
    """True if a name or glob matches this tool's qualified name or, without a dot, its bare name."""
    bare = qualified.partition(".")[2]
    if pattern in (qualified, bare) or fnmatchcase(qualified, pattern):
        return True
    return "." not in pattern and fnmatchcase(bare, pattern)


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's result: MCP content blocks as JSON, structured content, and whether it is an error."""

    content: Sequence[Mapping[str, Any]] = ()
    structured: Any = None
    is_error: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON, with MCP's own keys, without absent parts."""
        body: dict[str, Any] = {"content": list(map(dict, self.content))}
        if self.structured is not None:
            body["structuredContent"] = self.structured
        if self.is_error:
            body["isError"] = True
        return body


class CallFailed(Exception):
    """The call did not produce a result: broken transport, lost server, or a protocol error.

    `sent` is False if the server is known not to have received it: then it may be sent again. `answered` is True if
    the server answered that the call failed.
    """

    def __init__(self, message: str, *, sent: bool = True, answered: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.answered = answered

    @property
    def outcome(self) -> Literal["failed", "unknown"]:
        """`unknown` for a call that was sent but not answered: it may have taken effect."""
        return "unknown" if self.sent and not self.answered else "failed"


def says_unknown(result: Mapping[str, Any]) -> bool:
    """True if an error result from another Pursuit says that its call may have taken effect."""
    return as_object(result.get("_meta")).get(OUTCOME_META_KEY) == "unknown"


def as_object(value: Any) -> Mapping[str, Any]:
    """A part of a message as an object; empty if it is not an object."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def without_meta(message: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A message without one key of its `_meta`; without `_meta` if it becomes empty."""
    meta = as_object(message.get("_meta"))
    rest = {name: value for name, value in meta.items() if name != key}
    if rest or not meta:
        return {**message, "_meta": rest} if len(rest) < len(meta) else dict(message)
    return {name: value for name, value in message.items() if name != "_meta"}


class UpstreamError(Exception):
    """A JSON-RPC error, exactly as the server sent it, or as the answer to a request of the server."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeResult:
    """A server's description of itself on connection, as its own JSON."""

    protocol_version: str
    capabilities: Mapping[str, Any]
    server_info: Mapping[str, Any] | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class CheckPlace:
    """The folder and the isolation of a check's command, for the folder and the `ProcessEnvironment` that it names."""

    folder: Callable[[str | None], str]
    isolation: Callable[[Any, bool], Any] = lambda given, _network: given.isolation


class TaskCalls(Protocol):
    """Calls whose results come later: each is a task that continues without a caller."""

    async def begin(
        self, tool: Tool, arguments: Mapping[str, Any], *, task_id: str, call_id: str, place: CheckPlace | None = None
    ) -> None:
        """Starts the task with that id unless it has started; `place` is that of checks. Raises `CallFailed`."""
        ...

    async def outcome(self, task_id: str, *, within: float = 0.0) -> ToolResult | None:
        """The task's result; None if the task still runs after that many seconds. Raises `CallFailed` if it failed."""
        ...

    async def log(self, task_id: str) -> str:
        """The end of its command's output; empty for other tasks."""
        ...

    async def cancel(self, task_id: str, *, reason: str) -> None:
        """Cancels it, unless it has ended."""
        ...


class Upstream(Protocol):
    """One server, connected when first needed. A failure never affects other servers."""

    @property
    def name(self) -> str:
        """The name that the operator gave the server."""
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
    """A server whose calls may become its own tasks, which continue without us.

    Its `call` also takes `on_handle`, which gets the handle by which another process can pick the call up.
    """

    async def pick_up(
        self, tool: str, handle: Mapping[str, Any], *, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """The result of a call that another process made. Raises `CallFailed`."""
        ...


def _own_tool(
    name: str, description: str, properties: Mapping[str, Any], required: Sequence[str], traits: Traits, **more: Any
) -> Tool:
    """A tool that Pursuit performs itself."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    server, _, short = name.partition(".")
    definition = {"name": short, "description": description, "inputSchema": schema}
    given: dict[str, Any] = {"description": description, "input_schema": schema, "traits": traits, **more}
    return Tool(server=server, name=short, definition=definition, **given)


_OBJECT: Mapping[str, Any] = {"type": "object"}
SPAWN_TOOL = _own_tool(
    SPAWN,
    "Starts a child mission within this mission's budget and waits for its end. Several in one answer run "
    "concurrently. The result has the child's session_id, status, verdict_reason, metrics and events.",
    {
        "directive": {"type": "string", "description": "The child's goal in words."},
        "criteria": {"type": "array", "items": _OBJECT, "minItems": 1, "description": "As in any mission."},
        "budget": {
            "type": "object",
            "description": "Taken from this mission's budget; must have each cap of it.",
        },
        "tool_allowlist": {
            "type": "array",
            "items": {"type": "string"},
            "description": "A subset of this mission's tools (default: all).",
        },
        "proposer": {
            "type": ["object", "string"],
            "description": "The proposer (default: the parent's model).",
        },
        "checkpoint_cadence": _OBJECT,
        "stagnation_threshold": {"type": ["integer", "string"]},
        "pace": {"type": ["object", "number"]},
        "observe": {"type": "array", "items": _OBJECT},
        "policy": _OBJECT,
        "fleet": {"type": "object", "description": "Lets the child start children, if max_depth allows it."},
    },
    ["directive", "criteria", "budget"],
    Traits(idempotent=True, parallel_safe=True, destructive=False),
    long=True,
    allowed_because="the mission has a fleet; each call of its children is decided on its own",
)


READS = Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False)
OWN_TOOLS = {
    tool.qualified: tool
    for tool in (
        _own_tool(
            NOTE,
            "Keeps a note of something important: notes survive every summary of the conversation.",
            {"text": {"type": "string", "minLength": 1, "maxLength": 4_000}},
            ["text"],
            READS,
        ),
        _own_tool(
            READ_RESULT,
            "Reads more of a result that was too long to show in full.",
            {
                "call_id": {"type": "string", "description": "The call id given in the result."},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "Index of the first character.",
                },
            },
            ["call_id"],
            READS,
        ),
    )
}
"""The tools that every language model has in addition to those of its mission."""


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

"""The configuration of upstream servers: how it is read from a table, and how `${VAR}` is expanded.

A `ServerConfig` is consistent (one transport, with what that transport needs) and holds no expanded secret: expansion
happens at connect, into a copy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Literal

from pursuit.config.files import Fields
from pursuit.config.surroundings import Isolation, read_isolation
from pursuit.config.variables import as_secrets, expand_variables, secret_arguments, secret_entries, variable_values
from pursuit.core.base_model import nearest
from pursuit.core.tools import ToolOverride
from pursuit.errors import Fault, UpstreamUnavailable

Transport = Literal["stdio", "http", "sse"]
Pin = Literal["ask", "deny", "off"]
PIN_MODES: tuple[Pin, ...] = ("ask", "deny", "off")

SERVER_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
PYTHON = "__python_executable__"

TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
SERVER_KEYS = (
    "command", "args", "env", "cwd", "url", "headers", "type", "transport", "timeouts", "enabled", "required",
    "enabled_tools", "disabled_tools", "concurrency", "restart", "trust_annotations", "tools",
    "isolation", "methods", "pin",
)  # fmt: skip
# What other hosts write into mcp.json: `disabled` is obeyed, the rest is ignored (and may not loosen policy).
_FOREIGN_KEYS = ("disabled", "alwaysAllow", "autoApprove", "description", "timeout", "gallery")
OVERRIDE_FLAGS = ("read_only", "idempotent", "parallel_safe", "destructive", "long", "task_only")


FETCHERS = frozenset({"npx", "bunx", "pnpx", "uvx", "uv", "pipx"})
FETCH_SECONDS = 180.0
"""A package with its dependencies is some ten megabytes: minutes over a slow line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. If `call` is None, the engine's own call timeout holds."""

    connect: float = 30.0
    """`FETCH_SECONDS` for a command that may have to download the server first."""
    call: float | None = None
    read: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLimits:
    """How much a server or a client can make us hold, in bytes unless said otherwise. An error names the field.

    The configuration has no keys for them.
    """

    queued: int = 8 << 20
    """Notifications that wait for one session that does not read; further ones are dropped."""
    list: int = 32 << 20
    """One list of a server, over all of its pages."""
    result: int = 16 << 20
    """One message: a result, a page of a list, a notification, a prompt."""
    unread: int = 32 << 20
    """HTTP requests that have not arrived whole, of all clients together."""
    request_seconds: float = 30.0
    """How long an HTTP request may take to arrive whole."""
    depth: ClassVar[int] = 200
    """Nesting of a JSON message. The JSON parser has this limit built in."""


LIMITS = MessageLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Numbers of the client of one server, in seconds unless said otherwise. The configuration has no keys for them."""

    first_pause: float = 0.5
    longest_pause: float = 30.0
    """The pause before a restart; it doubles with each death in a row."""
    longest_wait: float = 2.0
    """A pause up to this is waited out; for a longer one the caller gets an error that says when to try again."""
    healthy_seconds: float = 60.0
    healthy_answers: int = 3
    """A connection that lasted so long, or answered so often, was healthy."""
    ends_per_minute: float = 10
    """A process that ended so often within a minute is not started again before the minute is over."""
    exit_wait: float = 1.0
    """How long the error about a broken connection waits for the exit code and the last lines of stderr."""
    hang_probe: float = 5.0
    """How long a process that left a request unanswered may take to answer a ping."""
    reopen_pauses: tuple[float, float] = (1.0, 30.0)
    """The first and the longest pause before a broken stream of notifications is opened again."""
    listing_seconds: float = 30.0
    """How long a list is believed of a server that does not notify of changes."""
    idle_seconds: float = 60.0
    most_idle: int = 4
    """How long, and how many, connections wait for the next interactive call."""
    task_retry: float = 1.0
    """The pause before a server that did not answer is asked about its task again; it grows with each failure."""
    stdin_grace: float = 2.0
    term_grace: float = 2.0
    """How long a process may take to end after its stdin was closed, and after SIGTERM."""
    limits: MessageLimits = LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One server. What may hold a secret (args, env, url, headers) stays out of `repr`."""

    name: str
    transport: Transport = "stdio"
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeouts: Timeouts = Timeouts()
    client: ClientSettings = field(default=ClientSettings(), repr=False)
    enabled: bool = True
    required: bool = False
    enabled_tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    """Globs of the requests and notifications outside of the protocol that clients of the gateway may send it."""
    pin: Pin = "ask"
    """What happens to a tool whose definition changed since it was accepted."""
    isolation: Isolation | None = None
    concurrency: int | None = None
    restart: bool = True
    trust_annotations: bool = False
    tools: Mapping[str, ToolOverride] = field(default_factory=dict[str, ToolOverride])
    base: Path | None = None
    operators: bool = True
    """Whether the operator configured it. A mission file can only tighten the traits of its own servers."""

    discreet: bool = False
    """Whether its stderr and the reasons of its failures go to the log only, and not to its callers."""

    @property
    def fetches(self) -> bool:
        """Whether its command may have to download the server first."""
        return _fetches(self.command)


def parse_servers(
    table: object, *, source: str, base: Path, prefix: str = "servers", foreign: bool = False
) -> tuple[dict[str, ServerConfig], list[Fault]]:
    """The servers of a table, and all faults. `foreign` allows the keys that other hosts write into mcp.json."""
    fields = Fields({prefix: table}, at="", source=source, faults=[])
    servers: dict[str, ServerConfig] = {}
    for name, entry in fields.tables(prefix):
        if not SERVER_NAME.match(name):
            reason = "a server's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit"
            entry.fault("", reason)
        before = len(fields.faults)
        config = _parse_server(name, entry, base, foreign=foreign)
        if len(fields.faults) == before:
            servers[name] = config
    return servers, fields.faults


def _parse_server(name: str, fields: Fields, base: Path, *, foreign: bool) -> ServerConfig:
    fields.only((*SERVER_KEYS, *_FOREIGN_KEYS) if foreign else SERVER_KEYS)
    enabled = fields.flag("enabled")
    if enabled is None:
        enabled = not (foreign and fields.flag("disabled"))
    concurrency = fields.number("concurrency", whole=True)
    return ServerConfig(
        name=name,
        transport=_transport(fields),
        command=fields.text("command"),
        args=fields.texts("args") or (),
        env=fields.text_map("env"),
        cwd=fields.text("cwd"),
        url=fields.text("url"),
        headers=fields.text_map("headers"),
        timeouts=_timeouts(fields, fetches=_fetches(fields.text("command"))),
        enabled=enabled,
        required=fields.flag("required") or False,
        enabled_tools=fields.texts("enabled_tools"),
        disabled_tools=fields.texts("disabled_tools") or (),
        methods=fields.texts("methods") or (),
        pin=_pin(fields),
        isolation=read_isolation(fields),
        concurrency=None if concurrency is None else int(concurrency),
        restart=fields.flag("restart") is not False,
        trust_annotations=fields.flag("trust_annotations") or False,
        tools=_overrides(fields),
        base=base,
    )


def _transport(fields: Fields) -> Transport:
    has_command, has_url = "command" in fields.table, "url" in fields.table
    said = "transport" if "transport" in fields.table else "type"
    if "transport" in fields.table and "type" in fields.table:
        fields.fault("type", "says the same as 'transport'; keep one of the two")
    if has_command and has_url:
        fields.fault("", "has both 'command' and 'url'; a server has one of the two")
    elif not has_command and not has_url:
        fields.fault("", "needs a 'command' (stdio) or a 'url' (http)")
    word = fields.text(said)
    if word is not None and word not in TRANSPORTS:
        fields.fault(said, f"{word!r} is not a transport{nearest(word, TRANSPORTS) or '; known: stdio, http, sse'}")
    transport = TRANSPORTS.get(word or "", "http" if has_url and not has_command else "stdio")
    needs, other = ("command", "url") if transport == "stdio" else ("url", "command")
    if needs not in fields.table and other in fields.table:
        fields.fault(said, f"{transport} needs a '{needs}'")
    for key in ("headers",) if transport == "stdio" else ("args", "env", "cwd", "isolation"):
        if key in fields.table:
            fields.fault(key, f"has no meaning for {transport}")
    return transport


def _pin(fields: Fields) -> Pin:
    word = fields.text("pin") or "ask"
    if word not in PIN_MODES:
        fields.fault("pin", f"{word!r} is none of ask, deny and off{nearest(word, PIN_MODES)}")
        return "ask"
    return word


def _fetches(command: str | None) -> bool:
    return command is not None and Path(command).name in FETCHERS


def _timeouts(fields: Fields, *, fetches: bool) -> Timeouts:
    table = fields.inside("timeouts")
    table.only(("connect", "call", "read"))
    default = Timeouts(connect=FETCH_SECONDS) if fetches else Timeouts()
    return Timeouts(
        connect=table.number("connect") or default.connect,
        call=table.number("call"),
        read=table.number("read") or default.read,
    )


def _overrides(fields: Fields) -> dict[str, ToolOverride]:
    found: dict[str, ToolOverride] = {}
    for tool, table in fields.tables("tools"):
        table.only((*OVERRIDE_FLAGS, "timeout"))
        flags = {key: table.flag(key) for key in OVERRIDE_FLAGS}
        found[tool] = ToolOverride(**flags, timeout=table.number("timeout"))
        if found[tool].read_only and found[tool].destructive:
            table.fault("destructive", "a tool cannot be read-only and destructive")
    return found


def expand(config: ServerConfig, environ: Mapping[str, str]) -> ServerConfig:
    """A copy that is ready to connect: variables expanded, paths absolute.

    Raises `UpstreamUnavailable` with each variable that is not set, its server and its field.
    """
    missing: list[dict[str, str]] = []

    def full(text: str, at: str) -> str:
        value, unset = expand_variables(text, environ)
        missing.extend({"server": config.name, "field": at, "variable": variable} for variable in unset)
        return value

    changes: dict[str, Any] = {
        "args": tuple(full(item, f"args[{index}]") for index, item in enumerate(config.args)),
        "env": {key: full(value, f"env.{key}") for key, value in config.env.items()},
        "headers": {key: full(value, f"headers.{key}") for key, value in config.headers.items()},
        "command": config.command and _program(full(config.command, "command"), config.base),
        "cwd": config.cwd and _absolute(full(config.cwd, "cwd"), config.base),
        "url": config.url and full(config.url, "url"),
    }
    if missing:
        what = "; ".join(f"${{{one['variable']}}} in {one['field']}" for one in missing)
        raise UpstreamUnavailable(
            f"server {config.name!r} needs environment variables that are not set: {what}", missing=missing
        )
    return replace(config, **changes)


def secrets_of(config: ServerConfig, expanded: ServerConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values that must not be shown, longest first; see `variables`."""
    raw = (config.command, config.cwd, config.url, *config.args, *config.env.values(), *config.headers.values())
    values = variable_values(raw, environ)
    for said, full in ((config.env, expanded.env), (config.headers, expanded.headers)):
        values += secret_entries(said, full)
    return as_secrets([*values, *secret_arguments(expanded.args)])


def is_loopback(host: str) -> bool:
    """Whether a host is our own machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return f".{host.lower().rstrip('.')}".endswith(".localhost")


def _program(command: str, base: Path | None) -> str:
    if command == PYTHON:
        return sys.executable
    return _absolute(command, base) if "/" in command or command.startswith("~") else command


def _absolute(text: str, base: Path | None) -> str:
    path = Path(text).expanduser()
    return str(path if path.is_absolute() or base is None else base / path)

"""The configuration of upstream servers: reading it from a table, and expanding `${VAR}`.

A `ServerConfig` is consistent (one transport with its required keys) and holds no expanded secret: each connect expands
a copy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationError, ValidationInfo

from pursuit.config.process_environment import IsolationKey
from pursuit.config.variables import as_secrets, expand_variables, secret_arguments, secret_entries, variable_values
from pursuit.core.base_model import (
    Broken,
    Filled,
    Flag,
    Positive,
    PositiveWhole,
    TableModel,
    TextMap,
    faults_of,
    must,
    rules,
)
from pursuit.core.tools import ToolOverride
from pursuit.errors import Fault, UpstreamUnavailable

Transport = Literal["stdio", "http", "sse"]
Pin = Literal["ask", "deny", "off"]

SERVER_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
PYTHON = "__python_executable__"

TransportWord = Literal["stdio", "http", "streamable-http", "streamable_http", "streamableHttp", "sse"]


def _transport(word: str) -> Transport:
    return "stdio" if word == "stdio" else "sse" if word == "sse" else "http"


RELAYED = "PURSUIT_RELAYED"
"""Tells a stdio server how clients connect to the gateway that starts it: http or stdio."""
FETCHERS = frozenset({"npx", "bunx", "pnpx", "uvx", "uv", "pipx"})
FETCH_SECONDS = 180.0
"""A package with its dependencies is some ten megabytes: minutes over a slow line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLimits:
    """Limits on what a server or a client can make us hold, in bytes by default. Errors name the field.

    The configuration has no keys for them.
    """

    queued: int = 8 << 20
    """Queued notifications of a session that does not read; further notifications are dropped."""
    list: int = 32 << 20
    """One list of a server, all pages together."""
    result: int = 16 << 20
    """One message: a result, a page of a list, a notification, a prompt."""
    unread: int = 32 << 20
    """Incomplete HTTP requests, all clients together."""
    request_seconds: float = 30.0
    """The time for an HTTP request to arrive completely."""
    depth: ClassVar[int] = 200
    """Nesting of a JSON message. The JSON parser has this limit built in."""


LIMITS = MessageLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of the client of one server, in seconds by default. The configuration has no keys for them."""

    first_pause: float = 0.5
    longest_pause: float = 30.0
    """The pause before a restart; it doubles with each death in a row."""
    longest_wait: float = 2.0
    """Callers wait for pauses up to this; for a longer pause they get an error with the time of the next try."""
    healthy_seconds: float = 60.0
    healthy_answers: int = 3
    """A connection that lasted this long, or answered this often, counts as healthy."""
    ends_per_minute: float = 10
    """A process that ended this often within a minute is not restarted before the minute is over."""
    exit_wait: float = 1.0
    """The time that the error about a broken connection waits for the exit code and the last lines of stderr."""
    hang_probe: float = 5.0
    """The time for a process that did not answer a request to answer a ping."""
    reopen_pauses: tuple[float, float] = (1.0, 30.0)
    """The first and the longest pause before a broken notification stream is reopened."""
    listing_seconds: float = 30.0
    """The lifetime of a cached list of a server that does not notify of changes."""
    most_idle: int = 4
    """The number of idle connections kept for interactive calls."""
    task_retry: float = 1.0
    """The pause before the next poll of a task whose server did not answer; it grows with each failure."""
    stdin_grace: float = 2.0
    term_grace: float = 2.0
    """The time for a process to end after its stdin was closed, and after SIGTERM."""
    limits: MessageLimits = LIMITS


def _not_both(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if given.get("read_only") is True and given.get("destructive") is True:
        yield Broken("a tool cannot be read-only and destructive", "destructive")


class Timeouts(TableModel):
    """Timeouts of a connection, a call or a request, in seconds. Without `call`, the engine's call timeout applies.

    `connect` is `FETCH_SECONDS` for a command that may download the server first.
    """

    connect: Positive = 30.0
    call: Positive | None = None
    read: Positive = 120.0


class ServerTable(TableModel):
    """A server: a command or a URL."""

    command: Filled | None = None
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: TextMap = Field(default_factory=dict, repr=False)
    cwd: Filled | None = None
    url: Filled | None = Field(default=None, repr=False)
    headers: TextMap = Field(default_factory=dict, repr=False)
    type: TransportWord | None = None
    transport: TransportWord | None = None
    timeouts: Timeouts = Field(default_factory=Timeouts.model_construct)
    enabled: Flag = True
    required: Flag = False
    enabled_tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] = ()
    concurrency: PositiveWhole | None = None
    restart: Flag = True
    trust_annotations: Flag = False
    tools: Mapping[str, Annotated[ToolOverride, rules(_not_both)]] = Field(default_factory=dict)
    isolation: IsolationKey | None = None
    methods: tuple[str, ...] = ()
    """Globs of non-protocol requests and notifications that gateway clients may send to it."""
    pin: Pin = "ask"
    """How to treat a tool whose definition has changed since it was accepted."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        has_command, has_url = "command" in given, "url" in given
        said = "transport" if "transport" in given else "type"
        if "transport" in given and "type" in given:
            yield Broken("means the same as 'transport'; remove one of the two", "type")
        if has_command and has_url:
            yield Broken("has both 'command' and 'url'; remove one of the two")
        elif not has_command and not has_url:
            yield Broken("needs a 'command' (stdio) or a 'url' (http)")
        known = given.get(said) in get_args(TransportWord)
        transport = _transport(given[said]) if known else "http" if has_url and not has_command else "stdio"
        needs, other = ("command", "url") if transport == "stdio" else ("url", "command")
        if needs not in given and other in given:
            yield Broken(f"{transport} needs a '{needs}'", said)
        for key in ("headers",) if transport == "stdio" else ("args", "env", "cwd", "isolation"):
            if key in given:
                yield Broken(f"does not apply to {transport}", key)

    @property
    def switched_on(self) -> bool:
        return self.enabled


class ForeignServerTable(ServerTable):
    """A server in the mcp.json format of other hosts: `disabled` is obeyed; other keys cannot loosen policy."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset(("alwaysAllow", "autoApprove", "description", "timeout", "gallery"))
    disabled: Flag = False
    always_allow: Any = Field(None, alias="alwaysAllow")
    auto_approve: Any = Field(None, alias="autoApprove")
    description: Any = None
    timeout: Any = None
    gallery: Any = None

    @property
    def switched_on(self) -> bool:
        """True if the server is used; `enabled` is our own key."""
        return self.enabled if "enabled" in self.model_fields_set else not self.disabled


class ServerConfig(ServerTable):
    """A server of a configuration. `repr` omits keys that may hold secrets (args, env, url, headers)."""

    name: str
    base: Path | None = None
    transport: Transport = "stdio"  # pyright: ignore[reportIncompatibleVariableOverride] - it is frozen
    client: ClientSettings = Field(default=ClientSettings(), repr=False)
    operators: bool = True
    """True if the operator configured it. A mission file can only tighten the traits of its own servers."""
    discreet: bool = False
    """True if its stderr and the reasons of failures go only to the log, not to callers."""

    @classmethod
    def _rules(cls, given: Mapping[str, Any]) -> Iterable[Broken]:  # noqa: ARG003 - the table's rules are for files
        return ()

    @classmethod
    def of(cls, table: ServerTable, name: str, base: Path) -> ServerConfig:
        said = {key: value for key, value in table if key in ServerTable.model_fields and key != "type"}
        said["transport"] = _transport(table.transport or table.type or ("stdio" if table.url is None else "http"))
        said["enabled"] = table.switched_on
        if _fetches(table.command) and "connect" not in table.timeouts.model_fields_set:
            said["timeouts"] = table.timeouts.model_copy(update={"connect": FETCH_SECONDS})
        return cls.model_construct(None, name=name, base=base, **said)

    @property
    def fetches(self) -> bool:
        """True if its command may download the server first."""
        return _fetches(self.command)


_NAME = "a server's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit"
ServerName = Annotated[str, must(SERVER_NAME.match, _NAME)]
Servers = Mapping[ServerName, ServerTable]


class _ServersOnly(TableModel):
    servers: Servers = Field(default_factory=dict)


def parse_servers(table: object, *, source: str, base: Path) -> tuple[dict[str, ServerConfig], list[Fault]]:
    """Returns the servers of a table and all faults; without servers if there are faults."""
    try:
        found = _ServersOnly.model_validate({"servers": table}).servers
    except ValidationError as error:
        return {}, faults_of(error, _ServersOnly, source=source)
    return {name: ServerConfig.of(server, name, base) for name, server in found.items()}, []


def _fetches(command: str | None) -> bool:
    return command is not None and Path(command).name in FETCHERS


def expand(config: ServerConfig, environ: Mapping[str, str]) -> ServerConfig:
    """Returns a copy that is ready to connect: variables expanded, paths absolute.

    Raises `UpstreamUnavailable` with each unset variable, its server and its field.
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
    return config.model_copy(update=changes)


def secrets_of(config: ServerConfig, expanded: ServerConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values to redact, longest first; see `variables`."""
    raw = (config.command, config.cwd, config.url, *config.args, *config.env.values(), *config.headers.values())
    values = variable_values(raw, environ)
    for said, full in ((config.env, expanded.env), (config.headers, expanded.headers)):
        values += secret_entries(said, full)
    return as_secrets([*values, *secret_arguments(expanded.args)])


def is_loopback(host: str) -> bool:
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

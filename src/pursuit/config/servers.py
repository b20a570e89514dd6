"""The configuration of upstream servers: how it is read from a table, and how `${VAR}` is expanded.

A `ServerConfig` is consistent (one transport, with what that transport needs) and holds no expanded secret: expansion
happens at connect, into a copy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationError, ValidationInfo

from pursuit.config.surroundings import Isolation, IsolationKey
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
"""The variable that tells a server over stdio how the clients of the gateway that starts it connect: http or stdio."""
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


def _not_both(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if given.get("read_only") is True and given.get("destructive") is True:
        yield Broken("a tool cannot be read-only and destructive", "destructive")


class TimeoutsTable(TableModel):
    """Seconds until a connection, a call or a request is given up."""

    connect: Positive | None = None
    call: Positive | None = None
    read: Positive = Timeouts().read


class ServerTable(TableModel):
    """A server: a command that is started, or a URL."""

    command: Filled | None = None
    args: tuple[str, ...] = Field((), repr=False)
    env: TextMap = Field(default_factory=dict, repr=False)
    cwd: Filled | None = None
    url: Filled | None = Field(None, repr=False)
    headers: TextMap = Field(default_factory=dict, repr=False)
    type: TransportWord | None = None
    transport: TransportWord | None = None
    timeouts: TimeoutsTable = Field(default_factory=TimeoutsTable.model_construct)
    enabled: Flag | None = None
    required: Flag = False
    enabled_tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] = ()
    concurrency: PositiveWhole | None = None
    restart: Flag = True
    trust_annotations: Flag = False
    tools: Mapping[str, Annotated[ToolOverride, rules(_not_both)]] = Field(default_factory=dict)
    isolation: IsolationKey | None = None
    methods: tuple[str, ...] = ()
    pin: Pin = "ask"

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """One transport, with what it needs."""
        has_command, has_url = "command" in given, "url" in given
        said = "transport" if "transport" in given else "type"
        if "transport" in given and "type" in given:
            yield Broken("says the same as 'transport'; keep one of the two", "type")
        if has_command and has_url:
            yield Broken("has both 'command' and 'url'; a server has one of the two")
        elif not has_command and not has_url:
            yield Broken("needs a 'command' (stdio) or a 'url' (http)")
        known = given.get(said) in get_args(TransportWord)
        transport = _transport(given[said]) if known else "http" if has_url and not has_command else "stdio"
        needs, other = ("command", "url") if transport == "stdio" else ("url", "command")
        if needs not in given and other in given:
            yield Broken(f"{transport} needs a '{needs}'", said)
        for key in ("headers",) if transport == "stdio" else ("args", "env", "cwd", "isolation"):
            if key in given:
                yield Broken(f"has no meaning for {transport}", key)

    def config(self, name: str, base: Path) -> ServerConfig:
        """The server of this name; its paths are relative to `base`."""
        seconds, usual = self.timeouts, FETCH_SECONDS if _fetches(self.command) else Timeouts().connect
        return ServerConfig(
            name=name,
            base=base,
            transport=_transport(self.transport or self.type or ("stdio" if self.url is None else "http")),
            timeouts=Timeouts(connect=seconds.connect or usual, call=seconds.call, read=seconds.read),
            enabled=self.switched_on,
            **{key: getattr(self, key) for key in _SAME},
        )

    @property
    def switched_on(self) -> bool:
        """Whether it is used."""
        return self.enabled is not False


_SAME = ServerTable.model_fields.keys() - {"type", "transport", "timeouts", "enabled"}


class ForeignServerTable(ServerTable):
    """A server as other hosts write it into mcp.json: `disabled` is obeyed, the other keys may not loosen policy."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset(("alwaysAllow", "autoApprove", "description", "timeout", "gallery"))
    disabled: Flag = False
    always_allow: Any = Field(None, alias="alwaysAllow")
    auto_approve: Any = Field(None, alias="autoApprove")
    description: Any = None
    timeout: Any = None
    gallery: Any = None

    @property
    def switched_on(self) -> bool:
        """Whether it is used; `enabled` is a key of ours."""
        return not self.disabled if self.enabled is None else self.enabled


_NAME = "a server's name has 1 to 64 letters, digits, '_' or '-', and starts with a letter or digit"
ServerName = Annotated[str, must(SERVER_NAME.match, _NAME)]
Servers = Mapping[ServerName, ServerTable]


class _ServersOnly(TableModel):
    servers: Servers = Field(default_factory=dict)


def parse_servers(table: object, *, source: str, base: Path) -> tuple[dict[str, ServerConfig], list[Fault]]:
    """The servers of a table, and all faults; no servers if there are any."""
    try:
        found = _ServersOnly.model_validate({"servers": table}).servers
    except ValidationError as error:
        return {}, faults_of(error, _ServersOnly, source=source)
    return {name: server.config(name, base) for name, server in found.items()}, []


def _fetches(command: str | None) -> bool:
    return command is not None and Path(command).name in FETCHERS


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

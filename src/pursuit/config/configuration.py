"""The operator's configuration: `pursuit.toml`, `mcp.json`, or both.

A `Configuration` has no fault. A file with faults raises all of them at once, each with file, field and reason, and
with line and column if the file cannot be parsed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError, ValidationInfo

from pursuit.config.commands import COMMANDS_SERVER, TRAITS, CommandConfig, Commands
from pursuit.config.files import as_table, parse_json, parse_toml, read_text, unreadable
from pursuit.config.servers import ForeignServerTable, ServerConfig, ServerName, Servers
from pursuit.config.surroundings import (
    USUAL_SURROUNDINGS,
    Inherit,
    InheritKey,
    Surroundings,
    SurroundingsTable,
)
from pursuit.config.variables import expand_variables
from pursuit.core.approvals import MOST_PEOPLE
from pursuit.core.base_model import (
    Broken,
    Filled,
    Flag,
    NotNegative,
    NotNegativeWhole,
    Positive,
    PositiveWhole,
    TableModel,
    TextMap,
    faults_of,
    filled,
    kind,
    must,
    read_inside,
)
from pursuit.core.events import Channel
from pursuit.errors import Fault, ValidationFailed
from pursuit.policy.rules import (
    ANY,
    Decision,
    Hosts,
    Mode,
    NetworkRules,
    OperatorPolicy,
    Pattern,
    Rule,
    Tightening,
    Under,
    plain_name,
)

TOML_NAME = "pursuit.toml"
JSON_NAME = "mcp.json"
_GOVERNING = ("policy", "approvals", "limits", "serve", "schedule", "callers", "client_models", "proposers", "audit")
_GOVERNING_EACH = (
    *("pin", "methods", "trust_annotations", "tools", "enabled_tools", "disabled_tools"),
    *("isolation", "parameters", "allow_parent_paths"),
    *TRAITS,
)
"""The keys of a server or a command that decide what may be done."""

Notice = Literal["waiting", "ended", "stuck", "interrupted", "budget"]
Overlap = Literal["skip", "queue", "replace"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)
USUAL_CHANNELS: frozenset[Channel] = frozenset(one for one in CHANNELS if one != "http-elicitation")
LONGEST_LIFETIME = 7_200.0

_SCHEDULE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_URL = re.compile(r"https?://[^\s/]|\$\{")


def is_safe_address(address: str) -> bool:
    """Whether it is https, or http on this machine, without user, query and fragment."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or parts.username or "@" in parts.netloc or " " in address)
    return bool(host) and plain and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK))


_ADDRESS = "must be an https address, or http on this machine, without user, query and fragment"
SafeAddress = Annotated[Filled, must(is_safe_address, _ADDRESS)]


class OAuthConfig(TableModel):
    """`[serve.oauth]`: the authorization server whose access tokens count over HTTP.

    `resource` is the address that clients use, if it is not the one that is served; `audience` is what tokens name, by
    default the same. `callers` are names for subjects, as `[policy.callers]` and `share` use them; `approvers` are the
    subjects for whom the scope `approvals:answer` counts.
    """

    issuer: SafeAddress
    resource: SafeAddress | None = None
    audience: Filled | None = None
    jwks_uri: SafeAddress | None = None
    """By default the one of the issuer's metadata."""
    max_lifetime: Positive = LONGEST_LIFETIME
    """Seconds that a token may live at most: as long a revoked one may still count."""
    callers: TextMap = Field(default_factory=dict)
    approvers: tuple[str, ...] = ()

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """One name for each subject."""
        subjects = [str(subject) for subject in (as_table(given.get("callers")) or {}).values()]
        if len({*subjects}) < len(subjects):
            yield Broken("has two names for one subject", "callers")


class Ceilings(TableModel):
    """What one client may begin, use and store at most; None is no ceiling.

    `unbounded`: whether it may start a mission without a bound.
    """

    missions_at_once: NotNegativeWhole | None = None
    missions_a_day: NotNegativeWhole | None = None
    running: NotNegativeWhole | None = None
    tasks_at_once: NotNegativeWhole | None = None
    tokens_a_day: NotNegativeWhole | None = None
    calls_a_minute: NotNegativeWhole | None = None
    cost_usd_a_day: NotNegative | None = None
    bytes_stored: NotNegative | None = None
    unbounded: Flag = False

    @property
    def counts(self) -> bool:
        """Whether what its missions use is counted in the ledger."""
        kept = (self.missions_at_once, self.missions_a_day, self.tokens_a_day, self.cost_usd_a_day, self.bytes_stored)
        return any(most is not None for most in kept)


class LimitsConfig(Ceilings):
    """`[limits]` for each client, and in its place `[limits.callers.NAME]` for the token of that name."""

    callers: Mapping[str, Ceilings] = Field(default_factory=dict)

    def of(self, credential: str | None) -> Ceilings:
        """The ceilings of the client with the token of this name; None is a client without one."""
        own = None if credential is None else self.callers.get(credential)
        return self if own is None else self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    @property
    def requests(self) -> bool:
        """Whether requests have to be looked at."""
        every = (self, *self.callers.values())
        return any(one.calls_a_minute is not None or one.tasks_at_once is not None for one in every)


def _anchored(value: object, info: ValidationInfo) -> Path:
    """A path in a file is relative to the file's folder."""
    if isinstance(value, Path):
        return value
    folder: Path = cast("Mapping[str, Any]", info.context)["folder"]
    return folder / Path(filled(value)).expanduser()


FilePath = Annotated[Path, PlainValidator(_anchored, json_schema_input_type=str)]
_MODEL = "must be provider:name, for instance anthropic:claude-haiku-4-5"
ModelName = Annotated[Filled, must(lambda name: all(name.partition(":")), _MODEL)]


class CheckTable(SurroundingsTable):
    """A named command of checks; it runs in the configuration's folder unless it says otherwise."""

    NEEDED = {"command": "give the command as a list of words"}  # noqa: RUF012 - a ClassVar of the base

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    cwd: FilePath | None = None
    timeout: Positive | None = None


class SettingsTable(TableModel):
    """Numbers of the engine; seconds unless the name says otherwise."""

    predicate_seconds: Positive | None = None
    predicate_memory_mb: Positive | None = None
    script_seconds: Positive | None = None
    script_memory_mb: Positive | None = None
    script_calls: PositiveWhole | None = None
    script_workers: PositiveWhole | None = None
    call_timeout: Positive | None = None
    call_ceiling: Positive | None = None
    approval_timeout: Positive | None = None
    task_patience: Positive | None = None
    tasks_at_once: PositiveWhole | None = None
    tasks_each: PositiveWhole | None = None
    task_kept: PositiveWhole | None = None
    task_kept_days: Positive | None = None
    task_ttl_max: Positive | None = None
    task_log_mb: Positive | None = None
    model_timeout: Positive | None = None
    model_stall: Positive | None = None
    tools_bytes: PositiveWhole | None = None
    memory_lessons: NotNegativeWhole | None = None
    lease_seconds: Positive | None = None
    migrate_ledger: NotNegativeWhole | None = None
    worker_heartbeat: Positive | None = None
    worker_poll: Positive | None = None
    machine_wait: Positive | None = None


class PriceTable(TableModel):
    """Dollars for a million tokens."""

    NEEDED = {"input": "give a number", "output": "give a number"}  # noqa: RUF012 - a ClassVar of the base

    input: NotNegative
    output: NotNegative
    cached: NotNegative | None = None


def _host(name: str) -> str:
    plain = plain_name(name.removeprefix("."))
    if plain is None:
        raise ValueError(f"{name[:100]!r} is not a host; write example.org, .example.org or 127.0.0.1")
    return f".{plain}" if name.startswith(".") else plain


class ArgumentTable(TableModel):
    """A typed pattern of an argument."""

    NEEDED = {"host": "must have at least one host"}  # noqa: RUF012 - a ClassVar of the base

    under: FilePath | None = None
    host: Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], Field(min_length=1)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """One type."""
        if ("under" in given) == ("host" in given):
            yield Broken("needs one of under and host")


def _argument_pattern(value: object, info: ValidationInfo) -> Pattern:
    if isinstance(value, str):
        return value
    if as_table(value) is None:
        raise ValueError(f"must be a text, or a table with under or host, not {kind(value)}; put it in quotes")
    typed = read_inside(ArgumentTable, value, info)
    return Hosts(typed.host) if typed.host is not None else Under(str(typed.under))


ArgumentPattern = Annotated[Any, PlainValidator(_argument_pattern, json_schema_input_type=str | ArgumentTable)]


class RuleTable(TableModel):
    """A rule of policy."""

    NEEDED = {"decision": "say allow, ask or deny"}  # noqa: RUF012 - a ClassVar of the base

    decision: Decision
    server: Filled = ANY
    tool: Filled = ANY
    arguments: Mapping[str, ArgumentPattern] = Field(default_factory=dict)
    reason: Filled = ""
    require: Annotated[PositiveWhole, Field(le=MOST_PEOPLE)] = 1
    """How many people must say yes."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """Only a rule that asks requires people."""
        if "require" in given and given.get("decision") != "ask":
            yield Broken('goes with decision = "ask"', "require")


def _network_host(pattern: str) -> str:
    if not pattern or "/" in pattern or " " in pattern:
        raise ValueError(f"{pattern!r} is not a host; write example.com, .example.com (sub-domains) or *")
    return pattern


NetworkHosts = tuple[Annotated[str, AfterValidator(_network_host)], ...]


class NetworkTable(TableModel):
    """The hosts that servers may have."""

    allow: NetworkHosts = ()
    ask: NetworkHosts = ()
    deny: NetworkHosts = ()


class CallerTable(TableModel):
    """What further holds for a caller, by the name of its token."""

    mode: Mode = "auto"
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


class PolicyTable(TableModel):
    """What may be done."""

    mode: Mode = "ask"
    rules: tuple[RuleTable, ...] = ()
    network: NetworkTable = Field(default_factory=NetworkTable.model_construct)
    callers: Mapping[str, CallerTable] = Field(default_factory=dict)

    def policy(self) -> OperatorPolicy:
        """The operator's policy."""
        callers = {name: Tightening(who=f"the caller {name}", **dict(one)) for name, one in self.callers.items()}
        rules = tuple(Rule(**dict(rule)) for rule in self.rules)
        return OperatorPolicy(mode=self.mode, rules=rules, network=NetworkRules(**dict(self.network)), callers=callers)


def _seconds(value: object) -> float:
    span = _SPAN.fullmatch(filled(value))
    if span is None:
        raise ValueError('must be a whole number and a unit (s, m, h or d), for instance "1h"')
    return int(span[1]) * _UNITS[span[2]]


class NotifyTable(TableModel):
    """What is told of missions, and to whom. `secret` may be a `${VARIABLE}`: it is expanded when used."""

    NEEDED = {"command": "must have at least one word"}  # noqa: RUF012 - a ClassVar of the base

    command: Annotated[tuple[str, ...], Field(min_length=1)] = ()
    webhook: Annotated[Filled, must(_URL.match, "must be an http or https address")] | None = None
    secret: Filled = ""
    events: frozenset[Notice] = frozenset(get_args(Notice))
    timeout: Positive = 30.0
    remind: Annotated[float, PlainValidator(_seconds, json_schema_input_type=str)] | None = None
    """Seconds after which an open question is told again, and again."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """A webhook has a secret."""
        if "command" not in given and "webhook" not in given:
            yield Broken("is missing; give a command, a webhook or both", "command")
        if "webhook" in given and "secret" not in given:
            why = "is missing; receivers verify the signature with it: whsec_ and 24 to 64 bytes as Base64"
            yield Broken(why, "secret")
        if "secret" in given and "webhook" not in given:
            yield Broken("goes with webhook", "secret")


class NotifyConfig(NotifyTable):
    """`[notify]`, and what its command gets."""

    base: Path
    surroundings: Surroundings = USUAL_SURROUNDINGS


class ScheduleTable(TableModel):
    """When `pursuit serve` starts the mission of a file."""

    cron: Filled
    mission: FilePath
    overlap: Overlap = "skip"
    timezone: Filled | None = None
    """A name of the IANA database; None is the zone of this machine."""


class ScheduleConfig(ScheduleTable):
    """`[schedule.NAME]`."""

    name: str


def _one_or_more(value: object, info: ValidationInfo) -> object:
    """A `[schedule]` with a `cron` of its own is one that is named `default`."""
    if isinstance(value, Mapping) and "cron" in value:
        return {"default": read_inside(ScheduleTable, cast("object", value), info)}
    return cast("object", value)


_SCHEDULE = "is not a name of a schedule: use a-z, 0-9, '-' and '_', at most 64 of them"
Schedules = Annotated[
    Mapping[Annotated[str, must(_SCHEDULE_NAME.fullmatch, _SCHEDULE)], ScheduleTable],
    BeforeValidator(_one_or_more, json_schema_input_type=ScheduleTable | Mapping[str, ScheduleTable]),
]


class TrackingTable(TableModel):
    """Where metrics are sent."""

    mlflow: Filled | None = None
    tensorboard: FilePath | None = None


def _interval(value: object) -> tuple[int, str]:
    count, _, unit = filled(value).partition(" ")
    number = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
    if number < 1 or unit not in ("events", "minutes"):
        raise ValueError('must be "N events" or "N minutes", for instance "1000 events"')
    return number, unit


class AuditConfig(TableModel):
    """`[audit]`: when roots are signed and with which key, and whether reads are recorded.

    `signatures` is the file of the signed roots.
    """

    sign_every: Annotated[tuple[int, str], PlainValidator(_interval, json_schema_input_type=str)] | None = None
    key: FilePath | None = None
    signatures: FilePath | None = None
    reads: Flag = False

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """Who signs has a key."""
        if "sign_every" in given and "key" not in given:
            why = "is missing; name the file of an Ed25519 private key, best on another disk or user"
            yield Broken(why, "key")

    @property
    def sign_events(self) -> int | None:
        """After so many events a root is signed."""
        return self.sign_every[0] if self.sign_every and self.sign_every[1] == "events" else None

    @property
    def sign_minutes(self) -> int | None:
        """After so many minutes a root is signed, instead."""
        return self.sign_every[0] if self.sign_every and self.sign_every[1] == "minutes" else None


class CallersTable(TableModel):
    """What clients may do."""

    may_force_complete: Flag = True


class ApprovalsTable(TableModel):
    """By which channels a person's yes counts."""

    channels: frozenset[Channel] = USUAL_CHANNELS


class ServeTable(TableModel):
    """The HTTP server."""

    oauth: OAuthConfig | None = None


class _Servers(TableModel):
    """The servers of a file, under either name."""

    servers: Servers = Field(default_factory=dict)
    mcp_servers: Servers = Field(default_factory=dict, alias="mcpServers")

    def merged(self, base: Path) -> dict[str, ServerConfig]:
        """All servers."""
        return {name: table.config(name, base) for name, table in {**self.mcp_servers, **self.servers}.items()}

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """A name is given once."""
        own, other = (as_table(given.get(key)) or {} for key in ("servers", "mcpServers"))
        for name in own.keys() & other.keys():
            yield Broken("is already there under 'mcpServers'; keep one of the two", ("servers", name))


class ProposersTable(TableModel):
    """`clients` are kinds of other packages that MCP clients may name, `callables` the Python code that may propose."""

    clients: tuple[Filled, ...] = ()
    callables: tuple[Filled, ...] = ()


class ConfigurationFile(_Servers):
    """The configuration of Pursuit (pursuit.toml)."""

    checks: Mapping[str, CheckTable] = Field(default_factory=dict)
    commands: Commands = Field(default_factory=dict)
    settings: SettingsTable = Field(default_factory=SettingsTable.model_construct)
    policy: PolicyTable = Field(default_factory=PolicyTable.model_construct)
    prices: Mapping[str, PriceTable] = Field(default_factory=dict)
    model: ModelName | None = None
    client_models: tuple[ModelName, ...] = ()
    callers: CallersTable = Field(default_factory=CallersTable.model_construct)
    proposers: ProposersTable = Field(default_factory=ProposersTable.model_construct)
    notify: NotifyTable | None = None
    schedule: Schedules = Field(default_factory=dict)
    tracking: TrackingTable = Field(default_factory=TrackingTable.model_construct)
    audit: AuditConfig = Field(default_factory=AuditConfig.model_construct)
    inherit_env: InheritKey = ()
    approvals: ApprovalsTable = Field(default_factory=ApprovalsTable.model_construct)
    serve: ServeTable = Field(default_factory=ServeTable.model_construct)
    limits: LimitsConfig = Field(default_factory=LimitsConfig.model_construct)
    state: Filled | None = None

    def configuration(self, path: Path) -> Configuration:
        """What the file means, but for what governs."""
        base, inherit = path.parent.absolute(), self.inherit_env
        around = Surroundings(inherit=inherit)
        notify, schedules = self.notify, self.schedule.items()
        prices = {name: (one.input, one.output, one.cached) for name, one in self.prices.items()}
        tracking = {name: str(place) for name, place in self.tracking if place is not None}
        return Configuration(
            path=path,
            servers=self.merged(path.parent),
            checks={name: _check(table, base, inherit) for name, table in self.checks.items()},
            surroundings=around,
            settings={key: value for key, value in self.settings if value is not None},
            policy=self.policy.policy(),
            commands={name: CommandConfig.of(table, name, base, inherit) for name, table in self.commands.items()},
            prices={name: tuple(float(one) for one in row if one is not None) for name, row in prices.items()},
            model=self.model,
            client_models=frozenset(self.client_models),
            client_kinds=frozenset(self.proposers.clients),
            callables=frozenset(self.proposers.callables),
            may_force_complete=self.callers.may_force_complete,
            notify=None
            if notify is None
            else NotifyConfig.model_construct(base=base, surroundings=around, **dict(notify)),
            schedules={name: ScheduleConfig.model_construct(name=name, **dict(table)) for name, table in schedules},
            audit=self.audit,
            channels=self.approvals.channels,
            oauth=self.serve.oauth,
            limits=self.limits,
            tracking=tracking,
            state=self.state,
        )


TOML_KEYS = frozenset(field.alias or name for name, field in ConfigurationFile.model_fields.items())


Foreign = Mapping[ServerName, ForeignServerTable]


class McpFile(_Servers):
    """An `mcp.json`, as other hosts write it."""

    servers: Foreign = Field(default_factory=dict)  # pyright: ignore[reportIncompatibleVariableOverride] - narrower
    mcp_servers: Foreign = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=dict, alias="mcpServers"
    )
    inputs: Any = None
    dialect: Any = Field(None, alias="$schema")


def _check(table: CheckTable, base: Path, inherit: Inherit) -> Mapping[str, Any]:
    found = {
        "command": list(table.command),
        "cwd": str(table.cwd or base),
        "surroundings": table.around(inherit),
    }
    return found if table.timeout is None else {**found, "timeout": table.timeout}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the operator wrote; `path` is None if there is no file."""

    path: Path | None = None
    servers: Mapping[str, ServerConfig] = field(default_factory=dict[str, ServerConfig])
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    commands: Mapping[str, CommandConfig] = field(default_factory=dict[str, CommandConfig])
    prices: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Dollars for a million input and output tokens, by the full name of a language model."""
    model: str | None = None
    """The language model that proposes where a client names no proposer."""
    client_models: frozenset[str] = frozenset()
    client_kinds: frozenset[str] = frozenset()
    """The kinds of proposers of other packages that an MCP client may name."""
    callables: frozenset[str] = frozenset()
    """The Python code that may propose."""
    """Further language models that MCP clients may name."""
    may_force_complete: bool = True
    """Whether a client may end its own mission as completed."""
    surroundings: Surroundings = USUAL_SURROUNDINGS
    """What the commands of checks in mission files, and of notifications, get."""
    notify: NotifyConfig | None = None
    schedules: Mapping[str, ScheduleConfig] = field(default_factory=dict[str, ScheduleConfig])
    audit: AuditConfig = field(default_factory=AuditConfig.model_construct)
    channels: frozenset[Channel] = USUAL_CHANNELS
    """By which a person's yes to an approval counts."""
    oauth: OAuthConfig | None = None
    limits: LimitsConfig = field(default_factory=LimitsConfig.model_construct)
    tracking: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where metrics are sent: `mlflow` a tracking URI, `tensorboard` a folder."""
    state: str | None = None
    """The ledger, a file or an address of PostgreSQL; `files.locate_state` finds it."""
    governing: frozenset[str] = frozenset()
    """What decides what may be done, one line `key = value` for each setting: a part of what a person trusts."""


def find_configuration(start: Path) -> Path | None:
    """The configuration of the nearest directory, upwards, that has one; `pursuit.toml` wins over `mcp.json`."""
    here = start.resolve()
    for directory in (here, *here.parents):
        for name in (TOML_NAME, JSON_NAME):
            if (directory / name).is_file():
                return directory / name
    return None


def load_configuration(path: Path) -> Configuration:
    """Reads one file of either format; the servers of an `mcp.json` beside a `pursuit.toml` are added to it.

    Raises `ValidationFailed` with every fault of both files.
    """
    path = path.resolve()
    faults: list[Fault] = []
    table = _read(path, faults)
    configuration = Configuration(path=path)
    if table is not None:
        configuration = _parse(path, table, faults)
    beside = path.with_name(JSON_NAME)
    if path.name == TOML_NAME and beside.is_file():
        more = _read(beside, faults)
        if more is not None:
            added = _parse(beside, more, faults)
            configuration = replace(
                configuration,
                servers={**added.servers, **configuration.servers},
                governing=configuration.governing | {f"{JSON_NAME}: {line}" for line in added.governing},
            )
    if COMMANDS_SERVER in configuration.servers and configuration.commands:
        why = "is what [commands] are called inside missions; rename this server"
        faults.append(Fault(field=f"servers.{COMMANDS_SERVER}", reason=why, source=str(path)))
    if faults:
        raise ValidationFailed(faults, f"the configuration has {len(faults)} fault{'s' if len(faults) > 1 else ''}")
    typed = [one for rule in configuration.policy.rules for one in rule.arguments.values() if isinstance(one, Under)]
    if typed:
        policy = replace(configuration.policy, folders=_folders(configuration))
        configuration = replace(configuration, policy=policy)
    return configuration


def _folders(configuration: Configuration) -> dict[str, str]:
    """Where each server and command runs; of a server over HTTP that is not known."""
    here = str(Path.cwd())
    found = {
        name: str(Path(server.base or here, expand_variables(server.cwd, os.environ)[0]).expanduser())
        if server.cwd
        else here
        for name, server in configuration.servers.items()
        if server.transport == "stdio"
    }
    for name, command in configuration.commands.items():
        found[f"{COMMANDS_SERVER}.{name}"] = command.folder(os.environ)
    return found


def _parse(path: Path, table: Mapping[str, Any], faults: list[Fault]) -> Configuration:
    model = McpFile if path.suffix == ".json" else ConfigurationFile
    try:
        file = model.model_validate(table, context={"folder": path.parent.absolute()})
    except ValidationError as error:
        faults.extend(faults_of(error, model, source=str(path)))
        return Configuration(path=path)
    governing = frozenset(_governing(table))
    if isinstance(file, McpFile):
        return Configuration(path=path, servers=file.merged(path.parent), governing=governing)
    return replace(file.configuration(path), governing=governing)


def _governing(table: Mapping[str, Any]) -> Iterator[str]:
    """The settings of a file that decide what may be done, as lines; the order of a list does not matter."""
    left: list[tuple[str, Any]] = [(key, table[key]) for key in _GOVERNING if key in table]
    for group in ("servers", "mcpServers", "commands"):
        for name, one in (as_table(table.get(group)) or {}).items():
            found = as_table(one) or {}
            left += [(f"{group}.{name}.{key}", found[key]) for key in _GOVERNING_EACH if key in found]
    while left:
        key, value = left.pop()
        if (inner := as_table(value)) is not None:
            left += [(f"{key}.{name}", one) for name, one in inner.items()]
            continue
        for one in cast("list[Any]", value or [[]]) if isinstance(value, list) else [value]:
            yield f"{key} = {json.dumps(one, ensure_ascii=False, sort_keys=True, default=str)}"


def _read(path: Path, faults: list[Fault]) -> Mapping[str, Any] | None:
    """The file as a table; None if it cannot be read, with the reason in `faults`."""
    source = str(path)
    try:
        text = read_text(path)
        if path.suffix == ".toml":
            return parse_toml(text, source=source)
        value = parse_json(text, source=source)
        table = as_table(value)
        if table is None:
            raise unreadable(source, f"must be a table, not {kind(value)}")
    except ValidationFailed as failed:
        faults.extend(failed.faults)
        return None
    return table

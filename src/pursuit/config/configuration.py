"""The operator's configuration: `pursuit.toml`, `mcp.json`, or both.

A `Configuration` is always valid. All faults of a file are raised together, each with file, field and reason, and with
line and column if the file cannot be parsed.
"""

# pyright: reportIncompatibleVariableOverride=false
# Fields are frozen, so a subclass may narrow them.

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError, ValidationInfo

from pursuit.config.commands import COMMANDS_SERVER, TRAITS, CommandConfig, Commands
from pursuit.config.files import as_table, duration, parse_json, parse_toml, read_text, unreadable
from pursuit.config.process_environment import (
    EnvironmentTable,
    Inherit,
    InheritKey,
    ProcessEnvironment,
)
from pursuit.config.servers import ForeignServerTable, ServerConfig, ServerName, Servers
from pursuit.config.variables import expand_variables
from pursuit.core.approvals import MAX_PEOPLE
from pursuit.core.base_model import (
    Broken,
    Filled,
    Flag,
    NotNegative,
    NotNegativeWhole,
    Number,
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
    Bounds,
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
_GOVERNING = (
    "policy",
    "approvals",
    "limits",
    "serve",
    "schedule",
    "callers",
    "client_models",
    "proposers",
    "audit",
    "placement",
    "agents",
)
_GOVERNING_EACH = (
    *("pin", "methods", "trust_annotations", "tools", "enabled_tools", "disabled_tools"),
    *("isolation", "parameters", "allow_parent_paths"),
    *TRAITS,
)
"""The keys of a server or a command that affect permissions."""

Notice = Literal["waiting", "ended", "stuck", "interrupted", "budget"]
Overlap = Literal["skip", "queue", "replace"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)
USUAL_CHANNELS: frozenset[Channel] = frozenset(one for one in CHANNELS if one != "http-elicitation")
MAX_LIFETIME = 7_200.0

_SCHEDULE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_URL = re.compile(r"https?://[^\s/]|\$\{")


def is_safe_address(address: str) -> bool:
    """True for https, or http on this machine, without user, query and fragment."""
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
    """`[serve.oauth]`: the authorization server whose access tokens are accepted over HTTP.

    `resource` is the address that clients use (default: the served one); `audience` is that of tokens (default: the
    resource). `callers` maps names, as used by `[policy.callers]` and `share`, to subjects; `approvers` are the
    subjects whose scope `approvals:answer` is accepted.
    """

    issuer: SafeAddress
    resource: SafeAddress | None = None
    audience: Filled | None = None
    jwks_uri: SafeAddress | None = None
    """Default: the address in the issuer's metadata."""
    max_lifetime: Positive = MAX_LIFETIME
    """Maximum lifetime of a token in seconds: a revoked token may stay valid that long."""
    callers: TextMap = Field(default_factory=dict)
    approvers: tuple[str, ...] = ()

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        subjects = [str(subject) for subject in (as_table(given.get("callers")) or {}).values()]
        if len({*subjects}) < len(subjects):
            yield Broken("gives two names to one subject", "callers")


class Ceilings(TableModel):
    """Upper limits on what one client may start, use and store; None means unlimited.

    `unbounded` permits missions without a bound.
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
        kept = (self.missions_at_once, self.missions_a_day, self.tokens_a_day, self.cost_usd_a_day, self.bytes_stored)
        return any(most is not None for most in kept)


class LimitsConfig(Ceilings):
    """`[limits]` for each client; `[limits.callers.NAME]` replaces it for the token of that name."""

    callers: Mapping[str, Ceilings] = Field(default_factory=dict)

    def of(self, credential: str | None) -> Ceilings:
        """The ceilings of the client with the token of this name; None is a client without a token."""
        own = None if credential is None else self.callers.get(credential)
        return self if own is None else self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    @property
    def requests(self) -> bool:
        every = (self, *self.callers.values())
        return any(one.calls_a_minute is not None or one.tasks_at_once is not None for one in every)


def _anchored(value: object, info: ValidationInfo) -> Path:
    """Resolves a path relative to the folder of the file."""
    if isinstance(value, Path):
        return value
    folder: Path = (info.context or {"folder": Path.cwd()})["folder"]
    return folder / Path(filled(value)).expanduser()


FilePath = Annotated[Path, PlainValidator(_anchored, json_schema_input_type=str)]
_MODEL = "must be provider:name, for instance anthropic:claude-haiku-4-5"
ModelName = Annotated[Filled, must(lambda name: all(name.partition(":")), _MODEL)]


class CheckTable(EnvironmentTable):
    """A named command of checks; it runs in the configuration's folder by default."""

    NEEDED = {"command": "give the command as a list of words"}  # noqa: RUF012 - a ClassVar of the base

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    cwd: FilePath | None = None
    timeout: Positive | None = None

    def check(self, base: Path, inherit: Inherit) -> Mapping[str, Any]:
        found = {
            "command": list(self.command),
            "cwd": str(self.cwd or base),
            "process_environment": self.around(inherit),
        }
        return found if self.timeout is None else {**found, "timeout": self.timeout}


class SettingsTable(TableModel):
    """Numbers of the engine, in seconds unless the name states another unit."""

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

    def given(self, *names: str, **renamed: str) -> dict[str, Any]:
        """The given settings among `names`, and those of `renamed` under the names of the receiving part."""
        parts = {**dict(zip(names, names, strict=True)), **renamed}
        return {part: value for part, name in parts.items() if (value := getattr(self, name)) is not None}


class PriceTable(TableModel):
    """US dollars per million tokens."""

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
    least: Number | None = Field(None, alias="min")
    most: Number | None = Field(None, alias="max")
    min_length: NotNegativeWhole | None = None
    max_length: NotNegativeWhole | None = None
    host: Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], Field(min_length=1)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        kinds = [not _BOUNDS[0].isdisjoint(given), not _BOUNDS[1].isdisjoint(given), "under" in given, "host" in given]
        if sum(kinds) != 1:
            yield Broken(
                "needs exactly one of under, host, bounds (min, max) and length bounds (min_length, max_length)"
            )


_BOUNDS = (frozenset({"min", "max"}), frozenset({"min_length", "max_length"}))


def _argument_pattern(value: object, info: ValidationInfo) -> Pattern:
    if isinstance(value, str):
        return value
    if as_table(value) is None:
        wanted = "must be a string, or a table with under, host, min or max"
        raise ValueError(f"{wanted}, not {kind(value)}; put it in quotes")
    typed = read_inside(ArgumentTable, value, info)
    if typed.host is not None:
        return Hosts(typed.host)
    if typed.under is not None:
        return Under(str(typed.under))
    return Bounds(least=typed.least, most=typed.most, min_length=typed.min_length, max_length=typed.max_length)


ArgumentPattern = Annotated[Any, PlainValidator(_argument_pattern, json_schema_input_type=str | ArgumentTable)]


class RuleTable(TableModel):
    """A rule of policy."""

    NEEDED = {"decision": "give allow, ask or deny"}  # noqa: RUF012 - a ClassVar of the base

    decision: Decision
    server: Filled = ANY
    tool: Filled = ANY
    arguments: Mapping[str, ArgumentPattern] = Field(default_factory=dict)
    reason: Filled = ""
    require: Annotated[PositiveWhole, Field(le=MAX_PEOPLE)] = 1
    """The number of people who must approve."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        if "require" in given and given.get("decision") != "ask":
            yield Broken('requires decision = "ask"', "require")


class CallerTable(TableModel):
    """Additional restrictions for a caller, by the name of its token."""

    mode: Mode = "auto"
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


class PolicyTable(TableModel):
    """The policy: its mode and rules."""

    mode: Mode = "ask"
    rules: tuple[RuleTable, ...] = ()
    network: NetworkRules = Field(default_factory=NetworkRules)
    callers: Mapping[str, CallerTable] = Field(default_factory=dict)

    def policy(self) -> OperatorPolicy:
        callers = {name: Tightening(who=f"the caller {name}", **dict(one)) for name, one in self.callers.items()}
        rules = tuple(Rule(**dict(rule)) for rule in self.rules)
        return OperatorPolicy(mode=self.mode, rules=rules, network=self.network, callers=callers)


def _seconds(value: object) -> float:
    found = duration(filled(value))
    if not found:
        raise ValueError('must be a number and a unit (s, m, h or d), for instance "1h"')
    return found


class NotifyTable(TableModel):
    """Notifications about missions. `secret` may be a `${VARIABLE}`, which is expanded when used."""

    NEEDED = {"command": "must have at least one word"}  # noqa: RUF012 - a ClassVar of the base

    command: Annotated[tuple[str, ...], Field(min_length=1)] = ()
    webhook: Annotated[Filled, must(_URL.match, "must be an http or https address")] | None = None
    secret: Filled = ""
    events: frozenset[Notice] = frozenset(get_args(Notice))
    timeout: Positive = 30.0
    remind: Annotated[float, PlainValidator(_seconds, json_schema_input_type=str)] | None = None
    """Seconds between reminders of an open question."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        if "command" not in given and "webhook" not in given:
            yield Broken("is missing; give a command, a webhook or both", "command")
        if "webhook" in given and "secret" not in given:
            why = "is missing; receivers verify the signature with it: whsec_ and 24 to 64 bytes as Base64"
            yield Broken(why, "secret")
        if "secret" in given and "webhook" not in given:
            yield Broken("requires webhook", "secret")


class ScheduleTable(TableModel):
    """A schedule on which `pursuit serve` starts the mission of a file."""

    cron: Filled
    mission: FilePath
    overlap: Overlap = "skip"
    timezone: Filled | None = None
    """A name of the IANA time zone database; None is the zone of this machine."""


def _one_or_more(value: object, info: ValidationInfo) -> object:
    """Reads a `[schedule]` that contains `cron` directly as the schedule `default`."""
    if isinstance(value, Mapping) and "cron" in value:
        return {"default": read_inside(ScheduleTable, cast("object", value), info)}
    return cast("object", value)


_SCHEDULE = "is not a valid schedule name: use at most 64 of a-z, 0-9, '-' and '_'"
Schedules = Annotated[
    Mapping[Annotated[str, must(_SCHEDULE_NAME.fullmatch, _SCHEDULE)], ScheduleTable],
    BeforeValidator(_one_or_more, json_schema_input_type=ScheduleTable | Mapping[str, ScheduleTable]),
]


class TrackingTable(TableModel):
    """The receivers of metrics."""

    mlflow: Filled | None = None
    tensorboard: FilePath | None = None

    @property
    def places(self) -> dict[str, str]:
        return {name: str(place) for name, place in self if place is not None}


def _interval(value: object) -> tuple[int, str]:
    count, _, unit = filled(value).partition(" ")
    number = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
    if number < 1 or unit not in ("events", "minutes"):
        raise ValueError('must be "N events" or "N minutes", for instance "1000 events"')
    return number, unit


class AuditConfig(TableModel):
    """`[audit]`: the signing interval and key of roots, and whether reads are recorded.

    `signatures` is the file of the signed roots.
    """

    sign_every: Annotated[tuple[int, str], PlainValidator(_interval, json_schema_input_type=str)] | None = None
    key: FilePath | None = None
    signatures: FilePath | None = None
    reads: Flag = False

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        if "sign_every" in given and "key" not in given:
            why = "is missing; name the file of an Ed25519 private key, preferably of another user or disk"
            yield Broken(why, "key")


class PlacementTable(TableModel):
    """`[placement]`: what hands missions to workers. `key` may be a `${VARIABLE}`: it is expanded when used."""

    kind: Literal["postgres", "temporal"] = "postgres"
    address: Filled = "localhost:7233"
    namespace: Filled = "default"
    tls: Flag = False
    key: Filled | None = None


class CallersTable(TableModel):
    """Permissions of clients."""

    may_force_complete: Flag = True


class ApprovalsTable(TableModel):
    """Channels over which approvals are accepted."""

    channels: frozenset[Channel] = USUAL_CHANNELS


class ServeTable(TableModel):
    """The HTTP server."""

    oauth: OAuthConfig | None = None


class _Servers(TableModel):
    """The servers of a file, under `servers` or `mcpServers`."""

    servers: Servers = Field(default_factory=dict)
    mcp_servers: Servers = Field(default_factory=dict, alias="mcpServers")

    def merged(self, base: Path) -> dict[str, ServerConfig]:
        tables = {**self.mcp_servers, **self.servers}
        return {name: ServerConfig.of(table, name, base) for name, table in tables.items()}

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        own, other = (as_table(given.get(key)) or {} for key in ("servers", "mcpServers"))
        for name in own.keys() & other.keys():
            yield Broken("is also under 'mcpServers'; remove one of the two", ("servers", name))


class ProposersTable(TableModel):
    """`clients`: third-party kinds that MCP clients may name; `callables`: Python code that may propose."""

    clients: tuple[Filled, ...] = ()
    callables: tuple[Filled, ...] = ()


_AGENT_HOST = "must be a host, *.host or host:port"
AgentHost = Annotated[
    Filled, must(re.compile(r"(\*\.)?[A-Za-z0-9_.-]{1,253}(:[1-9][0-9]{0,4})?").fullmatch, _AGENT_HOST)
]


class AgentsTable(TableModel):
    """The parts of this machine that coding agents may see and change; `isolation` applies on Linux."""

    isolation: Flag = True
    read: tuple[FilePath, ...] = ()
    """Further files and folders that they can read."""
    write: tuple[FilePath, ...] = ()
    """Further folders that they can change."""
    network: bool | tuple[AgentHost, ...] = ()
    """The hosts that they can reach, beside those of the providers of a known agent; or all hosts, or none."""
    processes: PositiveWhole = 4_096


class ConfigurationFile(_Servers):
    """The configuration of Pursuit (pursuit.toml)."""

    checks: Mapping[str, CheckTable] = Field(default_factory=dict)
    commands: Commands = Field(default_factory=dict)
    settings: SettingsTable = Field(default_factory=SettingsTable.model_construct)
    policy: PolicyTable = Field(default_factory=PolicyTable.model_construct)
    prices: Mapping[str, PriceTable] = Field(default_factory=dict)
    """Prices by the full name of a language model."""
    model: ModelName | None = None
    """The language model that proposes if a client does not name a proposer."""
    client_models: tuple[ModelName, ...] = ()
    """Further language models that MCP clients may name."""
    callers: CallersTable = Field(default_factory=CallersTable.model_construct)
    proposers: ProposersTable = Field(default_factory=ProposersTable.model_construct)
    agents: AgentsTable = Field(default_factory=AgentsTable.model_construct)
    notify: NotifyTable | None = None
    schedule: Schedules = Field(default_factory=dict)
    tracking: TrackingTable = Field(default_factory=TrackingTable.model_construct)
    audit: AuditConfig = Field(default_factory=AuditConfig.model_construct)
    placement: PlacementTable = Field(default_factory=PlacementTable.model_construct)
    inherit_env: InheritKey = ()
    """Extra environment variables of checks and notification commands."""
    approvals: ApprovalsTable = Field(default_factory=ApprovalsTable.model_construct)
    serve: ServeTable = Field(default_factory=ServeTable.model_construct)
    limits: LimitsConfig = Field(default_factory=LimitsConfig.model_construct)
    state: Filled | None = None
    """The ledger, a file or an address of PostgreSQL; `files.locate_state` finds it."""


TOML_KEYS = frozenset(field.alias or name for name, field in ConfigurationFile.model_fields.items())


Foreign = Mapping[ServerName, ForeignServerTable]


class McpFile(_Servers):
    """An `mcp.json` in the format of other hosts."""

    servers: Foreign = Field(default_factory=dict)
    mcp_servers: Foreign = Field(default_factory=dict, alias="mcpServers")
    inputs: Any = None
    dialect: Any = Field(None, alias="$schema")


class Configuration(ConfigurationFile):
    """The operator's configuration; `path` is None without a file."""

    path: Path | None = None
    governing: frozenset[str] = frozenset()
    """The settings that affect permissions, as lines `key = value`: a part of what a person trusts."""
    servers: Mapping[str, ServerConfig] = Field(default_factory=dict)
    policy: OperatorPolicy = Field(default_factory=OperatorPolicy)
    commands: Mapping[str, CommandConfig] = Field(default_factory=dict)

    @classmethod
    def _rules(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        return cls.between(given)  # a program may pass None

    @property
    def process_environment(self) -> ProcessEnvironment:
        return ProcessEnvironment(inherit=self.inherit_env)

    @property
    def base(self) -> Path:
        """The folder where its commands run."""
        return Path.cwd() if self.path is None else self.path.parent.absolute()

    @property
    def named_checks(self) -> dict[str, Mapping[str, Any]]:
        return {name: table.check(self.base, self.inherit_env) for name, table in self.checks.items()}

    @classmethod
    def of(cls, file: ConfigurationFile, path: Path) -> Configuration:
        base, inherit = path.parent.absolute(), file.inherit_env
        different: dict[str, Any] = {
            "servers": file.merged(path.parent),
            "policy": file.policy.policy(),
            "commands": {name: CommandConfig.of(one, name, base, inherit) for name, one in file.commands.items()},
        }
        return cls.model_construct(**{**dict(file), **different}, path=path)


def find_configuration(start: Path) -> Path | None:
    """Searches upwards for the nearest configuration; `pursuit.toml` takes precedence over `mcp.json`."""
    here = start.resolve()
    for directory in (here, *here.parents):
        for name in (TOML_NAME, JSON_NAME):
            if (directory / name).is_file():
                return directory / name
    return None


def load_configuration(path: Path) -> Configuration:
    """Reads a file of either format; adds the servers of an `mcp.json` beside a `pursuit.toml`.

    Raises `ValidationFailed` with every fault of both files.
    """
    path = path.resolve()
    faults: list[Fault] = []
    table = _read(path, faults)
    configuration = Configuration.model_construct(path=path)
    if table is not None:
        configuration = _parse(path, table, faults)
    beside = path.with_name(JSON_NAME)
    if path.name == TOML_NAME and beside.is_file():
        more = _read(beside, faults)
        if more is not None:
            added = _parse(beside, more, faults)
            governing = configuration.governing | {f"{JSON_NAME}: {line}" for line in added.governing}
            changed = {"servers": {**added.servers, **configuration.servers}, "governing": governing}
            configuration = configuration.model_copy(update=changed)
    if COMMANDS_SERVER in configuration.servers and configuration.commands:
        why = "is the server name of [commands] inside missions; rename this server"
        faults.append(Fault(field=f"servers.{COMMANDS_SERVER}", reason=why, source=str(path)))
    if faults:
        raise ValidationFailed(faults, f"the configuration has {len(faults)} fault{'s' if len(faults) > 1 else ''}")
    typed = [one for rule in configuration.policy.rules for one in rule.arguments.values() if isinstance(one, Under)]
    if typed:
        policy = replace(configuration.policy, folders=_folders(configuration))
        configuration = configuration.model_copy(update={"policy": policy})
    return configuration


def _folders(configuration: Configuration) -> dict[str, str]:
    """The folder of each server and command; servers over HTTP are left out."""
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
        return Configuration.model_construct(path=path)
    governing = frozenset(_governing(table))
    if isinstance(file, McpFile):
        return Configuration.model_construct(path=path, servers=file.merged(path.parent), governing=governing)
    return Configuration.of(file, path).model_copy(update={"governing": governing})


def _governing(table: Mapping[str, Any]) -> Iterator[str]:
    """The settings of a file that affect permissions, as lines; the order of lists does not matter."""
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

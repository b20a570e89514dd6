"""The operator's configuration: `pursuit.toml`, `mcp.json`, or both.

A `Configuration` has no fault. A file with faults raises all of them at once, each with file, field and reason, and
with line and column if the file cannot be parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pursuit.config.commands import COMMANDS_SERVER, CommandConfig, read_commands
from pursuit.config.files import Fields, as_table, kind, parse_json, parse_toml, read_text, unreadable
from pursuit.config.servers import ServerConfig, parse_servers
from pursuit.config.surroundings import (
    SURROUNDING_KEYS,
    USUAL_SURROUNDINGS,
    Inherit,
    Surroundings,
    read_inherit,
    read_surroundings,
)
from pursuit.config.variables import expand_variables
from pursuit.core.approvals import MOST_PEOPLE
from pursuit.core.base_model import nearest
from pursuit.core.events import Channel
from pursuit.errors import Fault, ValidationFailed
from pursuit.policy.rules import (
    ANY,
    SEVERITY,
    Decision,
    Hosts,
    Mode,
    NetworkRules,
    OperatorPolicy,
    Pattern,
    Rule,
    Tightening,
    Under,
    parse_mode,
    plain_name,
)

TOML_NAME = "pursuit.toml"
JSON_NAME = "mcp.json"
SETTINGS = (
    "predicate_seconds",
    "predicate_memory_mb",
    "script_seconds",
    "script_memory_mb",
    "script_calls",
    "script_workers",
    "call_timeout",
    "call_ceiling",
    "approval_timeout",
    "task_patience",
    "tasks_at_once",
    "tasks_each",
    "task_kept",
    "task_kept_days",
    "task_ttl_max",
    "task_log_mb",
    "model_timeout",
    "model_stall",
    "tools_bytes",
    "memory_lessons",
    "lease_seconds",
    "migrate_ledger",
    "worker_heartbeat",
    "worker_poll",
    "machine_wait",
)
_OFF_AT_ZERO = ("memory_lessons", "migrate_ledger")
_COUNTS = ("script_calls", "script_workers", "tasks_at_once", "tasks_each", "task_kept")
WHOLE_SETTINGS = (*_COUNTS, "tools_bytes", *_OFF_AT_ZERO)
TOML_KEYS = (
    "servers",
    "mcpServers",
    "checks",
    "commands",
    "settings",
    "policy",
    "prices",
    "model",
    "client_models",
    "callers",
    "notify",
    "schedule",
    "tracking",
    "audit",
    "inherit_env",
    "approvals",
    "serve",
    "limits",
    "state",
)
PRICE_KEYS = ("input", "output", "cached")
POLICY_KEYS = ("mode", "rules", "network", "callers")
CALLER_KEYS = ("mode", "deny", "ask")
CALLERS_KEYS = ("may_force_complete",)
TYPED_KEYS = ("under", "host")
RULE_KEYS = ("decision", "server", "tool", "arguments", "reason", "require")
NETWORK_KEYS = ("allow", "ask", "deny")
CHECK_KEYS = ("command", "cwd", "timeout", *SURROUNDING_KEYS)
NOTIFY_KEYS = ("command", "webhook", "secret", "events", "timeout")
AUDIT_KEYS = ("sign_every", "key", "signatures", "reads")
SCHEDULE_KEYS = ("cron", "mission", "overlap", "timezone")
_JSON_KEYS = ("servers", "mcpServers", "inputs", "$schema")

Notice = Literal["waiting", "ended", "stuck", "interrupted", "budget"]
NOTICES: tuple[Notice, ...] = get_args(Notice)
Overlap = Literal["skip", "queue", "replace"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)

CHANNELS: tuple[Channel, ...] = get_args(Channel)
USUAL_CHANNELS: frozenset[Channel] = frozenset(one for one in CHANNELS if one != "http-elicitation")
APPROVALS_KEYS = ("channels",)
LONGEST_LIFETIME = 7_200.0
OAUTH_KEYS = ("issuer", "resource", "audience", "jwks_uri", "max_lifetime", "callers", "approvers")
WHOLE_LIMITS = ("missions_at_once", "missions_a_day", "running", "tasks_at_once", "tokens_a_day", "calls_a_minute")
AMOUNT_LIMITS = ("cost_usd_a_day", "bytes_stored")
LIMIT_KEYS = (*WHOLE_LIMITS, *AMOUNT_LIMITS, "unbounded")

_SCHEDULE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_URL = re.compile(r"https?://[^\s/]|\$\{")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """`[notify]`: what is told of missions, and to whom. `secret` may be a `${VARIABLE}`: it is expanded when used."""

    base: Path
    command: tuple[str, ...] = ()
    webhook: str | None = None
    secret: str = ""
    events: frozenset[Notice] = frozenset(NOTICES)
    timeout: float = 30.0
    surroundings: Surroundings = USUAL_SURROUNDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """`[audit]`: when roots are signed and with which key, and whether reads are recorded.

    At most one of `sign_events` and `sign_minutes` is set. `signatures` is the file of the signed roots.
    """

    sign_events: int | None = None
    sign_minutes: float | None = None
    key: Path | None = None
    signatures: Path | None = None
    reads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """`[serve.oauth]`: the authorization server whose access tokens count over HTTP.

    `resource` is the address that clients use, if it is not the one that is served; `audience` is what tokens name, by
    default the same. `callers` are names for subjects, as `[policy.callers]` and `share` use them; `approvers` are the
    subjects for whom the scope `approvals:answer` counts.
    """

    issuer: str
    resource: str | None = None
    audience: str | None = None
    jwks_uri: str | None = None
    """By default the one of the issuer's metadata."""
    max_lifetime: float = LONGEST_LIFETIME
    """Seconds that a token may live at most: as long a revoked one may still count."""
    callers: Mapping[str, str] = field(default_factory=dict[str, str])
    approvers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What one client may begin, use and store at most; None is no ceiling.

    `unbounded`: whether it may start a mission without a bound.
    """

    missions_at_once: int | None = None
    missions_a_day: int | None = None
    running: int | None = None
    tasks_at_once: int | None = None
    tokens_a_day: int | None = None
    calls_a_minute: int | None = None
    cost_usd_a_day: float | None = None
    bytes_stored: float | None = None
    unbounded: bool = False

    @property
    def counts(self) -> bool:
        """Whether what its missions use is counted in the ledger."""
        kept = (self.missions_at_once, self.missions_a_day, self.tokens_a_day, self.cost_usd_a_day, self.bytes_stored)
        return any(most is not None for most in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """`[limits]` for each client, and in its place `[limits.callers.NAME]` for the token of that name."""

    each: Ceilings = field(default_factory=Ceilings)
    callers: Mapping[str, Ceilings] = field(default_factory=dict[str, Ceilings])

    def of(self, credential: str | None) -> Ceilings:
        """The ceilings of the client with the token of this name; None is a client without one."""
        return self.each if credential is None else self.callers.get(credential, self.each)

    @property
    def requests(self) -> bool:
        """Whether requests have to be looked at."""
        every = (self.each, *self.callers.values())
        return any(one.calls_a_minute is not None or one.tasks_at_once is not None for one in every)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """`[schedule.NAME]`: when `pursuit serve` starts the mission of a file."""

    name: str
    cron: str
    mission: Path
    overlap: Overlap = "skip"
    timezone: str | None = None
    """A name of the IANA database; None is the zone of this machine."""


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
    """Further language models that MCP clients may name."""
    may_force_complete: bool = True
    """Whether a client may end its own mission as completed."""
    surroundings: Surroundings = USUAL_SURROUNDINGS
    """What the commands of checks in mission files, and of notifications, get."""
    notify: NotifyConfig | None = None
    schedules: Mapping[str, ScheduleConfig] = field(default_factory=dict[str, ScheduleConfig])
    audit: AuditConfig = field(default_factory=AuditConfig)
    channels: frozenset[Channel] = USUAL_CHANNELS
    """By which a person's yes to an approval counts."""
    oauth: OAuthConfig | None = None
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    tracking: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where metrics are sent: `mlflow` a tracking URI, `tensorboard` a folder."""
    state: str | None = None
    """The ledger, a file or an address of PostgreSQL; `files.locate_state` finds it."""


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
            added = _parse(beside, more, faults).servers
            configuration = replace(configuration, servers={**added, **configuration.servers})
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
        place = Path(command.base or here, expand_variables(command.cwd or ".", os.environ)[0])
        found[f"{COMMANDS_SERVER}.{name}"] = str(place.expanduser())
    return found


def _parse(path: Path, table: Mapping[str, Any], faults: list[Fault]) -> Configuration:
    foreign = path.suffix == ".json"
    fields = Fields(table, at="", source=str(path), faults=faults)
    fields.only(_JSON_KEYS if foreign else TOML_KEYS)
    servers: dict[str, ServerConfig] = {}
    for prefix in ("mcpServers", "servers"):
        if prefix not in table:
            continue
        found, wrong = parse_servers(table[prefix], source=str(path), base=path.parent, prefix=prefix, foreign=foreign)
        for name in found.keys() & servers.keys():
            fields.fault(f"{prefix}.{name}", "is already there under 'mcpServers'; keep one of the two")
        servers.update(found)
        faults.extend(wrong)
    if foreign:
        return Configuration(path=path, servers=servers)
    inherit = read_inherit(fields)
    return Configuration(
        path=path,
        servers=servers,
        checks=_checks(fields, path.parent.absolute(), inherit),
        surroundings=Surroundings(inherit=inherit),
        settings=_settings(fields),
        policy=_policy(fields, path.parent.absolute()),
        commands=read_commands(fields, path.parent.absolute(), inherit),
        prices=_prices(fields),
        model=_model(fields),
        client_models=_client_models(fields),
        may_force_complete=_may_force_complete(fields),
        notify=_notify(fields, path.parent.absolute(), inherit),
        schedules=_schedules(fields, path.parent.absolute()),
        audit=_audit(fields, path.parent.absolute()),
        channels=_channels(fields),
        oauth=_oauth(fields),
        limits=_limits(fields),
        tracking=_tracking(fields, path.parent.absolute()),
        state=fields.text("state"),
    )


def _limits(fields: Fields) -> LimitsConfig:
    table = fields.inside("limits")
    table.only((*LIMIT_KEYS, "callers"))
    each = _ceilings(table, Ceilings())
    callers: dict[str, Ceilings] = {}
    for name, caller in table.tables("callers"):
        caller.only(LIMIT_KEYS)
        callers[name] = _ceilings(caller, each)
    return LimitsConfig(each=each, callers=callers)


def _ceilings(table: Fields, before: Ceilings) -> Ceilings:
    """The ceilings of a table; a key that it does not have is as before."""
    given: dict[str, Any] = {
        key: value
        for key in (*WHOLE_LIMITS, *AMOUNT_LIMITS)
        if (value := table.number(key, whole=key in WHOLE_LIMITS, zero=True)) is not None
    }
    unbounded = table.flag("unbounded")
    return replace(before, **given, **({} if unbounded is None else {"unbounded": unbounded}))


def _channels(fields: Fields) -> frozenset[Channel]:
    table = fields.inside("approvals")
    table.only(APPROVALS_KEYS)
    given = table.texts("channels")
    for place, word in enumerate(given or ()):
        if word not in CHANNELS:
            known = nearest(word, CHANNELS) or "; use " + ", ".join(CHANNELS)
            table.fault(f"channels[{place}]", f"{word[:100]!r} is not a channel{known}")
    return USUAL_CHANNELS if given is None else frozenset(one for one in CHANNELS if one in given)


def is_safe_address(address: str) -> bool:
    """Whether it is https, or http on this machine, without user, query and fragment."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or parts.username or "@" in parts.netloc or " " in address)
    return bool(host) and plain and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK))


def _oauth(fields: Fields) -> OAuthConfig | None:
    serve = fields.inside("serve")
    serve.only(("oauth",))
    if "oauth" not in serve.table:
        return None
    table = serve.inside("oauth")
    table.only(OAUTH_KEYS)
    issuer, lifetime = table.text("issuer", needed=True), table.number("max_lifetime")
    given = {"issuer": issuer, **{key: table.text(key) for key in ("resource", "jwks_uri")}}
    for key, address in given.items():
        if address is not None and not is_safe_address(address):
            table.fault(key, "must be an https address, or http on this machine, without user, query and fragment")
    callers = table.text_map("callers")
    if len(set(callers.values())) < len(callers):
        table.fault("callers", "has two names for one subject")
    return OAuthConfig(
        issuer=issuer or "",
        resource=given["resource"],
        audience=table.text("audience"),
        jwks_uri=given["jwks_uri"],
        max_lifetime=LONGEST_LIFETIME if lifetime is None else lifetime,
        callers=callers,
        approvers=table.texts("approvers") or (),
    )


def _tracking(fields: Fields, base: Path) -> dict[str, str]:
    table = fields.inside("tracking")
    table.only(("mlflow", "tensorboard"))
    mlflow, tensorboard = table.text("mlflow"), table.text("tensorboard")
    return {
        **({"mlflow": mlflow} if mlflow is not None else {}),
        **({"tensorboard": str(base / tensorboard)} if tensorboard is not None else {}),
    }


def _audit(fields: Fields, base: Path) -> AuditConfig:
    table = fields.inside("audit")
    table.only(AUDIT_KEYS)
    every, key, signatures = table.text("sign_every"), table.text("key"), table.text("signatures")
    count, _, unit = (every or "").partition(" ")
    number = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
    if every is not None and (number < 1 or unit not in ("events", "minutes")):
        table.fault("sign_every", 'must be "N events" or "N minutes", for instance "1000 events"')
    if "sign_every" in table.table and "key" not in table.table:
        table.fault("key", "is missing; name the file of an Ed25519 private key, best on another disk or user")
    return AuditConfig(
        sign_events=number if unit == "events" else None,
        sign_minutes=number if unit == "minutes" else None,
        key=None if key is None else base / Path(key).expanduser(),
        signatures=None if signatures is None else base / Path(signatures).expanduser(),
        reads=table.flag("reads") or False,
    )


def _checks(fields: Fields, base: Path, inherit: Inherit) -> dict[str, Mapping[str, Any]]:
    """The named commands of checks; they run in the configuration's folder unless they say otherwise."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, table in fields.tables("checks"):
        table.only(CHECK_KEYS)
        command, timeout = table.texts("command"), table.number("timeout")
        if not command:
            table.fault("command", "is missing; give the command as a list of words")
        found[name] = {
            "command": list(command or ()),
            "cwd": str(base / (table.text("cwd") or ".")),
            "surroundings": read_surroundings(table, inherit),
        }
        if timeout is not None:
            found[name] = {**found[name], "timeout": timeout}
    return found


def _notify(fields: Fields, base: Path, inherit: Inherit) -> NotifyConfig | None:
    if "notify" not in fields.table:
        return None
    table = fields.inside("notify")
    table.only(NOTIFY_KEYS)
    command, webhook, secret = table.texts("command"), table.text("webhook"), table.text("secret")
    if "command" not in table.table and "webhook" not in table.table:
        table.fault("command", "is missing; give a command, a webhook or both")
    elif command == ():
        table.fault("command", "must have at least one word")
    if webhook is not None and not _URL.match(webhook):
        table.fault("webhook", "must be an http or https address")
    if webhook is not None and "secret" not in table.table:
        table.fault("secret", "is missing; receivers verify the signature with it: whsec_ and 24 to 64 bytes as Base64")
    if webhook is None and "webhook" not in table.table and secret is not None:
        table.fault("secret", "goes with webhook")
    events = table.texts("events")
    for place, word in enumerate(events or ()):
        if word not in NOTICES:
            known = nearest(word, NOTICES) or "; use " + ", ".join(NOTICES)
            table.fault(f"events[{place}]", f"{word[:100]!r} is not an event{known}")
    around = Surroundings(inherit=inherit)
    given = NotifyConfig(base=base, command=command or (), webhook=webhook, secret=secret or "", surroundings=around)
    return replace(
        given,
        events=given.events if events is None else frozenset(one for one in NOTICES if one in events),
        timeout=table.number("timeout") or given.timeout,
    )


def _schedules(fields: Fields, base: Path) -> dict[str, ScheduleConfig]:
    """The schedules by name; a `[schedule]` with a `cron` of its own is one that is named `default`."""
    whole = fields.inside("schedule")
    one = [("default", whole)] if "cron" in whole.table else []
    found: dict[str, ScheduleConfig] = {}
    for name, table in one or fields.tables("schedule"):
        table.only(SCHEDULE_KEYS)
        if _SCHEDULE_NAME.fullmatch(name) is None:
            whole.fault(name, "is not a name of a schedule: use a-z, 0-9, '-' and '_', at most 64 of them")
        found[name] = ScheduleConfig(
            name=name,
            cron=table.text("cron", needed=True) or "",
            mission=base / Path(table.text("mission", needed=True) or "").expanduser(),
            overlap=table.word("overlap", OVERLAPS) or "skip",
            timezone=table.text("timezone"),
        )
    return found


def _model(fields: Fields) -> str | None:
    name = fields.text("model")
    if name is not None:
        _check_model(fields, "model", name)
    return name


def _may_force_complete(fields: Fields) -> bool:
    table = fields.inside("callers")
    table.only(CALLERS_KEYS)
    return table.flag("may_force_complete") is not False


def _client_models(fields: Fields) -> frozenset[str]:
    names = fields.texts("client_models") or ()
    for place, name in enumerate(names):
        _check_model(fields, f"client_models[{place}]", name)
    return frozenset(names)


def _check_model(fields: Fields, key: str, name: str) -> None:
    if not all(name.partition(":")):
        fields.fault(key, "must be provider:name, for instance anthropic:claude-haiku-4-5")


def _prices(fields: Fields) -> dict[str, tuple[float, ...]]:
    """For each model what its input, its output and maybe its cached input cost."""
    found: dict[str, tuple[float, ...]] = {}
    for name, row in fields.tables("prices"):
        row.only(PRICE_KEYS)
        cached = (row.amount("cached"),) if "cached" in row.table else ()
        found[name] = (row.amount("input"), row.amount("output"), *cached)
    return found


def _settings(fields: Fields) -> dict[str, float]:
    table = fields.inside("settings")
    table.only(SETTINGS)
    values = {key: table.number(key, whole=key in WHOLE_SETTINGS, zero=key in _OFF_AT_ZERO) for key in SETTINGS}
    return {key: value for key, value in values.items() if value is not None}


def _policy(fields: Fields, base: Path) -> OperatorPolicy:
    """The operator's policy; the default where there is no such table."""
    table = fields.inside("policy")
    table.only(POLICY_KEYS)
    return OperatorPolicy(
        mode=_mode(table, "ask"),
        rules=_rules(table, base),
        network=read_network(table.inside("network")),
        callers=_callers(table),
    )


def _mode(table: Fields, default: Mode) -> Mode:
    mode = table.text("mode")
    try:
        return default if mode is None else parse_mode(mode)
    except ValidationFailed as failed:
        table.fault("mode", failed.faults[0].reason)
        return default


def _callers(table: Fields) -> dict[str, Tightening]:
    """What further holds for a caller, by the name of its token."""
    found: dict[str, Tightening] = {}
    for name, caller in table.tables("callers"):
        caller.only(CALLER_KEYS)
        found[name] = Tightening(
            who=f"the caller {name}",
            deny=caller.texts("deny") or (),
            ask=caller.texts("ask") or (),
            mode=_mode(caller, "auto"),
        )
    return found


def _arguments(rule: Fields, base: Path) -> dict[str, Pattern]:
    """A glob, or a table with one of `under` and `host`, for each argument."""
    table = rule.inside("arguments")
    found: dict[str, Pattern] = {}
    for path, value in table.table.items():
        if isinstance(value, str):
            found[path] = value
        elif as_table(value) is None:
            table.fault(path, f"must be a text, or a table with under or host, not {kind(value)}; put it in quotes")
        else:
            typed = table.inside(path)
            typed.only(TYPED_KEYS)
            if len(typed.table) != 1:
                typed.fault("", "needs one of under and host")
            elif "under" in typed.table:
                found[path] = Under(str(base / Path(typed.text("under") or ".").expanduser()))
            else:
                found[path] = Hosts(_host_names(typed))
    return found


def _host_names(fields: Fields) -> tuple[str, ...]:
    given = fields.texts("host") or ()
    names: list[str] = []
    for place, name in enumerate(given):
        plain = plain_name(name.removeprefix("."))
        if plain is None:
            fields.fault(
                f"host[{place}]", f"{name[:100]!r} is not a host; write example.org, .example.org or 127.0.0.1"
            )
        else:
            names.append(f".{plain}" if name.startswith(".") else plain)
    if not given:
        fields.fault("host", "must have at least one host")
    return tuple(names)


def _rules(table: Fields, base: Path) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            decision=_decision(rule),
            server=rule.text("server") or ANY,
            tool=rule.text("tool") or ANY,
            arguments=_arguments(rule, base),
            reason=rule.text("reason") or "",
            require=_required(rule),
        )
        for rule in table.rows("rules", RULE_KEYS)
    )


def _required(rule: Fields) -> int:
    """How many people must say yes."""
    if "require" not in rule.table:
        return 1
    people = int(rule.number("require", whole=True) or 1)
    if people > MOST_PEOPLE:
        rule.fault("require", f"must be at most {MOST_PEOPLE}")
    if rule.table.get("decision") != "ask":
        rule.fault("require", 'goes with decision = "ask"')
    return min(people, MOST_PEOPLE)


def _decision(rule: Fields) -> Decision:
    word = rule.text("decision")
    if word in SEVERITY:
        return word
    if "decision" not in rule.table:
        rule.fault("decision", "is missing; say allow, ask or deny")
    elif word is not None:
        rule.fault("decision", f"{word!r} is not a decision{nearest(word, SEVERITY) or '; use allow, ask or deny'}")
    return "deny"


def read_network(fields: Fields) -> NetworkRules:
    """The network rules of a table."""
    fields.only(NETWORK_KEYS)
    lists: Mapping[str, Sequence[str]] = {key: fields.texts(key) or () for key in NETWORK_KEYS}
    for key, patterns in lists.items():
        for pattern in patterns:
            if not pattern or "/" in pattern or " " in pattern:
                fields.fault(key, f"{pattern!r} is not a host; write example.com, .example.com (sub-domains) or *")
    return NetworkRules(**lists)


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

"""The operator's configuration: `pursuit.toml`, `mcp.json`, or both.

Owns: which file counts, its top-level keys, and the merge of the two formats. Does not know: what a server needs
(`server_config`) or what a check means. Invariant: a `Configuration` has no fault; a file with faults raises all of
them at once, each with file, field and reason (and line and column where the file cannot even be read).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pursuit.config.commands import UPSTREAM, CommandConfig, read_commands
from pursuit.config.files import Fields, as_table, kind, no_table, parse_json, parse_toml, read_text
from pursuit.config.servers import ServerConfig, parse_servers
from pursuit.core.base_model import nearest
from pursuit.errors import Fault, ValidationFailed
from pursuit.policy.rules import (
    ANY,
    SEVERITY,
    Decision,
    Mode,
    NetworkRules,
    OperatorPolicy,
    Rule,
    Tightening,
    parse_mode,
)

# Reads the table `[policy]` of `pursuit.toml`.
# Invariant: a policy that it hands out is whole; every fault, with its place, is in the reader's list.

POLICY_KEYS = ("mode", "rules", "network", "callers")
CALLER_KEYS = ("mode", "deny", "ask")
RULE_KEYS = ("decision", "server", "tool", "arguments", "reason")


def parse_policy(fields: Fields) -> OperatorPolicy:
    """The operator's policy out of the whole configuration; the default where there is no such table."""
    table = Fields(fields.subtable("policy"), at="policy", source=fields.source, faults=fields.faults)
    table.only(POLICY_KEYS)
    return OperatorPolicy(mode=_mode(table), rules=_rules(table), network=_network(table), callers=_callers(table))


def _mode(table: Fields) -> Mode:
    word = table.text("mode")
    if word is None:
        return "ask"
    try:
        return parse_mode(word)
    except ValidationFailed as failed:
        table.fault("mode", failed.faults[0].reason)
        return "ask"


def _callers(table: Fields) -> dict[str, Tightening]:
    """What holds for whoever shows a token, by the token's name."""
    found: dict[str, Tightening] = {}
    for name, value in table.subtable("callers").items():
        entry = as_table(value)
        if entry is None:
            table.fault(f"callers.{name}", f"must be a table, not {kind(value)}")
            continue
        fields = Fields(entry, at=f"policy.callers.{name}", source=table.source, faults=table.faults)
        fields.only(CALLER_KEYS)
        found[name] = Tightening(
            who=f"the caller {name}",
            deny=fields.texts("deny") or (),
            ask=fields.texts("ask") or (),
            mode=_mode(fields) if "mode" in entry else "auto",
        )
    return found


def _rules(table: Fields) -> tuple[Rule, ...]:
    if "rules" not in table.table:
        return ()
    value = table.table["rules"]
    if not isinstance(value, list):
        table.fault("rules", f"must be a list of tables ([[policy.rules]]), not {kind(value)}")
        return ()
    found: list[Rule] = []
    for place, item in enumerate(cast("list[object]", value)):
        at = f"rules[{place}]"
        entry = as_table(item)
        if entry is None:
            table.fault(at, f"must be a table, not {kind(item)}")
            continue
        rule = Fields(entry, at=f"policy.{at}", source=table.source, faults=table.faults)
        rule.only(RULE_KEYS)
        found.append(
            Rule(
                decision=_decision(rule),
                server=rule.text("server") or ANY,
                tool=rule.text("tool") or ANY,
                arguments=rule.text_map("arguments"),
                reason=rule.text("reason") or "",
            )
        )
    return tuple(found)


def _decision(rule: Fields) -> Decision:
    word = rule.text("decision")
    if word in SEVERITY:
        return word
    if "decision" not in rule.table:
        rule.fault("decision", "is missing; say allow, ask or deny")
    elif word is not None:
        rule.fault("decision", f"{word!r} is no decision{nearest(word, SEVERITY) or '; use allow, ask or deny'}")
    return "deny"


def _network(table: Fields) -> NetworkRules:
    if "network" not in table.table:
        return NetworkRules()
    rules, faults = parse_network(table.table["network"], source=table.source, at="policy.network")
    table.faults.extend(faults)
    return rules


_LISTS = ("allow", "ask", "deny")


def parse_network(table: object, *, source: str, at: str = "network") -> tuple[NetworkRules, list[Fault]]:
    """The rules of a configuration's table, and every fault."""
    entries = as_table(table)
    if entries is None:
        return NetworkRules(), [Fault(field=at, reason=f"must be a table, not {kind(table)}", source=source)]
    faults: list[Fault] = []
    fields = Fields(entries, at=at, source=source, faults=faults)
    fields.only(_LISTS)
    lists: Mapping[str, Sequence[str]] = {key: fields.texts(key) or () for key in _LISTS}
    for key, patterns in lists.items():
        for pattern in patterns:
            if not pattern or "/" in pattern or " " in pattern:
                fields.fault(key, f"{pattern!r} is no host; write example.com, .example.com (sub-domains) or *")
    return NetworkRules(allow=lists["allow"], ask=lists["ask"], deny=lists["deny"]), faults


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
    "prompt_bytes",
    "tools_bytes",
    "memory_lessons",
)
_OFF_AT_ZERO = ("memory_lessons",)
_COUNTS = ("script_calls", "script_workers", "tasks_at_once", "tasks_each", "task_kept")
_WHOLE = (*_COUNTS, "prompt_bytes", "tools_bytes", *_OFF_AT_ZERO)
_TOML_KEYS = ("servers", "mcpServers", "checks", "commands", "settings", "policy", "prices", "model", "client_models")
PRICE_KEYS = ("input", "output")
_JSON_KEYS = ("servers", "mcpServers", "inputs", "$schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the operator wrote; `path` is None where there is no file."""

    path: Path | None = None
    servers: Mapping[str, ServerConfig] = field(default_factory=dict[str, ServerConfig])
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    commands: Mapping[str, CommandConfig] = field(default_factory=dict[str, CommandConfig])
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Dollars for a million tokens read and written, by the full name of a language model."""
    model: str | None = None
    """The language model that proposes where a client says nobody else."""
    client_models: frozenset[str] = frozenset()
    """The language models that MCP clients may name besides."""


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
    if UPSTREAM in configuration.servers and configuration.commands:
        why = "is what [commands] are called inside missions; rename this server"
        faults.append(Fault(field=f"servers.{UPSTREAM}", reason=why, source=str(path)))
    if faults:
        raise ValidationFailed(faults, f"the configuration has {len(faults)} fault{'s' if len(faults) > 1 else ''}")
    return configuration


def _parse(path: Path, table: Mapping[str, Any], faults: list[Fault]) -> Configuration:
    foreign = path.suffix == ".json"
    fields = Fields(table, at="", source=str(path), faults=faults)
    fields.only(_JSON_KEYS if foreign else _TOML_KEYS)
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
    return Configuration(
        path=path,
        servers=servers,
        checks=_checks(fields, path.parent.absolute()),
        settings=_settings(fields),
        policy=parse_policy(fields),
        commands=read_commands(fields, path.parent.absolute()),
        prices=_prices(fields),
        model=_model(fields),
        client_models=_client_models(fields),
    )


def _checks(fields: Fields, base: Path) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name, value in fields.subtable("checks").items():
        table = as_table(value)
        if table is None:
            fields.fault(f"checks.{name}", f"must be a table, not {kind(value)}")
        else:
            found[name] = _check(Fields(table, at=f"checks.{name}", source=fields.source, faults=fields.faults), base)
    return found


def _check(fields: Fields, base: Path) -> Mapping[str, Any]:
    """One named command; it runs in the configuration's folder unless it says otherwise."""
    fields.only(("command", "cwd", "timeout"))
    command, timeout = fields.texts("command"), fields.number("timeout")
    if not command:
        fields.fault("command", "is missing; give the command as a list of words")
    check: dict[str, Any] = {"command": list(command or ()), "cwd": str(base / (fields.text("cwd") or "."))}
    return check if timeout is None else {**check, "timeout": timeout}


def _model(fields: Fields) -> str | None:
    name = fields.text("model")
    if name is not None and not all(name.partition(":")):
        fields.fault("model", "must be provider:name, for instance anthropic:claude-haiku-4-5")
    return name


def _client_models(fields: Fields) -> frozenset[str]:
    names = fields.texts("client_models") or ()
    for place, name in enumerate(names):
        if not all(name.partition(":")):
            fields.fault(f"client_models[{place}]", "must be provider:name, for instance anthropic:claude-haiku-4-5")
    return frozenset(names)


def _prices(fields: Fields) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, value in fields.subtable("prices").items():
        row = Fields(as_table(value) or {}, at=f"prices.{name}", source=fields.source, faults=fields.faults)
        row.only(PRICE_KEYS)
        both = [row.amount(key) for key in PRICE_KEYS]
        found[name] = (both[0], both[1])
    return found


def _settings(fields: Fields) -> dict[str, float]:
    table = Fields(fields.subtable("settings"), at="settings", source=fields.source, faults=fields.faults)
    table.only(SETTINGS)
    values = {key: table.number(key, whole=key in _WHOLE, zero=key in _OFF_AT_ZERO) for key in SETTINGS}
    return {key: value for key, value in values.items() if value is not None}


def _read(path: Path, faults: list[Fault]) -> Mapping[str, Any] | None:
    """The file as a table, or None after noting why not."""
    source = str(path)
    try:
        text = read_text(path)
        if path.suffix == ".toml":
            return parse_toml(text, source=source)
        value = parse_json(text, source=source)
        table = as_table(value)
        if table is None:
            raise no_table(source, value)
    except ValidationFailed as failed:
        faults.extend(failed.faults)
        return None
    return table

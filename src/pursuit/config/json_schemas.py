"""The JSON Schemas of `mission.toml` and `pursuit.toml`; `python -m pursuit.config.json_schemas` writes their files.

They follow the models and the lists of keys that the readers have. A schema is for completion and quick checks while a
person writes; the readers decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from pursuit.config.commands import COMMAND_KEYS, KINDS, METRIC_KEYS, PARAMETER_KEYS, PATTERNS, TRAITS
from pursuit.config.configuration import (
    APPROVALS_KEYS,
    AUDIT_KEYS,
    CALLER_KEYS,
    CALLERS_KEYS,
    CHANNELS,
    CHECK_KEYS,
    LIMIT_KEYS,
    NETWORK_KEYS,
    NOTICES,
    NOTIFY_KEYS,
    OAUTH_KEYS,
    OVERLAPS,
    POLICY_KEYS,
    PRICE_KEYS,
    RULE_KEYS,
    SCHEDULE_KEYS,
    SETTINGS,
    TOML_KEYS,
    TYPED_KEYS,
    WHOLE_LIMITS,
    WHOLE_SETTINGS,
)
from pursuit.config.servers import OVERRIDE_FLAGS, PIN_MODES, SERVER_KEYS, TRANSPORTS
from pursuit.config.surroundings import BUBBLEWRAP, ISOLATION_KEYS
from pursuit.core.approvals import MOST_PEOPLE
from pursuit.core.mission import Mission
from pursuit.policy.rules import MODES, SEVERITY

Schema = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect that editors of TOML read."""

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
TEXT_MAP: Schema = {"type": "object", "additionalProperties": TEXT}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number", "exclusiveMinimum": 0}
AMOUNT: Schema = {"type": "number", "minimum": 0}
WHOLE: Schema = {"type": "integer", "minimum": 0}
ANYTHING: Schema = {}
INHERIT: Schema = {"anyOf": [FLAG, TEXTS]}

_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "$defs": "definitions",
}


def _one_of(words: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(words)}


def _table(keys: Iterable[str], types: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """A table with these keys and no other; a key without a type may be anything."""
    found: Schema = {"type": "object", "properties": {key: types.get(key, ANYTHING) for key in keys}}
    return {**found, "required": list(required), "additionalProperties": False}


def _tables(inner: Schema) -> Schema:
    return {"type": "object", "additionalProperties": inner}


def _rows(inner: Schema) -> Schema:
    return {"type": "array", "items": inner}


def _surroundings() -> dict[str, Schema]:
    """The keys that say what a command gets."""
    isolation: dict[str, Schema] = {
        "kind": _one_of([BUBBLEWRAP]),
        **dict.fromkeys(("write", "hide"), TEXTS),
        "network": FLAG,
        "memory_mb": NUMBER,
        "processes": {"type": "integer", "minimum": 1},
    }
    return {
        "env": TEXT_MAP,
        "inherit_env": INHERIT,
        "isolation": {"anyOf": [_one_of([BUBBLEWRAP]), _table(ISOLATION_KEYS, isolation)]},
    }


def _server() -> Schema:
    override = _table((*OVERRIDE_FLAGS, "timeout"), {**dict.fromkeys(OVERRIDE_FLAGS, FLAG), "timeout": NUMBER})
    seconds = ("connect", "call", "read")
    flags = ("enabled", "required", "restart", "trust_annotations")
    types: dict[str, Schema] = {
        **dict.fromkeys(("command", "cwd", "url"), TEXT),
        **dict.fromkeys(("args", "enabled_tools", "disabled_tools", "methods"), TEXTS),
        **dict.fromkeys(("env", "headers"), TEXT_MAP),
        **dict.fromkeys(("type", "transport"), _one_of(TRANSPORTS)),
        **dict.fromkeys(flags, FLAG),
        "concurrency": {"type": "integer", "minimum": 1},
        "timeouts": _table(seconds, dict.fromkeys(seconds, NUMBER)),
        "tools": _tables(override),
        "isolation": _surroundings()["isolation"],
        "pin": _one_of(PIN_MODES),
    }
    return _table(SERVER_KEYS, types)


def _command() -> Schema:
    whole = ("min_length", "max_length", "min_items", "max_items")
    parameter: dict[str, Schema] = {
        "type": _one_of(KINDS),
        **dict.fromkeys(("title", "description", "pattern", "flag"), TEXT),
        **dict.fromkeys(("required", "allow_options"), FLAG),
        **{key: {"type": "number"} for key in ("minimum", "maximum")},
        **dict.fromkeys(whole, WHOLE),
        "enum": {"type": "array"},
        "items": {"type": "object"},
    }
    metric = _table(METRIC_KEYS, dict.fromkeys(METRIC_KEYS, TEXT))
    texts = ("title", "description", "cwd", "disclaimer", *PATTERNS)
    types: dict[str, Schema] = {
        "argv": {"type": "array", "minItems": 1, "items": {"anyOf": [TEXT, TEXTS]}},
        "parameters": _tables(_table(PARAMETER_KEYS, parameter)),
        "metrics": _tables({"anyOf": [TEXT, metric]}),
        **dict.fromkeys(texts, TEXT),
        **_surroundings(),
        "total": {"anyOf": [NUMBER, TEXT]},
        **dict.fromkeys(("grace", "heartbeat", "timeout"), NUMBER),
        **dict.fromkeys(("allow_parent_paths", *TRAITS), FLAG),
    }
    return _table(COMMAND_KEYS, types, required=["argv"])


def _policy() -> Schema:
    typed = _table(TYPED_KEYS, {"under": TEXT, "host": TEXTS})
    patterns = {"type": "object", "additionalProperties": {"anyOf": [TEXT, typed]}}
    rule = {
        "decision": _one_of(SEVERITY),
        **dict.fromkeys(("server", "tool", "reason"), TEXT),
        "arguments": patterns,
        "require": {"type": "integer", "minimum": 1, "maximum": MOST_PEOPLE},
    }
    caller = {"mode": _one_of(MODES), **dict.fromkeys(("deny", "ask"), TEXTS)}
    types = {
        "mode": _one_of(MODES),
        "rules": _rows(_table(RULE_KEYS, rule, required=["decision"])),
        "network": _table(NETWORK_KEYS, dict.fromkeys(NETWORK_KEYS, TEXTS)),
        "callers": _tables(_table(CALLER_KEYS, caller)),
    }
    return _table(POLICY_KEYS, types)


def _limits() -> Schema:
    types = {key: FLAG if key == "unbounded" else WHOLE if key in WHOLE_LIMITS else AMOUNT for key in LIMIT_KEYS}
    return _table((*LIMIT_KEYS, "callers"), {**types, "callers": _tables(_table(LIMIT_KEYS, types))})


def _schedule() -> Schema:
    types = {**dict.fromkeys(("cron", "mission", "timezone"), TEXT), "overlap": _one_of(OVERLAPS)}
    one = _table(SCHEDULE_KEYS, types, required=["cron", "mission"])
    return {"anyOf": [one, _tables(one)]}


def configuration_schema() -> Schema:
    """The schema of `pursuit.toml`."""
    notify: dict[str, Schema] = {
        **dict.fromkeys(("webhook", "secret"), TEXT),
        "command": {**TEXTS, "minItems": 1},
        "events": _rows(_one_of(NOTICES)),
        "timeout": NUMBER,
    }
    oauth: dict[str, Schema] = {
        **dict.fromkeys(OAUTH_KEYS, TEXT),
        "max_lifetime": NUMBER,
        "callers": _tables(TEXT),
        "approvers": TEXTS,
    }
    command = {**TEXTS, "minItems": 1}
    check: dict[str, Schema] = {"command": command, "cwd": TEXT, "timeout": NUMBER, **_surroundings()}
    types: dict[str, Schema] = {
        **dict.fromkeys(("servers", "mcpServers"), _tables(_server())),
        "checks": _tables(_table(CHECK_KEYS, check, required=["command"])),
        "commands": _tables(_command()),
        "settings": _table(SETTINGS, {key: WHOLE if key in WHOLE_SETTINGS else NUMBER for key in SETTINGS}),
        "policy": _policy(),
        "prices": _tables(_table(PRICE_KEYS, dict.fromkeys(PRICE_KEYS, AMOUNT), required=PRICE_KEYS[:2])),
        "model": TEXT,
        "state": TEXT,
        "client_models": TEXTS,
        "callers": _table(CALLERS_KEYS, dict.fromkeys(CALLERS_KEYS, FLAG)),
        "notify": _table(NOTIFY_KEYS, notify),
        "schedule": _schedule(),
        "audit": _table(AUDIT_KEYS, {**dict.fromkeys(AUDIT_KEYS, TEXT), "reads": {"type": "boolean"}}),
        "inherit_env": INHERIT,
        "limits": _limits(),
        "serve": _table(("oauth",), {"oauth": _table(OAUTH_KEYS, oauth, required=["issuer"])}),
        "approvals": _table(APPROVALS_KEYS, {"channels": _rows(_one_of(CHANNELS))}),
    }
    return {"$schema": DIALECT, "title": "The configuration of Pursuit (pursuit.toml)", **_table(TOML_KEYS, types)}


def mission_schema() -> Schema:
    """The schema of a mission file: the model, and what a file may say besides."""
    schema = cast("Schema", _plain(Mission.model_json_schema()))
    script = schema["definitions"]["ScriptProposer"]
    script["properties"]["file"] = {**TEXT, "description": "A script beside the mission file, instead of `script`."}
    script["required"] = ["kind"]
    search = schema["definitions"]["SearchProposer"]
    search["properties"]["tool"] = search["properties"]["tool_name"]  # both names are read
    search["required"] = ["kind"]
    agent = schema["definitions"]["AgentProposer"]
    rows = schema["definitions"]["BestOfProposer"]["properties"]["agents"]
    rows["items"] = {key: value for key, value in agent.items() if key != "required"}  # `kind` is known there
    properties = schema["properties"]
    properties["proposer"] = {"anyOf": [TEXT, properties["proposer"]]}
    properties["pace"] = {"anyOf": [NUMBER, properties["pace"]]}
    properties["servers"] = _tables(_server())
    return {"$schema": DIALECT, **schema, "title": "A mission of Pursuit (mission.toml)"}


def _plain(value: Any) -> Any:
    """A schema of pydantic as editors want it: known keywords, no null (TOML has none), `kind` where it decides."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value.replace("#/$defs/", "#/definitions/") if isinstance(value, str) else value
    table = cast("Schema", value)
    choices = [one for one in table.get("anyOf", ()) if one != {"type": "null"}]
    if len(choices) == 1:
        table = {**{key: item for key, item in table.items() if key not in ("anyOf", "default")}, **choices[0]}
    kind = table.get("properties", {}).get("kind", {})
    if "const" in kind:
        table = {**table, "required": ["kind", *table.get("required", ())]}
    dropped = ("title", "discriminator") if not isinstance(table.get("title"), dict) else ()
    kept = {_KEYWORDS.get(key, key): _plain(item) for key, item in table.items() if key not in dropped}
    return {key: item for key, item in kept.items() if key != "default" or item is not None}


SCHEMAS = {"mission": mission_schema, "config": configuration_schema}
"""By the name that `pursuit schema` takes."""


def schema_text(name: str) -> str:
    """The schema as it is shipped."""
    return (files("pursuit.config") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")


def as_text(schema: Schema) -> str:
    """The text of a schema's file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for _name, _make in SCHEMAS.items():
        (Path(__file__).parent / "schemas" / f"{_name}.schema.json").write_text(as_text(_make()), encoding="utf-8")

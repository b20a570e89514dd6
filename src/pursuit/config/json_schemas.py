"""The JSON Schemas of `mission.toml` and `pursuit.toml`, made of the models that read these files.

A schema is for completion and quick checks while a person writes; the models decide. The build puts the schemas into
the wheel (`hatch_build.py`).
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, cast

from pursuit.config.configuration import ConfigurationFile
from pursuit.config.servers import ServerTable
from pursuit.core.mission import Mission
from pursuit.core.proposing import kinds, settings_type

Schema = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect that editors of TOML read."""

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number", "exclusiveMinimum": 0}

_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "$defs": "definitions",
}


def configuration_schema() -> Schema:
    """The schema of `pursuit.toml`."""
    schema = cast("Schema", _plain(ConfigurationFile.model_json_schema()))
    return {"$schema": DIALECT, **schema, "title": "The configuration of Pursuit (pursuit.toml)"}


def mission_schema() -> Schema:
    """The schema of a mission file: the model, and what a file may say besides."""
    schema = cast("Schema", _plain(Mission.model_json_schema()))
    for name in kinds():
        if (kind := settings_type(name)) is not None:
            kind.describe_file(schema["definitions"])
    properties = schema["properties"]
    properties["proposer"] = {"anyOf": [TEXT, properties["proposer"]]}
    properties["pace"] = {"anyOf": [NUMBER, properties["pace"]]}
    server = cast("Schema", _plain(ServerTable.model_json_schema()))
    schema["definitions"] |= server.pop("definitions")
    properties["servers"] = {"type": "object", "additionalProperties": server}
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
    """The schema as the wheel has it; an editable install makes it."""
    shipped = files("pursuit.config") / "schemas" / f"{name}.schema.json"
    return shipped.read_text(encoding="utf-8") if shipped.is_file() else as_text(SCHEMAS[name]())


def as_text(schema: Schema) -> str:
    """The text of a schema's file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"

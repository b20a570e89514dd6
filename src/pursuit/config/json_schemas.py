"""The JSON Schemas of `mission.toml` and `pursuit.toml`, derived from the models that read these files.

Schemas serve completion and quick checks in editors; the models are authoritative. The build puts the schemas into the
wheel (`hatch_build.py`).
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
"""The dialect that TOML editors support."""

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
    schema = cast("Schema", _plain(ConfigurationFile.model_json_schema()))
    return {"$schema": DIALECT, **schema, "title": "The configuration of Pursuit (pursuit.toml)"}


def mission_schema() -> Schema:
    """The schema of a mission file: the model plus the keys that only files have."""
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
    """Simplifies a pydantic schema for editors: known keywords, no null (absent in TOML), required `kind`."""
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
"""The schemas by the name that `pursuit schema` takes."""


def schema_text(name: str) -> str:
    """The schema from the wheel; an editable install generates it."""
    shipped = files("pursuit.config") / "schemas" / f"{name}.schema.json"
    return shipped.read_text(encoding="utf-8") if shipped.is_file() else as_text(SCHEMAS[name]())


def as_text(schema: Schema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"

"""`tools.json` of the mission server is what the models of its tools give, shortened.

With `PURSUIT_LISTING=1` the file is written for the source as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pursuit.server.missions.server
from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.base_model import InputModel
from pursuit.server.missions.handlers import open_handlers
from pursuit.server.missions.tool_dispatch import Schema

FILE = Path(pursuit.server.missions.server.__file__).with_name("tools.json")


async def declared(folder: Path) -> list[dict[str, Any]]:
    async with Runtime(state=folder / "a.db", config=Configuration()) as runtime, open_handlers(runtime, dict) as found:
        tools = found.dispatch.tools.values()
    shown = [
        tool.declared(brief_schema(cast("type[InputModel]", tool.arguments), tool.descriptions, tool.in_words))
        for tool in tools
    ]
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in shown]


async def test_the_shipped_listing_of_tools_is_what_their_models_give(tmp_path: Path) -> None:
    text = json.dumps({"tools": await declared(tmp_path)}, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("PURSUIT_LISTING") == "1":
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, "write it with PURSUIT_LISTING=1 and commit it"


def brief_schema(model: type[InputModel], descriptions: Mapping[str, str], in_words: Collection[str]) -> Schema:
    """The schema for `tools/list`: the model's schema, shortened, because clients pass all of it to their model.

    It omits bounds and redundant forms: null, the default, a short form of an object. Variants by `kind` are merged
    into one object, and the fields `in_words` are described in `_notation`. It contains no `oneOf` or `$ref`, which
    some model providers reject. A call that matches it but not the model is refused with every fault by name.
    """
    exact = model.model_json_schema()
    definitions = cast("dict[str, Schema]", exact.get("$defs", {}))
    for definition in definitions.values():
        if "const" in definition["properties"].get("kind", {}):
            definition["required"] = ["kind", *definition.get("required", ())]
            definition["properties"]["kind"].pop("default", None)
    schema = Brief(definitions, in_words).schema(exact)
    for name, shown in schema["properties"].items():
        text = descriptions.get(name, model.model_fields[name].description)
        if text is not None:
            shown["description"] = f"{text} {shown.get('description', '')}".rstrip()
    return schema


@dataclass(frozen=True, slots=True)
class Brief:
    """Shortens schemas; `definitions` are the referenced schemas."""

    definitions: Mapping[str, Schema]
    in_words: Collection[str]

    def forms(self, node: Schema) -> list[Schema]:
        """The distinct forms of a value: the objects, if any."""
        if "$ref" in node:
            node = self.definitions[node["$ref"].removeprefix("#/$defs/")]
        given = cast("list[Schema]", node.get("anyOf") or node.get("oneOf") or ())
        forms = [form for one in given for form in self.forms(one)]
        if not forms:
            return [node]
        objects = [form for form in forms if form.get("type") == "object"]
        left_out = ({"type": "null"}, {"const": node.get("default")})
        return objects or [form for form in forms if form not in left_out]

    def schema(self, node: Schema) -> Schema:
        forms = self.forms(node)
        if len(forms) > 1:
            brief = [self.schema(form) for form in forms]
            return by_kind(brief) if brief[0].get("type") == "object" else {"anyOf": brief}
        kept: Schema = {}
        for key, item in forms[0].items():
            if key == "properties":
                kept[key] = {name: self._property(name, inner) for name, inner in item.items()}
            elif key == "items":
                kept |= {key: self.schema(item)} if item else {}
            elif (
                key in ("const", "enum", "required")
                or (key == "default" and item)
                or (key == "type" and "const" not in forms[0])
            ):
                kept[key] = item
        return kept

    def _property(self, name: str, node: Schema) -> Schema:
        if name not in self.in_words:
            return self.schema(node)
        forms = self.forms(node)
        shown: Schema = {"type": forms[0]["type"], "description": " | ".join(map(self.notation, forms))}
        return {**shown, "items": {"type": "object"}} if shown["type"] == "array" else shown

    def notation(self, node: Schema) -> str:
        """A schema in short notation: `{tool, metric, window?: integer=1000, scope?: mission|iteration}`."""
        forms = self.forms(node)
        if len(forms) > 1:
            return "|".join(self.notation(form) for form in forms)
        form = forms[0]
        inner = form.get("additionalProperties")
        match form:
            case {"const": value}:
                return str(value)
            case {"enum": values}:
                return "|".join(map(str, values))
            case {"properties": properties}:
                required = form.get("required", ())
                fields: list[str] = []
                for name, one in properties.items():
                    kind = self.notation(one)
                    default = "" if not one.get("default") else f"={one['default']}"
                    fields.append(
                        f"{name}{'' if name in required else '?'}{'' if kind == 'string' else f': {kind}'}{default}"
                    )
                return f"{{{', '.join(fields)}}}"
            case {"type": "array", "items": items} if items:
                return f"[{self.notation(items)}]"
            case {"type": "object"} if isinstance(inner, dict):
                return f"{{NAME: {self.notation(cast('Schema', inner))}}}"
            case _:
                return form["type"]


def by_kind(forms: list[Schema]) -> Schema:
    """Merges objects of several kinds; the description of `kind` lists the fields that each kind needs."""
    properties: dict[str, Schema] = {"kind": {"type": "string", "enum": []}}
    needed: list[list[str]] = []
    for form in forms:
        properties["kind"]["enum"].append(form["properties"]["kind"]["const"])
        needed.append([name for name in form.get("required", ()) if name != "kind"])
        properties |= {name: inner for name, inner in form["properties"].items() if name not in properties}
    always = [name for name in needed[0] if all(name in names for names in needed)]
    own = [", ".join(name for name in names if name not in always) for names in needed]
    said = [f"{kind} ({names})" if names else kind for kind, names in zip(properties["kind"]["enum"], own, strict=True)]
    properties["kind"]["description"] = f"Each needs: {', '.join(said)}."
    return {"type": "object", "properties": properties, "required": ["kind", *always]}

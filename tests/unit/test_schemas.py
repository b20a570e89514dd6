"""The JSON Schemas for editors: as the models give them, and in agreement with the readers."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from pursuit.config.json_schemas import SCHEMAS, schema_text

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- ([a-z]+) -->\n)?^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of_users() -> list[Any]:
    """Each whole mission and configuration of the docs and the templates, with the schema it is for."""
    texts = {
        f"{page.name}:{place}": found[1]
        for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md")
        for place, found in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
        if not found[0]
    }
    for folder in (files("pursuit.demo") / "templates").iterdir():
        for name in ("mission.toml", "pursuit.toml"):
            if (folder / name).is_file():
                texts[f"{folder.name}/{name}"] = (folder / name).read_text(encoding="utf-8")
    rows = [(where, tomllib.loads(text)) for where, text in texts.items()]
    return [
        pytest.param("mission" if "directive" in data else "config", data, id=where)
        for where, data in rows
        if "problem_id" not in data
    ]


@pytest.mark.parametrize("name", SCHEMAS)
def test_editors_can_read_the_schema(name: str) -> None:
    schema = json.loads(schema_text(name))
    Draft7Validator.check_schema(schema)
    assert schema["$schema"].endswith("draft-07/schema#") and schema["additionalProperties"] is False


@pytest.mark.parametrize(("name", "data"), files_of_users())
def test_what_users_write_is_valid(name: str, data: dict[str, Any]) -> None:
    assert [error.message for error in Draft7Validator(json.loads(schema_text(name))).iter_errors(data)] == []


CRITERION = {"criterion_id": "c", "kind": "event", "event_name": "e"}
MISSION = {"directive": "x", "budget": {"max_iterations": 1}, "allow_all_tools": True, "criteria": [CRITERION]}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("mission", {**MISSION, "directve": "x"}),
        ("mission", {**MISSION, "notify": {"command": ["x"]}}),
        ("mission", {**MISSION, "budget": {"max_iteration": 1}}),
        ("mission", {**MISSION, "criteria": []}),
        ("mission", {**MISSION, "criteria": [{**CRITERION, "kind": "evnt"}]}),
        ("mission", {**MISSION, "criteria": [{"criterion_id": "c", "kind": "metric_threshold", "target": 1}]}),
        ("mission", {**MISSION, "proposer": {"kind": "scripted"}}),
        ("mission", {**MISSION, "servers": {"a": {"comand": "x"}}}),
        ("config", {"server": {}}),
        ("config", {"servers": {"a": {"command": 1}}}),
        ("config", {"commands": {"a": {"argv": []}}}),
        ("config", {"commands": {"a": {"argv": ["x"], "metrics": {"m": {"regex": "x"}}}}}),
        ("config", {"settings": {"call_timeout": "1"}}),
        ("config", {"notify": {"command": ["x"], "events": ["end"]}}),
        ("config", {"schedule": {"nightly": {"cron": "0 2 * * *", "mission": "m", "overlap": "kill"}}}),
        ("config", {"policy": {"rules": [{"decision": "maybe"}]}}),
    ],
)
def test_an_editor_marks_a_mistake(name: str, data: dict[str, Any]) -> None:
    assert list(Draft7Validator(json.loads(schema_text(name))).iter_errors(data))

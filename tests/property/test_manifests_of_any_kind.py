"""Whatever stands in a `problem.toml`, the answer is a problem or faults with file, field and reason."""

from __future__ import annotations

import copy
import datetime
import math
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pursuit.config.files import as_toml
from pursuit.errors import ValidationFailed
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import SHIPPED
from pursuit.problems.manifest import Baseline, Citation, Limits, Manifest, Visibility
from pursuit.problems.manifest_reading import parse_manifest, read_manifest
from pursuit.problems.missions import Plan, mission_for, proposer_for
from pursuit.problems.scorer import Metric, Scorer, ScoringRule

SHIPPED_FILES = sorted(SHIPPED.glob("*/problem.toml"))
TABLES = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in SHIPPED_FILES}

AWKWARD = st.sampled_from(
    [
        "", " ", "\0", "a\0b", "..", "../..", "/", "/etc/passwd", "~", ".", "x" * 5_000, "a/" * 3_000, "\n# x", "# x",
        "x\n===", "score.py", "score.py:score", "\0.py:score", "problem.toml", "__python_executable__", "${X}", "é",
        "\u2028", "{", "%s", "\ud800", "1 +", "(" * 300, "lambda: 0", "submission", "nobody", "function", "command",
        "predicates", "tool", "search", "script", "object", "array", "#/nowhere", "#", "[", "(?P<", "doi:", "json",
        "exit_code", "minimize", "raw", "summary+raw", "mcp", "optimization", "http://x", "stdio", "sse", 0, -1, 1,
        10**400, -(10**400), 2**63, 1e308, -0.0, 1e-320, math.inf, -math.inf, math.nan, True, False, [], {}, [[]], [{}],
        {"": {}}, [""], ["\0"], ["x", "x"],
    ]
)  # fmt: skip
SCALARS = st.one_of(
    AWKWARD,
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.just(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
)
WORDS = (
    *(field.name for table in (Manifest, Citation, Limits, Visibility, Baseline, Scorer, Metric, ScoringRule)
      for field in fields(table)),
    "file", "script", "command", "args", "env", "cwd", "url", "headers",
    "timeouts", "tools", "parameters", "low", "choices", "then", "type", "properties", "required", "$ref", "$schema",
    "$id", "pattern", "patternProperties", "enum", "items", "allOf",
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=8,
)
BOUNDED = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def checked(table: dict[str, Any], path: Path) -> None:
    """Reads it; what is sound must also do where it is used."""
    try:
        manifest, faults = parse_manifest(table, path)
    except RecursionError:
        pytest.fail("a manifest was followed too deeply")
    assert (manifest is None) == bool(faults)
    for fault in faults:
        assert fault.source == str(path) and fault.field and fault.reason
        assert "Traceback" not in fault.reason and len(fault.reason) < 8_000
    if manifest is not None:
        used(manifest)


def used(manifest: Manifest) -> None:
    brief = write_brief(manifest)
    assert brief.startswith(f"# {manifest.title}")
    if manifest.baseline is not None:
        plan = Plan(attempt_id="attempt-1", proposer=proposer_for(manifest, None), serve=["x"], judge=["x"])
        tomllib.loads(as_toml(mission_for(manifest, plan)))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*at, key)
        yield from places(one, (*at, key))


@pytest.mark.guarantee("wrong-manifests-say-everything")
@BOUNDED
@given(data=st.data())
def test_a_shipped_manifest_with_something_else_in_it(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(SHIPPED_FILES))
    table = copy.deepcopy(TABLES[path])
    ways = list(places(table))
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(ways))
        here: Any = table
        try:
            for key in way[:-1]:
                here = here[key]
            match data.draw(st.sampled_from(["other", "gone", "more"])):
                case "other":
                    here[way[-1]] = data.draw(VALUES)
                case "gone":
                    del here[way[-1]]
                case _ if isinstance(here, dict):
                    here[data.draw(st.sampled_from(WORDS))] = data.draw(VALUES)
                case _:
                    here.append(data.draw(VALUES))
        except (KeyError, IndexError, TypeError, AttributeError):  # an earlier change took it away
            continue
    checked(table, path)


@BOUNDED
@given(data=st.data())
def test_a_shipped_manifest_whose_bytes_were_damaged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(data.draw(st.sampled_from(SHIPPED_FILES)).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=8))
    path = tmp_path_factory.getbasetemp() / "problem.toml"
    path.write_bytes(raw)
    try:
        used(read_manifest(path))
    except ValidationFailed as failed:
        assert failed.faults and all(fault.source == str(path) and fault.reason for fault in failed.faults)

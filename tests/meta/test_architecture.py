"""The table "Where to change what" of docs/architecture.md names places that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HEADING = "## Where to change what\n"
PLACE = re.compile(r"^`(?P<file>[\w/.-]+\.py)` `(?P<name>[\w.]+)`$")


def rows() -> list[tuple[str, str]]:
    """The behaviours of the table, each with its place."""
    section = PAGE.partition(HEADING)[2].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [(behaviour, place) for behaviour, place in cells[2:]]


def defined(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The names that statements define, each with the statements inside it."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node.body
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: [] for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_table_is_there() -> None:
    assert len(rows()) >= 20
    assert len({behaviour for behaviour, _ in rows()}) == len(rows())


@pytest.mark.parametrize(("behaviour", "place"), rows(), ids=[behaviour for behaviour, _ in rows()])
def test_a_behaviour_is_where_the_table_says(behaviour: str, place: str) -> None:
    written = PLACE.match(place)
    assert written, f"{behaviour}: write the place as `path/to/file.py` `name`"
    file = ROOT / "src" / "pursuit" / written["file"]
    assert file.is_file(), f"{behaviour}: there is no src/pursuit/{written['file']}"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for part in written["name"].split("."):
        names = defined(body)
        assert part in names, f"{behaviour}: {written['file']} has no {written['name']}"
        body = names[part]

"""Nothing outside of a kind's folder knows the kind of a proposer: facts and hooks say what others must know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pursuit.core.proposing import find_kind, kinds

ROOT = Path(__file__).parents[2] / "src" / "pursuit"
ALLOWED = ("proposers/", "__init__.py", "runtime.py", "cli/setup.py", "problems/missions.py")
"""The kinds themselves, the public names, the composition root, `init`, and the missions of problems."""
LEFT = 0
"""The places that are left. The number only falls."""


def known() -> tuple[set[str], set[str]]:
    """The names of the kinds and of their classes of settings."""
    found = {name: kind for name in kinds() if (kind := find_kind(name)) is not None}
    return set(found), {kind.settings.__name__ for kind in found.values()} | {"AskedProposer"}


def constants(node: ast.AST) -> set[object]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}


def branches(file: Path) -> Iterator[str]:
    names, classes = known()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and {one.name for one in node.names} & classes:
            yield f"{place} imports a class of settings"
        if isinstance(node, ast.Compare) and "proposer" in ast.unparse(node) and constants(node) & names:
            yield f"{place} {ast.unparse(node)}"
        if isinstance(node, ast.Match) and "proposer" in ast.unparse(node.subject):
            yield f"{place} match {ast.unparse(node.subject)}"
        if isinstance(node, ast.Call) and ast.unparse(node).startswith("getattr(") and ".proposer" in ast.unparse(node):
            yield f"{place} {ast.unparse(node)}"


def test_no_module_outside_of_a_kind_knows_it() -> None:
    files = [one for one in ROOT.rglob("*.py") if not str(one.relative_to(ROOT)).startswith(ALLOWED)]
    found = sorted(branch for file in files for branch in branches(file))
    assert len(found) <= LEFT, "\n".join(found)

"""What we promise and what we test are the same list, both ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from guarantees import GUARANTEES

TESTS = Path(__file__).parents[1]


def _marked() -> Iterator[tuple[str, str]]:
    """Every (guarantee, test) pair that the tests claim."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee":
                        yield ast.literal_eval(mark.args[0]), f"{path.relative_to(TESTS)}::{node.name}"


def test_every_guarantee_names_its_tests_and_every_test_its_guarantee() -> None:
    claimed: dict[str, set[str]] = {}
    for name, test in _marked():
        claimed.setdefault(name, set()).add(test)
    listed = {name: set(guarantee.tests) for name, guarantee in GUARANTEES.items()}
    assert claimed == listed


def test_a_guarantee_is_one_sentence_for_people() -> None:
    for name, guarantee in GUARANTEES.items():
        assert guarantee.promise.endswith("."), name
        assert len(guarantee.promise) < 200, name

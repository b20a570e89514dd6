"""Each promise of `tests/guarantees.py` has a test in `make test`, and each mark names a promise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from guarantees import GUARANTEES

TESTS = Path(__file__).parents[1]


@cache
def marked() -> list[tuple[str, str, bool]]:
    """The promise, the test and whether only `make soak` runs it, for each mark in the tests."""
    return list(_read())


def _read() -> Iterator[tuple[str, str, bool]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        whole_file = any("mark.soak" in ast.unparse(node) for node in tree.body if _is_pytestmark(node))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                soak = whole_file or "pytest.mark.soak" in marks
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee":
                        yield ast.literal_eval(mark.args[0]), f"{path.relative_to(TESTS)}::{node.name}", soak


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def test_each_promise_has_a_test_that_is_not_left_to_soak() -> None:
    kept = {name for name, _, soak in marked() if not soak}
    assert sorted(GUARANTEES.keys() - kept) == []


def test_each_mark_names_a_promise() -> None:
    assert [f"{test}: {name}" for name, test, _ in marked() if name not in GUARANTEES] == []


def test_a_promise_is_one_sentence_for_people() -> None:
    for name, promise in GUARANTEES.items():
        assert promise.endswith("."), name
        assert len(promise) < 200, name

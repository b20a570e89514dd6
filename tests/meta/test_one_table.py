"""A thing that people add to is declared in one place: the meta tests count the places."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from pursuit.cli.control import extend
from pursuit.core.caps import CAPS

SOURCE = Path(__file__).parents[2] / "src" / "pursuit"
DECLARED_IN = SOURCE / "core" / "caps.py"
OPTIONS_IN = SOURCE / "cli" / "control.py"
"""The options of `pursuit extend` are parameters of a function: `pursuit --help` reads them without the table."""
MOST_TOGETHER = 2
"""So many caps may stand together, as in an example of a budget; more are a second table."""


MOST_DECODERS = 4
"""The modules that turn stored bytes into events: the rows of `core/history.py`, two folds and the proof."""


def tables(tree: ast.AST) -> list[set[str]]:
    """The texts in each list, tuple, set or dict of a module, and the parameters of each function."""
    found: list[set[str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                pass
            case ast.Dict(keys=keys, values=values):
                parts = [*(key for key in keys if key is not None), *values]
            case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
                found.append({one.arg for one in (*arguments.args, *arguments.kwonlyargs)})
                continue
            case _:
                continue
        texts = [part for one in parts for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        found.append({one.value for one in texts if isinstance(one, ast.Constant) and isinstance(one.value, str)})
    return found


def test_no_second_table_of_caps() -> None:
    names = {word for cap in CAPS.values() for word in (cap.name, cap.used)}
    for path in SOURCE.rglob("*.py"):
        if path not in (DECLARED_IN, OPTIONS_IN):
            listed = [table & names for table in tables(ast.parse(path.read_text(encoding="utf-8")))]
            assert all(len(one) <= MOST_TOGETHER for one in listed), (path, max(listed, key=len))
    for path in (*SOURCE.rglob("*.js"), *SOURCE.rglob("*.html")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not [one for one in lines if sum(name in one for name in names) > MOST_TOGETHER], path


def test_each_cap_can_be_extended() -> None:
    options = {name for name in inspect.signature(extend).parameters if name.startswith("max_")}
    assert options == set(CAPS)


def test_a_cap_has_its_words_by_its_name() -> None:
    cost = CAPS["max_cost_usd"]
    assert (cost.used, cost.reason, cost.label_with_unit, cost.option) == (
        "cost_usd",
        "max_cost",
        "Cost (USD)",
        "--max-cost-usd",
    )


def test_stored_events_are_decoded_in_few_places() -> None:
    calls = {
        path
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "decode"
    }
    assert len(calls) <= MOST_DECODERS, sorted(calls)

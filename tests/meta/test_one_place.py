"""A thing that people add to is declared in one place, and one module does a job: these tests count the places."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from functools import cache

import pytest
from source_tree import ROOT, Module, modules

from pursuit.cli.control import extend
from pursuit.core.caps import CAPS

SOURCE = ROOT / "pursuit"
DECLARED_IN = "core/caps.py"
OPTIONS_IN = "cli/control.py"
"""The options of `pursuit extend` are parameters of a function: `pursuit --help` reads them without the table."""
MAX_TOGETHER = 2
"""So many caps may stand together, as in an example of a budget; more are a second table."""


MAX_DECODERS = 4
"""The modules that turn stored bytes into events: the rows of `core/history.py`, two folds and the proof."""


def tables(module: Module) -> list[set[str]]:
    """The texts in each list, tuple, set or dict of a module, and the parameters of each function."""
    found: list[set[str]] = []
    for node in module.nodes:
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
    for module in modules():
        if module.place not in (DECLARED_IN, OPTIONS_IN):
            listed = [table & names for table in tables(module)]
            assert all(len(one) <= MAX_TOGETHER for one in listed), (module.place, max(listed, key=len))
    for path in (*SOURCE.rglob("*.js"), *SOURCE.rglob("*.html")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not [one for one in lines if sum(name in one for name in names) > MAX_TOGETHER], path


def test_each_cap_can_be_extended() -> None:
    options = {name for name in inspect.signature(extend).parameters if name.startswith("max_")}
    assert options == set(CAPS)


@cache
def callers() -> dict[str, set[str]]:
    """The modules that call each function, by its name or as an attribute."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules():
        for node in module.nodes:
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    found[name].add(module.place)
                case _:
                    pass
    return found


def test_stored_events_are_decoded_in_few_places() -> None:
    places = {
        module.place
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "decode"
    }
    assert len(places) <= MAX_DECODERS, sorted(places)


@pytest.mark.parametrize(
    ("what", "names", "module"),
    [
        ("makes an answer", ("ApprovalAnswered", "GatewayApprovalAnswered"), "core/approvals.py"),
        ("makes an expiry", ("ApprovalExpired",), "core/approvals.py"),
        ("makes the record", ("Approval",), "core/approvals.py"),
        ("answers for a person", ("answer_event",), "service/approvals.py"),
        ("lets a question of a mission expire", ("expiries",), "engine/call_admission.py"),
        ("writes a question of a mission", ("ApprovalAsked",), "engine/call_admission.py"),
        ("writes a question of a gateway", ("GatewayApprovalAsked",), "service/gateway_journal.py"),
    ],
)
def test_one_module(what: str, names: tuple[str, ...], module: str) -> None:
    assert set().union(*(callers()[name] for name in names)) == {module}, f"one module {what}"

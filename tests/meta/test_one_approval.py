"""One module makes the events that close a question to a person, and one module answers for every surface."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pursuit

SOURCE = Path(pursuit.__file__).parent


def callers(*names: str) -> set[str]:
    """The modules that call one of these, by its name or as an attribute."""
    return {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _name(node.func) in names
    }


def _name(function: ast.expr) -> str | None:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


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
    assert callers(*names) == {module}, f"one module {what}"

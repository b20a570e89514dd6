"""Finds the calls in a script whose value is awaited, from the source only.

Monty must know at each call whether its value is needed now or is a future, and it recognises only a direct `await`.
Values are tracked by name: a name that is awaited anywhere in the script counts as a future everywhere. Marking a call
that is not a tool call is harmless.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

_PASSES = frozenset({"list", "tuple", "reversed", "enumerate", "zip"})
Parts = defaultdict[str, list[ast.expr]]


def awaited_calls(source: str) -> frozenset[int]:
    """The ends of the awaited calls as UTF-8 offsets; each call has its own closing bracket."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    holds = Parts(list)
    for node in nodes:
        _bind(node, holds)
    waiting, seen = holds["await"], set[ast.expr]()  # a keyword is not a name
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += _sources(node, holds)
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    calls = (node for node in seen if isinstance(node, ast.Call))
    return frozenset(starts[(call.end_lineno or 1) - 1] + (call.end_col_offset or 0) for call in calls)


def _bind(node: ast.AST, holds: Parts) -> None:
    """Records the possible values of each name and each function (`name()`), and the awaited values."""
    match node:
        case ast.Await(value=value):
            holds["await"].append(value)
        case ast.Call(func=ast.Name(id="gather") | ast.Attribute(attr="gather"), args=args):
            holds["await"] += args
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend"), args=args):
            holds[name] += args
        case ast.Assign(targets=[target], value=ast.expr() as value):
            _hold(target, value, holds)
        case (
            ast.AugAssign(target=target, value=ast.expr() as value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
        ):
            _hold(target, value, holds)
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            _hold(target, value, holds)
        case ast.FunctionDef(name=name):
            returned = (one.value for one in ast.walk(node) if isinstance(one, ast.Return))
            holds[f"{name}()"] += [value for value in returned if value is not None]
        case _:
            pass


def _hold(target: ast.expr, value: ast.expr, holds: Parts) -> None:
    for name in ast.walk(target):
        if isinstance(name, ast.Name):
            holds[name.id].append(value)


def _sources(node: ast.expr, holds: Parts) -> Iterator[ast.expr]:
    """Yields the possible sources of an awaited value or of its parts."""
    match node:
        case ast.Name(id=name):
            yield from holds[name]
        case ast.Call(func=ast.Name(id=name), args=args):
            yield from args if name in _PASSES else holds[f"{name}()"]
        case ast.Call(func=ast.Attribute(value=ast.Name() as holder, attr="values" | "items" | "pop")):
            yield holder
        case ast.Call() | ast.Await():
            pass
        case ast.Subscript(value=value):
            yield value
        case _:
            yield from (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))

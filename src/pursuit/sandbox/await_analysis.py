"""Finds the calls in a script whose value is awaited, from the source alone.

At each call Monty must be told whether its value is wanted at once or is a future, and it sees only a direct `await`.
The order of statements is ignored: a name that is awaited anywhere in its scope holds futures everywhere in it. Marking
a call that is not a tool call does no harm.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_PUTS = frozenset({"append", "appendleft", "add", "insert", "extend", "setdefault", "update"})
_TAKES = frozenset({"values", "items", "pop", "popleft", "popitem", "get", "copy"})
_PASSES = frozenset(["list", "tuple", "set", "dict", "reversed", "sorted", "enumerate", "zip", "iter", "next"])
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def awaited_calls(source: str) -> frozenset[int]:
    """The ends of the awaited calls, as UTF-8 offsets: each call has a closing bracket of its own."""
    try:
        reader = _Reader()
        reader.visit(ast.parse(source))
        marked = _Demand(reader).marked()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return frozenset(starts[(call.end_lineno or 1) - 1] + (call.end_col_offset or 0) for call in marked)


@dataclass(eq=False)
class _Scope:
    parent: _Scope | None
    names: defaultdict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    functions: dict[str, _Function] = field(default_factory=dict[str, _Function])
    parameters: dict[str, tuple[_Function, int]] = field(default_factory=dict[str, tuple[_Function, int]])
    is_comprehension: bool = False

    def owner(self, name: str) -> _Scope | None:
        scope: _Scope | None = self
        while scope and not (name in scope.names or name in scope.functions or name in scope.parameters):
            scope = scope.parent
        return scope


class _Reader(ast.NodeVisitor):
    """One walk: what each name may hold, what each function returns, and what is awaited outright."""

    def __init__(self) -> None:
        self.scope = _Scope(None)
        self.scope_of: dict[ast.AST, _Scope] = {}
        self.returns: defaultdict[_Function, list[ast.expr]] = defaultdict(list)
        self.attributes: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self.puts: list[tuple[ast.expr, ast.expr]] = []
        self.calls: list[ast.Call] = []
        self.awaited: list[ast.expr] = []
        self._gathers = {"gather"}
        self._function: _Function | None = None

    def visit(self, node: ast.AST) -> None:
        """Remembers the scope of every node, since names are looked up after the walk."""
        self.scope_of[node] = self.scope
        super().visit(node)

    def _inside(self, scope: _Scope, nodes: Sequence[ast.AST], function: _Function | None) -> None:
        outer, self.scope = self.scope, scope
        outer_function, self._function = self._function, function
        for node in nodes:
            self.visit(node)
        self.scope, self._function = outer, outer_function

    def _enter_function(self, node: _Function, body: Sequence[ast.AST]) -> None:
        scope = _Scope(self.scope)
        arguments = node.args
        for place, argument in enumerate([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]):
            scope.parameters[argument.arg] = (node, place)
        for default in [*arguments.defaults, *(item for item in arguments.kw_defaults if item)]:
            self.visit(default)
        self._inside(scope, body, node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.scope.functions[node.name] = node
        self._enter_function(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's name

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.returns[node].append(node.body)
        self._enter_function(node, [node.body])

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and self._function is not None:
            self.returns[self._function].append(node.value)
        self.generic_visit(node)

    def _visit_comprehension(self, node: _Comprehension) -> None:
        scope = _Scope(self.scope, is_comprehension=True)
        outer, self.scope = self.scope, scope
        for part in node.generators:
            self._bind(part.target, part.iter)
        self.scope = outer
        self._inside(scope, list(ast.iter_child_nodes(node)), self._function)

    visit_ListComp = _visit_comprehension  # noqa: N815 - ast's name
    visit_SetComp = _visit_comprehension  # noqa: N815 - ast's name
    visit_GeneratorExp = _visit_comprehension  # noqa: N815 - ast's name
    visit_DictComp = _visit_comprehension  # noqa: N815 - ast's name

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.puts.append((node.target, node.value))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        scope = self.scope
        while scope.is_comprehension and scope.parent is not None:
            scope = scope.parent
        scope.names[node.target.id].append(node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    visit_AsyncFor = visit_For  # noqa: N815 - ast's name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._gathers |= {alias.asname for alias in node.names if alias.name == "gather" and alias.asname}

    def visit_Await(self, node: ast.Await) -> None:
        self.awaited.append(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.calls.append(node)
        match node.func:
            case ast.Attribute(attr="gather") | ast.Attribute(value=ast.Name(id="asyncio"), attr="run"):
                self.awaited += node.args
            case ast.Name(id=name) if name in self._gathers:
                self.awaited += node.args
            case ast.Attribute(value=holder, attr=method) if method in _PUTS:
                self.puts += [(holder, argument) for argument in node.args]
            case _:
                pass
        self.generic_visit(node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                self.scope.names[name].append(value)
            case ast.Starred(value=inner):
                self._bind(inner, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for part, item in zip(targets, _parts(value, len(targets)), strict=True):
                    self._bind(part, item)
            case ast.Attribute(attr=name):
                self.attributes[name].append(value)
            case ast.Subscript(value=holder):
                self.puts.append((holder, value))
            case _:
                pass


def _parts(value: ast.expr, count: int) -> list[ast.expr]:
    """`a, b = f(), g()` pair by pair; otherwise every target may hold any part of the value."""
    items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    if len(items) == count and not any(isinstance(item, ast.Starred) for item in items):
        return items
    return [value] * count


class _Demand:
    """Follows each awaited expression back to the calls that its value, or a part of it, comes from."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._sites: defaultdict[_Function, list[ast.Call]] = defaultdict(list)
        for call in reader.calls:
            function = self._callee(call)
            if function is not None:
                self._sites[function].append(call)
        for holder, value in reader.puts:
            self._holds(holder).append(value)

    def marked(self) -> list[ast.Call]:
        seen: set[ast.expr] = set()
        waiting = list(self._reader.awaited)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += self._sources(node)
        return [node for node in seen if isinstance(node, ast.Call)]

    def _holds(self, holder: ast.expr) -> list[ast.expr]:
        match holder:
            case ast.Name(id=name):
                scope = self._reader.scope_of[holder].owner(name)
                return scope.names[name] if scope else []
            case ast.Attribute(attr=name):
                return self._reader.attributes[name]
            case ast.Subscript(value=inner):
                return self._holds(inner)
            case _:
                return []

    def _callee(self, call: ast.Call) -> _Function | None:
        match call.func:
            case ast.Lambda() as function:
                return function
            case ast.Name(id=name):
                scope = self._reader.scope_of[call].owner(name)
                if scope is None:
                    return None
                bound = [value for value in scope.names.get(name, []) if isinstance(value, ast.Lambda)]
                return scope.functions.get(name) or (bound[0] if bound else None)
            case _:
                return None

    def _sources(self, node: ast.expr) -> list[ast.expr]:
        sources: list[ast.expr] = []
        match node:
            case ast.Call():
                sources = list(self._call_sources(node))
            case ast.Name(id=name):
                sources = [*self._holds(node), *self._arguments(self._reader.scope_of[node].owner(name), name)]
            case ast.Attribute():
                sources = self._holds(node)
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
                sources = [value]
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
                sources = [value]
            case ast.DictComp(value=value):
                sources = [value]
            case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
                sources = [left, right]
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                sources = items
            case ast.BoolOp(values=items) | ast.Dict(values=items):
                sources = items
            case _:
                pass
        return sources

    def _call_sources(self, call: ast.Call) -> Iterator[ast.expr]:
        match call.func:
            case ast.Name(id=name) if name in _PASSES:
                yield from call.args
            case ast.Attribute(value=holder, attr=method) if method in _TAKES:
                yield holder
            case _:
                pass
        function = self._callee(call)
        # Awaiting a coroutine of the script's own awaits the coroutine, not what it returns.
        if function is not None and not isinstance(function, ast.AsyncFunctionDef):
            yield from self._reader.returns[function]

    def _arguments(self, scope: _Scope | None, name: str) -> Iterator[ast.expr]:
        """What the callers of a function pass for its parameter."""
        if scope is None or name not in scope.parameters:
            return
        function, place = scope.parameters[name]
        for call in self._sites[function]:
            if place < len(call.args):
                yield call.args[place]
            yield from (keyword.value for keyword in call.keywords if keyword.arg == name)

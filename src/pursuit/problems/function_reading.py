"""Whether a Python file has a scoring function that can be called as it will be.

Owns: what of a file binds a name, and which parameters a function must have. Imports and runs nothing.
Invariant: what cannot be known without running it (a decorator, an import, an assigned value) is let pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from pursuit.model.spelling import nearest
from pursuit.problems.files import file_of, parsed_python, source_of
from pursuit.tools.fields import Fields

_SUBMITTED = frozenset(("submission",))
_ANSWERED = frozenset(("arguments", "result"))
_COUNTED = frozenset(("calls", "evaluations"))
"""What a function is told besides, if it asks for it."""

_EVERYTHING, _ASKED = "*", "__getattr__"
"""As a name: whatever another module has; and who is asked for every other one."""

_Bound = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None


def check_function(fields: Fields, function: str, folder: Path, *, has_server: bool) -> None:
    """That the file is there, is Python, and has the function, with the parameters that it is called with."""
    file, colon, name = function.partition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        fields.fault("function", f'{function!r} is not of the form "FILE.py:NAME"')
        return
    path = file_of(folder, file)
    if isinstance(path, str):
        fields.fault("function", path)
        return
    text = source_of(path)
    tree = None if text is None else parsed_python(text)
    if not isinstance(tree, ast.Module):
        fields.fault("function", f"{file!r} cannot be read as Python")
        return
    bound = dict((*_bindings(tree.body), *_elsewhere(tree)))
    if name not in bound and _EVERYTHING not in bound and _ASKED not in bound:
        fields.fault("function", f"{file!r} has no function {name!r}{nearest(name, bound)}")
        return
    found = bound.get(name)
    ways = (_SUBMITTED, _ANSWERED) if has_server else (_SUBMITTED,)
    if found is not None and not any(_takes(found.args, way) for way in ways):
        called = f"{name}(submission=…)" + (f" or {name}(arguments=…, result=…)" if has_server else "")
        fields.fault("function", f"{name!r} of {file!r} cannot be called as {called}, as the judge will be")


def _bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, _Bound]]:
    """The names that a module has once it is loaded; with a function where its parameters are known."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, None if node.decorator_list else node
        elif isinstance(node, ast.ClassDef):
            yield node.name, None
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], None) for alias in node.names)
        elif not (isinstance(node, ast.AnnAssign) and node.value is None):
            yield from _bound_in(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((one.id, node.value) for one in targets if isinstance(one, ast.Name))


def _bound_in(node: ast.AST) -> Iterator[tuple[str, _Bound]]:
    """What a statement binds by itself, wherever it stands in it, and what its blocks bind."""
    left = [*ast.iter_child_nodes(node)][::-1]
    while left:  # and no recursion: a formula may be deep
        child = left.pop()
        match child:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, None
            case ast.Name(id="globals" | "vars" | "locals" | "exec" | "setattr"):
                yield _EVERYTHING, None
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, None
            case _:
                pass
        if isinstance(child, ast.stmt):
            yield from _bindings([child])
        elif not isinstance(child, ast.Lambda):
            left += [*ast.iter_child_nodes(child)][::-1]


def _elsewhere(tree: ast.Module) -> Iterator[tuple[str, _Bound]]:
    """What functions of a module bind in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from ((name, None) for name in node.names)


def _takes(wanted: ast.arguments, given: frozenset[str]) -> bool:
    """Whether parameters can be given by these names, and need no others but the counts."""
    places = [*wanted.posonlyargs, *wanted.args]
    needed = {one.arg for one in places[: len(places) - len(wanted.defaults)]}
    needed |= {one.arg for one, default in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True) if default is None}
    named = {one.arg for one in (*wanted.args, *wanted.kwonlyargs)}
    return needed - _COUNTED <= given and (wanted.kwarg is not None or given <= named) and not needed - named

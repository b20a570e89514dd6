"""The rules of the `[scorer]` of a manifest: its program and its declared files are there. Runs nothing.

A rule reads tables as they are written, right or wrong: the types are the business of `Manifest`.
"""

from __future__ import annotations

import ast
import math
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

from pursuit.config.files import as_table
from pursuit.config.servers import PYTHON
from pursuit.core.base_model import kind, nearest
from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.problems.brief import FINAL_ANSWER, SUBMIT, TOOL
from pursuit.problems.files import file_of, files_of, is_folder, not_a_file, parsed_python
from pursuit.problems.manifest import SCORER_KINDS, ScorerKind, is_unicode, walk

Wrong = tuple[str, str]
"""A field, and what is wrong with it."""

DEEPEST = 64
_LONGEST_PLACE = 100
_LARGEST = 2**63
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of a text, so that it reads other than it is."""
_SHOWN = ("title", "summary", "statement", "citations", "submission", "scorer.metrics")
"""The parts of a manifest that people and agents read."""


def table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table inside; empty where there is none."""
    return as_table(table.get(key)) or {}


def rows_of(table: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    """The tables of a list, each with its place."""
    rows = cast("list[object]", table.get(key)) if isinstance(table.get(key), list) else []
    return [(place, found) for place, row in enumerate(rows) if (found := as_table(row)) is not None]


def given_text(table: Mapping[str, Any], key: str) -> str | None:
    """A text that is not empty."""
    value = table.get(key)
    return value if isinstance(value, str) and value.strip() else None


def given_texts(table: Mapping[str, Any], key: str) -> list[tuple[int, str]]:
    """The texts of a list, each with its place."""
    items = cast("list[object]", table.get(key)) if isinstance(table.get(key), list) else []
    return [(place, item) for place, item in enumerate(items) if isinstance(item, str)]


def wrong_items(
    table: Mapping[str, Any], key: str, wrong: Callable[[str], str | None], same: Callable[[str], str] | None = None
) -> Iterator[Wrong]:
    """Each text of a list that is `wrong`, or the `same` as an earlier one."""
    seen: set[str] = set()
    for place, text in given_texts(table, key):
        reason = wrong(text)
        if reason is None and same is not None and same(text) in seen:
            reason = f"{text!r} stands there twice"
        if reason is not None:
            yield f"{key}[{place}]", reason
        if same is not None:
            seen.add(same(text))


def plain_copy(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[Wrong]]:
    """The table as a file would have it: lists for tuples, texts for paths.

    What holds itself or is nested too deeply is left out, and told.
    """
    found, wrong = dict[str, Any](), list[Wrong]()
    for key, value in table.items():
        cut: list[Wrong] = []
        found[key] = _copied(value, key, (), cut)
        wrong += [(_shortened(place), reason) for place, reason in cut[:1]]
    return found, wrong


def _shortened(place: str) -> str:
    return place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…"


def _copied(value: object, at: str, around: tuple[int, ...], cut: list[tuple[str, str]]) -> Any:
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    if not isinstance(value, Mapping | list | tuple):
        return value
    own = id(cast("object", value))
    if own in around or len(around) > DEEPEST:
        cut.append((at, "holds itself" if own in around else f"is nested more than {DEEPEST} levels deep"))
        return {}
    inside = (*around, own)
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, object]", value).items()
        return {key: _copied(one, f"{at}.{key}", inside, cut) for key, one in named}
    return [_copied(one, f"{at}[{place}]", inside, cut) for place, one in enumerate(cast("list[object]", value))]


class Unlike(NamedTuple):
    """What JSON has no word for, and whether the whole can be written as JSON."""

    told: list[Wrong]
    writable: bool


def unlike_json(value: object, at: str) -> Unlike:
    """Everything in a value that JSON has no word for."""
    told = [(place, reason) for place, one, _ in walk(value, at) if (reason := _unlike_json(one))]
    return Unlike(told, not told and all(is_unicode(text) for _, text in _texts(value, at)))


def _unlike_json(value: object) -> str | None:
    match value:
        case Mapping():
            odd = [key for key in cast("Mapping[object, object]", value) if not isinstance(key, str)]
            return f"has keys that are no texts: {', '.join(repr(key)[:60] for key in odd)}" if odd else None
        case float():
            return None if math.isfinite(value) else f"must be a finite number, not {value}"
        case int():
            return "is too large for a whole number" if abs(value) >= _LARGEST else None
        case None | str() | list() | tuple():
            return None
        case _:
            return f"must be something that JSON has, not {kind(value)}; put it in quotes"


def wrong_texts(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Each text that is no Unicode (a program may pass one), or that a screen would obey, not show."""
    for key, value in table.items():
        for at, text in _texts(value, key):
            if not is_unicode(text):
                yield at, "is no valid Unicode; it holds half of a surrogate pair"
            elif at.startswith(_SHOWN) and (odd := _unprintable(text)) is not None:
                yield at, f"has a character that cannot be printed: U+{ord(odd):04X}"


def _texts(value: object, at: str) -> Iterator[tuple[str, str]]:
    for place, one, _ in walk(value, at):
        if isinstance(one, str):
            yield place, one
        elif isinstance(one, Mapping):
            yield from ((place, str(key)) for key in cast("Mapping[object, object]", one))


def _unprintable(text: str) -> str | None:
    """The first character that cannot be shown, but for the ends of lines and tabs."""
    if text.isprintable():
        return None
    return next(
        (one for one in text if one in _TURNING or (unicodedata.category(one) == "Cc" and one not in "\n\r\t")), None
    )


_OF_KIND: Mapping[ScorerKind, tuple[str, ...]] = {
    "function": ("function",),
    "command": ("command", "output"),
    "predicates": ("predicates",),
    "tool": ("tool", "arguments"),
}
TAKEN = (SUBMIT, FINAL_ANSWER, TOOL)
"""Tools that are the agents', and so can be no judge."""

MOST_METRICS, MOST_RULES = 32, 64
"""More cannot be compared by a person."""

KNOWN_NAMES = frozenset((
    "abs", "all", "any", "bin", "bool", "bytes", "chr", "complex", "dict", "divmod", "enumerate", "filter", "float",
    "format", "frozenset", "getattr", "hasattr", "hash", "hex", "id", "int", "isinstance", "iter", "len", "list", "map",
    "max", "min", "next", "object", "oct", "ord", "pow", "range", "repr", "reversed", "round", "set", "slice", "sorted",
    "str", "sum", "tuple", "type", "zip",
))  # fmt: skip
"""What of Python's own names the sandbox has for an expression."""


def scorer_rules(manifest: Mapping[str, Any], folder: Path) -> Iterator[Wrong]:
    """What a scorer must be. One of an unknown kind is what its keys say."""
    table, has_server = table_of(manifest, "scorer"), "server" in manifest
    chosen: ScorerKind | None = next((one for one in SCORER_KINDS if one == table.get("kind")), None)
    named: ScorerKind | None = next((one for one in SCORER_KINDS if _OF_KIND[one][0] in table), None)
    wrong = [
        *(
            (key, f"goes with kind {other}, not {chosen}")
            for other, keys in _OF_KIND.items()
            for key in keys
            if chosen not in (None, other) and key in table
        ),
        *unlike_json(table_of(table, "arguments"), "arguments").told,
        *wrong_items(table, "constraints", _no_name, str),
        *wrong_items(table, "files", lambda name: _no_files(folder, name)),
        *_metrics(table),
        *_predicates(table, has_server=has_server),
        *_given_once(table),
    ]
    if (judge := chosen or named) is not None:
        wrong += _needs(table, judge, folder, has_server=has_server)
    return ((f"scorer.{at}", reason) for at, reason in wrong)


def _no_name(text: str) -> str | None:
    return None if text.strip() else "must not be empty; give the number's name"


_MISSING: Mapping[ScorerKind, str] = {
    "function": 'is missing; give "FILE.py:NAME", a function beside the manifest',
    "command": "is missing; give the program and its arguments as a list",
    "predicates": "is missing; give [[scorer.predicates]] with metric and expression",
    "tool": "is missing; name the tool of the server that scores",
}


def _needs(table: Mapping[str, Any], judge: ScorerKind, folder: Path, *, has_server: bool) -> Iterator[Wrong]:
    """What the kind of a scorer needs and the table lacks."""
    key = _OF_KIND[judge][0]
    if table.get(key) in (None, []):
        yield key, _MISSING[judge]
    function, tool = given_text(table, "function"), given_text(table, "tool")
    if judge == "function" and function is not None and (why := wrong_function(function, folder, has_server)):
        yield "function", why
    words = [text for _, text in given_texts(table, "command")]
    if judge == "command" and words == table.get("command") and (wrong := command_fault(words, folder)):
        yield f"command[{wrong[0]}]", wrong[1]
    several = len(rows_of(table, "metrics")) > 1 or given_texts(table, "constraints")
    if judge == "command" and table.get("output") == "exit_code" and several:
        yield "output", "an exit code is one metric and no constraint; let the command print JSON"
    if judge == "tool" and tool in TAKEN:
        yield "tool", f"{tool!r} is what agents call; name a tool that only the judge calls"
    if judge == "tool" and not has_server:
        yield "tool", "there is no [server] whose tool it could be"


def _no_files(folder: Path, pattern: str) -> str | None:
    found = files_of(folder, pattern)
    return found if isinstance(found, str) else None


def _metrics(table: Mapping[str, Any]) -> Iterator[Wrong]:
    rows = rows_of(table, "metrics")
    names = [given_text(row, "metric") for _, row in rows]
    if table.get("metrics") == []:
        yield "metrics", "is missing; give [[scorer.metrics]], the one that attempts are compared by first"
    if len(rows) > MOST_METRICS:
        yield "metrics", f"has {len(rows)} tables; at most {MOST_METRICS}"
    for place, row in rows[:MOST_METRICS]:
        at = f"metrics[{place}]"
        for key in ("metric", "unit"):
            text = given_text(row, key) or ""
            if len(text.splitlines()) > 1 or "\t" in text:
                yield f"{at}.{key}", "must be one line"
        name = given_text(row, "metric")
        if name is not None and names.index(name) < place:
            yield f"{at}.metric", f"{name!r} stands there twice"
        if "target" in row and "direction" not in row:
            yield f"{at}.direction", "is missing; a target is reached from one side: minimize or maximize"


def _predicates(table: Mapping[str, Any], *, has_server: bool) -> Iterator[Wrong]:
    rows = rows_of(table, "predicates")
    if len(rows) > MOST_RULES:
        yield "predicates", f"has {len(rows)} tables; at most {MOST_RULES}"
    for place, row in rows[:MOST_RULES]:
        expression = given_text(row, "expression")
        try:
            wrong = [] if expression is None else unknown_names(checked_expression(expression), has_server)
        except SyntaxProblem as problem:
            wrong = [str(problem)]
        yield from ((f"predicates[{place}].expression", reason) for reason in wrong)


def unknown_names(expression: str, has_server: bool) -> list[str]:
    """What is told of each name in an expression that is neither given nor made by itself."""
    told = ("submission", "arguments", "result") if has_server else ("submission",)
    told += ("calls", "evaluations")
    tree = parsed_python(expression.strip(), "eval")
    nodes = [] if tree is None else list(ast.walk(tree))
    made = {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    read = {node.id: None for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    unknown = [name for name in read if name not in made and name not in told and name not in KNOWN_NAMES]
    known = f"{', '.join(told)} and Python's own such as len, sorted, abs"
    return [f"there is no name {name[:60]!r} here{nearest(name, told)}; known: {known}" for name in unknown]


def _given_once(table: Mapping[str, Any]) -> Iterator[Wrong]:
    """Each number that no predicate gives, or that two give."""
    given = [given_text(row, "metric") for _, row in rows_of(table, "predicates")]
    wanted = [(f"metrics[{place}].metric", given_text(row, "metric")) for place, row in rows_of(table, "metrics")]
    wanted += [(f"constraints[{place}]", name.strip() and name) for place, name in given_texts(table, "constraints")]
    for at, name in wanted:
        if given and name and name not in given:
            yield at, f"no predicate gives {name!r}"
    for place, name in enumerate(given):
        if name is not None and name in given[:place]:
            yield f"predicates[{place}].metric", f"{name!r} is given twice"


_GIVEN = frozenset(("calls", "evaluations"))
"""What a scoring function is told besides, if it has parameters of these names."""


def wrong_function(function: str, folder: Path, has_server: bool) -> str | None:
    """Why a scoring function cannot be called: the file is not there, is no Python, or has no such function.

    The parameters are checked where the file has one plain `def` of this name. A name that is bound in another way (an
    import, a decorator, an assignment) passes: only running the file would tell.
    """
    file, colon, name = function.partition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        return f'{function!r} is not of the form "FILE.py:NAME"'
    path = file_of(folder, file)
    tree = None if isinstance(path, str) else parsed_python(path)
    if not isinstance(tree, ast.Module):
        return path if isinstance(path, str) else f"{file!r} cannot be read as Python"
    nodes = list(ast.walk(tree))
    if not any(value in (name, "*", "__getattr__") for one in nodes for value in vars(one).values()):
        defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        return f"{file!r} has no function {name!r}{nearest(name, defined)}"
    bound = [one for one in nodes if name in (getattr(one, "name", ""), getattr(one, "asname", ""))]
    bound += [one for one in nodes if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)]
    only = bound[0] if len(bound) == 1 and bound[0] in tree.body else None
    if not isinstance(only, ast.FunctionDef | ast.AsyncFunctionDef) or only.decorator_list:
        return None
    ways = (frozenset(("submission",)), *((frozenset(("arguments", "result")),) if has_server else ()))
    if any(_takes(only.args, way) for way in ways):
        return None
    called = f"{name}(submission=…)" + (f" or {name}(arguments=…, result=…)" if has_server else "")
    return f"{name!r} of {file!r} cannot be called as {called}, as the judge will be"


def _takes(wanted: ast.arguments, given: frozenset[str]) -> bool:
    """Whether parameters can be given by these names, and need no others but the counts."""
    places = [*wanted.posonlyargs, *wanted.args]
    needed = {one.arg for one in places[: len(places) - len(wanted.defaults)]}
    needed |= {one.arg for one, default in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True) if default is None}
    named = {one.arg for one in (*wanted.args, *wanted.kwonlyargs)}
    return needed - _GIVEN <= given and (wanted.kwarg is not None or given <= named) and not needed - named


_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*t?(?:\.exe)?|sh|bash|node|ruby|perl")
_SWITCHES = re.compile(r"-[bBdEiIOPqsSuvx]+")
"""Options of Python that take no value; what any other option means is not known here."""


def command_fault(
    words: Sequence[str], folder: Path, *, confined: bool = True, judges: bool = True
) -> tuple[int, str] | None:
    """The place of the first word of a command that cannot be used, and why: a program or script that is not there.

    A script is the first word after an interpreter. What is not `confined` may lie anywhere. A program that `judges`
    must be there too: otherwise its absence shows only when the one submission is spent.
    """
    for place, word in enumerate(words):
        if "\0" in word:
            return place, "has a null character, which no program can be told"
    if not words or not words[0].strip():
        return (0, "must not be empty: it is the program") if words else None
    program, why = words[0], None
    if judges:
        why = _no_program(program, folder)
    elif "/" in program:
        why = _no_script(program, folder, confined=confined, judges=False)
    if why is not None:
        return 0, why
    if program != PYTHON and not _INTERPRETER.fullmatch(PurePosixPath(program).name):
        return None
    place = next((at for at, word in enumerate(words) if at and not _SWITCHES.fullmatch(word)), 0)
    if place and not words[place].startswith("-"):
        why = _no_script(words[place], folder, confined=confined, judges=judges)
    return None if why is None else (place, why)


def _no_program(program: str, folder: Path) -> str | None:
    """Why a program cannot be started, as far as can be seen."""
    if program == PYTHON:
        return None
    if "/" not in program:
        return None if shutil.which(program) else f"there is no program {program[:80]!r} on this machine"
    found = Path(program) if PurePosixPath(program).is_absolute() else file_of(folder, program)
    if isinstance(found, str):
        return found
    if not_a_file(found) is not None:
        return f"there is no file {program[:80]!r}"
    return None if os.access(found, os.X_OK) else f"{program[:80]!r} is not executable"


def _no_script(name: str, folder: Path, *, confined: bool, judges: bool) -> str | None:
    """Why there is no such script; a folder that Python can run is one."""
    if not name:
        return None
    if PurePosixPath(name).is_absolute():
        there = not judges or not_a_file(Path(name)) is None or is_folder(folder, name)
        return None if there else f"there is no file {name[:80]!r}"
    root = folder if confined else Path(folder.anchor)
    place = name if confined else str(folder / name)
    found = file_of(root, place)
    if isinstance(found, Path) or isinstance(file_of(root, f"{place}/__main__.py"), Path):
        return None
    return found

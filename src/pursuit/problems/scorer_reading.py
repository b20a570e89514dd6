"""Reads the `[scorer]` of a manifest, and checks that its program and its declared files are there. Runs nothing.

Invariant: a `Scorer` without faults has a metric, and exactly what its kind needs.
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
from typing import Any, cast

from pursuit.config.files import Fields, as_table, kind
from pursuit.config.servers import PYTHON
from pursuit.config.surroundings import read_isolation
from pursuit.core.base_model import nearest
from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.problems.brief import FINAL_ANSWER, SUBMIT, TOOL
from pursuit.problems.files import file_of, files_of, is_folder, not_a_file, parsed_python
from pursuit.problems.manifest import (
    COMMAND_OUTPUTS,
    DIRECTIONS,
    SCORER_KINDS,
    Metric,
    Rule,
    Scorer,
    ScorerKind,
    is_unicode,
    walk,
)

DEEPEST = 64
_LONGEST_PLACE = 100
_LARGEST = 2**63
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of a text, so that it reads other than it is."""
_SHOWN = ("title", "summary", "statement", "citations", "submission", "scorer.metrics")
"""The parts of a manifest that people and agents read."""


def plain_copy(fields: Fields) -> dict[str, Any]:
    """The table as a file would have it: lists for tuples, texts for paths.

    What holds itself or is nested too deeply is left out, and is a fault.
    """
    found: dict[str, Any] = {}
    for key, value in fields.table.items():
        cut: list[tuple[str, str]] = []
        found[key] = _copied(value, key, (), cut)
        for place, reason in cut[:1]:
            fields.fault(place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…", reason)
    return found


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


def check_plain(fields: Fields, key: str, value: object) -> bool:
    """A fault for everything below this key that JSON has no word for; whether it can be written as JSON."""
    unlike = [(at, reason) for at, one, _ in walk(value, key) if (reason := _unlike_json(one))]
    for at, reason in unlike:
        fields.fault(at, reason)
    return not unlike and all(is_unicode(text) for _, text in _texts(value, key))


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


def check_texts(root: Fields) -> None:
    """A fault for each text that is no Unicode (a program may pass one), or that a screen would obey, not show."""
    for key, value in root.table.items():
        for at, text in _texts(value, key):
            if not is_unicode(text):
                root.fault(at, "is no valid Unicode; it holds half of a surrogate pair")
            elif at.startswith(_SHOWN) and (odd := _unprintable(text)) is not None:
                root.fault(at, f"has a character that cannot be printed: U+{ord(odd):04X}")


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
_SHARED = ("kind", "metrics", "constraints", "tolerance", "timeout", "files", "isolation")
SCORER_KEYS = (*_SHARED, *(key for keys in _OF_KIND.values() for key in keys))
TAKEN = (SUBMIT, FINAL_ANSWER, TOOL)
"""Tools that are the agents', and so can be no judge."""

MOST_METRICS, MOST_RULES = 32, 64
"""More cannot be compared by a person."""

METRIC_KEYS = ("metric", "unit", "direction", "target", "best_known")
RULE_KEYS = ("metric", "expression")
KNOWN_NAMES = frozenset((
    "abs", "all", "any", "bin", "bool", "bytes", "chr", "complex", "dict", "divmod", "enumerate", "filter", "float",
    "format", "frozenset", "getattr", "hasattr", "hash", "hex", "id", "int", "isinstance", "iter", "len", "list", "map",
    "max", "min", "next", "object", "oct", "ord", "pow", "range", "repr", "reversed", "round", "set", "slice", "sorted",
    "str", "sum", "tuple", "type", "zip",
))  # fmt: skip
"""What of Python's own names the sandbox has for an expression."""


def read_scorer(root: Fields, folder: Path, *, has_server: bool) -> Scorer | None:
    """The scorer of a manifest; None, and faults, where there is none. Of an unknown kind it is what its keys say."""
    if "scorer" not in root.table:
        root.fault("scorer", f"is missing; a problem needs a judge: kind = {' or '.join(SCORER_KINDS)}")
        return None
    fields = root.inside("scorer")
    if as_table(root.table["scorer"]) is None:
        return None
    fields.only(SCORER_KEYS)
    chosen = fields.word("kind", SCORER_KINDS, needed=True)
    for other, keys in _OF_KIND.items():
        for key in keys:
            if chosen not in (None, other) and key in fields.table:
                fields.fault(key, f"goes with kind {other}, not {chosen}")
    timeout = fields.number("timeout")
    arguments = fields.subtable("arguments")
    check_plain(fields, "arguments", arguments)
    named: list[ScorerKind] = [one for one in SCORER_KINDS if _OF_KIND[one][0] in fields.table]
    scorer = Scorer(
        kind=chosen or (named[0] if named else "predicates"),
        metrics=_metrics(fields),
        constraints=read_list(
            fields, "constraints", lambda name: None if name.strip() else "must not be empty; give the number's name"
        ),
        tolerance=float(fields.number("tolerance", zero=True) or 0),
        timeout=60.0 if timeout is None else timeout,
        function=fields.text("function"),
        command=fields.texts("command") or (),
        output=fields.word("output", COMMAND_OUTPUTS) or "json",
        predicates=_rules(fields, has_server=has_server),
        tool=fields.text("tool"),
        arguments=arguments,
        isolation=read_isolation(fields),
        files=read_list(fields, "files", lambda name: _no_files(folder, name), same=None),
    )
    if chosen is not None or named:
        _check_needs(fields, scorer, folder, has_server=has_server)
    _check_rules(fields, scorer)
    return scorer


_MISSING: Mapping[ScorerKind, str] = {
    "function": 'is missing; give "FILE.py:NAME", a function beside the manifest',
    "command": "is missing; give the program and its arguments as a list",
    "predicates": "is missing; give [[scorer.predicates]] with metric and expression",
    "tool": "is missing; name the tool of the server that scores",
}


def _check_needs(fields: Fields, scorer: Scorer, folder: Path, *, has_server: bool) -> None:
    """A fault for what the kind of a scorer needs and the table lacks."""
    key = _OF_KIND[scorer.kind][0]
    if fields.table.get(key) in (None, []):
        fields.fault(key, _MISSING[scorer.kind])
    if scorer.kind == "function" and scorer.function is not None:
        check_function(fields, scorer.function, folder, has_server=has_server)
    if scorer.kind == "command" and fields.table.get(key) == list(scorer.command):
        wrong = command_fault(scorer.command, folder)
        if wrong is not None:
            fields.fault(f"command[{wrong[0]}]", wrong[1])
    if scorer.kind == "command" and scorer.output == "exit_code" and (len(scorer.metrics) > 1 or scorer.constraints):
        fields.fault("output", "an exit code is one metric and no constraint; let the command print JSON")
    if scorer.kind == "tool" and scorer.tool in TAKEN:
        fields.fault("tool", f"{scorer.tool!r} is what agents call; name a tool that only the judge calls")
    if scorer.kind == "tool" and not has_server:
        fields.fault("tool", "there is no [server] whose tool it could be")


def _no_files(folder: Path, pattern: str) -> str | None:
    found = files_of(folder, pattern)
    return found if isinstance(found, str) else None


def read_list(
    fields: Fields, key: str, wrong: Callable[[str], str | None], same: Callable[[str], str] | None = str
) -> tuple[str, ...]:
    """A list of texts; each that is `wrong`, or the `same` as an earlier one, is a fault."""
    texts = fields.texts(key) or ()
    for place, text in enumerate(texts):
        reason = wrong(text)
        if reason is None and same is not None and same(text) in map(same, texts[:place]):
            reason = f"{text!r} stands there twice"
        if reason is not None:
            fields.fault(f"{key}[{place}]", reason)
    return texts


def _metrics(fields: Fields) -> tuple[Metric, ...]:
    found: list[Metric] = []
    for one in fields.rows("metrics", METRIC_KEYS, MOST_METRICS):
        name, unit = one.text("metric", needed=True) or "", one.text("unit") or ""
        for key, text in (("metric", name), ("unit", unit)):
            if len(text.splitlines()) > 1 or "\t" in text:
                one.fault(key, "must be one line")
        if name and name in {other.name for other in found}:
            one.fault("metric", f"{name!r} stands there twice")
        target, best_known = (one.number(key, negative=True) for key in ("target", "best_known"))
        if target is not None and "direction" not in one.table:
            one.fault("direction", "is missing; a target is reached from one side: minimize or maximize")
        found.append(
            Metric(
                name=name,
                unit=unit,
                direction=one.word("direction", DIRECTIONS),
                target=None if target is None else float(target),
                best_known=None if best_known is None else float(best_known),
            )
        )
    if not fields.table.get("metrics"):
        fields.fault("metrics", "is missing; give [[scorer.metrics]], the one that attempts are compared by first")
    return tuple(found)


def _rules(fields: Fields, *, has_server: bool) -> tuple[Rule, ...]:
    found: list[Rule] = []
    for one in fields.rows("predicates", RULE_KEYS, MOST_RULES):
        metric, expression = (one.text(key, needed=True) for key in RULE_KEYS)
        if expression is not None:
            try:
                checked_expression(expression)
            except SyntaxProblem as problem:
                one.fault("expression", str(problem))
            else:
                _check_names(one, expression, has_server=has_server)
        found.append(Rule(metric=metric or "", expression=expression or ""))
    return tuple(found)


def _check_names(rule: Fields, expression: str, *, has_server: bool) -> None:
    """A fault for each name in an expression that is neither given nor made by itself."""
    told = ("submission", "arguments", "result") if has_server else ("submission",)
    told += ("calls", "evaluations")
    tree = parsed_python(expression.strip(), "eval")
    nodes = [] if tree is None else list(ast.walk(tree))
    made = {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    read = {node.id: None for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    unknown = [name for name in read if name not in made and name not in told and name not in KNOWN_NAMES]
    for name in unknown:
        known = f"{', '.join(told)} and Python's own such as len, sorted, abs"
        rule.fault("expression", f"there is no name {name[:60]!r} here{nearest(name, told)}; known: {known}")


def _check_rules(fields: Fields, scorer: Scorer) -> None:
    """A fault for each number that no predicate gives, or that two give."""
    given = [rule.metric for rule in scorer.predicates]
    wanted = [(f"metrics[{place}].metric", metric.name) for place, metric in enumerate(scorer.metrics)]
    wanted += [(f"constraints[{place}]", name) for place, name in enumerate(scorer.constraints)]
    for key, name in wanted:
        if given and name.strip() and name not in given:
            fields.fault(key, f"no predicate gives {name!r}")
    for place, name in enumerate(given):
        if name and name in given[:place]:
            fields.fault(f"predicates[{place}].metric", f"{name!r} is given twice")


_GIVEN = frozenset(("calls", "evaluations"))
"""What a scoring function is told besides, if it has parameters of these names."""


def check_function(fields: Fields, function: str, folder: Path, *, has_server: bool) -> None:
    """Checks that the file is there, is Python, and has the function, with the parameters of its call.

    The parameters are checked where the file has one plain `def` of this name. A name that is bound in another way (an
    import, a decorator, an assignment) passes: only running the file would tell.
    """
    file, colon, name = function.partition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        fields.fault("function", f'{function!r} is not of the form "FILE.py:NAME"')
        return
    path = file_of(folder, file)
    tree = None if isinstance(path, str) else parsed_python(path)
    if not isinstance(tree, ast.Module):
        fields.fault("function", path if isinstance(path, str) else f"{file!r} cannot be read as Python")
        return
    nodes = list(ast.walk(tree))
    if not any(value in (name, "*", "__getattr__") for one in nodes for value in vars(one).values()):
        defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        fields.fault("function", f"{file!r} has no function {name!r}{nearest(name, defined)}")
        return
    bound = [one for one in nodes if name in (getattr(one, "name", ""), getattr(one, "asname", ""))]
    bound += [one for one in nodes if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)]
    only = bound[0] if len(bound) == 1 and bound[0] in tree.body else None
    if not isinstance(only, ast.FunctionDef | ast.AsyncFunctionDef) or only.decorator_list:
        return
    ways = (frozenset(("submission",)), *((frozenset(("arguments", "result")),) if has_server else ()))
    if not any(_takes(only.args, way) for way in ways):
        called = f"{name}(submission=…)" + (f" or {name}(arguments=…, result=…)" if has_server else "")
        fields.fault("function", f"{name!r} of {file!r} cannot be called as {called}, as the judge will be")


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

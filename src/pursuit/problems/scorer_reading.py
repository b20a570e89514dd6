"""Reads the `[scorer]` of a manifest, and checks that its program and its declared files are there. Runs nothing.

Invariant: a `Scorer` without faults has a metric, and exactly what its kind needs.
"""

from __future__ import annotations

import ast
import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Any, cast

from pursuit.config.files import Fields, as_table, kind
from pursuit.config.servers import PYTHON
from pursuit.core.base_model import nearest
from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.brief import FINAL_ANSWER, SUBMIT, TOOL
from pursuit.problems.files import file_of, files_of, is_folder, not_a_file, parsed_python, source_of
from pursuit.problems.manifest import COMMAND_OUTPUTS, DIRECTIONS, SCORER_KINDS, Metric, Rule, Scorer, ScorerKind

DEEPEST = 64
_LONGEST_PLACE = 100
_LARGEST = 2**63
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of a text, so that it reads other than it is."""


def within_depth(fields: Fields, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without what is nested too deeply, which is a fault of its part of the table."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        cut: list[str] = []
        found[key] = _within(value, key, 0, cut)
        if cut:
            fields.fault(_shown(cut[0]), f"is nested more than {DEEPEST} levels deep")
    return found


def _within(value: Any, at: str, depth: int, cut: list[str]) -> Any:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > DEEPEST:
        cut.append(at)
        return {}
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value).items()
        return {key: _within(one, f"{at}.{key}", depth + 1, cut) for key, one in named}
    listed = cast("list[Any]", value)
    return [_within(one, f"{at}[{place}]", depth + 1, cut) for place, one in enumerate(listed)]


def _shown(place: str) -> str:
    return place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…"


def check_plain(fields: Fields, key: str, value: object) -> bool:
    """A fault for everything below this key that JSON has no word for; whether it can be written as JSON."""
    unlike = list(_unlike_json(value, key))
    for at, reason in unlike:
        fields.fault(at, reason)
    return not unlike and all(_is_writable(text) for _, text in _texts(value, key))


def check_unicode(fields: Fields, table: Mapping[str, object]) -> None:
    """A fault for every text that cannot be written; a file has none, a program may hand one in."""
    for key, value in table.items():
        for at, text in _texts(value, key):
            if not _is_writable(text):
                fields.fault(at, "is no valid Unicode; it holds half of a surrogate pair")


def check_printable(fields: Fields, key: str, value: object) -> None:
    """A fault for every text below this key with a character that a screen would obey instead of showing it."""
    for at, text in _texts(value, key):
        odd = unprintable(text)
        if odd is not None:
            fields.fault(at, f"has a character that cannot be printed: U+{ord(odd):04X}")


def check_line(fields: Fields, key: str) -> None:
    """A fault for a name that is more than one line, or that a screen cannot show."""
    text = fields.table.get(key)
    if isinstance(text, str) and ((odd := unprintable(text)) is not None or len(text.splitlines()) > 1 or "\t" in text):
        fields.fault(
            key, "must be one line" if odd is None else f"has a character that cannot be printed: U+{ord(odd):04X}"
        )


def unprintable(text: str) -> str | None:
    """The first character that cannot be shown, but for the ends of lines and tabs; nothing if there is none."""
    if text.isprintable():
        return None
    return next(
        (one for one in text if one in _TURNING or (unicodedata.category(one) == "Cc" and one not in "\n\r\t")), None
    )


def _texts(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            yield at, str(key)
            yield from _texts(one, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from _texts(one, f"{at}[{place}]")


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unlike_json(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            if isinstance(key, str):
                yield from _unlike_json(one, f"{at}.{key}")
            else:
                yield at, f"has a key that is no text: {str(key)[:60]!r}"
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from _unlike_json(one, f"{at}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield at, f"must be a finite number, not {value}"
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST:
        yield at, "is too large for a whole number"
    elif value is not None and not isinstance(value, str | int | float):
        yield at, f"must be something that JSON has, not {kind(value)}; put it in quotes"


_OF_KIND: Mapping[ScorerKind, tuple[str, ...]] = {
    "function": ("function",),
    "command": ("command", "output"),
    "predicates": ("predicates",),
    "tool": ("tool", "arguments"),
}
_SHARED = ("kind", "metrics", "constraints", "tolerance", "timeout", "files")
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
    fields = Fields(root.subtable("scorer"), at="scorer", source=root.source, faults=root.faults)
    if as_table(root.table["scorer"]) is None:
        return None
    fields.only(SCORER_KEYS)
    chosen = fields.word("kind", SCORER_KINDS, needed=True)
    metrics = _metrics(fields)
    timeout = fields.number("timeout")
    tolerance = fields.amount("tolerance") if "tolerance" in fields.table else 0.0
    constraints = _constraints(fields)
    arguments = fields.subtable("arguments")
    check_plain(fields, "arguments", arguments)
    rules = _rules(fields, has_server=has_server)
    if chosen is not None:
        _only_of(fields, chosen)
    named: list[ScorerKind] = [one for one in SCORER_KINDS if _OF_KIND[one][0] in fields.table]
    likely = next(iter(named), None) if chosen is None else chosen
    if likely is not None:
        _needs_of(fields, likely, folder, has_server=has_server)
    _check_rules(fields, rules, metrics, constraints)
    output = fields.word("output", COMMAND_OUTPUTS) or "json"
    if likely == "command" and output == "exit_code" and (len(metrics) > 1 or constraints):
        fields.fault("output", "an exit code is one metric and no constraint; let the command print JSON")
    return Scorer(
        kind=likely or "predicates",
        metrics=metrics,
        constraints=constraints,
        tolerance=tolerance,
        timeout=60.0 if timeout is None else timeout,
        function=fields.text("function"),
        command=fields.texts("command") or (),
        output=output,
        predicates=rules,
        tool=fields.text("tool"),
        arguments=arguments,
        files=_files(fields, folder),
    )


_MISSING: Mapping[ScorerKind, str] = {
    "function": 'is missing; give "FILE.py:NAME", a function beside the manifest',
    "command": "is missing; give the program and its arguments as a list",
    "predicates": "is missing; give [[scorer.predicates]] with metric and expression",
    "tool": "is missing; name the tool of the server that scores",
}


def _needs_of(fields: Fields, chosen: ScorerKind, folder: Path, *, has_server: bool) -> None:
    """A fault for what a kind needs and the table lacks."""
    key = _OF_KIND[chosen][0]
    if fields.table.get(key) in (None, []):
        fields.fault(key, _MISSING[chosen])
    elif chosen == "function" and isinstance(fields.table[key], str):
        check_function(fields, fields.table[key], folder, has_server=has_server)
    elif chosen == "command" and isinstance(fields.table[key], list):
        check_command(fields, key, cast("list[object]", fields.table[key]), folder)
    if chosen == "tool" and fields.table.get(key) in TAKEN:
        fields.fault("tool", f"{fields.table[key]!r} is what agents call; name a tool that only the judge calls")
    if chosen == "tool" and not has_server:
        fields.fault("tool", "there is no [server] whose tool it could be")


def _files(fields: Fields, folder: Path) -> tuple[str, ...]:
    patterns = fields.texts("files") or ()
    for place, pattern in enumerate(patterns):
        found = files_of(folder, pattern)
        if isinstance(found, str):
            fields.fault(f"files[{place}]", found)
    return patterns


def _constraints(fields: Fields) -> tuple[str, ...]:
    constraints = fields.texts("constraints") or ()
    for place, name in enumerate(constraints):
        if not name.strip():
            fields.fault(f"constraints[{place}]", "must not be empty; give the number's name")
        elif name in constraints[:place]:
            fields.fault(f"constraints[{place}]", f"{name!r} stands there twice")
    return constraints


def _only_of(fields: Fields, chosen: ScorerKind) -> None:
    for other, keys in _OF_KIND.items():
        for key in keys:
            if other != chosen and key in fields.table:
                fields.fault(key, f"goes with kind {other}, not {chosen}")


def read_tables(fields: Fields, key: str, known: tuple[str, ...], most: int | None = None) -> list[Fields]:
    """The tables of a list; what is none is a fault, and so are too many, of which the first are read."""
    at = f"{fields.at}.{key}" if fields.at else key
    given = fields.table.get(key, [])
    if not isinstance(given, list):
        fields.fault(key, f"must be a list of tables ([[{at}]]), not {kind(given)}")
        return []
    listed = cast("list[object]", given)
    if most is not None and len(listed) > most:
        fields.fault(key, f"has {len(listed)} tables; at most {most}")
    found: list[Fields] = []
    for place, entry in enumerate(listed[:most]):
        table = as_table(entry)
        if table is None:
            fields.fault(f"{key}[{place}]", f"must be a table, not {kind(entry)}")
            continue
        one = Fields(table, at=f"{at}[{place}]", source=fields.source, faults=fields.faults)
        one.only(known)
        found.append(one)
    return found


def _metrics(fields: Fields) -> tuple[Metric, ...]:
    found: list[Metric] = []
    for one in read_tables(fields, "metrics", METRIC_KEYS, MOST_METRICS):
        name, direction = one.text("metric"), one.word("direction", DIRECTIONS)
        if name is None and "metric" not in one.table:
            one.fault("metric", "is missing; give the metric's name")
        check_line(one, "metric")
        check_line(one, "unit")
        if name is not None and name in {other.name for other in found}:
            one.fault("metric", f"{name!r} stands there twice")
        target = _number(one, "target")
        if target is not None and "direction" not in one.table:
            one.fault("direction", "is missing; a target is reached from one side: minimize or maximize")
        found.append(
            Metric(
                name=name or "",
                unit=one.text("unit") or "",
                direction=direction,
                target=target,
                best_known=_number(one, "best_known"),
            )
        )
    if not fields.table.get("metrics"):
        fields.fault("metrics", "is missing; give [[scorer.metrics]], the one that attempts are compared by first")
    return tuple(found)


def _number(fields: Fields, key: str) -> float | None:
    """Any finite number."""
    if key not in fields.table:
        return None
    value = fields.table[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.fault(key, f"must be a number, not {kind(value)}")
    elif abs(value) > sys.float_info.max and not (isinstance(value, float) and math.isinf(value)):
        fields.fault(key, "is too large")
    elif not math.isfinite(value):
        fields.fault(key, f"must be a finite number, not {value}")
    else:
        return float(value)
    return None


def _rules(fields: Fields, *, has_server: bool) -> tuple[Rule, ...]:
    found: list[Rule] = []
    for one in read_tables(fields, "predicates", RULE_KEYS, MOST_RULES):
        metric, expression = one.text("metric"), one.text("expression")
        for key, value in (("metric", metric), ("expression", expression)):
            if value is None and key not in one.table:
                one.fault(key, "is missing")
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


def _check_rules(
    fields: Fields, rules: tuple[Rule, ...], metrics: tuple[Metric, ...], constraints: tuple[str, ...]
) -> None:
    given = [rule.metric for rule in rules]
    for place, metric in enumerate(metrics):
        if metric.name and rules and metric.name not in given:
            fields.fault(f"metrics[{place}].metric", f"no predicate gives {metric.name!r}")
    for place, name in enumerate(constraints):
        if name.strip() and rules and name not in given:
            fields.fault(f"constraints[{place}]", f"no predicate gives {name!r}")
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
    text = None if isinstance(path, str) else source_of(path)
    tree = None if text is None else parsed_python(text)
    if isinstance(path, str):
        fields.fault("function", path)
        return
    if text is None or not isinstance(tree, ast.Module):
        fields.fault("function", f"{file!r} cannot be read as Python")
        return
    if not re.search(rf"\b{name}\b|import \*|\b__getattr__\b", text):
        defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        fields.fault("function", f"{file!r} has no function {name!r}{nearest(name, defined)}")
        return
    nodes = list(ast.walk(tree))
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


def check_command(
    fields: Fields,
    key: str,
    command: Sequence[object],
    folder: Path,
    *,
    shift: int = 0,
    confined: bool = True,
    judges: bool = True,
) -> None:
    """Checks that the program, and the script that an interpreter is given first, are there.

    The first `shift` words stand elsewhere than in the list `key`. What is not `confined` may lie anywhere. A program
    that `judges` must be there too: otherwise its absence shows only when the one submission is spent.
    """

    def fault(place: int, reason: str) -> None:
        fields.fault("command" if place < shift else f"{key}[{place - shift}]", reason)

    words = [word for word in command if isinstance(word, str)]
    for place, word in enumerate(command):
        if isinstance(word, str) and "\0" in word:
            fault(place, "has a null character, which no program can be told")
            return
    if len(words) != len(command) or not words:
        return
    if not words[0].strip():
        fault(0, "must not be empty: it is the program")
        return
    program = words[0]
    why = _no_program(program, folder) if judges else None
    if why is None and not judges and "/" in program:
        why = _no_script(program, folder, confined=confined, judges=False)
    if why is not None:
        fault(0, why)
        return
    if program != PYTHON and not _INTERPRETER.fullmatch(PurePosixPath(program).name):
        return
    place = next((at for at, word in enumerate(words) if at and not _SWITCHES.fullmatch(word)), len(words))
    if place < len(words) and not words[place].startswith("-"):
        why = _no_script(words[place], folder, confined=confined, judges=judges)
        if why is not None:
            fault(place, why)


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


def as_given(table: Mapping[str, Any]) -> dict[str, Any]:
    """A program's table as a file would have it, in new dicts; raises `ValidationFailed` if it holds itself."""
    return {key: _plain(value, key, ()) for key, value in table.items()}


def _plain(value: object, at: str, around: tuple[int, ...]) -> Any:
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    if not isinstance(value, Mapping | list | tuple):
        return value
    if id(cast("object", value)) in around or len(around) > DEEPEST:
        held = "holds itself" if len(around) <= DEEPEST else f"is nested more than {DEEPEST} levels deep"
        raise ValidationFailed([Fault(field=at.partition(".")[0].partition("[")[0], reason=held)])
    inside = (*around, id(cast("object", value)))
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, object]", value).items()
        return {key: _plain(one, f"{at}.{key}", inside) for key, one in named}
    return [_plain(one, f"{at}[{place}]", inside) for place, one in enumerate(cast("list[object]", value))]

"""The `[scorer]` of a manifest: the judge, its metrics, and what its program and its files must be. Runs nothing."""

from __future__ import annotations

import ast
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from pursuit.config.files import as_table
from pursuit.config.servers import PYTHON
from pursuit.config.surroundings import IsolationKey
from pursuit.core.base_model import AnyNumber, Broken, Filled, NotNegative, Positive, kind, must, nearest, refuse, rules
from pursuit.core.patterns import SyntaxProblem, checked_expression
from pursuit.problems.files import file_of, files_of, is_folder, not_a_file, parsed_python

Direction = Literal["minimize", "maximize"]
ScorerKind = Literal["function", "command", "predicates", "tool"]
SCORER_KINDS: tuple[ScorerKind, ...] = get_args(ScorerKind)
CommandOutput = Literal["json", "exit_code"]
Real = Annotated[AnyNumber, AfterValidator(float)]

TOOL = "design_brief"
SUBMIT = "submit_final"
FINAL_ANSWER = "final_answer"
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


Wrong = tuple[str, str]
"""A field, and what is wrong with it."""
DEEPEST = 100
"""Levels of nested tables and lists that `walk` follows."""
_LARGEST = 2**63


def walk(value: object, at: str = "", depth: int = 0) -> Iterator[tuple[str, object, int]]:
    """The value and all values inside, in order, each with its place and its depth."""
    yield at, value, depth
    if depth == DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            yield from walk(one, f"{at}.{key}" if at else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from walk(one, f"{at}[{place}]", depth + 1)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


class Unlike(NamedTuple):
    """What JSON has no word for, and whether the whole can be written as JSON."""

    told: list[Wrong]
    writable: bool


def unlike_json(value: object, at: str) -> Unlike:
    """Everything in a value that JSON has no word for."""
    told = [(place, reason) for place, one, _ in walk(value, at) if (reason := _unlike_json(one))]
    return Unlike(told, not told and all(is_unicode(text) for _, text in texts_in(value, at)))


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


def texts_in(value: object, at: str) -> Iterator[tuple[str, str]]:
    """The texts in a value, also the keys of its tables, each with its place."""
    for place, one, _ in walk(value, at):
        if isinstance(one, str):
            yield place, one
        elif isinstance(one, Mapping):
            yield from ((place, str(key)) for key in cast("Mapping[object, object]", one))


class Reading(NamedTuple):
    """Where a manifest is read. What has no folder of its own is not `confined`: its server may be a file anywhere."""

    folder: Path
    confined: bool
    has_server: bool
    citation_mode: object
    check_proposer: Callable[[Mapping[str, Any], ValidationInfo], None]

    @classmethod
    def of(cls, info: ValidationInfo) -> Reading:
        """The one of this validation."""
        return cast("Reading", info.context)


def at_most(most: int) -> BeforeValidator:
    """A list of no more tables; what is in a longer one is not looked at."""

    def check(value: object) -> object:
        if isinstance(value, list) and (count := len(cast("list[object]", value))) > most:
            raise ValueError(f"has {count} tables; at most {most}")
        return cast("object", value)

    return BeforeValidator(check)


def _twice(given: Sequence[object], same: Callable[[str], str] = str) -> Iterator[tuple[int, str]]:
    """The texts of a list that stand in it before, each with its place."""
    seen = set[str]()
    for place, text in enumerate(given):
        if isinstance(text, str):
            if same(text) in seen:
                yield place, f"{text!r} stands there twice"
            seen.add(same(text))


def once(same: Callable[[str], str] = str) -> Any:
    """A list in which no text is the `same` as an earlier one."""
    return rules(lambda given, _: (Broken(why, (place,)) for place, why in _twice(given, same)), of=list)


OneLine = Annotated[Filled, must(lambda text: len(text.splitlines()) < 2 and "\t" not in text, "must be one line")]


def _metric_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if "target" in given and "direction" not in given:
        yield Broken("is missing; a target is reached from one side: minimize or maximize", "direction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a score. `target` is what counts as solved, `best_known` what the literature reached."""

    name: Annotated[OneLine, Field(alias="metric")]
    unit: OneLine = ""
    direction: Direction | None = None
    target: Real | None = None
    best_known: Real | None = None

    def met(self, value: float) -> bool:
        """Whether a value reaches the target; without a target every value does."""
        if self.target is None:
            return True
        return value >= self.target if self.direction == "maximize" else value <= self.target


def _metrics_rules(given: Sequence[object], _info: ValidationInfo) -> Iterator[Broken]:
    names = [given_text(as_table(row) or {}, "metric") for row in given]
    yield from (Broken(why, (place, "metric")) for place, why in _twice(names))
    if not given:
        yield Broken(f"is missing; {Scorer.NEEDED['metrics']}")


def _expression(text: str, info: ValidationInfo) -> str:
    try:
        names = unknown_names(checked_expression(text), Reading.of(info).has_server)
    except SyntaxProblem as problem:
        raise ValueError(str(problem)) from None
    refuse(Broken(why) for why in names)
    return text


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRule:
    """One expression over the submission, and the metric that it gives."""

    metric: Filled
    expression: Annotated[Filled, AfterValidator(_expression)]


def _arguments(given: Mapping[str, Any]) -> Mapping[str, Any]:
    refuse(Broken(why, at or None) for at, why in unlike_json(given, "").told)
    return given


def _declared(pattern: str, info: ValidationInfo) -> str:
    if isinstance(found := files_of(Reading.of(info).folder, pattern), str):
        raise ValueError(found)
    return pattern


_NO_NAME = "must not be empty; give the number's name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """The judge. Only what goes with its kind is there; every constraint holds at or below `tolerance`.

    `files` are paths or globs, relative to the manifest, of what else it reads or imports.
    """

    NEEDED: ClassVar[Mapping[str, str]] = {
        "kind": f"give one of {', '.join(SCORER_KINDS)}",
        "metrics": "give [[scorer.metrics]], the one that attempts are compared by first",
    }

    kind: ScorerKind
    metrics: Annotated[
        tuple[Annotated[Metric, rules(_metric_rules)], ...], rules(_metrics_rules, of=list), at_most(MOST_METRICS)
    ]
    constraints: Annotated[tuple[Annotated[str, must(str.strip, _NO_NAME)], ...], once()] = ()
    tolerance: Annotated[NotNegative, AfterValidator(float)] = 0.0
    timeout: Positive = 60.0
    function: Filled | None = None
    command: tuple[str, ...] = ()
    output: CommandOutput = "json"
    predicates: Annotated[tuple[ScoringRule, ...], at_most(MOST_RULES)] = ()
    tool: Filled | None = None
    arguments: Annotated[Mapping[str, Any], AfterValidator(_arguments)] = field(default_factory=dict[str, Any])
    isolation: IsolationKey | None = None
    files: tuple[Annotated[str, AfterValidator(_declared)], ...] = ()


_OF_KIND: Mapping[ScorerKind, tuple[str, ...]] = {
    "function": ("function",),
    "command": ("command", "output"),
    "predicates": ("predicates",),
    "tool": ("tool", "arguments"),
}
_MISSING: Mapping[ScorerKind, str] = {
    "function": 'is missing; give "FILE.py:NAME", a function beside the manifest',
    "command": "is missing; give the program and its arguments as a list",
    "predicates": "is missing; give [[scorer.predicates]] with metric and expression",
    "tool": "is missing; name the tool of the server that scores",
}


def scorer_rules(given: Mapping[str, Any], info: ValidationInfo) -> Iterator[Broken]:
    """What goes with the kind of a scorer. One of an unknown kind is what its keys say."""
    chosen: ScorerKind | None = next((one for one in SCORER_KINDS if one == given.get("kind")), None)
    named: ScorerKind | None = next((one for one in SCORER_KINDS if _OF_KIND[one][0] in given), None)
    for other, keys in _OF_KIND.items():
        if chosen not in (None, other):
            yield from (Broken(f"goes with kind {other}, not {chosen}", key) for key in keys if key in given)
    yield from _given_once(given)
    if (judge := chosen or named) is not None:
        yield from _needs(given, judge, Reading.of(info))


def _needs(given: Mapping[str, Any], judge: ScorerKind, reading: Reading) -> Iterator[Broken]:
    """What the kind of a scorer needs and the table lacks."""
    key = _OF_KIND[judge][0]
    if given.get(key) in (None, []):
        yield Broken(_MISSING[judge], key)
    function, tool, command = given_text(given, "function"), given_text(given, "tool"), given.get("command")
    wrong = judge == "function" and function and wrong_function(function, reading.folder, reading.has_server)
    if wrong:
        yield Broken(wrong, "function")
    if judge == "command" and isinstance(command, list):
        words = [word for word in cast("list[object]", command) if isinstance(word, str)]
        if words == command and (place := command_fault(words, reading.folder)):
            yield Broken(place[1], ("command", place[0]))
    several = len(rows_of(given, "metrics")) > 1 or given.get("constraints")
    if judge == "command" and given.get("output") == "exit_code" and several:
        yield Broken("an exit code is one metric and no constraint; let the command print JSON", "output")
    if judge == "tool" and tool in TAKEN:
        yield Broken(f"{tool!r} is what agents call; name a tool that only the judge calls", "tool")
    if judge == "tool" and not reading.has_server:
        yield Broken("there is no [server] whose tool it could be", "tool")


def _given_once(table: Mapping[str, Any]) -> Iterator[Broken]:
    """Each number that no predicate gives, or that two give."""
    if len(rows := rows_of(table, "predicates")) > MOST_RULES:
        return
    given = [given_text(row, "metric") for _, row in rows]
    wanted: list[tuple[tuple[str | int, ...], object]] = [
        (("metrics", place, "metric"), given_text(row, "metric")) for place, row in rows_of(table, "metrics")
    ]
    if isinstance(constraints := table.get("constraints"), list):
        wanted += [(("constraints", place), name) for place, name in enumerate(cast("list[object]", constraints))]
    for at, name in wanted:
        if given and isinstance(name, str) and name.strip() and name not in given:
            yield Broken(f"no predicate gives {name!r}", at)
    for place, name in enumerate(given):
        if name is not None and name in given[:place]:
            yield Broken(f"{name!r} is given twice", ("predicates", place, "metric"))


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

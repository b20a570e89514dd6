"""The `[scorer]` of a manifest: the judge, its metrics, and the rules for its program and files. Runs nothing."""

from __future__ import annotations

import ast
import builtins
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast, get_args

from pydantic import AfterValidator, Field, ValidationInfo

from pursuit.config.files import as_table
from pursuit.config.process_environment import IsolationKey
from pursuit.config.servers import PYTHON
from pursuit.core.base_model import (
    AnyNumber,
    Broken,
    Filled,
    NotNegative,
    Positive,
    kind,
    must,
    nearest,
    refuse,
    refusing,
    rules,
)
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
"""Tools of the agents, which cannot be the judge."""

MAX_METRICS, MAX_RULES = 32, 64
"""A person cannot compare more."""

Wrong = tuple[str, str]
"""A field, and its fault."""
DEEPEST = 100
"""Levels of nested tables and lists that `walk` follows."""
_LARGEST = 2**63


def walk(value: object, at: str = "", depth: int = 0) -> Iterator[tuple[str, object, int]]:
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
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return as_table(table.get(key)) or {}


def rows_of(table: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    rows = cast("list[object]", table.get(key)) if isinstance(table.get(key), list) else []
    return [(place, found) for place, row in enumerate(rows) if (found := as_table(row)) is not None]


def given_text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) and value.strip() else None


def unlike_json(value: object) -> Iterator[Broken]:
    """Each part of a value that JSON cannot represent."""
    return (Broken(why, at or None) for at, one, _ in walk(value) if (why := _unlike_json(one)))


def _unlike_json(value: object) -> str | None:
    match value:
        case Mapping():
            odd = [key for key in cast("Mapping[object, object]", value) if not isinstance(key, str)]
            return f"has keys that are not text: {', '.join(repr(key)[:60] for key in odd)}" if odd else None
        case float():
            return None if math.isfinite(value) else f"must be a finite number, not {value}"
        case int():
            return "is too large" if abs(value) >= _LARGEST else None
        case None | str() | list() | tuple():
            return None
        case _:
            return f"must be a JSON value, not {kind(value)}; put it in quotes"


def texts_in(value: object, at: str) -> Iterator[tuple[str, str]]:
    for place, one, _ in walk(value, at):
        if isinstance(one, str):
            yield place, one
        elif isinstance(one, Mapping):
            yield from ((place, str(key)) for key in cast("Mapping[object, object]", one))


class Reading(NamedTuple):
    folder: Path
    has_server: bool
    citation_mode: object
    check_proposer: Callable[[Mapping[str, Any], ValidationInfo], None]

    @classmethod
    def of(cls, info: ValidationInfo) -> Reading:
        return cast("Reading", info.context)


def _twice(given: Sequence[object], same: Callable[[str], str] = str) -> Iterator[tuple[int, str]]:
    """The repeated texts of a list, each with its position."""
    seen = set[str]()
    for place, text in enumerate(given):
        if isinstance(text, str):
            if same(text) in seen:
                yield place, f"{text!r} is listed twice"
            seen.add(same(text))


def once(same: Callable[[str], str] = str) -> Any:
    return rules(lambda given, _: (Broken(why, (place,)) for place, why in _twice(given, same)), of=list)


OneLine = Annotated[Filled, must(lambda text: len(text.splitlines()) < 2 and "\t" not in text, "must be one line")]


def _metric_rules(given: Mapping[str, Any], _info: ValidationInfo) -> Iterator[Broken]:
    if "target" in given and "direction" not in given:
        yield Broken("is missing; a target is reached from one side: minimize or maximize", "direction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a score. At `target` a problem counts as solved; `best_known` is the best published value."""

    name: Annotated[OneLine, Field(alias="metric")]
    unit: OneLine = ""
    direction: Direction | None = None
    target: Real | None = None
    best_known: Real | None = None

    def met(self, value: float) -> bool:
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
    """A fault for each name in an expression that is neither given nor assigned in it."""
    told = ("submission", "arguments", "result") if has_server else ("submission",)
    told += ("calls", "evaluations")
    tree = parsed_python(expression.strip(), "eval")
    nodes = [] if tree is None else list(ast.walk(tree))
    made = {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    read = {node.id: None for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    unknown = [name for name in read if name not in made and name not in told and not hasattr(builtins, name)]
    known = f"{', '.join(told)} and Python's own such as len, sorted, abs"
    return [f"unknown name {name[:60]!r}{nearest(name, told)}; known: {known}" for name in unknown]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRule:
    """One expression over the submission, and the metric that it computes."""

    metric: Filled
    expression: Annotated[Filled, AfterValidator(_expression)]


def _declared(pattern: str, info: ValidationInfo) -> str:
    if isinstance(found := files_of(Reading.of(info).folder, pattern), str):
        raise ValueError(found)
    return pattern


_NO_NAME = "must not be empty; give the number's name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """The judge. Only the fields of its kind are set; a constraint is met at or below `tolerance`.

    `files` are paths or globs, relative to the manifest, of the other files that the judge reads or imports.
    """

    NEEDED: ClassVar[Mapping[str, str]] = {
        "kind": f"give one of {', '.join(SCORER_KINDS)}",
        "metrics": "give [[scorer.metrics]]; attempts are compared by the first",
    }

    kind: ScorerKind
    metrics: Annotated[
        tuple[Annotated[Metric, rules(_metric_rules)], ...],
        Field(max_length=MAX_METRICS),
        rules(_metrics_rules, of=list),
    ]
    constraints: Annotated[tuple[Annotated[str, must(str.strip, _NO_NAME)], ...], once()] = ()
    tolerance: Annotated[NotNegative, AfterValidator(float)] = 0.0
    timeout: Positive = 60.0
    function: Filled | None = None
    command: tuple[str, ...] = ()
    output: CommandOutput = "json"
    predicates: Annotated[tuple[ScoringRule, ...], Field(max_length=MAX_RULES)] = ()
    tool: Filled | None = None
    arguments: Annotated[Mapping[str, Any], refusing(unlike_json)] = field(default_factory=dict[str, Any])
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
    """Checks the keys of a scorer's kind. An unknown kind is inferred from the keys."""
    chosen: ScorerKind | None = next((one for one in SCORER_KINDS if one == given.get("kind")), None)
    named: ScorerKind | None = next((one for one in SCORER_KINDS if _OF_KIND[one][0] in given), None)
    for other, keys in _OF_KIND.items():
        if chosen not in (None, other):
            yield from (Broken(f"goes with kind {other}, not {chosen}", key) for key in keys if key in given)
    yield from _given_once(given)
    if (judge := chosen or named) is not None:
        yield from _needs(given, judge, Reading.of(info))


def _needs(given: Mapping[str, Any], judge: ScorerKind, reading: Reading) -> Iterator[Broken]:
    key = _OF_KIND[judge][0]
    if given.get(key) in (None, []):
        yield Broken(_MISSING[judge], key)
    function, tool, command = given_text(given, "function"), given_text(given, "tool"), given.get("command")
    wrong = judge == "function" and function and wrong_function(function, reading.folder)
    if wrong:
        yield Broken(wrong, "function")
    if judge == "command" and isinstance(command, list):
        words = [word for word in cast("list[object]", command) if isinstance(word, str)]
        if words == command and (place := command_fault(words, reading.folder)):
            yield Broken(place[1], ("command", place[0]))
    several = len(rows_of(given, "metrics")) > 1 or given.get("constraints")
    if judge == "command" and given.get("output") == "exit_code" and several:
        yield Broken("an exit code gives one metric and no constraints; let the command print JSON", "output")
    if judge == "tool" and tool in TAKEN:
        yield Broken(f"agents call {tool!r}; name a tool that only the judge calls", "tool")
    if judge == "tool" and not reading.has_server:
        yield Broken("needs a [server] that offers the tool", "tool")


def _given_once(table: Mapping[str, Any]) -> Iterator[Broken]:
    if len(rows := rows_of(table, "predicates")) > MAX_RULES:
        return
    given = [given_text(row, "metric") for _, row in rows]
    wanted: list[tuple[tuple[str | int, ...], object]] = [
        (("metrics", place, "metric"), given_text(row, "metric")) for place, row in rows_of(table, "metrics")
    ]
    if isinstance(constraints := table.get("constraints"), list):
        wanted += [(("constraints", place), name) for place, name in enumerate(cast("list[object]", constraints))]
    for at, name in wanted:
        if given and isinstance(name, str) and name.strip() and name not in given:
            yield Broken(f"no predicate computes {name!r}", at)
    for place, name in enumerate(given):
        if name is not None and name in given[:place]:
            yield Broken(f"{name!r} is computed twice", ("predicates", place, "metric"))


def wrong_function(function: str, folder: Path) -> str | None:
    """Why a scoring function is invalid: a missing file, invalid Python, or a file that never mentions its name.

    Only running the file would tell how the name is bound and which parameters it takes.
    """
    file, colon, name = function.partition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        return f'{function!r} is not of the form "FILE.py:NAME"'
    path = file_of(folder, file)
    tree = None if isinstance(path, str) else parsed_python(path)
    if not isinstance(tree, ast.Module):
        return path if isinstance(path, str) else f"{file!r} cannot be read as Python"
    if any(value in (name, "*", "__getattr__") for one in ast.walk(tree) for value in vars(one).values()):
        return None
    defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return f"{file!r} does not define function {name!r}{nearest(name, defined)}"


_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*t?(?:\.exe)?|sh|bash|node|ruby|perl")
_SWITCHES = re.compile(r"-[bBdEiIOPqsSuvx]+")
"""Options of Python without a value; other options are not interpreted."""


def command_fault(words: Sequence[str], folder: Path, *, judges: bool = True) -> tuple[int, str] | None:
    """The position of the first unusable word of a command, and why: a missing program or script.

    A script is the first word after an interpreter. If it `judges`, the program must exist here, and its script in the
    folder: otherwise the fault would appear only after the one submission.
    """
    for place, word in enumerate(words):
        if "\0" in word:
            return place, "contains a null character, which cannot be passed to a program"
    if not words or not words[0].strip():
        return (0, "must not be empty: it is the program") if words else None
    program = words[0]
    if program != PYTHON and (judges or "/" in program):
        place = str(folder / program) if "/" in program else program
        if shutil.which(place) is None:
            return 0, f"program {program[:80]!r} was not found on this machine"
    script = next((at for at, word in enumerate(words) if at and not _SWITCHES.fullmatch(word)), 0)
    runs = program == PYTHON or _INTERPRETER.fullmatch(PurePosixPath(program).name)
    if not runs or not script or words[script].startswith("-"):
        return None
    why = _no_script(words[script], folder, confined=judges)
    return None if why is None else (script, why)


def _no_script(name: str, folder: Path, *, confined: bool) -> str | None:
    """Why a script is unusable; a folder that Python can run is a script, too."""
    if not confined or PurePosixPath(name).is_absolute():
        there = not_a_file(folder / name) is None or is_folder(folder, name)
        return None if there else f"file {name[:80]!r} does not exist"
    found = file_of(folder, name)
    is_package = isinstance(file_of(folder, f"{name}/__main__.py"), Path)
    return None if isinstance(found, Path) or is_package else found

"""Untrusted regular expressions, JMESPaths and Python sources, at bounded cost.

Invariant: neither a pattern nor its text can block the process; a search that takes too long raises `Unfinished`.
"""

from __future__ import annotations

import ast
import re
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

if TYPE_CHECKING:
    import regex

MAX_PATTERN = 1_000
MAX_REPEATS = 20_000
MAX_TEXT = 150_000
"""In characters. `regex` checks its timeout between steps, and each step may read the whole text once."""
SECONDS = 0.05

MAX_PATH = 1_000
MAX_PATH_DEPTH = 64
MAX_GROWTH = 1_000
MAX_WORK = 100_000
_GROWING = frozenset({"join", "merge", "to_string"})

_PART = re.compile(
    r"(?P<of_group>[)\s]?)\{(?:(?P<least>\d+)(?:,\d*)?|,\d*)\}|\\N\{[^}]*\}|(?P<escape>\\.)|(?P<brace>\{)", re.DOTALL
)
_END = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\$", re.DOTALL)


class Unfinished(Exception):
    """The search was abandoned; the message says why."""


def checked_pattern(value: str) -> str:
    """Returns the pattern if it compiles; raises ValueError with the reason otherwise."""
    if len(value) > MAX_PATTERN:
        raise ValueError(f"has {len(value)} characters; a regular expression may have at most {MAX_PATTERN}")
    try:
        compiled(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def find(pattern: str, text: str, *, seconds: float = SECONDS) -> regex.Match[str] | None:
    """The first match, or None. Raises `Unfinished` if the search takes too long or the text exceeds `MAX_TEXT`."""
    try:
        match = compiled(pattern).search(text[:MAX_TEXT], timeout=seconds)
    except TimeoutError:
        raise _out_of_time(pattern, seconds) from None
    if len(text) > MAX_TEXT and (match is None or match.end() == MAX_TEXT):
        raise _too_long(pattern, text)
    return match


def to_the_end(pattern: str) -> str:
    """The pattern with `$` as in JSON Schema: it matches only the end of the text, not before a final newline."""
    return _END.sub(lambda part: part[1] or r"\Z", pattern)


def count(pattern: str, text: str, *, seconds: float = SECONDS) -> int:
    """The number of matches. Raises `Unfinished` if the search takes too long or the text exceeds `MAX_TEXT`."""
    if len(text) > MAX_TEXT:
        raise _too_long(pattern, text)
    try:
        return sum(1 for _ in compiled(pattern).finditer(text, timeout=seconds))
    except TimeoutError:
        raise _out_of_time(pattern, seconds) from None


def line_matches(pattern: str, text: str, seconds: float) -> Iterator[regex.Match[str]]:
    """The matches in each line. Raises `Unfinished` if they take too much processor time."""
    until = time.process_time() + seconds
    search = compiled(pattern).finditer
    try:
        for line in text.split("\n"):
            yield from search(line, timeout=max(1e-9, until - time.process_time()))
    except TimeoutError:
        raise _out_of_time(pattern, seconds) from None


def _out_of_time(pattern: str, seconds: float) -> Unfinished:
    return Unfinished(f"{pattern!r} took more than {seconds * 1000:g} ms; write it without nested repetitions")


def _too_long(pattern: str, text: str) -> Unfinished:
    return Unfinished(f"{pattern!r} can search {MAX_TEXT} characters, but the text has {len(text)}")


@lru_cache(maxsize=512)
def compiled(pattern: str) -> regex.Pattern[str]:
    """Compiles only what Python's `re` also accepts: `regex` has more features, some of them dangerous."""
    groups, atoms = 1, len(pattern)
    for part in _PART.finditer(pattern):
        if part["of_group"]:
            groups *= max(1, int(part["least"] or 0))
        elif part["least"]:
            atoms += int(part["least"])
    if groups * atoms > MAX_REPEATS:  # compiling unrolls the minimum count of a repeat, so nested repeats multiply
        raise ValueError(f"repeats too much: its counts expand to more than {MAX_REPEATS} characters")
    import regex  # noqa: PLC0415 - it loads slowly, and most missions have no pattern

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        re.compile(pattern)
        # A literal brace in `re` may be a fuzzy match in `regex`.
        plain = _PART.sub(lambda part: "\\{" if part["brace"] else part[0], pattern)
        try:
            return regex.compile(plain, cache_pattern=False)
        except regex.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None


def checked_path(value: str) -> str:
    """Returns the JMESPath if it parses and its result stays small; raises ValueError with the reason otherwise."""
    if len(value) > MAX_PATH:
        raise ValueError(f"has {len(value)} characters; a jmespath may have at most {MAX_PATH}")
    try:
        tree = _parsed(value)
    except (JMESPathError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"jmespath does not parse: {error}") from None
    # A path cannot loop, and only a multi-select repeats a value: with k parts it makes at most k leaves of each,
    # whatever follows it, so the whole path makes at most k1 * k2 * ... leaves of one leaf.
    growth, left = 1, [(tree, 1)]  # not recursive, because the tree may be as deep as the path is long
    while left:
        node, depth = left.pop()
        left += [(child, depth + 1) for child in node.get("children") or () if isinstance(child, dict)]
        if depth > MAX_PATH_DEPTH:
            raise ValueError(f"jmespath nests more than {MAX_PATH_DEPTH} levels")
        if node["type"] in ("multi_select_list", "multi_select_dict"):
            growth *= max(1, len(node["children"]))
        if node["type"] == "function_expression" and node["value"] in _GROWING:
            raise ValueError(f"jmespath must not use {node['value']}(): it returns texts and tables, not numbers")
    if growth > MAX_GROWTH:
        raise ValueError(f"jmespath multiplies its matches by {growth}; at most {MAX_GROWTH} is allowed")
    return value


def follow(path: str, value: Any) -> Any:
    """The value at a path; None if the path does not fit. Raises `Unfinished` after too much work."""
    try:
        return _Worker().visit(_parsed(path), value)
    except (JMESPathError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None


@lru_cache(maxsize=512)
def _parsed(path: str) -> dict[str, Any]:
    return cast("dict[str, Any]", jmespath.compile(path).parsed)


class _Worker(TreeInterpreter):
    """Counts visited nodes and elements, so that the same path always stops at the same place."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MAX_WORK

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise Unfinished(f"the jmespath takes more than {MAX_WORK} steps")

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        found: Any = super().visit(node, *args, **kwargs)
        self._spend(1 + _work(found))
        return found

    def visit_flatten(self, node: Any, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if isinstance(base, list):  # counted before it is built: it may be far longer than its parts
            self._spend(len(cast("list[Any]", base)) // 4 + sum(map(_work, cast("list[Any]", base))))
        return super().visit_flatten(cast("Any", {"children": [{"type": "literal", "value": base}]}), value)


def _work(item: Any) -> int:
    if isinstance(item, str):
        return len(item) // 64
    return len(cast("list[Any]", item)) // 4 if isinstance(item, list | dict) else 0


MAX_EXPRESSION = 4_096
MAX_NESTING = 100
MAX_SCRIPT = 256 * 1024


class SyntaxProblem(ValueError):
    """The reason why code is refused, with its place."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f" (line {line}, column {column})"
        super().__init__(reason + place)
        self.line = line
        self.column = column


def checked_expression(expression: str) -> str:
    """Returns the expression if it is one short Python expression with few nested brackets. Raises `SyntaxProblem`."""
    text, depth = expression.strip(), 0
    for character in text[:MAX_EXPRESSION]:  # before parsing; brackets in quoted text count, too
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_NESTING:
            raise SyntaxProblem(f"nests more than {MAX_NESTING} brackets")
    return _checked(text, "eval", MAX_EXPRESSION, "write one Python expression over `obs`")


def checked_script(source: str) -> str:
    return _checked(source, "exec", MAX_SCRIPT, "write a script that calls tools")


def _checked(text: str, mode: str, most: int, instead: str) -> str:
    if not text.strip():
        raise SyntaxProblem(f"is empty; {instead}")
    if len(text) > most:
        raise SyntaxProblem(f"has {len(text)} characters; at most {most} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<input>", mode, ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        raise SyntaxProblem(f"is not valid Python: {error.msg}", error.lineno, error.offset) from None
    except (RecursionError, MemoryError, SystemError):  # Python 3.11.2 raises the last one
        raise SyntaxProblem("is nested too deeply to parse") from None
    except ValueError as error:  # a null byte, or an unpaired surrogate
        raise SyntaxProblem(f"is not valid Python: {error}") from None
    return text

"""Untrusted regular expressions, JMESPaths and Python sources, at a bounded cost.

Invariant: neither a pattern nor its text can block the process; what takes too long is `Unfinished`. Python's own
parser never sees more nesting than it can take.
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
    r"""(?P<repeat>(?P<of_group>[)\s]?)\{(?:(?P<least>\d+)(?:,\d*)?|,\d*)\})
      | (?P<wide>\\N\{[^}]*\}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\?[^\x00-\xff])
      | (?P<escape>\\.)
      | (?P<flags>\(\?[aimsux]+)
      | (?P<brace>\{)
      | (?P<posix>\[:\^?\w+:\])""",
    re.VERBOSE | re.DOTALL,
)

_END = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\$", re.DOTALL)


class Unfinished(Exception):
    """The search was given up; the message says why."""


class ProcessorTime:
    """Processor time that several searches share."""

    def __init__(self, seconds: float) -> None:
        self._until = time.thread_time() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return time.thread_time() >= self._until


def checked_pattern(value: str) -> str:
    """The pattern itself if it compiles, else a ValueError that says why not."""
    if len(value) > MAX_PATTERN:
        raise ValueError(f"has {len(value)} characters; a regular expression has at most {MAX_PATTERN}")
    try:
        _compiled(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def find(pattern: str, text: str, *, seconds: float = SECONDS) -> regex.Match[str] | None:
    """The first match, or None if there is none; `Unfinished` if that took too long or the text goes on."""
    try:
        match = _compiled(pattern).search(text[:MAX_TEXT], timeout=seconds)
    except TimeoutError:
        raise _out_of_time(pattern, seconds) from None
    if len(text) > MAX_TEXT and (match is None or match.end() == MAX_TEXT):
        raise _too_long(pattern, text)
    return match


def to_the_end(pattern: str) -> str:
    """The pattern with `$` as JSON Schema means it: the end of the text, and not a newline before it."""
    return _END.sub(lambda part: part[1] or r"\Z", pattern)


def count(pattern: str, text: str, *, seconds: float = SECONDS) -> int:
    """How many matches there are; `Unfinished` if that took too long or the text goes on."""
    if len(text) > MAX_TEXT:
        raise _too_long(pattern, text)
    try:
        return sum(1 for _ in _compiled(pattern).finditer(text, timeout=seconds))
    except TimeoutError:
        raise _out_of_time(pattern, seconds) from None


def for_lines(pattern: str) -> regex.Pattern[str]:
    """A checked pattern, compiled for a text of many lines; the caller searches with a timeout."""
    return _compiled(pattern, lines=True)


def line_matches(pattern: regex.Pattern[str], text: str, seconds: float) -> Iterator[regex.Match[str]]:
    """Every match that lies in one line; the whole text is searched at once, which is what makes it quick.

    Raises `TimeoutError` if all of it took too much of the processor's time.
    """
    until = time.process_time() + seconds
    place: int | None = 0
    while place is not None:
        begin, place = place, None
        for found in pattern.finditer(text, begin, timeout=_left(until)):
            if "\n" not in found[0]:
                yield found
                continue
            # It went over the end of a line, as `\s` does: that line is looked at alone.
            line_end = text.index("\n", found.start())
            yield from pattern.finditer(text, found.start(), line_end, timeout=_left(until))
            place = line_end + 1
            break


def _left(until: float) -> float:
    left = until - time.process_time()
    if left <= 0:
        raise TimeoutError
    return left


def _out_of_time(pattern: str, seconds: float) -> Unfinished:
    return Unfinished(f"{pattern!r} took more than {seconds * 1000:g} ms; write it without nested repetitions")


def _too_long(pattern: str, text: str) -> Unfinished:
    return Unfinished(f"{pattern!r} searches at most {MAX_TEXT} characters, and the text has {len(text)}")


@lru_cache(maxsize=512)
def _compiled(pattern: str, *, lines: bool = False) -> regex.Pattern[str]:
    """Compiles only what Python's `re` reads in the same way: `regex` has more features, some of them dangerous."""
    groups, atoms = 1, len(pattern)
    for part in _PART.finditer(pattern):
        if part["posix"]:
            raise ValueError(f"is not a regular expression: {part[0]} is not supported; write the characters")
        if part["of_group"]:
            groups *= max(1, int(part["least"] or 0))
        elif part["least"]:
            atoms += int(part["least"])
    if groups * atoms > MAX_REPEATS:  # compiling unrolls the least count of a repeat, so nested ones multiply
        raise ValueError(f"repeats too much: its counts come to more than {MAX_REPEATS} characters")
    import regex  # noqa: PLC0415 - it loads slowly, and most missions have no pattern

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        re.compile(_PART.sub(_narrow, pattern))
        # What is a brace to `re` may be a fuzzy match to `regex`.
        plain = _PART.sub(lambda part: "\\{" if part["brace"] else part[0], pattern)
        try:
            return regex.compile(plain, regex.MULTILINE if lines else 0, cache_pattern=False)
        except regex.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None


def _narrow(part: re.Match[str]) -> str:
    """A part that is as valid as this one: `re` takes milliseconds for each wide character set, or without case."""
    if part["wide"]:
        return r"\xff"
    return part[0].replace("i", "m") if part["flags"] else part[0]


def checked_path(value: str) -> str:
    """The JMESPath itself if it parses and its result cannot explode, else a ValueError that says why not."""
    if len(value) > MAX_PATH:
        raise ValueError(f"has {len(value)} characters; a jmespath has at most {MAX_PATH}")
    try:
        tree = _parsed(value)
    except (JMESPathError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"jmespath does not parse: {error}") from None
    # A path has no loops, and only a multi-select repeats a value: one with k parts makes at most k leaves of each,
    # whatever follows it, so k1 * k2 * ... is the most that the whole path makes of one leaf.
    growth = 1
    for node, depth in _nodes(tree):
        if depth > MAX_PATH_DEPTH:
            raise ValueError(f"jmespath nests more than {MAX_PATH_DEPTH} levels")
        if node["type"] in ("multi_select_list", "multi_select_dict"):
            growth *= max(1, len(node["children"]))
        if node["type"] == "function_expression" and node["value"] in _GROWING:
            raise ValueError(f"jmespath must not use {node['value']}(): it makes texts and tables, not numbers")
    if growth > MAX_GROWTH:
        raise ValueError(f"jmespath multiplies what it finds by {growth}; at most {MAX_GROWTH} is allowed")
    return value


def follow(path: str, value: Any) -> Any:
    """What a path finds; a path that does not fit this value finds nothing; `Unfinished` after too much work."""
    try:
        return _Worker().visit(_parsed(path), value)
    except (JMESPathError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None


@lru_cache(maxsize=512)
def _parsed(path: str) -> dict[str, Any]:
    return cast("dict[str, Any]", jmespath.compile(path).parsed)


def _nodes(tree: dict[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """Every node with its depth; no recursion, because the tree may be as deep as the path is long."""
    left = [(tree, 1)]
    while left:
        node, depth = left.pop()
        yield node, depth
        children = cast("list[Any]", node.get("children") or [])
        left += [(child, depth + 1) for child in children if isinstance(child, dict)]


class _Worker(TreeInterpreter):
    """Counts nodes visited and elements handled, so that the same path always gives up at the same place."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MAX_WORK

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise Unfinished(f"the jmespath takes more than {MAX_WORK} steps")

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        found: Any = super().visit(node, *args, **kwargs)
        if node["type"] == "slice":
            self._spend(_work(found))
        return found

    def visit_flatten(self, node: Any, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if isinstance(base, list):  # counted before it is made: it may be far longer than what it is made of
            self._spend(len(cast("list[Any]", base)) // 4 + sum(map(_work, cast("list[Any]", base))))
        return super().visit_flatten(cast("Any", {"children": [_literal(base)]}), value)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        found = [self.visit(child, value) for child in node["children"]]
        self._spend(sum(map(_work, found)))
        known: Any = {"value": node["value"], "children": [_literal(item) for item in found]}
        return super().visit_function_expression(known, value)


def _literal(value: Any) -> dict[str, Any]:
    return {"type": "literal", "value": value}


def _work(item: Any) -> int:
    """The cost of handling an item as a whole, in visits of a node."""
    if isinstance(item, str):
        return len(item) // 64
    return len(cast("list[Any]", item)) // 4 if isinstance(item, list | dict) else 0


MAX_EXPRESSION = 4_096
MAX_NESTING = 100
MAX_SCRIPT = 256 * 1024
# A quote that is never closed matches up to where Python's own tokenizer stops: looking for its end again from each
# later quote would cost the square of the length.
_QUOTED = re.compile(
    r"""'{3}.*?(?:'{3}|\Z)|"{3}.*?(?:"{3}|\Z)|'(?:\\.|[^'\\\n])*+'?|"(?:\\.|[^"\\\n])*+"?|\#[^\n]*""", re.DOTALL
)


class SyntaxProblem(ValueError):
    """Why the code is refused, with the place where it is wrong."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f" (line {line}, column {column})"
        super().__init__(reason + place)
        self.line = line
        self.column = column


def checked_expression(expression: str) -> str:
    """The expression itself, or a `SyntaxProblem`: one Python expression, short, not deeply nested."""
    return _checked(expression.strip(), "eval", MAX_EXPRESSION, "write one Python expression over `obs`")


def checked_script(source: str) -> str:
    """The script itself, or a `SyntaxProblem`."""
    return _checked(source, "exec", MAX_SCRIPT, "write a script that calls tools")


def _checked(text: str, mode: str, most: int, instead: str) -> str:
    if not text.strip():
        raise SyntaxProblem(f"is empty; {instead}")
    if len(text) > most:
        raise SyntaxProblem(f"has {len(text)} characters; at most {most} are allowed")
    # Counted twice, with and without quoted text: a quoted bracket closes nothing, one in an f-string opens one.
    _refuse_nesting(text)
    _refuse_nesting(_QUOTED.sub(lambda quoted: re.sub(r"[^\n]", " ", quoted[0]), text))
    _parse(text, mode)
    return text


def _refuse_nesting(text: str) -> None:
    depth = 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
            if depth > MAX_NESTING:
                line = text.count("\n", 0, place) + 1
                column = place - text.rfind("\n", 0, place)
                raise SyntaxProblem(f"nests more than {MAX_NESTING} brackets", line, column)
        elif character in ")]}":
            depth = max(0, depth - 1)


def _parse(text: str, mode: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<input>", mode, ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        raise SyntaxProblem(f"is not valid Python: {error.msg}", error.lineno, error.offset) from None
    except (RecursionError, MemoryError, SystemError):  # the last by Python 3.11.2, which miscounts a deep one
        raise SyntaxProblem("is nested too deeply to parse") from None
    except UnicodeEncodeError:
        raise SyntaxProblem("is not valid Unicode; it holds half of a surrogate pair") from None
    except ValueError as error:
        raise SyntaxProblem(f"is not valid Python: {error}") from None

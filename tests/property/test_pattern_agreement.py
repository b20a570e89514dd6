"""Bounded patterns agree with the ones that they bound."""

from __future__ import annotations

import re
from typing import Any

import jmespath
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core.patterns import checked_path, checked_pattern, count, find, follow

ATOMS = ["a", "b", "1", " ", ".", r"\d", r"\w", r"\s", r"\.", "[ab]", "[^a]", "[a-c1]", r"\b", "^", "$", "{", "{a}"]
REPEATS = ["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{,2}"]
TEXTS = st.text("ab1 .\n{}", max_size=20)


def _repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(st.sampled_from(["(", "(?:", "(?=", "(?!"]), inner).map(lambda pair: f"{pair[0]}{pair[1]})")
    alternatives = st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})")
    parts = st.tuples(groups | alternatives | inner, st.sampled_from(REPEATS)).map("".join)
    return st.lists(parts, min_size=1, max_size=3).map("".join)


PATTERNS = st.recursive(st.sampled_from(ATOMS), _repeated, max_leaves=6)


def _by_python(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


@settings(max_examples=100, deadline=None)
@given(PATTERNS, TEXTS)
def test_patterns_agree_with_re(pattern: str, text: str) -> None:
    expected = _by_python(pattern)
    if expected is None:
        return
    mine, pythons = find(checked_pattern(pattern), text, seconds=5), expected.search(text)
    assert (mine and mine.span()) == (pythons and pythons.span())
    assert count(pattern, text, seconds=5) == sum(1 for _ in expected.finditer(text))


STEPS = """a; b; [0]; [-1]; []; [*]; [1:]; [a, b]; {a: b, c: @}; [?a]; [?a > `1`]; *; a == b; a || b; `[1, 2]`; sum(@);
length(@); keys(@); map(&a, @); sort_by(@, &a); max(@); reverse(@)"""
PATHS = st.lists(st.sampled_from(re.split(r";\s", STEPS)), min_size=1, max_size=4).map(" | ".join)
VALUES = st.recursive(
    st.integers(0, 3) | st.sampled_from(["x", "1"]) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(PATHS, VALUES)
def test_paths_agree_with_jmespath(path: str, value: Any) -> None:
    try:
        expected = jmespath.search(path, value)
    except (jmespath.exceptions.JMESPathError, TypeError, ValueError):
        expected = None
    assert follow(checked_path(path), value) == expected

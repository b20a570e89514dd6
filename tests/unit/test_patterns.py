"""Patterns and paths that a stranger wrote: what they mean, and that none of them holds the process."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pursuit.core.mission import ObserveRule
from pursuit.core.observe import lift, source_matches
from pursuit.core.patterns import MAX_TEXT, Unfinished, checked_path, checked_pattern, count, find, follow

SOON = 2.0
"""Processor seconds, far more than any case here takes and far less than what it would take without a bound."""


@contextmanager
def soon() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < SOON


SHORT = "a" * 60 + "b"
LONG = "a" * (MAX_TEXT - 1) + "-"
HOSTILE = [
    (r"(a|aa)+$", SHORT),
    (r"(?:\w+\s?)+$", LONG),
    (r"(.*a){20}x|y", "a" * MAX_TEXT),
    (r"((a{1,30}){1,30}){1,30}c|d", LONG),
    (r"\s+$", " " * (MAX_TEXT - 1) + "x"),
    (r"(\w+)\1+$", LONG),
]


@pytest.mark.parametrize(("pattern", "text"), HOSTILE)
def test_a_pattern_that_backtracks_is_given_up(pattern: str, text: str) -> None:
    assert checked_pattern(pattern) == pattern
    with soon(), pytest.raises(Unfinished, match="50 ms"):
        find(pattern, text)
    with soon(), pytest.raises(Unfinished, match="50 ms"):
        count(pattern, text)


def test_counting_stops_although_each_match_is_quick() -> None:
    assert count("a", "banana") == 3
    assert count("", "ab") == 3
    with soon(), pytest.raises(Unfinished, match="1 ms"):
        count("", "a" * MAX_TEXT, seconds=0.001)


def test_a_text_is_looked_at_as_far_as_the_limit() -> None:
    text = "start" + "." * MAX_TEXT + "end"
    assert find("start", text) is not None
    for search in (lambda: find("end", text), lambda: find(r"\.+$", text), lambda: count("start", text)):
        with pytest.raises(Unfinished, match=str(len(text))):
            search()
    whole = "." * (MAX_TEXT - 3) + "end"
    assert find("end$", whole) is not None
    assert count("end", whole) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a**",
        "\\",
        "a" * 1_001,
        "(" * 499 + ")" * 499,
        "(?:" * 60 + "a" + "){9}" * 60,
        "a{65535}" * 100,
        "(?:" + "[a-z]" * 150 + "){99}",
        "a{99999999999999999999}",
        "(?R)",
        "(?x)(?:a) {999} (?:b) # many\n{999}",
        "a(?i)b",
        "(?V1)[[a]--[b]]",
        r"\p{Lu}",
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with soon(), pytest.raises(ValueError, match=r"regular expression|repeats too much"):
        checked_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(\d+) warnings?", "12 warnings"),
        (r'{"loss": (\d+)}', '{"loss": 3}'),
        (r"a{e<=1}", "b a{e<=1}"),
        (r"x{,2}y{2}z{1,}", "xyyzz"),
        (r"[{}]{2}\{", "a{}{"),
        (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id 123e4567-e89b-12d3-a456-426614174000"),
        (r"\N{DIGIT ONE}\x31\u0031", "111"),
        (r"(?i)(?P<word>ab)(?P=word)(?-i:C)", "xABabC"),
        (r"(?m)^(?!#)(?:\w+)$(?<=b)", "#a\nab"),
        (r"(a)?(?(1)b|c)", "c"),
        (r"[д-я]+\u0021[^\U00010000-\U0010ffff]", "дя!я"),
        ("(?ix) A # one {e}\n b {2}", "abb"),
    ],
)
def test_ordinary_patterns_mean_what_they_mean_to_python(pattern: str, text: str) -> None:
    mine, pythons = find(checked_pattern(pattern), text), re.search(pattern, text)
    assert (mine.span(), mine.groups()) == (pythons.span(), pythons.groups())


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a" * 1_001, "at most 1000"),
        ("[@,@][] | " * 10 + "@", "multiplies its matches by 1024"),
        ("{a:@,b:@} | " * 10 + "@", "multiplies its matches by 1024"),
        ("[" + ",".join(["[@,@,@,@]"] * 5) + "]", "multiplies its matches by 5120"),
        ("merge(@, {a: @})", "merge"),
        ("[*].to_string([@])", "to_string"),
        ("map(&join('x', @), @)", "join"),
        ("@|" * 100 + "@", "64 levels"),
        ("!" * 900 + "@", "parse"),
        ("[" * 900, "parse"),
        ("a[?", "parse"),
        ("", "parse"),
    ],
)
def test_paths_that_are_refused(path: str, reason: str) -> None:
    with soon(), pytest.raises(ValueError, match=reason):
        checked_path(path)


MANY = list(range(500_000))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("[@,@][] | " * 9 + "length(@)", MANY),
        ("[" + ",".join(["@"] * 400) + "][] | length(@)", MANY),
        ("[*] | " * 60 + "length(@)", MANY),
        ("[:] | " * 60 + "length(@)", MANY),
        ("[" + ",".join(["sum(@)"] * 130) + "][0]", MANY),
        ("[" + ",".join(["sort(@)"] * 90) + "][0][0]", MANY),
        (" | ".join(["map(&`[1,1]`, @)[]"] * 45), [1]),
        (" | ".join(["[].[`[1,1]`][][]"] * 15) + " | " + " | ".join(["map(&`[1,1]`, @)[]"] * 25), [1]),
        ("[" + ",".join(["contains(@, 'ab')"] * 50) + "]", "a" * 5_000_000),
    ],
)
def test_a_path_that_makes_much_work_is_given_up(path: str, value: Any) -> None:
    assert checked_path(path) == path
    with soon(), pytest.raises(Unfinished, match="100000 steps"):
        follow(path, value)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("sum([].y)", 199_990_000),
        ("length([?y >= `10`])", 19_990),
        ("max_by(@, &y).y", 19_999),
        ("[-1].[y, y][0]", 19_999),
        ("sort_by(@, &y)[0].y", 0),
        ("[*].y | [-1:] | [0]", 19_999),
        ("no_such_function(@)", None),
        ("[::0]", None),
        ("sum(@)", None),
    ],
)
def test_ordinary_paths_find_what_they_ask_for(path: str, found: Any) -> None:
    assert follow(checked_path(path), [{"y": y} for y in range(20_000)]) == found


def test_comparing_what_grew_by_sharing_ends() -> None:
    grown = "[@,@] | [@,@] | [@,@] | [@,@]"
    with soon():
        assert follow(checked_path(f"[({grown}), ({grown})] | [0] == [1]"), [1]) is True
    with pytest.raises(ValueError, match="multiplies"):
        checked_path(f"[({grown} | [@,@]), ({grown} | [@,@])] | [0] == [1]")


def test_a_rule_that_takes_too_long_yields_no_metric_and_spares_the_others() -> None:
    slow = ObserveRule(tool="*", metric="slow", regex=r"(a|aa)+$")
    heavy = ObserveRule(tool="*", metric="heavy", jmespath="[" + ",".join(["@"] * 400) + "][] | length(@)")
    quick = ObserveRule(tool="*", metric="quick", regex=r"b(\d)")
    text = {"content": [{"type": "text", "text": "b7 " + SHORT}]}
    with soon():
        assert lift("lab.run", text, [slow, quick])[0] == {"quick": 7}
        assert lift("lab.run", {"content": [], "structuredContent": {"result": MANY}}, [heavy])[0] == {}


def test_many_slow_rules_share_one_allowance() -> None:
    rules = [ObserveRule(tool="*", metric=f"m{place}", regex=rf"(a|aa)+{place}?$") for place in range(256)]
    with soon():
        assert lift("lab.run", {"content": [{"type": "text", "text": SHORT}]}, rules)[0] == {}


@pytest.mark.parametrize("pattern", ["*a" * 127 + "*b", "*?" * 127 + "b", "*[ab]" * 51 + "c", "*" + "?" * 250 + "b*c"])
def test_a_glob_never_backtracks(pattern: str) -> None:
    with soon():
        assert not source_matches(pattern, "a" * 10_000)

"""`[commands]`: everything wrong is told at once, and arguments become the words that were meant and no others."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pursuit.config.commands import CommandConfig, climbs
from pursuit.config.configuration import load_configuration
from pursuit.errors import PathTraversal, ValidationFailed

MAKE = """
[commands.make]
argv = ["make", "-j{jobs}", ["--log", "{log}"], "{verbose}", "{target}", "D={defines}", "--", "{rest}"]
total = "{jobs}"
[commands.make.parameters]
target = { enum = ["all", "test"] }
jobs = { type = "integer", default = 4, minimum = 1, maximum = 64 }
log = { required = false, pattern = "^[a-z/.-]+$" }
verbose = { type = "boolean", flag = "--verbose" }
defines = { type = "array", items = { type = "number" }, required = false }
rest = { type = "array", default = [], max_items = 4 }
"""


def read(folder: Path, text: str) -> dict[str, CommandConfig]:
    (folder / "pursuit.toml").write_text(text, encoding="utf-8")
    return dict(load_configuration(folder / "pursuit.toml").commands)


with TemporaryDirectory() as _place:
    THE_MAKE = read(Path(_place), MAKE)["make"]


@pytest.fixture(name="make")
def _make() -> CommandConfig:
    return THE_MAKE


def faults(folder: Path, text: str) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as refused:
        read(folder, text)
    source = str(folder / "pursuit.toml")
    assert {fault.source for fault in refused.value.faults} == {source}
    return {fault.field: fault.reason for fault in refused.value.faults}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "all"}, ["make", "-j4", "all", "--"]),
        ({"target": "test", "jobs": 2.0, "verbose": True}, ["make", "-j2", "--verbose", "test", "--"]),
        ({"target": "all", "log": "a/b.log"}, ["make", "-j4", "--log", "a/b.log", "all", "--"]),
        ({"target": "all", "verbose": False, "defines": []}, ["make", "-j4", "all", "--"]),
        ({"target": "all", "defines": [1, -2, 0.5]}, ["make", "-j4", "all", "D=1", "D=-2", "D=0.5", "--"]),
        ({"target": "all", "rest": ["$(id) ; x", "-n", "*"]}, ["make", "-j4", "all", "--", "$(id) ; x", "-n", "*"]),
    ],
)
def test_values_become_words(make: CommandConfig, arguments: dict[str, Any], words: list[str]) -> None:
    assert make.words(arguments) == words


def test_braces_and_a_word_of_several_values(tmp_path: Path) -> None:
    text = '[commands.c]\nargv = ["p", "{{{a}}}:{b}"]\nparameters = { a = {}, b = { type = "integer" } }'
    assert read(tmp_path, text)["c"].words({"a": "x y", "b": 1}) == ["p", "{x y}:1"]


def test_wrong_arguments_are_told_all_at_once(make: CommandConfig) -> None:
    with pytest.raises(ValidationFailed) as refused:
        make.words({"jobs": 0, "log": "UP", "verbose": "yes", "defines": [1, "2"], "rest": ["a"] * 5, "tarte": 1})
    assert {fault.field: fault.reason for fault in refused.value.faults} == {
        "tarte": "is not a known key; did you mean 'target'?",
        "jobs": "input should be greater than or equal to 1",
        "log": "must match ^[a-z/.-]+$",
        "verbose": "must be true or false, not a string",
        "defines[1]": "must be a number, not a string",
        "rest": "list should have at most 4 items, not 5",
        "target": "is missing; it must be given",
    }


def test_a_value_makes_no_option(make: CommandConfig) -> None:
    with pytest.raises(ValidationFailed, match="do not fit") as refused:
        make.words({"target": "all", "log": "--eval"})
    assert [fault.field for fault in refused.value.faults] == ["log"]
    with pytest.raises(ValidationFailed, match="must match"):
        make.words({"target": "all", "log": "a.log\n"})
    # Behind `--` nothing is an option any more.
    assert make.words({"target": "all", "rest": ["--eval"]})[-1] == "--eval"


OFFSET = """
[commands.cut]
argv = ["cut", "{n}", ["--at", "{at}"], "{many}", "--at={n}", "--", "{last}"]
[commands.cut.parameters]
n = { type = "integer", default = 1 }
at = { type = "number", required = false, MORE }
many = { type = "array", items = { type = "integer" }, default = [] }
last = { type = "integer", default = 1 }
"""


def test_a_number_makes_no_option_either(tmp_path: Path) -> None:
    cut = read(tmp_path, OFFSET.replace(", MORE", ""))["cut"]
    with pytest.raises(ValidationFailed, match="do not fit") as refused:
        cut.words({"n": -1, "at": -0.5, "many": [1, -2], "last": -9})
    assert [fault.field for fault in refused.value.faults] == ["n", "at", "many"]
    assert cut.words({"last": -9, "many": [2]}) == ["cut", "1", "2", "--at=1", "--", "-9"]
    allowed = read(tmp_path, OFFSET.replace("MORE", "allow_options = true"))["cut"]
    assert allowed.words({"at": -0.5}) == ["cut", "1", "--at", "-0.5", "--at=1", "--", "1"]


VALUE = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)
NUMBERS = st.lists(st.integers(-9, 9) | st.floats(-9, 9, allow_nan=False), max_size=4)


@pytest.mark.guarantee("commands-never-more-than-meant")
@settings(max_examples=100)
@given(jobs=st.integers(1, 64), verbose=st.booleans(), defines=NUMBERS, rest=st.lists(VALUE, max_size=4))
def test_no_word_that_was_not_meant(jobs: int, verbose: bool, defines: list[float], rest: list[str]) -> None:
    arguments = {"target": "all", "jobs": jobs, "verbose": verbose, "defines": defines, "rest": rest}
    if any(climbs(word) for word in rest):
        with pytest.raises(PathTraversal):
            THE_MAKE.words(arguments)
        return
    words = THE_MAKE.words(arguments)
    flags = ["--verbose"] if verbose else []
    head = ["make", f"-j{jobs}", *flags, "all"]
    assert words[: len(head)] == head
    middle, tail = words[len(head) : len(words) - len(rest)], words[len(words) - len(rest) :]
    assert tail == rest and middle[-1] == "--"
    assert [float(word.removeprefix("D=")) for word in middle[:-1]] == [float(value) for value in defines]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-100, 100)
    | st.floats(-1e6, 1e6)
    | st.sampled_from(["all", "a.log", "UP", ""]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    arguments=st.dictionaries(st.sampled_from(["target", "jobs", "log", "verbose", "defines", "rest", "x"]), ANYTHING)
)
def test_what_is_declared_is_what_is_taken(arguments: dict[str, Any]) -> None:
    fits = Draft202012Validator(THE_MAKE.input_schema()).is_valid(arguments)
    try:
        THE_MAKE.words(arguments)
    except ValidationFailed:
        assert not fits
    else:
        assert fits


CLIMBING = (
    "..", "../x", "a/../b", "a/..", "--flag=../x", "-I../x", "-o..", "--out=..", "..\\x", "a\\..\\b", "--p=..\\x",
    "x:../y", "PATH=/a:../b", "@../secrets", "a,../b", "file://../x", "%2e%2e/x", "a/%2E%2E/b", "..%2fx",
    "'../x'", " ../x", "a/b/../../../c", "./../x", "//..//x", "http://h/../x", "{../x}", "x=\"..\"",
)  # fmt: skip
STAYING = (
    "main..feature", "HEAD..", "..feature", "1..10", "...", ".../x", "a..b/c", "..a/b", "x...y", ".", "./x", "a.",
)  # fmt: skip


@pytest.mark.guarantee("no-climbing-arguments")
def test_an_argument_that_climbs_is_refused_and_dots_that_climb_nowhere_are_fine(make: CommandConfig) -> None:
    for word in CLIMBING:
        assert climbs(word), word
        with pytest.raises(PathTraversal) as refused:
            make.words({"target": "all", "rest": ["fine", word]})
        assert refused.value.code == "path_traversal_detected"
    for word in STAYING:
        assert make.words({"target": "all", "rest": [word]})[-1] == word


def test_a_climb_put_together_from_two_values_is_refused(tmp_path: Path) -> None:
    text = '[commands.c]\nargv = ["p", "../own", "{a}{b}"]\nparameters = { a = {}, b = {} }'
    command = read(tmp_path, text)["c"]
    with pytest.raises(PathTraversal):
        command.words({"a": ".", "b": "./x"})
    assert command.words({"a": "x", "b": "y"}) == ["p", "../own", "xy"]  # what the author wrote is the author's
    allowed = read(tmp_path, text.replace("argv", "allow_parent_paths = true\nargv"))["c"]
    assert allowed.words({"a": ".", "b": "./x"}) == ["p", "../own", "../x"]


def test_a_server_must_not_be_called_like_the_commands(tmp_path: Path) -> None:
    found = faults(tmp_path, MAKE + '[servers.commands]\ncommand = "x"\n')
    assert list(found) == ["servers.commands"]

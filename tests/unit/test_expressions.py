"""The look at user-written code before anything parses it costs no more than its length."""

from __future__ import annotations

import time

import pytest

from pursuit.core.patterns import checked_script

HOSTILE = ["'" + "\\'" * 100_000, '"' + '\\"' * 100_000, "'''" * 80_001, "'\n" * 100_000]


@pytest.mark.parametrize("hostile", HOSTILE, ids=["single", "double", "triple", "lines"])
def test_quotes_that_never_close_are_refused_in_no_time(hostile: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="not valid Python"):
        checked_script(hostile)
    assert time.process_time() - began < 2, "looking for the end of each quote again would take minutes"


def test_brackets_after_a_quote_count() -> None:
    with pytest.raises(ValueError, match="nests more than"):
        checked_script("'a' " + "(" * 101 + ")" * 101)

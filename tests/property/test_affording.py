"""What a question to a language model is estimated at, and how large it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pursuit.core.budgets import estimate, learnt
from pursuit.core.events import ModelAnswer
from pursuit.proposers.language import AssistantMessage, ModelRequest, OfferedTool, UserMessage


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 100_000)), max_size=20), st.integers(1, 100_000))
def test_an_estimate_is_never_below_the_densest_question_so_far(asked: list[tuple[int, int]], size: int) -> None:
    densest: float | None = None
    for bytes_of, tokens in asked:
        densest = learnt(densest, size=bytes_of, tokens=tokens)
    told = [(bytes_of, tokens) for bytes_of, tokens in asked if tokens]
    assert (densest is None) == (not told)
    assert all(estimate(size, densest) >= size * tokens / bytes_of for bytes_of, tokens in told)


def test_everything_that_a_model_is_shown_has_its_size() -> None:
    bare = ModelRequest(system="é", messages=(UserMessage("xy"),)).size
    tool = OfferedTool(name="n", description="d" * 50, schema={"type": "object", "title": "t" * 100})
    assert bare < 40
    assert ModelRequest(system="", messages=(), tools=(tool,)).size > 150
    answer = ModelAnswer(text="w" * 70, native={"parts": ["w" * 70, "signature"]})
    assert 80 < ModelRequest(system="", messages=(AssistantMessage(answer),)).size < 140, "an answer counts once"

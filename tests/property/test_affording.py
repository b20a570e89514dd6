"""Questions to a language model and the caps on tokens and money, under any sequence of questions and children.

The stand-in counts at most as many tokens for a question as were estimated, and writes no more than it may.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pursuit.core.budgets import LEAST_ANSWER, RemainingBudget, estimate, learnt, used_of
from pursuit.core.budgets import expected as expected_tokens
from pursuit.core.events import (
    AnyEvent,
    BudgetExtended,
    CallIntended,
    CallSettled,
    IterationProposed,
    MissionCreated,
    ModelAnswer,
    ModelAnswered,
    ModelAsked,
)
from pursuit.core.fold import advance, fold
from pursuit.core.mission import SPAWN
from pursuit.core.state import MissionState
from pursuit.engine.models import affordable
from pursuit.proposers.language import (
    AssistantMessage,
    ModelRequest,
    OfferedTool,
    OutOfBudget,
    Price,
    Terms,
    UserMessage,
)
from simulation import mission_data

share = st.floats(0, 1)
prices = st.builds(Price, input=st.sampled_from([0.0, 0.15, 3.0, 17.3]), output=st.sampled_from([0.0, 0.6, 15.0, 99.9]))
terms = st.builds(Terms, price=prices, least_answer=st.sampled_from([1, 16]))
caps = st.fixed_dictionaries(
    {},
    optional={"max_tokens": st.integers(1, 60_000), "max_cost_usd": st.integers(1, 10_000).map(lambda n: n / 10_000)},
)


class Affording(RuleBasedStateMachine):
    """A mission that is folded from its events, asks, and lends to children that use all that they get."""

    state: MissionState
    terms: Terms

    def __init__(self) -> None:
        super().__init__()
        self.events: list[AnyEvent] = []
        self.calls = 0

    def tell(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.state = advance(self.state, event)

    @initialize(budget=caps, terms=terms)
    def begin(self, budget: dict[str, Any], terms: Terms) -> None:
        self.terms = terms
        created = MissionCreated(
            mission=mission_data(budget={"max_iterations": 10_000, **budget}, fleet={}), tools=["lab.run", SPAWN]
        )
        self.events = [created]
        self.state = advance(None, created)

    @rule(size=st.integers(1, 40_000), longest=st.integers(1, 5_000), read=share, wrote=share)
    def ask(self, size: int, longest: int, read: float, wrote: float) -> None:
        request = ModelRequest(system="", messages=(UserMessage("x" * size),), max_tokens=longest)
        try:
            sent = affordable(self.state, request, self.terms)
        except OutOfBudget:
            return
        assert self.terms.least_answer <= sent.max_tokens <= max(longest, self.terms.least_answer)
        assert sent.max_tokens >= min(longest, LEAST_ANSWER), "what is asked is worth asking"
        expected, size = expected_tokens(self.state, request.size), request.size
        tokens_in, tokens_out = int(expected * read), int(sent.max_tokens * wrote)
        cost = 0.0 if self.terms.price is None else self.terms.price(_Used(tokens_in, tokens_out))
        self.tell(ModelAsked(iteration=0, attempt=0, model="m", digest="", size=size, estimate=expected))
        answered = ModelAnswered(iteration=0, attempt=0, read=tokens_in, tokens=tokens_in + tokens_out, cost_usd=cost)
        self.tell(answered)

    @rule(tokens=st.integers(1, 20_000), cents=st.integers(1, 100), used=share)
    def child(self, tokens: int, cents: int, used: float) -> None:
        """A child takes its share of the pool, and gives back what it did not use, perhaps."""
        wanted = {"max_tokens": float(tokens), "max_cost_usd": cents / 100}
        if RemainingBudget(self.state).lacks(wanted) is not None:
            return
        if self.state.open is None:
            self.tell(IterationProposed(iteration=0, proposer="model"))
        self.calls += 1
        name, task = f"c{self.calls}", f"task-{self.calls:016x}{0:016x}"
        intent = CallIntended(call_id=name, iteration=0, tool=SPAWN, args={}, task=task, reserved=wanted)
        self.tell(intent)
        if used < 0.9:
            spent = {"max_tokens": float(int(tokens * used)), "max_cost_usd": round(cents / 100 * used, 9)}
            self.tell(CallSettled(call_id=name, iteration=0, outcome="ok", used=spent))

    @rule(more=st.integers(1, 9_000))
    def extend(self, more: int) -> None:
        cap = self.state.cap("max_tokens")
        if cap is not None:
            self.tell(BudgetExtended(caps={"max_tokens": cap + more}))

    @rule()
    def crash(self) -> None:
        """Another process reads the stream, and thinks the same of the next question."""
        again = fold(self.events)
        assert again is not None
        assert (again.conversation.densest, used_of(again)) == (self.state.conversation.densest, used_of(self.state))
        self.state = again

    @invariant()
    def never_over_a_cap(self) -> None:
        used = used_of(self.state)
        for name in ("max_tokens", "max_cost_usd"):
            cap = self.state.cap(name)
            assert cap is None or used[name] <= cap, f"{name}: {used[name]} of {cap}"


class _Used:
    def __init__(self, read: int, wrote: int) -> None:
        self.input_tokens, self.output_tokens = read, wrote


@pytest.mark.guarantee("tokens-never-over-the-cap")
def test_no_sequence_of_questions_uses_more_than_the_caps() -> None:
    run_state_machine_as_test(Affording, settings=settings(max_examples=75, stateful_step_count=30, deadline=None))


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

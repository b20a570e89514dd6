"""Children and their parent's budget, under any order of spawning, working, ending, losing track and crashing.

The model: each child really uses what it likes, up to its own caps, for as long as it is not closed. Whatever happens,
what everybody used and what those under way may still use is never more than the parent's caps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pursuit.core.budgets import LEAST_ANSWER, RemainingBudget, budget_use, child_id, expected, used_of
from pursuit.core.caps import POOLED
from pursuit.core.child_admission import Refused, Spawns
from pursuit.core.decision import reached_cap
from pursuit.core.events import (
    AnyEvent,
    BudgetExtended,
    CallIntended,
    CallSettled,
    Facts,
    IterationEnded,
    IterationProposed,
    MissionCreated,
    ModelAnswered,
    ModelAsked,
)
from pursuit.core.fold import advance, fold
from pursuit.core.mission import SPAWN
from pursuit.core.state import MissionState
from pursuit.engine.call_admission import ONE_CALL
from pursuit.engine.models import affordable
from pursuit.proposers.language import ModelRequest, OutOfBudget, Price, Terms, UserMessage
from simulation import mission_data

TOOLS = ["lab.run", SPAWN]
whole = st.integers(1, 9)
tenths = st.integers(1, 9).map(lambda n: n / 10)
caps = st.fixed_dictionaries(
    {"max_iterations": st.integers(2, 20)},
    optional={"max_tool_calls": st.integers(2, 20), "max_tokens": st.integers(1, 60_000), "max_cost_usd": tenths},
)
share = st.floats(0, 1)
rates = st.builds(Price, input=st.sampled_from([0.0, 0.15, 17.3]), output=st.sampled_from([0.0, 0.6, 99.9]))
prices = st.builds(Terms, price=rates, least_answer=st.sampled_from([1, 16]))
wishes = st.fixed_dictionaries(
    {
        "max_iterations": whole,
        "max_tool_calls": whole,
        "max_tokens": st.integers(1, 20_000),
        "max_cost_usd": st.integers(1, 4).map(lambda n: n / 10),
    }
)


@dataclass
class Used:
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0


@dataclass
class Real:
    """What a child really did, whatever its parent knows."""

    caps: dict[str, float]
    call_id: str
    used: dict[str, float] = field(default_factory=lambda: dict.fromkeys(POOLED, 0.0))
    closed: bool = False

    def at_most(self, name: str) -> float:
        """What it may come to have used in the end."""
        return self.used[name] if self.closed else self.caps.get(name, self.used[name])


class Lending(RuleBasedStateMachine):
    """A parent that is folded from its events, and the reality of its children."""

    state: MissionState
    terms: Terms

    def __init__(self) -> None:
        super().__init__()
        self.events: list[AnyEvent] = []
        self.real: dict[str, Real] = {}
        self.calls = 0

    def tell(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.state = advance(self.state, event)

    @initialize(budget=caps, at_once=st.integers(1, 3), most=st.integers(1, 6), terms=prices)
    def begin(self, budget: dict[str, Any], at_once: int, most: int, terms: Terms) -> None:
        self.terms = terms
        fleet = {"max_children": most, "at_once": at_once, "share_tools": True}
        created = MissionCreated(mission=mission_data(budget=budget, fleet=fleet), tools=TOOLS)
        self.events = [created]
        self.state = advance(None, created)

    @precondition(lambda self: self.state.open is None)
    @rule()
    def propose(self) -> None:
        count = self.state.iteration_count
        if reached_cap(self.state, elapsed=0.0, iterations=count) is None:
            self.tell(IterationProposed(iteration=count, proposer="script"))

    @precondition(lambda self: self.state.open is None)
    @rule(size=st.integers(1, 40_000), longest=st.integers(1, 5_000), read=share, wrote=share)
    def ask(self, size: int, longest: int, read: float, wrote: float) -> None:
        """The model counts at most as many tokens as were estimated, and writes no more than it may."""
        request = ModelRequest(system="", messages=(UserMessage("x" * size),), max_tokens=longest)
        try:
            sent = affordable(self.state, request, self.terms)
        except OutOfBudget:
            return
        assert self.terms.least_answer <= sent.max_tokens <= max(longest, self.terms.least_answer)
        assert sent.max_tokens >= min(longest, LEAST_ANSWER), "what is asked is worth asking"
        most = expected(self.state, request.size)
        used = Used(int(most * read), int(sent.max_tokens * wrote))
        cost = 0.0 if self.terms.price is None else self.terms.price(used)
        asked = ModelAsked(iteration=0, attempt=0, model="m", digest="", size=request.size, estimate=most)
        self.tell(asked)
        tokens = used.input_tokens + used.output_tokens
        self.tell(ModelAnswered(iteration=0, attempt=0, read=used.input_tokens, tokens=tokens, cost_usd=cost))

    @precondition(lambda self: self.state.open is not None)
    @rule()
    def call(self) -> None:
        if RemainingBudget(self.state).lacks(ONE_CALL) is None:
            name = self.next_call()
            self.tell(CallIntended(call_id=name, iteration=0, tool="lab.run", args={}))
            self.tell(CallSettled(call_id=name, iteration=0, outcome="ok"))

    @precondition(lambda self: self.state.open is not None)
    @rule(batch=st.lists(wishes, min_size=1, max_size=3))
    def spawn(self, batch: list[dict[str, float]]) -> None:
        purse = RemainingBudget(self.state)
        spawns = Spawns(self.state, purse, lambda _tool: True)
        intents: list[CallIntended] = []
        for wish in batch:
            if purse.lacks(ONE_CALL) is not None:
                continue
            purse.take(ONE_CALL)
            name = self.next_call()
            task = f"task-{self.calls:016x}{0:016x}"  # the first digits tell children apart
            args = {
                "directive": "x",
                "criteria": [{"criterion_id": "c", "kind": "event", "event_name": "e"}],
                "budget": wish,
                "proposer": {"kind": "repeat", "tool_name": "lab.run"},
            }
            try:
                reserved = spawns.admit(args, child_id(task))
            except Refused:
                purse.take({"max_tool_calls": -1.0})
                continue
            intents.append(CallIntended(call_id=name, iteration=0, tool=SPAWN, args=args, task=task, reserved=reserved))
        for intent in intents:
            self.real[child_id(intent.task or "")] = Real(dict(intent.reserved), intent.call_id)
            self.tell(intent)

    def next_call(self) -> str:
        self.calls += 1
        return f"c{self.calls}"

    def some(self, data: st.DataObject, *, closed: bool | None = None, settled: bool | None = None) -> str | None:
        names = [
            name
            for name, real in self.real.items()
            if closed in (None, real.closed) and settled in (None, self.state.children[name].outcome is not None)
        ]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data(), cap=st.sampled_from(POOLED), much=st.integers(1, 20))
    def work(self, data: st.DataObject, cap: str, much: int) -> None:
        """A child goes on, also one whose parent has lost track of it."""
        name = self.some(data, closed=False)
        if name is not None:
            real = self.real[name]
            step = much * {"max_cost_usd": 0.1, "max_tokens": 500}.get(cap, 1)
            real.used[cap] = min(round(real.used[cap] + step, 9), real.caps.get(cap, 1e9))

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = self.some(data, closed=False)
        if name is not None:
            self.real[name].closed = True

    @rule(data=st.data(), outcome=st.sampled_from(["ok", "failed", "cancelled"]))
    def settle(self, data: st.DataObject, outcome: Any) -> None:
        """The parent hears of an end: what was used is known of a closed child only."""
        name = self.some(data, settled=False)
        if name is not None:
            real = self.real[name]
            used = dict(real.used) if real.closed else None
            self.tell(CallSettled(call_id=real.call_id, iteration=0, outcome=outcome, used=used))

    @precondition(lambda self: self.state.open is not None)
    @rule()
    def end_iteration(self) -> None:
        open_calls = self.state.open.calls.values() if self.state.open is not None else ()
        if all(call.outcome is not None for call in open_calls):
            index = self.state.iteration_count
            facts = Facts()
            self.tell(IterationEnded(iteration=index, verdict="continue", reason="in_progress", facts=facts))

    @rule(more=whole)
    def extend(self, more: int) -> None:
        self.tell(BudgetExtended(caps={"max_iterations": self.state.budget["max_iterations"] + more}))

    @rule()
    def crash(self) -> None:
        """Another process reads the stream and is where this one was."""
        again = fold(self.events)
        assert (again.lent, again.children, used_of(again), again.conversation.densest) == (
            self.state.lent,
            self.state.children,
            used_of(self.state),
            self.state.conversation.densest,
        )
        self.state = again

    @invariant()
    def never_over_spent(self) -> None:
        state = self.state
        own = (state.iteration_count + (state.open is not None), state.tool_calls, state.tokens, state.cost_usd)
        for name, mine in zip(POOLED, own, strict=True):
            cap = state.cap(name)
            if cap is not None:
                at_most = mine + sum(real.at_most(name) for real in self.real.values())
                assert at_most <= cap + 1e-9, f"{name}: {at_most} of {cap}"

    @invariant()
    def what_is_known_unused_is_there_again(self) -> None:
        """Nothing leaks: once every child has ended and is settled, exactly what was used is gone."""
        children = self.state.children
        if all(child.outcome is not None and child.used is not child.reserved for child in children.values()):
            for name in POOLED:
                used = sum(child.used[name] for child in children.values() if child.used is not None)
                assert abs(self.state.lent.get(name, 0) - used) < 1e-9


@pytest.mark.guarantee("tokens-never-over-the-cap")
@pytest.mark.guarantee("fleet-never-over-spends")
def test_the_pool_is_never_over_spent_whatever_the_order() -> None:
    chosen = settings(max_examples=60, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(Lending, settings=chosen)


def test_a_childs_cost_that_nobody_knows_is_its_parents_too() -> None:
    fleet = {"max_children": 2, "share_tools": True}
    state = advance(None, MissionCreated(mission=mission_data(budget={"max_iterations": 9}, fleet=fleet), tools=TOOLS))
    advance(state, IterationProposed(iteration=0, proposer="script"))
    whole = {"max_iterations": 1, "max_tool_calls": 0, "max_tokens": 7, "max_cost_usd": 0.5}
    priced = {name: amount for name, amount in whole.items() if name != "max_cost_usd"}
    told: list[float | None] = []
    for place, used in enumerate(({}, whole, priced)):
        task = f"task-{place:016x}{0:016x}"
        intended = CallIntended(call_id=f"{place}", iteration=0, tool=SPAWN, args={}, task=task, reserved={})
        advance(state, intended)
        advance(state, CallSettled(call_id=f"{place}", iteration=0, outcome="ok", used=dict(used)))
        told.append(budget_use(state).caps["max_cost_usd"].used)
    assert told == [0, 0.5, None]
    assert "max_cost_usd" not in used_of(state)
    assert RemainingBudget(state).left == {"max_iterations": 6}, "what is counted stays a number"

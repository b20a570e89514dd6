"""Attempts under any order of calls, submissions, races, budgets, the clock and crashes.

The model: several processes hold the same attempt, each of which may die at any moment; a server really runs every call
that was counted and takes every submission that reaches it. Whatever happens, there is one submission at most, and no
call over budget.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pursuit.core.attempts import (
    AttemptCalled,
    AttemptScored,
    SubmissionTaken,
    decode_attempt,
    fold_attempt,
    submission_digest,
)
from pursuit.errors import AlreadySubmitted, BudgetExhausted
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt
from pursuit.problems.manifest import Limits, Manifest
from pursuit.problems.scorer import Metric, Scorer, ScoringRule

CALLS, EVALUATIONS, SECONDS = 3, 2, 30.0
HOLDERS = 3
PROBLEM = Manifest(
    path=Path("problem.toml"),
    problem_id="p",
    title="P",
    summary="P.",
    kind="text",
    statement="P.",
    scorer=Scorer(
        kind="predicates", predicates=(ScoringRule(metric="m", expression="1"),), metrics=(Metric(name="m"),)
    ),
    budget=Limits(calls=CALLS, evaluations=EVALUATIONS, wall_seconds=SECONDS, evaluation_tools=("evaluate",)),
    digest="d",
)
whom = st.integers(0, HOLDERS - 1)
amounts = st.integers(0, 3)


@dataclass
class Holder:
    """One process at the attempt; while it asks the server it is the only one that does."""

    attempt: Attempt
    asking: AsyncExitStack | None = None
    claimed: str = ""
    given: dict[str, Any] = field(default_factory=dict[str, Any])


class Attempts(RuleBasedStateMachine):
    """Everything that can happen to one attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()
        folder = self.closing.enter_context(tempfile.TemporaryDirectory())
        self.portal = self.closing.enter_context(start_blocking_portal())
        self.ledger = SqliteLedger.open(Path(folder) / "ledger.db")
        self.now = 1000.0
        self.began: float | None = None
        self.called: list[tuple[str, float]] = []
        self.reached: list[dict[str, Any]] = []
        self.receipts: set[str] = set()
        self.holders = [self.fresh() for _ in range(HOLDERS)]

    def fresh(self) -> Holder:
        return Holder(Attempt(self.ledger, lambda: self.now, PROBLEM, "attempt-1"))

    def run(self, work: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> Any:
        try:
            return self.portal.call(work, *given)
        except AlreadySubmitted as refused:
            receipt = refused.details.get("receipt")
            if receipt is not None:
                self.receipts.add(receipt["sha256"])
        except BudgetExhausted:
            pass
        return None

    @rule(who=whom, tool=st.sampled_from(["look", "evaluate"]))
    def call(self, who: int, tool: str) -> None:
        number = self.run(self.holders[who].attempt.called, tool, {})
        if number is not None:
            self.called.append((tool, self.now))

    @precondition(lambda self: len(self.called) >= 2 or any(one.asking for one in self.holders))
    @rule(who=whom, x=amounts)
    def submit(self, who: int, x: int) -> None:
        if self.holders[who].asking is None and self.run(self.holders[who].attempt.submit, {"x": x}) is not None:
            self.receipts.add(submission_digest({"x": x}))

    @rule(who=whom, x=amounts)
    def ask_the_server(self, who: int, x: int) -> None:
        holder = self.holders[who]
        if holder.asking is None:
            self.run(self._asked, holder, {"x": x})

    async def _asked(self, holder: Holder, given: dict[str, Any]) -> None:
        async with AsyncExitStack() as stack:
            if not await stack.enter_async_context(holder.attempt.alone()):
                return
            await holder.attempt.give_up()
            holder.claimed, holder.given = await holder.attempt.claim(given), given
            self.reached.append(given)
            holder.asking = stack.pop_all()

    async def _left(self, holder: Holder) -> None:
        await holder.asking.aclose()
        holder.asking = None

    @precondition(lambda self: any(one.asking for one in self.holders))
    @rule(end=st.sampled_from(["taken", "refused", "unknown"]))
    def the_server_answers(self, end: str) -> None:
        holder = next(one for one in self.holders if one.asking)
        match end:
            case "taken":
                done = self.run(self._taken, holder)
                assert done is not None, "the place was kept, and somebody else has it"
            case "refused":
                self.run(holder.attempt.drop, holder.claimed, "no")
                self.reached.remove(holder.given)
                self.called.append(("submit_final", self.now))
            case _:
                self.run(holder.attempt.give_up, "died")
        self.portal.call(self._left, holder)

    async def _taken(self, holder: Holder) -> Any:
        return await holder.attempt.submit(holder.given, result={"ok": True}, claimed=holder.claimed)

    @rule(whose=st.permutations(range(HOLDERS)), x=amounts, end=st.sampled_from(["taken", "refused", "unknown"]))
    def race(self, whose: list[int], x: int, end: str) -> None:
        """One asks the server, and before that answers another one submits and a third one asks."""
        self.ask_the_server(whose[0], x)
        self.submit(whose[1], x + 10)
        self.ask_the_server(whose[2], x + 20)
        if any(one.asking for one in self.holders):
            self.the_server_answers(end)

    @rule(whose=st.lists(whom, min_size=EVALUATIONS + 1, max_size=EVALUATIONS + 1))
    def evaluate_too_often(self, whose: list[int]) -> None:
        for who in whose:
            self.call(who, "evaluate")

    @rule(who=whom)
    def crash(self, who: int) -> None:
        if self.holders[who].asking is not None:  # the system frees the lock of a process that dies
            self.portal.call(self._left, self.holders[who])
        self.holders[who] = self.fresh()

    @rule(who=whom)
    def judge(self, who: int) -> None:
        attempt = self.holders[who].attempt
        state = self.portal.call(attempt.refresh)
        if state is not None and state.taken is not None and state.scored is None:
            self.run(attempt.record, AttemptScored(at=self.now))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_submission_and_no_call_over_budget(self) -> None:
        events = [decode_attempt(one.body) for one in self.portal.call(self.ledger.read, "attempt-1")]
        state = fold_attempt("attempt-1", events)
        taken = [one for one in events if isinstance(one, SubmissionTaken)]
        calls = [one for one in events if isinstance(one, AttemptCalled)]
        assert len(taken) <= 1 and len(self.reached) <= 1, "two submissions"
        assert self.receipts <= {one.digest for one in taken}, "a receipt of what was not taken"
        assert [(one.tool, one.at) for one in calls] == self.called, "a call that was not counted, or not made"
        made = [one for one in calls if one.tool != "submit_final"]
        assert len(made) <= CALLS and sum(one.evaluation for one in made) <= EVALUATIONS
        assert len(calls) <= CALLS + 1, "a server that is asked for nothing after the calls are spent"
        assert not taken or not self.reached or taken[0].submission == self.reached[0], "not what the server took"
        if state is not None:
            assert all(one.at - state.opened.at < SECONDS for one in made), "a call after the end"
            after = events[events.index(taken[0]) :] if taken else []
            assert not any(isinstance(one, AttemptCalled) for one in after), "a call after the submission"

    def teardown(self) -> None:
        for holder in self.holders:
            if holder.asking is not None:
                self.portal.call(self._left, holder)
        self.portal.call(self.ledger.close)
        self.closing.close()


@pytest.mark.guarantee("attempts-hold-under-any-order")
def test_attempts_hold_under_any_order() -> None:
    run_state_machine_as_test(Attempts, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))

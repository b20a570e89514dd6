"""Attempts in the ledger: one stream for each, with its calls, its budgets and its one submission.

Invariant: a call is counted before it is made; of two submissions that race exactly one is taken, and the other one
gets its receipt; a submission of unknown fate, which its server may have taken, counts as the one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from pursuit.core.attempts import (
    AnyAttemptEvent,
    AttemptAnswered,
    AttemptCalled,
    AttemptOpened,
    AttemptScored,
    AttemptState,
    BudgetName,
    BudgetSpent,
    FormFixed,
    SubmissionClaimed,
    SubmissionDropped,
    SubmissionTaken,
    advance_attempt,
    decode_attempt,
    encode_attempt,
    fold_attempt,
    submission_digest,
)
from pursuit.core.audit import redacted
from pursuit.errors import (
    AlreadySubmitted,
    AttemptNotFound,
    BudgetExhausted,
    Conflict,
    Fault,
    InvalidArgument,
    LedgerUnavailable,
    ValidationFailed,
    advice,
)
from pursuit.ledger.contract import Draft, Ledger, StoredEvent, every_stream
from pursuit.problems.comparison import status_of
from pursuit.problems.manifest import Manifest, plain_number
from pursuit.problems.scorer import SUBMIT
from pursuit.problems.secrecy import judging_digest


def exhausted(budget: BudgetName, limit: float, *, closed: bool = False) -> BudgetExhausted:
    """The error for a spent budget; the attempt is over after `wall_seconds`, or if it is `closed`."""
    rest = "the attempt is over" if closed or budget == "wall_seconds" else "submit_final is still open"
    return BudgetExhausted(f"the budget {budget} ({plain_number(limit)}) is spent; {rest}", budget=budget, limit=limit)


PREFIX = "attempt-"
ATTEMPT_ID = re.compile(r"attempt-[a-z0-9_-]{1,100}")
"""Valid as the name of a stream and of a file."""


def checked_attempt_id(text: str, field: str) -> str:
    """A chosen attempt id; raises `ValidationFailed`."""
    if ATTEMPT_ID.fullmatch(text) is None:
        reason = (
            f"{text[:80]!r} cannot be kept: write attempt- and then 1 to 100 of a-z, 0-9, '-' and '_', "
            "such as attempt-mine-1; or leave it out for a new one"
        )
        raise ValidationFailed([Fault(field=field, reason=reason)])
    return text


def new_attempt_id() -> str:
    """A random id, which cannot be guessed."""
    return f"{PREFIX}{secrets.token_hex(8)}"


def shared_attempt_id(problem: Manifest) -> str:
    """The id of the one attempt that all clients of a shared problem work at; unique, and without a dot."""
    name = problem.problem_id
    if "." in name:
        name = f"{name.replace('.', '-')}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"{PREFIX}shared-{name}"


def is_attempt(text: str) -> bool:
    """Whether it could be the id of an attempt."""
    return text.startswith(PREFIX)


KIND = "attempt"


def decoded(attempt_id: str, stored: StoredEvent) -> AnyAttemptEvent:
    """An event of an attempt; raises `LedgerUnavailable`."""
    try:
        return decode_attempt(stored.body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise damaged(attempt_id, f"its event {stored.seq} cannot be read: {error}") from None


def damaged(attempt_id: str, why: str) -> LedgerUnavailable:
    """The error that says which attempt cannot be read, and why."""
    said = f"{attempt_id} is damaged: {why}; `{advice('pursuit verify')}` says what of the ledger is sound"
    return LedgerUnavailable(said, attempt_id=attempt_id)


async def load_attempt(ledger: Ledger, attempt_id: str) -> AttemptState:
    """An attempt as the ledger tells it; raises `AttemptNotFound`, and `LedgerUnavailable` of one that is damaged."""
    stored = await ledger.read(attempt_id) if is_attempt(attempt_id) else []
    state = fold_attempt(attempt_id, [decoded(attempt_id, one) for one in stored])
    if state is None and stored:
        raise damaged(attempt_id, "its beginning is missing")
    if state is None:
        raise AttemptNotFound(f"there is no attempt {attempt_id[:100]!r}", attempt_id=attempt_id[:100])
    return state


async def attempts_at(ledger: Ledger, problem_ids: set[str], unreadable: list[str] | None = None) -> list[AttemptState]:
    """All attempts at these problems, oldest first; faults of damaged ones are added to `unreadable`, if given."""
    found: list[AttemptState] = []
    async for row in every_stream(ledger, kind=KIND):
        if row.summary.get("problem_id") in problem_ids:
            try:
                found.append(await load_attempt(ledger, row.name))
            except LedgerUnavailable as error:
                if unreadable is None:
                    raise
                unreadable.append(error.message)
    return found[::-1]


Clock = Callable[[], float]


async def attempt_of(ledger: Ledger, clock: Clock, problem: Manifest, subject: str) -> tuple[str, int]:
    """The attempt of a caller at a problem, and its number: the last one goes on until it is over.

    The id follows from the caller and the number, so that two connections of a caller that race open one attempt.
    Raises `BudgetExhausted` if the caller has had all of its attempts.
    """
    subject = _text(subject)
    number, last = 0, ""
    async for row in every_stream(ledger, kind=KIND):
        mine = (row.summary.get("problem_id"), row.summary.get("subject")) == (problem.problem_id, subject)
        if mine and row.summary["number"] > number:
            number, last = row.summary["number"], row.name
    if last:
        state = await load_attempt(ledger, last)
        if status_of(state, mission_over=False, now=clock()) == "open" and state.opened.manifest == problem.digest:
            return last, number
        if state.status == "claimed":  # its submission is settled first
            return last, number
    most = problem.budget.attempts
    if most is not None and number >= most:
        said = f"{plain_number(most)} attempt{'' if most == 1 else 's'} at {problem.problem_id}"
        raise BudgetExhausted(f"you have had {said}, which is the limit", budget="attempts", limit=most)
    digest = hashlib.sha256(json.dumps([problem.problem_id, subject, number + 1]).encode()).hexdigest()
    return f"{PREFIX}{digest[:32]}", number + 1


GONE = "the process that submitted it has ended"
UNANSWERED = "the server asked a question about it that was not answered"
NOT_SCORED = f"`{advice('pursuit problem compare {}', 'PROBLEM')} --json` says why"


class Attempt:
    """One attempt, open or not; several processes may hold the same."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        problem: Manifest,
        attempt_id: str,
        *,
        by: str = "operator",
        label: str = "",
        mission: str | None = None,
        subject: str | None = None,
        number: int = 1,
    ) -> None:
        self.attempt_id = attempt_id
        self._subject, self._number = None if subject is None else _text(subject), number
        self._ledger = ledger
        self._clock = clock
        self._problem = problem
        self._by, self._label, self._mission = _text(by), _text(label), mission
        self._state: AttemptState | None = None
        self._turn = anyio.Lock()

    @property
    def state(self) -> AttemptState | None:
        """The state as last read; None before the first call."""
        return self._state

    async def open(self) -> AttemptState:
        """Begins the attempt unless it has begun, here or elsewhere."""
        async with self._turn:
            return await self._opened()

    async def called(self, tool: str, args: Mapping[str, Any]) -> int:
        """Counts a call that is about to be made, and returns its number. Raises `BudgetExhausted`."""
        async with self._turn:
            while True:
                state = await self._opened()
                self._refuse_ended(state)
                evaluation = tool in self._problem.budget.evaluation_tools
                used: dict[BudgetName, float] = {"wall_seconds": self._elapsed(state), "calls": state.calls}
                if evaluation:
                    used["evaluations"] = state.evaluations
                await self._refuse_spent(state, used)
                number = state.calls + 1
                event = AttemptCalled(
                    at=self._clock(), number=number, tool=_text(tool), args=redacted(args), evaluation=evaluation
                )
                if await self._append(state, event):
                    return number

    async def check_open(self) -> None:
        """Whether a call that was counted may go on; raises `AlreadySubmitted` and `BudgetExhausted`."""
        async with self._turn:
            state = await self._opened()
            self._refuse_ended(state)
            await self._refuse_spent(state, {"wall_seconds": self._elapsed(state)})

    async def answered(self, number: int, *, ok: bool, metrics: Mapping[str, float] | None = None) -> None:
        """Records the outcome of a call."""
        told = {_text(name): value for name, value in (metrics or {}).items() if math.isfinite(value)}
        event = AttemptAnswered(at=self._clock(), number=number, ok=ok, metrics=told)
        await self._write(event)

    def seconds_left(self) -> float | None:
        """How much of the wall clock is left; None without a limit."""
        limit = self._problem.budget.wall_seconds
        if limit is None or self._state is None:
            return limit
        return max(0.0, limit - self._elapsed(self._state))

    async def overran(self) -> BudgetExhausted:
        """A call was cut off at the end of the wall clock: says so, and writes it down unless there is a submission."""
        limit = self._problem.budget.wall_seconds or 0.0
        async with self._turn:
            state = await self._opened()
            while state.taken is None and "wall_seconds" not in state.spent:
                await self._spend(state, "wall_seconds", limit)
                state = self._known()
        return exhausted("wall_seconds", limit)

    async def fix_form(self, form: str) -> str:
        """Which `submit_final` the attempt has: this one, unless it has another one already."""
        async with self._turn:
            while True:
                state = await self._opened()
                if state.form is not None:
                    return state.form
                if await self._append(state, FormFixed(at=self._clock(), form=form)):
                    return form

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[bool]:
        """Whether this process alone submits or judges here, for as long as the block lasts."""
        held = await self._ledger.claim(self.attempt_id)
        try:
            yield held is not None
        finally:
            if held is not None:
                with anyio.CancelScope(shield=True):
                    await held.release()

    async def refuse_second(self) -> None:
        """Raises `AlreadySubmitted` with its receipt if there is a submission."""
        state = await self.refresh()
        if state is not None:
            self._refuse_ended(state)

    async def claim(self, submission: Mapping[str, Any], *, comes_back: bool = False) -> str:
        """Reserves the submission while the problem's own server is asked; returns its digest.

        A submission that `comes_back` answers the server's question to the same one. A question that is left
        unanswered costs a call.
        """
        digest = submission_digest(submission)
        async with self._turn:
            while True:
                state = await self._may_submit()
                if state.asked is not None and not (comes_back and state.asked == digest):
                    await self._append(state, *self._refused(state, state.asked, UNANSWERED))
                    continue
                # A refused submission costs a call, also beyond the budget: another one would be an answer for nothing.
                overdrawn: dict[BudgetName, float] = {"calls": state.calls - 1, "evaluations": state.evaluations - 1}
                await self._refuse_spent(state, overdrawn, closed=True)
                event = SubmissionClaimed(at=self._clock(), digest=digest, submission=dict(submission))
                if await self._append(state, event):
                    return digest

    async def drop(self, digest: str, why: str, sort: Literal["refused", "asked", "unsent"] = "refused") -> None:
        """Releases the reservation. The answer of a server that refused costs a call, like any other.

        A submission that was asked about is the same one with the answer. One that the server never saw costs nothing.
        """
        async with self._turn:
            while True:
                state = await self._opened()
                if sort == "unsent" and state.status != "claimed":
                    return
                dropped = SubmissionDropped(at=self._clock(), digest=digest, why=why[:500], sort=sort)
                events = self._refused(state, digest, why) if sort == "refused" else (dropped,)
                if await self._append(state, *events):
                    return

    def _refused(self, state: AttemptState, digest: str, why: str) -> tuple[AnyAttemptEvent, ...]:
        """A submission that was none, and the call that it cost."""
        at, number = self._clock(), state.calls + 1
        evaluation = SUBMIT in self._problem.budget.evaluation_tools
        return (
            SubmissionDropped(at=at, digest=digest, why=why[:500]),
            AttemptCalled(at=at, number=number, tool=SUBMIT, args={}, evaluation=evaluation),
            AttemptAnswered(at=at, number=number, ok=False),
        )

    async def give_up(self, why: str = GONE) -> AttemptState | None:
        """Takes what was claimed and never settled as the submission; its fate is unknown.

        Only for the process that claimed it, or that is `alone`. What is not claimed stays as it is.
        """
        state = await self.refresh()
        if state is not None and state.claimed is not None and state.taken is None:
            claimed = state.claimed
            return await self.submit(claimed.submission, claimed=claimed.digest, unknown=why, at=claimed.at)
        return state

    async def submit(
        self,
        submission: Mapping[str, Any],
        *,
        result: Mapping[str, Any] | None = None,
        claimed: str | None = None,
        unknown: str = "",
        at: float | None = None,
    ) -> AttemptState:
        """Takes the submission, now or `at` a time. Raises `AlreadySubmitted` with its receipt, `BudgetExhausted`."""
        async with self._turn:
            while True:
                state = await self._may_submit(claimed)
                event = SubmissionTaken(
                    at=self._clock() if at is None else at,
                    digest=claimed or submission_digest(submission),
                    submission=dict(submission),
                    result=None if result is None else dict(result),
                    calls=state.calls,
                    evaluations=state.evaluations,
                    unknown=unknown,
                )
                if await self._append(state, event):
                    return self._known()

    async def scored(self, event: AttemptScored) -> AttemptState:
        """Records the score."""
        await self._write(event)
        return self._known()

    async def refresh(self) -> AttemptState | None:
        """Reads what others wrote."""
        known = 0 if self._state is None else self._state.seq
        for stored in await self._ledger.read(self.attempt_id, after=known):
            self._state = _after(self.attempt_id, self._state, decoded(self.attempt_id, stored))
            if self._state is None:
                raise damaged(self.attempt_id, "its beginning is missing")
        return self._state

    def _known(self) -> AttemptState:
        state = self.state
        if state is None:
            raise AttemptNotFound(f"there is no attempt {self.attempt_id}", attempt_id=self.attempt_id)
        return state

    def fits(self, state: AttemptState) -> bool:
        """Whether it is an attempt at this problem, as it is now."""
        return (state.opened.problem_id, state.opened.manifest) == (self._problem.problem_id, self._problem.digest)

    async def check(self) -> None:
        """Raises `InvalidArgument` if there is an attempt of this id at another problem; begins none."""
        state = await self.refresh()
        if state is not None:
            self._refuse_other(state)

    def _refuse_other(self, state: AttemptState) -> None:
        mine = self._problem.problem_id
        if state.opened.problem_id != mine:
            theirs = f"{self.attempt_id} is an attempt at {state.opened.problem_id!r}, not at {mine!r}"
            raise InvalidArgument(f"{theirs}; name its own problem, or another attempt", attempt_id=self.attempt_id)
        if not self.fits(state):
            changed = f"{self.attempt_id} was begun with another version of {mine}'s problem.toml"
            raise InvalidArgument(f"{changed}; begin a new attempt", attempt_id=self.attempt_id)

    async def _opened(self) -> AttemptState:
        state = self.state or await self.refresh()
        if state is not None:
            self._refuse_other(state)
        digest = "" if state is not None else await anyio.to_thread.run_sync(judging_digest, self._problem)
        while state is None:
            budget = self._problem.budget
            named = {"calls": budget.calls, "evaluations": budget.evaluations, "wall_seconds": budget.wall_seconds}
            event = AttemptOpened(
                at=self._clock(),
                problem_id=self._problem.problem_id,
                manifest=self._problem.digest,
                judge=digest,
                by=self._by,
                label=self._label,
                mission=self._mission,
                limits={name: value for name, value in named.items() if value is not None},
                subject=self._subject,
                number=self._number,
            )
            await self._append(None, event)
            state = self.state
        return state

    def _elapsed(self, state: AttemptState) -> float:
        """The seconds since the first call, which may be the one under way."""
        return 0.0 if state.began is None else self._clock() - state.began

    async def _may_submit(self, claimed: str | None = None) -> AttemptState:
        state = await self._opened()
        state = await self.refresh() or state
        self._refuse_ended(state)
        if claimed is None and state.claimed is not None:
            raise AlreadySubmitted("another submission of this attempt is under way", attempt_id=self.attempt_id)
        if claimed is None:
            await self._refuse_spent(state, {"wall_seconds": self._elapsed(state)})
        return state

    def _refuse_ended(self, state: AttemptState) -> None:
        if state.receipt is not None:
            said = f"this attempt has its one submission already (sha256 {state.receipt['sha256'][:12]}…)"
            if "fate" in state.receipt:
                said += ", and it is not known whether its server took it"
            raise AlreadySubmitted(said, receipt=state.receipt)

    async def _refuse_spent(
        self, state: AttemptState, used: Mapping[BudgetName, float], *, closed: bool = False
    ) -> None:
        """Raises `BudgetExhausted` for the first budget that is used up, and records it."""
        for budget, amount in used.items():
            limit: float | None = getattr(self._problem.budget, budget)
            if limit is not None and amount >= limit:
                await self._spend(state, budget, limit)
                raise exhausted(budget, limit, closed=closed)

    async def _spend(self, state: AttemptState, budget: BudgetName, limit: float) -> None:
        if budget not in state.spent:
            await self._append(state, BudgetSpent(at=self._clock(), budget=budget, limit=limit))

    async def _write(self, event: AnyAttemptEvent) -> None:
        async with self._turn:
            while not await self._append(await self._opened(), event):
                pass

    async def _append(self, state: AttemptState | None, *events: AnyAttemptEvent) -> bool:
        """Appends after the known state; False if another process was faster, whose events are read then."""
        expected = 0 if state is None else state.seq
        after = None if state is None else replace(state, spent=dict(state.spent), series=list(state.series))
        for event in events:
            after = _after(self.attempt_id, after, event)
        try:
            await self._ledger.append(
                self.attempt_id,
                expected,
                [Draft(*encode_attempt(event)) for event in events],
                kind=KIND,
                status=None if after is None else after.status,
                summary=None if after is None else summary_of(after),
            )
        except Conflict:
            await self.refresh()
            return False
        self._state = after
        return True


def _text(text: str) -> str:
    """A text that can be kept, whatever was given."""
    return text.encode(errors="replace").decode()


def _after(attempt_id: str, state: AttemptState | None, event: AnyAttemptEvent) -> AttemptState | None:
    if state is None:
        return fold_attempt(attempt_id, [event])
    advance_attempt(state, event)
    return state


def summary_of(state: AttemptState) -> dict[str, Any]:
    """What a listing shows of an attempt without reading its stream."""
    body: dict[str, Any] = {
        "problem_id": state.opened.problem_id,
        "label": state.opened.label,
        "calls": state.calls,
        "evaluations": state.evaluations,
    }
    if state.opened.subject is not None:
        body |= {"subject": state.opened.subject, "number": state.opened.number}
    if state.scored is not None:
        body["solved"] = state.scored.solved
        body["value"] = state.scored.rows[0].value if state.scored.rows else None
    return body

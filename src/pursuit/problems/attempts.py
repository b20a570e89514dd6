"""Attempts in the ledger: one stream for each, with its calls, its budgets and its one submission.

Invariant: a call is counted before it is made; of two concurrent submissions exactly one is accepted, and the other
gets its receipt; a submission with unknown outcome, which its server may have accepted, counts as the submission.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
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
    """The error for a used-up budget; the attempt is over after `wall_seconds`, or if it is `closed`."""
    rest = "the attempt is over" if closed or budget == "wall_seconds" else "submit_final is still possible"
    return BudgetExhausted(f"the budget {budget} ({plain_number(limit)}) is spent; {rest}", budget=budget, limit=limit)


PREFIX = "attempt-"
ATTEMPT_ID = re.compile(r"attempt-[a-z0-9_-]{1,100}")
"""Valid as a name of streams and of files."""


def checked_attempt_id(text: str, field: str) -> str:
    if ATTEMPT_ID.fullmatch(text) is None:
        reason = (
            f"{text[:80]!r} is not an attempt id: write attempt- and then 1 to 100 of a-z, 0-9, '-' and '_', "
            "such as attempt-mine-1; or omit it for a new attempt"
        )
        raise ValidationFailed([Fault(field=field, reason=reason)])
    return text


def new_attempt_id() -> str:
    return f"{PREFIX}{secrets.token_hex(8)}"


def shared_attempt_id(problem: Manifest) -> str:
    """A new id for the attempt that all clients of a shared problem work on; without a dot."""
    name = problem.problem_id
    if "." in name:
        name = f"{name.replace('.', '-')}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"{PREFIX}shared-{name}"


def is_attempt(text: str) -> bool:
    return text.startswith(PREFIX)


KIND = "attempt"


def _advanced(attempt_id: str, state: AttemptState | None, stored: Sequence[StoredEvent]) -> AttemptState | None:
    """The state after these events. Raises `LedgerUnavailable` if they cannot be read."""
    try:
        for one in stored:
            state = _after(attempt_id, state, decode_attempt(one.body))
    except (msgspec.MsgspecError, RecursionError) as error:
        said = f"{attempt_id} is damaged: {error}; `{advice('pursuit verify')}` reports which records are intact"
        raise LedgerUnavailable(said, attempt_id=attempt_id) from None
    return state


async def load_attempt(ledger: Ledger, attempt_id: str) -> AttemptState:
    """Loads an attempt. Raises `AttemptNotFound`, and `LedgerUnavailable` if its record is damaged."""
    state = _advanced(attempt_id, None, await ledger.read(attempt_id) if is_attempt(attempt_id) else [])
    if state is None:
        raise AttemptNotFound(f"attempt {attempt_id[:100]!r} does not exist", attempt_id=attempt_id[:100])
    return state


async def attempts_at(ledger: Ledger, problem_ids: set[str]) -> list[AttemptState]:
    """All attempts at these problems, oldest first."""
    rows = [row async for row in every_stream(ledger, kind=KIND) if row.summary.get("problem_id") in problem_ids]
    return [await load_attempt(ledger, row.name) for row in reversed(rows)]


Clock = Callable[[], float]


async def attempt_of(ledger: Ledger, clock: Clock, problem: Manifest, subject: str) -> tuple[str, int]:
    """The attempt of a caller at a problem, and its number: the last one, or a new one if that is over.

    The id derives from the caller and the number, so concurrent connections of a caller open the same attempt.
    Raises `BudgetExhausted` if the caller has used all of its attempts.
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
        raise BudgetExhausted(f"you have made {said}, which is the limit", budget="attempts", limit=most)
    digest = hashlib.sha256(json.dumps([problem.problem_id, subject, number + 1]).encode()).hexdigest()
    return f"{PREFIX}{digest[:32]}", number + 1


GONE = "the process that submitted it has ended"
UNANSWERED = "the server asked for input, which was not given"
NOT_SCORED = f"`{advice('pursuit problem compare {}', 'PROBLEM')} --json` says why"


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, open or ended; several processes may hold the same attempt."""

    ledger: Ledger
    clock: Clock
    problem: Manifest
    attempt_id: str
    _: KW_ONLY
    by: str = "operator"
    label: str = ""
    mission: str | None = None
    subject: str | None = None
    number: int = 1
    state: AttemptState | None = field(init=False, default=None)
    _turn: anyio.Lock = field(init=False, default_factory=anyio.Lock)

    async def open(self) -> AttemptState:
        async with self._turn:
            return await self._opened()

    async def called(self, tool: str, args: Mapping[str, Any]) -> int:
        """Counts a call before it is made, and returns its number. Raises `BudgetExhausted`."""
        async with self._turn:
            while True:
                state = await self._opened()
                self._refuse_ended(state)
                evaluation = tool in self.problem.budget.evaluation_tools
                used: dict[BudgetName, float] = {"wall_seconds": self._elapsed(state), "calls": state.calls}
                if evaluation:
                    used["evaluations"] = state.evaluations
                await self._refuse_spent(state, used)
                number = state.calls + 1
                event = AttemptCalled(
                    at=self.clock(), number=number, tool=_text(tool), args=redacted(args), evaluation=evaluation
                )
                if await self._append(state, event):
                    return number

    async def check_open(self) -> None:
        """Checks that a counted call may proceed. Raises `AlreadySubmitted` and `BudgetExhausted`."""
        async with self._turn:
            state = await self._opened()
            self._refuse_ended(state)
            await self._refuse_spent(state, {"wall_seconds": self._elapsed(state)})

    async def answered(self, number: int, *, ok: bool, metrics: Mapping[str, float] | None = None) -> None:
        told = {_text(name): value for name, value in (metrics or {}).items() if math.isfinite(value)}
        event = AttemptAnswered(at=self.clock(), number=number, ok=ok, metrics=told)
        await self.record(event)

    def seconds_left(self) -> float | None:
        limit = self.problem.budget.wall_seconds
        if limit is None or self.state is None:
            return limit
        return max(0.0, limit - self._elapsed(self.state))

    async def overran(self) -> BudgetExhausted:
        """Records that a call was cut off by `wall_seconds`, unless there is a submission; returns the error."""
        limit = self.problem.budget.wall_seconds or 0.0
        async with self._turn:
            state = await self._opened()
            while state.taken is None and "wall_seconds" not in state.spent:
                await self._spend(state, "wall_seconds", limit)
                state = await self._opened()
        return exhausted("wall_seconds", limit)

    async def fix_form(self, form: str) -> str:
        """Fixes the form of the attempt's `submit_final` on first use; returns the fixed form."""
        async with self._turn:
            while True:
                state = await self._opened()
                if state.form is not None:
                    return state.form
                if await self._append(state, FormFixed(at=self.clock(), form=form)):
                    return form

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[bool]:
        """True if only this process submits or judges here while the block runs."""
        held = await self.ledger.claim(self.attempt_id)
        try:
            yield held is not None
        finally:
            if held is not None:
                with anyio.CancelScope(shield=True):
                    await held.release()

    async def refuse_second(self) -> None:
        state = await self.refresh()
        if state is not None:
            self._refuse_ended(state)

    async def claim(self, submission: Mapping[str, Any], *, comes_back: bool = False) -> str:
        """Reserves the submission while the problem's server handles it; returns its digest.

        A submission that `comes_back` answers the server's request for input. An unanswered request costs a call.
        """
        digest = submission_digest(submission)
        async with self._turn:
            while True:
                state = await self._may_submit()
                if state.asked is not None and not (comes_back and state.asked == digest):
                    await self._append(state, *self._refused(state, state.asked, UNANSWERED))
                    continue
                # A refused submission costs a call, even beyond the budget: otherwise an agent could guess for free.
                overdrawn: dict[BudgetName, float] = {"calls": state.calls - 1, "evaluations": state.evaluations - 1}
                await self._refuse_spent(state, overdrawn, closed=True)
                event = SubmissionClaimed(at=self.clock(), digest=digest, submission=dict(submission))
                if await self._append(state, event):
                    return digest

    async def drop(self, digest: str, why: str, sort: Literal["refused", "asked", "unsent"] = "refused") -> None:
        """Releases the reservation. A refusal by the server costs a call.

        A submission whose server asked for input (`asked`) continues with the answer. A submission that the server did
        not receive (`unsent`) is free.
        """
        async with self._turn:
            while True:
                state = await self._opened()
                if sort == "unsent" and state.status != "claimed":
                    return
                dropped = SubmissionDropped(at=self.clock(), digest=digest, why=why[:500], sort=sort)
                events = self._refused(state, digest, why) if sort == "refused" else (dropped,)
                if await self._append(state, *events):
                    return

    def _refused(self, state: AttemptState, digest: str, why: str) -> tuple[AnyAttemptEvent, ...]:
        """The events of a refused submission, and of the call that it cost."""
        at, number = self.clock(), state.calls + 1
        evaluation = SUBMIT in self.problem.budget.evaluation_tools
        return (
            SubmissionDropped(at=at, digest=digest, why=why[:500]),
            AttemptCalled(at=at, number=number, tool=SUBMIT, args={}, evaluation=evaluation),
            AttemptAnswered(at=at, number=number, ok=False),
        )

    async def give_up(self, why: str = GONE) -> AttemptState | None:
        """Accepts a claimed and never settled submission, with unknown outcome.

        Only for the process that claimed it, or that is `alone`. Does nothing without a claim.
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
        """Accepts the submission, now or `at` a time. Raises `AlreadySubmitted` with its receipt, `BudgetExhausted`."""
        async with self._turn:
            while True:
                state = await self._may_submit(claimed)
                event = SubmissionTaken(
                    at=self.clock() if at is None else at,
                    digest=claimed or submission_digest(submission),
                    submission=dict(submission),
                    result=None if result is None else dict(result),
                    calls=state.calls,
                    evaluations=state.evaluations,
                    unknown=unknown,
                )
                if after := await self._append(state, event):
                    return after

    async def refresh(self) -> AttemptState | None:
        stored = await self.ledger.read(self.attempt_id, after=0 if self.state is None else self.state.seq)
        self.state = _advanced(self.attempt_id, self.state, stored)
        return self.state

    def fits(self, state: AttemptState) -> bool:
        return (state.opened.problem_id, state.opened.manifest) == (self.problem.problem_id, self.problem.digest)

    async def check(self) -> None:
        """Raises `InvalidArgument` if this id belongs to an attempt at another problem or version; creates nothing."""
        state = await self.refresh()
        if state is not None:
            self._refuse_other(state)

    def _refuse_other(self, state: AttemptState) -> None:
        mine = self.problem.problem_id
        if state.opened.problem_id != mine:
            theirs = f"{self.attempt_id} is an attempt at {state.opened.problem_id!r}, not at {mine!r}"
            raise InvalidArgument(f"{theirs}; name that problem, or another attempt", attempt_id=self.attempt_id)
        if not self.fits(state):
            changed = f"{self.attempt_id} was begun with another version of {mine}'s problem.toml"
            raise InvalidArgument(f"{changed}; begin a new attempt", attempt_id=self.attempt_id)

    async def _opened(self) -> AttemptState:
        state = self.state or await self.refresh()
        if state is not None:
            self._refuse_other(state)
        digest = "" if state is not None else await anyio.to_thread.run_sync(judging_digest, self.problem)
        while state is None:
            budget = self.problem.budget
            named = {"calls": budget.calls, "evaluations": budget.evaluations, "wall_seconds": budget.wall_seconds}
            event = AttemptOpened(
                at=self.clock(),
                problem_id=self.problem.problem_id,
                manifest=self.problem.digest,
                judge=digest,
                by=_text(self.by),
                label=_text(self.label),
                mission=self.mission,
                limits={name: value for name, value in named.items() if value is not None},
                subject=None if self.subject is None else _text(self.subject),
                number=self.number,
            )
            state = await self._append(None, event) or self.state
        return state

    def _elapsed(self, state: AttemptState) -> float:
        """The seconds since the first call, which may be the current one."""
        return 0.0 if state.began is None else self.clock() - state.began

    async def _may_submit(self, claimed: str | None = None) -> AttemptState:
        state = await self._opened()
        state = await self.refresh() or state
        self._refuse_ended(state)
        if claimed is None and state.claimed is not None:
            raise AlreadySubmitted("another submission of this attempt is in progress", attempt_id=self.attempt_id)
        if claimed is None:
            await self._refuse_spent(state, {"wall_seconds": self._elapsed(state)})
        return state

    def _refuse_ended(self, state: AttemptState) -> None:
        if state.receipt is not None:
            said = f"this attempt has already been submitted (sha256 {state.receipt['sha256'][:12]}…)"
            if "fate" in state.receipt:
                said += "; its server may or may not have accepted it"
            raise AlreadySubmitted(said, receipt=state.receipt)

    async def _refuse_spent(
        self, state: AttemptState, used: Mapping[BudgetName, float], *, closed: bool = False
    ) -> None:
        """Records the first used-up budget and raises `BudgetExhausted` for it."""
        for budget, amount in used.items():
            limit: float | None = getattr(self.problem.budget, budget)
            if limit is not None and amount >= limit:
                await self._spend(state, budget, limit)
                raise exhausted(budget, limit, closed=closed)

    async def _spend(self, state: AttemptState, budget: BudgetName, limit: float) -> None:
        if budget not in state.spent:
            await self._append(state, BudgetSpent(at=self.clock(), budget=budget, limit=limit))

    async def record(self, event: AttemptAnswered | AttemptScored) -> None:
        async with self._turn:
            while not await self._append(await self._opened(), event):
                pass

    async def _append(self, state: AttemptState | None, *events: AnyAttemptEvent) -> AttemptState | None:
        """Appends after the known state, and returns the next; if another process was faster, reads its events."""
        expected = 0 if state is None else state.seq
        after = None if state is None else replace(state, spent=dict(state.spent), series=list(state.series))
        for event in events:
            after = _after(self.attempt_id, after, event)
        try:
            await self.ledger.append(
                self.attempt_id,
                expected,
                [Draft(*encode_attempt(event)) for event in events],
                kind=KIND,
                status=None if after is None else after.status,
                summary=None if after is None else summary_of(after),
            )
        except Conflict:
            await self.refresh()
            return None
        self.state = after
        return after


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()


def _after(attempt_id: str, state: AttemptState | None, event: AnyAttemptEvent) -> AttemptState | None:
    if state is None:
        return fold_attempt(attempt_id, [event])
    advance_attempt(state, event)
    return state


def summary_of(state: AttemptState) -> dict[str, Any]:
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

"""Attempts as the ledger tells them.

Owns: how the events of an attempt are read, one attempt or all at a problem. Writes nothing. Invariant: an attempt
that cannot be read is named with what is wrong with it, and keeps nobody from reading the others.
"""

from __future__ import annotations

import msgspec

from pursuit.core.attempts import AnyAttemptEvent, AttemptState, decode_attempt, fold_attempt
from pursuit.errors import AttemptNotFound, LedgerUnavailable
from pursuit.ledger.contract import Ledger, StoredEvent
from pursuit.problems.attempt_ids import is_attempt

KIND = "attempt"


def decoded(attempt_id: str, stored: StoredEvent) -> AnyAttemptEvent:
    """An event of an attempt; raises `LedgerUnavailable`."""
    try:
        return decode_attempt(stored.body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise damaged(attempt_id, f"its event {stored.seq} cannot be read: {error}") from None


def damaged(attempt_id: str, why: str) -> LedgerUnavailable:
    """The error that says which attempt cannot be read, and why."""
    said = f"{attempt_id} is damaged: {why}; `pursuit verify` says what of the ledger is sound"
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
    """All attempts at these problems, oldest first; why some are left out is told to `unreadable`."""
    found: list[AttemptState] = []
    cursor: str | None = None
    while True:
        page = await ledger.streams(kind=KIND, cursor=cursor)
        for row in page.rows:
            if row.summary.get("problem_id") in problem_ids:
                try:
                    found.append(await load_attempt(ledger, row.name))
                except LedgerUnavailable as error:
                    if unreadable is None:
                        raise
                    unreadable.append(error.message)
        cursor = page.next_cursor
        if cursor is None:
            return found[::-1]

"""Who does the work: one owner for each process, alive as long as its lock is held.

Owns: the owner's name and the question whether another one is still there. Knows no task.
Invariant: an owner's lock is the operating system's, so a dead process is known to be dead at once.
"""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Self

from pursuit.ledger.contract import Claim, Ledger


class Owner:
    """One process as the owner of work."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._claim: Claim | None = None
        self.name = f"owner-{secrets.token_hex(8)}"

    async def __aenter__(self) -> Self:
        self._claim = await self._ledger.claim(self.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claim is not None:
            await self._claim.release()


async def is_alive(ledger: Ledger, owner: str | None) -> bool:
    """Whether that owner's process still runs."""
    if owner is None:
        return False
    claim = await ledger.claim(owner)
    if claim is None:
        return True
    await claim.release()
    return False

"""The `Proposer` protocol and its three answers. A proposer reads the state, and makes no call itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pursuit.core.events import AnyEvent, WaitingFor
from pursuit.core.mission import Proposal
from pursuit.core.state import MissionState

Past = Callable[[int], Awaitable[Sequence[tuple[int, AnyEvent]]]]
"""Reads the mission's events after a sequence number, each with its own number."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be proposed yet: the mission waits for something outside."""

    waiting_for: WaitingFor
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The proposer could not propose; `final` if asking it again for this iteration cannot help."""

    reason: str
    final: bool = False


class Proposer(Protocol):
    """Suggests the calls of the next iteration."""

    @property
    def operators_own(self) -> bool:
        """Whether the operator wrote what it proposes, so that its scripts may set metrics."""
        ...

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The next proposal; `reasons` say why the last one for this iteration was refused."""
        ...

"""What the engine asks of a proposer.

Owns: the role and its three answers. A proposer reads the state, and makes no call itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pursuit.core.events import AnyEvent, WaitingFor
from pursuit.core.mission import Proposal
from pursuit.core.state import MissionState

Past = Callable[[int], Awaitable[Sequence[tuple[int, AnyEvent]]]]
"""Reads the mission's events after a number, each with its own."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be proposed before somebody outside has done something."""

    waiting_for: WaitingFor
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The proposer could not propose; `final` if it is of no use to ask it again for this iteration."""

    reason: str
    final: bool = False


class Proposer(Protocol):
    """Suggests the calls of the next iteration."""

    @property
    def operators_own(self) -> bool:
        """Whether what it proposes is the operator's own word, so that its scripts may set metrics."""
        ...

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The next proposal; `reasons` say why the last one for this iteration was refused."""
        ...

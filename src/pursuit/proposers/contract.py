"""The `Proposer` protocol and its answers. A proposer reads the state, and makes no call itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
    until: float | None = None
    """Seconds from now until it may be tried again."""
    fallback: int | None = None
    lost: int = 0
    """Requests to a model that were sent and not answered."""
    after: float | None = None
    """Seconds from now until the provider wants to be asked again."""
    window: int | None = None
    """What the model takes at most, if it refused a request as too long."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The proposer could not propose; `final` if asking it again for this iteration cannot help."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """A call in a model's answer: the tool that it means, or the reason why it means none."""

    tool: str
    args: dict[str, Any]
    wanted_id: str
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A language model's answer, as calls or as a script; `ends` if the model's turn is over after them.

    A faulty call does not discard the others. `failed` says why the answer is none.
    """

    calls: Sequence[AnswerCall] = ()
    script: str | None = None
    rationale: str | None = None
    ends: bool = False
    failed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """The proposer cannot work until the operator repairs something, a key for example."""

    reason: str


Proposed = Proposal | Turn | Waiting | Failed | Broken


class Proposer(Protocol):
    """Suggests the calls of the next iteration."""

    @property
    def operators_own(self) -> bool:
        """Whether the operator wrote what it proposes, so that its scripts may set metrics."""
        ...

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """The next proposal; `reasons` say why the last one for this iteration was refused."""
        ...

"""The context of a turn: the journal, the tools, the sandbox, the clock, and interruption by the operator.

Invariant: once the operator has ordered a stop, no effect begins.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

import anyio

from pursuit.config.process_environment import USUAL_ENVIRONMENT, ProcessEnvironment
from pursuit.core.criteria import Check
from pursuit.core.events import AbortOrdered, BudgetExtended, CompletionOrdered, MissionPaused, OperatorEvent
from pursuit.core.mission import Proposal
from pursuit.core.state import TIMED, MissionState
from pursuit.core.tools import CheckPlace
from pursuit.engine.journal import Journal
from pursuit.ledger.contract import Ledger
from pursuit.proposers.contract import Proposer, Services
from pursuit.sandbox.sandbox import Sandbox
from pursuit.upstream.host import UpstreamTools

T = TypeVar("T")


class Deadline:
    """The deadline of a call: its timeout, which progress renews, a ceiling, and the mission's wall clock.

    It starts when it is entered. Until it is left it is in `open_ones`, so that an extended budget reaches the call.
    """

    __slots__ = ("_began", "_left", "_longest", "_open", "_scope", "_signed", "ran_out", "timeout")

    def __init__(
        self, open_ones: set[Deadline], *, timeout: float, ceiling: float, wall_clock_left: float | None
    ) -> None:
        self._open = open_ones
        self.timeout = timeout
        self._longest = max(ceiling, timeout)
        self._left = wall_clock_left
        self.ran_out = False

    async def bound(self, awaited: Awaitable[T]) -> T | None:
        """The awaited result, or None if it does not come in time."""
        with self:
            return await awaited
        return None

    def __enter__(self) -> Self:
        self._began = self._signed = anyio.current_time()
        self._scope = anyio.CancelScope(deadline=self._when())
        self._open.add(self)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._open.discard(self)
        handled = self._scope.__exit__(kind, value, trace) or False
        self.ran_out = self._scope.cancelled_caught
        return handled

    async def progressed(self, _done: float, _total: float | None, _message: str | None) -> None:
        """Restarts the timeout, up to the ceiling, because the server reported progress."""
        self._signed = anyio.current_time()
        self._scope.deadline = self._when()

    def allow(self, seconds_left: float | None) -> None:
        """Sets the seconds left on the mission's wall clock."""
        self._left = None if seconds_left is None else anyio.current_time() - self._began + seconds_left
        self._scope.deadline = self._when()

    def why(self) -> str:
        """The limit that the call reached."""
        if self._left is not None and anyio.current_time() >= self._began + self._left:
            return "cut off by max_wall_clock_seconds"
        if anyio.current_time() >= self._began + self._longest:
            return f"no answer within {self._longest:g} s, although it reported progress"
        return f"no answer within {self.timeout:g} s"

    def _when(self) -> float:
        ends = min(self._signed + self.timeout, self._began + self._longest)
        return ends if self._left is None else min(ends, self._began + max(self._left, 0.0))


class Clock(Protocol):
    """Time, passed in: the engine itself never reads a clock."""

    def now(self) -> float:
        """Seconds since the epoch, for people."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease, for durations."""
        ...


class SystemClock:
    """The clock of this machine."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


Phase = Literal["propose", "execute", "verify", "evaluate", "decided", "waiting", "ended"]
Observer = Callable[[str, Phase, MissionState], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits that the operator sets."""

    call_timeout: float = 60.0
    call_ceiling: float = 3_600.0
    inline_result: int = 16 * 1024
    approval_timeout: float = 86_400.0
    task_patience: float = 1.0
    model_timeout: float = 600.0
    memory_lessons: int = 5


class Spent(NamedTuple):
    """The usage of a run since it was last counted."""

    tokens: int
    cost_usd: float
    bytes: int


Ceiling = Callable[[MissionState, Spent], Awaitable[str | None]]
"""Counts what a mission has used; returns why it may not continue now, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """The settings of a run on a worker for which other missions may be waiting."""

    leaving: anyio.Event
    """Set when the worker stops: the run ends after the current iteration."""
    longest_wait: float = 0.0
    """The longest wait, in seconds, for a pace or a model during which the run keeps the mission."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One driver's run of one mission."""

    mission_id: str
    journal: Journal
    tools: UpstreamTools
    sandbox: Sandbox
    clock: Clock
    settings: Settings
    task_ended: Callable[[str], float | None]
    observer: Observer | None = None
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    process_environment: ProcessEnvironment = USUAL_ENVIRONMENT
    proposer: Proposer = field(init=False)
    """The open proposer; a run that only closes a mission has none."""
    checked: Proposal | None = None
    """The client's proposal, checked before the run began."""
    services: Services = field(init=False)
    """The services for the proposer."""
    checking: CheckPlace | None = None
    """The place where the commands of checks run now, if it differs from the one in their settings."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The warnings of the proposer's preparation, with their codes."""
    used_approvals: set[str] = field(default_factory=set[str])
    """The answers to questions of the agent that this run has used."""
    started: float = 0.0
    ceiling: Ceiling | None = None
    placed: WorkerRun | None = None
    stop_ordered: bool = False
    interrupted: anyio.Event = field(default_factory=anyio.Event)
    """Set by each event of the operator."""
    deadlines: set[Deadline] = field(default_factory=set[Deadline])
    state: MissionState = field(init=False)
    _effects: anyio.CancelScope | None = None
    _counted: Spent = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.journal.state  # one object for the whole run; the journal updates it
        self._counted = self._spent()

    def _spent(self) -> Spent:
        return Spent(self.state.tokens, self.state.cost_usd, self.journal.written)

    async def count_spent(self) -> str | None:
        """Counts the usage since the last count; returns why the mission may not continue now, or None."""
        if self.ceiling is None or self.state.owner is None:
            return None
        before, self._counted = self._counted, self._spent()
        now = self._counted
        new = Spent(now.tokens - before.tokens, now.cost_usd - before.cost_usd, now.bytes - before.bytes)
        return await self.ceiling(self.state, new)

    async def held(self) -> bool:
        """Pauses the mission and returns True if its owner has reached a limit."""
        why = await self.count_spent()
        if why is None:
            return False
        if not self.state.stopped:
            now = self.clock.now()
            self.journal.stage(MissionPaused(at=now, by="[limits]", reason=why, waited=self.state.waited(now)))
        await self.journal.flush()
        return True

    @property
    def ledger(self) -> Ledger:
        """The journal's ledger."""
        return self.journal.ledger

    def check_of(self, criterion_id: str | None) -> Check | None:
        """The check of a criterion, if it is one."""
        criteria = self.state.mission.criteria
        return next((one for one in criteria if one.criterion_id == criterion_id and isinstance(one, Check)), None)

    def named_check(self, criterion_id: str | None) -> str | None:
        """The name of the `[checks.NAME]` that a criterion uses, if it does."""
        return None if (check := self.check_of(criterion_id)) is None else check.check

    def environment_of(self, criterion_id: str | None) -> ProcessEnvironment:
        """The environment for the command of a check: that of `[checks.NAME]` if the check is named."""
        named = self.checks.get(self.named_check(criterion_id) or "", {})
        around: ProcessEnvironment = named.get("process_environment", self.process_environment)
        check = self.check_of(criterion_id)
        if self.checking is None or (check is not None and not check.isolated):
            return around
        return replace(around, isolation=self.checking.isolation(around, check is not None and check.network))

    def checked_folder(self, cwd: str | None) -> str:
        """The working folder of a check's command: with a workspace, a temporary worktree of the files that count."""
        return cwd or "." if self.checking is None else self.checking.folder(cwd)

    def elapsed(self) -> float:
        """Seconds that this run has held the mission, rounded to microseconds."""
        return int((self.clock.monotonic() - self.started) * 1e6) / 1e6

    def wall_clock_left(self) -> float | None:
        """Seconds until the wall-clock cap, or None."""
        cap = self.state.budget["max_wall_clock_seconds"]
        return None if cap == -1 else self._left_of(cap)

    def _left_of(self, cap: float) -> float | None:
        return None if cap == -1 else cap - self.state.elapsed_before - self.elapsed()

    def lets_go(self) -> bool:
        """True if the run ends here and leaves the mission to another worker or a later time."""
        if self.placed is None:
            return False
        waits = self.state.waiting_for in TIMED and self.state.wait_until is not None
        long = waits and self.state.wait_left(self.clock.now()) > self.placed.longest_wait
        return long or self.placed.leaving.is_set()

    def report_phase(self, phase: Phase) -> None:
        """Calls the observer in this process; if it fails, it is not called again."""
        if self.observer is None:
            return
        try:
            self.observer(self.mission_id, phase, self.state)
        except Exception:  # noqa: BLE001 - the boundary: a broken screen must not break the mission
            self.observer = None

    def effects(self) -> anyio.CancelScope:
        """A scope for turns; the operator's stop cancels the latest scope, which is harmless after its exit."""
        self._effects = anyio.CancelScope()
        if self.stop_ordered:
            self._effects.cancel()
        return self._effects

    def deadline(self, timeout: float) -> Deadline:
        """A scope that is cancelled when a call's time is up; time that the operator adds before that counts too."""
        left = self.wall_clock_left()
        return Deadline(self.deadlines, timeout=timeout, ceiling=self.settings.call_ceiling, wall_clock_left=left)

    async def fold_stop(self) -> None:
        """Folds a stop that was seen but that no append has folded yet."""
        if self.stop_ordered:
            self.stop_ordered = False
            await self.journal.catch_up()
            self.stop_ordered = self.state.stopped

    def obey(self, word: OperatorEvent) -> None:
        """Obeys the operator: a stop cancels running calls, added wall clock extends them, any event ends a wait.

        An event may arrive twice, from `watch_operator` and when it is folded; obeying it twice is harmless.
        """
        if isinstance(word, MissionPaused | AbortOrdered | CompletionOrdered):
            self.stop_ordered = True
            if self._effects is not None:
                self._effects.cancel()
        if isinstance(word, BudgetExtended) and "max_wall_clock_seconds" in word.caps:
            for limit in self.deadlines:
                limit.allow(self._left_of(word.caps["max_wall_clock_seconds"]))
        self.interrupted.set()

    async def watch_claim(self) -> None:
        """Ends the run when another process may have taken over the mission."""
        claim = self.journal.claim
        if claim is not None:
            await claim.lost.wait()
            await claim.confirm()

    async def watch_operator(self) -> None:
        """Receives the operator's events while nothing is being appended."""
        wakeup = self.journal.wakeup
        if wakeup is None:
            return
        self.journal.on_operator_event = self.obey
        while True:
            await wakeup.wait()
            for _seq, event in await self.journal.past(self.journal.head):
                if isinstance(event, OperatorEvent):
                    self.obey(event)

"""Schedules: a serving process starts missions from their files at the times of a cron expression.

Each schedule has a stream. One compare-and-set append to it decides about a due time, so only one of several servers
decides. The decision names the mission's id before the mission exists: if a server dies in between, any server starts
the mission of the last decision under that id, at most once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import anyio
import msgspec

from pursuit.config.configuration import ScheduleTable
from pursuit.core.events import encode
from pursuit.core.report import iso
from pursuit.core.state import TERMINAL
from pursuit.engine.context import Clock
from pursuit.engine.driver import RunOrder
from pursuit.errors import (
    Conflict,
    ExtraMissing,
    Fault,
    InvalidArgument,
    PursuitError,
    SessionNotFound,
    SessionTerminal,
    ValidationFailed,
)
from pursuit.ledger.contract import FORGOTTEN, Draft, Ledger
from pursuit.service.audit import Caller
from pursuit.service.queries import new_mission_id
from pursuit.service.runner import Begin
from pursuit.service.service import Service

MAX_COUNTED = 1_000
"""Maximum of due times that are counted after a long time without a server."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    grace: float = 300.0
    """Seconds after which a due time is missed; a server that restarts within them still starts the run."""
    look_seconds: float = 5.0
    first_retry: float = 5.0
    last_retry: float = 300.0


class ScheduleEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    at: float


class ScheduleBegan(ScheduleEvent, frozen=True, kw_only=True):
    """A server has the schedule for the first time; earlier due times do not count as missed."""


class DueMissed(ScheduleEvent, frozen=True, kw_only=True):
    first: float
    last: float
    count: int


class DueSkipped(ScheduleEvent, frozen=True, kw_only=True):
    """The run before this due time has not ended."""

    due: float
    session_id: str


class DueQueued(ScheduleEvent, frozen=True, kw_only=True):
    due: float


class RunOrdered(ScheduleEvent, frozen=True, kw_only=True):
    due: float
    session_id: str
    replaces: str | None = None


class RunRefused(ScheduleEvent, frozen=True, kw_only=True):
    session_id: str
    reason: str


AnyScheduleEvent = ScheduleBegan | DueMissed | DueSkipped | DueQueued | RunOrdered | RunRefused
_decode = msgspec.json.Decoder(AnyScheduleEvent).decode


@dataclass(slots=True)
class ScheduleState:
    """The fold of a schedule's stream; every due time up to `handled` is decided."""

    head: int = 0
    handled: float = 0.0
    order: RunOrdered | None = None
    refused: str | None = None
    queued: float | None = None
    missed: int = 0
    last_missed: float | None = None
    skipped: int = 0
    last_skipped: float | None = None

    def advance(self, event: AnyScheduleEvent) -> None:
        self.head += 1
        match event:
            case ScheduleBegan():
                self.handled = event.at
            case DueMissed():
                self.missed, self.last_missed = self.missed + event.count, event.last
                self.handled = max(self.handled, event.last)
            case DueSkipped():
                self.skipped, self.last_skipped = self.skipped + 1, event.due
                self.handled = max(self.handled, event.due)
            case DueQueued():
                self.queued = event.due
                self.handled = max(self.handled, event.due)
            case RunOrdered():
                self.order, self.refused = event, None
                self.queued = None if event.due == self.queued else self.queued
                self.handled = max(self.handled, event.due)
            case RunRefused():
                self.refused = event.reason


@dataclass(frozen=True, slots=True)
class Due:
    """The due times in a span of time: how many, the first, the last but one, and the last."""

    count: int = 0
    first: float = 0.0
    before: float = 0.0
    last: float = 0.0


class Cron:
    """The due times of a schedule, in its time zone. Raises `ValidationFailed`, and `ExtraMissing` without croniter."""

    def __init__(self, name: str, config: ScheduleTable) -> None:
        try:
            self._croniter: Any = import_module("croniter").croniter
        except ImportError:
            words = "schedules need an extra that is not installed: pip install 'pursuit[schedule]'"
            raise ExtraMissing(words, extra="schedule") from None
        at = f"schedule.{name}"
        self._zone = _zone(config, at)
        self._cron = config.cron
        # When clocks go back, a fixed hour occurs twice on that day; only one run is wanted.
        self._once = not config.cron.split()[1:2] or not config.cron.split()[1].startswith("*")
        try:
            self.after(0.0)
        except ValueError as error:
            reason = f"{config.cron!r} is not a cron expression: {error}"
            raise ValidationFailed([Fault(field=f"{at}.cron", reason=reason)]) from None

    def local(self, at: float) -> datetime:
        return datetime.fromtimestamp(at, tz=self._zone)

    def after(self, at: float) -> float:
        return next(self._times(at))

    def between(self, after: float, until: float) -> Due:
        """The due times after `after` up to `until`; of very many, only the first and the newest are exact."""
        found = Due()
        for due in self._times(after):
            if due > until:
                break
            found = Due(found.count + 1, found.first or due, found.last or due, due)
            if found.count == MAX_COUNTED:
                newest: datetime = self._croniter(self._cron, self.local(until), ret_type=datetime).get_prev()
                return Due(found.count, found.first, due, newest.timestamp())
        return found

    def _times(self, at: float) -> Iterator[float]:
        times = self._croniter(self._cron, self.local(at), ret_type=datetime)
        while True:
            found: datetime = times.get_next()
            if not (self._once and found.fold):
                yield found.timestamp()


def _zone(config: ScheduleTable, at: str) -> tzinfo:
    name = config.timezone or os.environ.get("TZ", "").removeprefix(":")
    try:
        if name:
            return ZoneInfo(name)
        with Path("/etc/localtime").open("rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except (OSError, ValueError, LookupError):
        if config.timezone is None:
            return datetime.now().astimezone().tzinfo or UTC
    reason = f"{name[:100]!r} is not a known time zone; write a name such as Europe/Berlin"
    raise ValidationFailed([Fault(field=f"{at}.timezone", reason=reason)])


def read_crons(configs: Mapping[str, ScheduleTable]) -> dict[str, Cron]:
    found: dict[str, Cron] = {}
    faults: list[Fault] = []
    for name, config in configs.items():
        try:
            found[name] = Cron(name, config)
        except ValidationFailed as failed:
            faults += failed.faults
    if faults:
        raise ValidationFailed(faults)
    return found


def stream_of(name: str) -> str:
    return f"schedule-{name}"


async def read_schedule(ledger: Ledger, name: str, known: ScheduleState | None = None) -> ScheduleState | None:
    """The state of a schedule, folded from a `known` state on; None if no server has had the schedule."""
    state = known or ScheduleState()
    for one in await ledger.read(stream_of(name), after=state.head):
        state.advance(_decode(one.body))
    return state if state.head else None


async def is_active(ledger: Ledger, state: ScheduleState) -> bool:
    """True if the last run has not ended. A run that failed by an internal error counts as ended."""
    if state.order is None or state.refused is not None:
        return False
    row = await ledger.row(state.order.session_id)
    return row is None or row.status not in (*TERMINAL, "failed", FORGOTTEN)


@dataclass(slots=True)
class _Retry:
    due: float = 0.0
    wait: float = 0.0


Start = Callable[[Path, str, Caller], Awaitable[None]]
"""Accepts the mission of a file under an id."""


@dataclass(slots=True, kw_only=True)
class Schedules:
    service: Service
    configs: Mapping[str, ScheduleTable]
    start: Start
    begin: Begin
    clock: Clock
    settings: ScheduleSettings = field(default_factory=ScheduleSettings)
    crons: Mapping[str, Cron] = field(init=False)
    _states: dict[str, ScheduleState] = field(default_factory=dict[str, ScheduleState])
    _retries: dict[str, _Retry] = field(default_factory=dict[str, _Retry])

    def __post_init__(self) -> None:
        self.crons = read_crons(self.configs)

    async def run(self) -> NoReturn:
        while True:
            await self.tick()
            now = self.clock.now()
            left = min((cron.after(now) - now for cron in self.crons.values()), default=self.settings.look_seconds)
            await anyio.sleep(max(0.0, min(left, self.settings.look_seconds)))

    async def tick(self) -> None:
        for name in self.configs:
            try:
                await self._tick(name)
            except Conflict:
                continue  # another server decided at the same moment
            except PursuitError as error:
                log.warning("schedule cannot be read", extra=_fields(name, reason=str(error)))

    async def _tick(self, name: str) -> None:
        now = self.clock.now()
        # Only one task may fold into a state, so it is removed for that time.
        state = await read_schedule(self.service.ledger, name, self._states.pop(name, None))
        if state is None:
            await self._append(name, 0, [ScheduleBegan(at=now)])
            return
        events = await self._decide(name, state, now)
        if events:
            await self._append(name, state.head, events)
            for event in events:
                state.advance(event)
                _tell(name, event)
        await self._ensure_started(name, state)
        self._states[name] = state

    async def _decide(self, name: str, state: ScheduleState, now: float) -> list[AnyScheduleEvent]:
        """Decides about the due times since the last decision, and about the queued one."""
        events: list[AnyScheduleEvent] = []
        running = state.order.session_id if state.order and await is_active(self.service.ledger, state) else None
        queued = state.queued
        if queued is not None and running is None:
            running = new_mission_id()
            events.append(RunOrdered(at=now, due=queued, session_id=running))
            queued = None
        due = self.crons[name].between(state.handled, now)
        if due.count == 0:
            return events
        late = due.last < now - self.settings.grace
        if missed := due.count if late else due.count - 1:
            # If several due times have passed, only the newest can still be in time.
            events.append(DueMissed(at=now, first=due.first, last=due.last if late else due.before, count=missed))
        if late:
            return events
        overlap = self.configs[name].overlap
        if running is None or overlap == "replace":
            events.append(RunOrdered(at=now, due=due.last, session_id=new_mission_id(), replaces=running))
        elif overlap == "queue" and queued is None:
            events.append(DueQueued(at=now, due=due.last))
        else:
            events.append(DueSkipped(at=now, due=due.last, session_id=running))
        return events

    async def _ensure_started(self, name: str, state: ScheduleState) -> None:
        """Starts the mission of the last decision, even if a server died before it could."""
        order, retry = state.order, self._retries.setdefault(name, _Retry())
        if order is None or state.refused is not None or self.clock.now() < retry.due:
            return
        row = await self.service.ledger.row(order.session_id)
        if row is not None and row.status != "pending":
            return
        caller = Caller(who=f"schedule {name}", transport="serve")
        try:
            if order.replaces is not None:
                with suppress(SessionTerminal, SessionNotFound):
                    await self.service.abort(order.replaces, reason="replaced by the next scheduled run", caller=caller)
            if row is None:
                await self.start(self.configs[name].mission, order.session_id, caller)
            await self.begin(RunOrder(order.session_id))
            retry.due = retry.wait = 0.0
            log.info("scheduled run started", extra=_fields(name, mission=order.session_id))
        except Conflict:
            return  # another server has started it, or drives it
        except (ValidationFailed, InvalidArgument, ExtraMissing) as error:
            reason = "; ".join(map(str, error.faults)) if isinstance(error, ValidationFailed) else error.message
            refused = RunRefused(at=self.clock.now(), session_id=order.session_id, reason=reason)
            await self._append(name, state.head, [refused])
            _tell(name, refused)
        except PursuitError as error:
            retry.wait = min(2 * retry.wait or self.settings.first_retry, self.settings.last_retry)
            retry.due = self.clock.now() + retry.wait
            log.warning(
                "scheduled run not started yet", extra=_fields(name, mission=order.session_id, reason=str(error))
            )

    async def _append(self, name: str, expected: int, events: Sequence[AnyScheduleEvent]) -> None:
        drafts = [Draft(*encode(event)) for event in events]
        await self.service.ledger.append(stream_of(name), expected, drafts, kind="schedule", status="open")


def _fields(name: str, **fields: Any) -> dict[str, Any]:
    return {"pursuit_fields": {"schedule": name, **fields}}


def _tell(name: str, event: AnyScheduleEvent) -> None:
    match event:
        case DueMissed():
            spoken = _fields(name, runs=event.count, first=iso(event.first), last=iso(event.last))
            log.warning("scheduled runs were missed: no server was running", extra=spoken)
        case DueSkipped():
            spoken = _fields(name, due=iso(event.due), mission=event.session_id)
            log.warning("scheduled run skipped: the previous run has not ended", extra=spoken)
        case RunRefused():
            log.warning("scheduled run refused", extra=_fields(name, mission=event.session_id, reason=event.reason))
        case _:
            pass


async def schedule_rows(
    configs: Mapping[str, ScheduleTable], ledger: Ledger | None, now: float
) -> list[dict[str, Any]]:
    """Each schedule with its next time, its last run, and its missed and skipped runs.

    A due time that no server has decided in time also counts as missed.
    """
    grace = ScheduleSettings().grace
    crons = read_crons(configs)
    rows: list[dict[str, Any]] = []
    for name, config in configs.items():
        cron, state = crons[name], None if ledger is None else await read_schedule(ledger, name)
        row: dict[str, Any] = {
            "name": name,
            "cron": config.cron,
            "timezone": config.timezone or "local",
            "mission": str(config.mission),
            "overlap": config.overlap,
            "next_at": cron.local(cron.after(now)).isoformat(),
        }
        if state is not None and ledger is not None:
            undecided = cron.between(state.handled, now - grace)
            found = {
                "missed": state.missed + undecided.count,
                "last_missed_at": iso(undecided.last if undecided.count else state.last_missed),
                "skipped": state.skipped,
                "last_skipped_at": iso(state.last_skipped),
                "queued_at": iso(state.queued),
                "last_run": None if state.order is None else await _last_run(ledger, state.order, state.refused),
            }
            row |= {key: value for key, value in found.items() if value}
        rows.append(row)
    return rows


async def _last_run(ledger: Ledger, order: RunOrdered, refused: str | None) -> dict[str, Any]:
    row = await ledger.row(order.session_id)
    run = {"due_at": iso(order.due), "session_id": order.session_id}
    if refused is not None:
        return {**run, "status": "refused", "reason": refused}
    return {**run, "status": "ordered" if row is None else row.status}

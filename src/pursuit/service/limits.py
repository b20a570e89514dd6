"""The limits of clients: what each may start, use and store. Use for the day and in total is kept in the ledger.

Invariant: a client's use is counted under its subject, so another connection, a rotated token or a restart does not
reset it. The operator is unlimited. Checking a client's use reads one row, however long its history is.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import msgspec

from pursuit.config.configuration import Ceilings, LimitsConfig
from pursuit.core.events import encode
from pursuit.core.mission import Mission
from pursuit.core.state import MissionState
from pursuit.engine.context import Clock, Spent
from pursuit.errors import Conflict, Fault, LimitReached, ValidationFailed, advice
from pursuit.ledger.contract import Draft, Ledger, every_stream
from pursuit.service.audit import Caller
from pursuit.service.tasks import requestor_of

KIND = "usage"
UNENDED = ("pending", "running", "waiting", "paused", "failed")
MINUTE = 60.0


class ClientUsed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Additional use by a client; forgetting a mission subtracts its bytes."""

    at: float
    subject: str
    missions: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    bytes: int = 0


decode_usage: Callable[[bytes], ClientUsed] = msgspec.json.Decoder(ClientUsed).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A client's use on one day (UTC), and its stored bytes: the row of its stream."""

    subject: str
    day: str = ""
    missions: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    bytes: int = 0

    def on(self, day: str) -> Usage:
        """The use on this day; another day starts at zero."""
        return self if day == self.day else Usage(subject=self.subject, day=day, bytes=self.bytes)

    def after(self, more: ClientUsed) -> Usage:
        before = self.on(day_of(more.at))
        names = ("missions", "tokens", "cost_usd", "bytes")
        return replace(before, **{name: max(0, getattr(before, name) + getattr(more, name)) for name in names})


def day_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def stream_of(subject: str) -> str:
    return f"usage-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"


class ClientLimits:
    def __init__(self, ledger: Ledger, clock: Clock, config: LimitsConfig) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ceilings = {None: config.of(None)} | {name: config.of(name) for name in config.callers}
        self._counted = {name for name, one in self._ceilings.items() if one.counts}
        """The tokens whose use is counted in the ledger."""
        self.counts_requests = config.requests
        """True if a limit counts requests or tasks, so each request must be counted."""
        self._starting = anyio.Lock()
        self._driving: dict[str, list[str]] = {}
        self._calls: dict[str, tuple[float, int]] = {}
        self._clients: dict[str, Ceilings] = {}

    def of(self, caller: Caller) -> Ceilings | None:
        return None if caller.subject is None else self._of(caller.credential)

    def _of(self, credential: str | None) -> Ceilings:
        return self._ceilings.get(credential, self._ceilings[None])

    def _counts(self, credential: str | None) -> bool:
        return (credential if credential in self._ceilings else None) in self._counted

    def count_request(self, caller: Caller) -> None:
        limits = self.of(caller)
        if limits is None or caller.subject is None:
            return
        self._clients[requestor_of(caller)] = limits
        most, now = limits.calls_a_minute, self._clock.monotonic()
        if most is None:
            return
        begun, count = self._calls.get(caller.subject, (now, 0))
        if now - begun >= MINUTE:
            begun, count = now, 0
        if count >= most:
            left = max(1, round(MINUTE - (now - begun)))
            raise _reached("calls_a_minute", most, caller.who, f"in {left} s", frees_in_seconds=left)
        self._calls[caller.subject] = (begun, count + 1)

    def tasks_of(self, requestor: str) -> int | None:
        """The maximum of concurrent tasks of a requestor; None if only the settings limit them.

        A requestor that has sent no request is the operator, in a process that serves no client.
        """
        limits = self._clients.get(requestor)
        return None if limits is None else limits.tasks_at_once

    @asynccontextmanager
    async def starting(self, caller: Caller, mission: Mission, size: int) -> AsyncGenerator[None]:
        """Counts a mission of `size` bytes that a client starts. Raises `LimitReached` or `ValidationFailed`."""
        limits = self.of(caller)
        if limits is None or caller.subject is None:
            yield
            return
        endless = mission.budget.max_iterations == mission.budget.max_wall_clock_seconds == -1
        if endless and not limits.unbounded:
            reason = f"only the operator can start an unbounded mission; {advice('`unbounded = true` in `[limits]`')}"
            raise ValidationFailed([Fault(field="budget.unbounded", reason=f"{reason} allows it; set a cap")])
        if not self._counts(caller.credential):
            yield
            return
        async with self._starting:  # two concurrent starts must not pass the same count
            if limits.missions_at_once is not None:
                owned = [name async for name in self._owned(caller.subject, UNENDED)]
                if len(owned) >= limits.missions_at_once:
                    raise _reached(
                        "missions_at_once", limits.missions_at_once, caller.who, "when one of its missions ends"
                    )

            def refuse(usage: Usage) -> None:
                why = _over(limits, usage, caller.who, self._clock.now(), starts=True)
                if why is not None:
                    raise why

            await self._count(caller.subject, refuse, missions=1, bytes=size)
            try:
                yield
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._count(caller.subject, missions=-1, bytes=-size)
                raise

    @asynccontextmanager
    async def driving(self, caller: Caller, mission_id: str) -> AsyncGenerator[None]:
        """Counts a mission as driven by the client while the block runs. Raises `LimitReached`."""
        limits = self.of(caller)
        if limits is None or limits.running is None or caller.subject is None:
            yield
            return
        async with self._starting:
            here = self._driving.setdefault(caller.subject, [])
            # A run that waits for its pace keeps its claim and continues; a run that waits for a person has none.
            others = {name async for name in self._owned(caller.subject, ("running", "waiting"))} - {*here, mission_id}
            live = [name for name in others if await self._ledger.is_claimed(name)]
            if len(live) + len({*here} - {mission_id}) >= limits.running:
                raise _reached(
                    "running",
                    limits.running,
                    caller.who,
                    "when one of them ends, is paused or waits for a person or a task",
                )
            here.append(mission_id)
        try:
            yield
        finally:
            here.remove(mission_id)

    async def ceiling(self, state: MissionState, spent: Spent) -> str | None:
        if state.owner is None or not self._counts(state.credential):
            return None
        limits = self._of(state.credential)
        usage = await self._count(
            state.owner,
            tokens=0 if limits.tokens_a_day is None else spent.tokens,
            cost_usd=0.0 if limits.cost_usd_a_day is None else spent.cost_usd,
            bytes=0 if limits.bytes_stored is None else spent.bytes,
        )
        over = _over(limits, usage, state.credential or state.owner, self._clock.now())
        return None if over is None else over.message

    async def store(self, caller: Caller, size: int) -> None:
        limits = self.of(caller)
        most = None if limits is None else limits.bytes_stored
        if most is None or caller.subject is None:
            return

        def refuse(usage: Usage) -> None:
            if usage.bytes + size > most:
                raise _reached("bytes_stored", most, caller.who, "when the operator forgets some of its missions")

        await self._count(caller.subject, refuse, bytes=size)

    async def forgotten(self, owner: str | None, credential: str | None, size: int) -> None:
        if owner is not None and self._counts(credential):
            await self._count(owner, bytes=-size)

    async def _owned(self, subject: str, status: tuple[str, ...]) -> AsyncGenerator[str]:
        async for row in every_stream(self._ledger, kind="mission", status=status):
            if row.summary.get("owner") == subject:
                yield row.name

    async def _count(self, subject: str, refuse: Callable[[Usage], None] = lambda _: None, **more: Any) -> Usage:
        """Adds `more` to a client's use, stores a change, and returns the use; `refuse` checks the use before."""
        stream = stream_of(subject)
        while True:
            row, now = await self._ledger.row(stream), self._clock.now()
            usage = Usage(subject=subject) if row is None else Usage(**row.summary)
            usage = usage.on(day_of(now))
            refuse(usage)
            if not any(more.values()):
                return usage
            event = ClientUsed(at=now, subject=subject, **more)
            usage = usage.after(event)
            with suppress(Conflict):  # another process has counted something; read again
                head = 0 if row is None else row.head.seq
                drafts = [Draft(*encode(event))]
                await self._ledger.append(stream, head, drafts, kind=KIND, status="open", summary=asdict(usage))
                return usage


def _over(limits: Ceilings, usage: Usage, who: str, now: float, *, starts: bool = False) -> LimitReached | None:
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    tomorrow = midnight.strftime("%Y-%m-%dT%H:%M:%SZ")
    daily: Mapping[str, tuple[float | None, float]] = {
        "missions_a_day": (limits.missions_a_day if starts else None, usage.missions),
        "tokens_a_day": (limits.tokens_a_day, usage.tokens),
        "cost_usd_a_day": (limits.cost_usd_a_day, usage.cost_usd),
    }
    for name, (most, used) in daily.items():
        if most is not None and used >= most:
            return _reached(name, most, who, f"at {tomorrow}", frees_at=tomorrow)
    if limits.bytes_stored is not None and usage.bytes >= limits.bytes_stored:
        return _reached("bytes_stored", limits.bytes_stored, who, "when the operator forgets some of its missions")
    return None


def _reached(name: str, most: float, who: str, when: str, **details: Any) -> LimitReached:
    why = f"[limits] {name} = {most:g} is reached for {who}; capacity is available again {when}"
    return LimitReached(why, limit=name, value=most, **details)

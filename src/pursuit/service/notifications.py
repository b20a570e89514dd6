"""Notifies a command or a webhook of the operator when a mission waits, ends, is stuck or interrupted.

A mission's events tell what to send, and the stream `notifications` records what was sent. The driver sends
notifications for the events that it stores; a serving process also sends those of dead processes, and finds missions
without a driver. Invariant: a notification never delays a mission, and its id stays the same however often it is sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import TaskGroup

from pursuit.config.configuration import Notice, NotifyTable
from pursuit.config.process_environment import USUAL_ENVIRONMENT, ProcessEnvironment
from pursuit.config.servers import is_loopback
from pursuit.config.variables import expand_variables
from pursuit.core.budgets import budget_use
from pursuit.core.events import Event, IterationEnded, MissionEnded, MissionFailed, WaitBegan, decoded, encode
from pursuit.core.fold import cut_short
from pursuit.core.report import Status, iso
from pursuit.core.state import TERMINAL, MissionState
from pursuit.core.tools import CallFailed
from pursuit.engine.commands import run_command
from pursuit.engine.context import Clock
from pursuit.errors import Conflict, PursuitError, SessionNotFound, advice
from pursuit.ledger.contract import ANY, Draft, Ledger, StreamRow, every_stream
from pursuit.service.queries import Queries

STREAM = "notifications"
SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of secrets in Standard Webhooks
WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
FOR_A_PERSON = ("approval", "input", "budget")
"""The waits that only a person can end."""
STUCK = ("no_progress", "proposer_failed", "out_of_reach")
"""The reasons of a verdict with which a mission is stuck."""
_WORTH_ANOTHER_TRY = (408, 409, 425, 429)
_TOLD = (
    *("session_id", "status", "directive", "iteration_count", "waiting_for", "waiting_detail", "waiting_until"),
    *("verdict", "verdict_reason", "failure", "budget", "best", "parent"),
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierSettings:
    budget_share: float = 0.8
    retries: tuple[float, ...] = (1, 5, 30, 120, 600, 1_800, 3_600)
    """Seconds before each further attempt; about an hour and three quarters in all."""
    exit_seconds: float = 5.0
    """How long a process that ends waits for deliveries; a serving process sends the rest."""
    look_seconds: float = 10.0
    """Seconds between searches of a serving process for unsent notifications. A mission without a driver in two
    successive searches is interrupted: after an answer it takes a moment until a driver continues."""
    oldest: float = 86_400.0
    """Older events are no longer notified."""
    concurrent: int = 4
    remembered: int = 4_096
    """Number of settled notifications to read back."""


class NotificationEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    at: float


class NotificationsBegan(NotificationEvent, frozen=True, kw_only=True):
    """Notifications were configured; earlier events are not notified."""


class NotificationSettled(NotificationEvent, frozen=True, kw_only=True):
    id: str
    target: str
    attempts: int
    error: str | None = None


_decode = msgspec.json.Decoder(NotificationsBegan | NotificationSettled).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    id: str
    body: bytes


class NotDelivered(Exception):
    """An attempt failed; a `final` one is not repeated."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


def notice_in(event: Event) -> Notice | None:
    match event:
        case WaitBegan() if event.waiting_for in FOR_A_PERSON:
            return "waiting"
        case MissionEnded():
            return "stuck" if event.reason in STUCK else "ended"
        case MissionFailed():
            return "interrupted"
        case _:
            return None


def notification(
    identity: str, kind: Notice, mission_id: str, state: MissionState, *, at: float, **more: Any
) -> Notification:
    status = Status.of(mission_id, state).as_json()
    data = {name: status[name] for name in _TOLD if name in status}
    if kind == "waiting":
        data["pending_approvals"] = status["pending_approvals"]
    message = {"type": f"mission.{kind}", "timestamp": iso(at), "id": identity, "data": {**data, **more}}
    return Notification(id=identity, body=msgspec.json.encode(message))


def signature(secret: str, identity: str, timestamp: str, body: bytes) -> str:
    """The value of `webhook-signature`: Standard Webhooks 1.0, symmetric."""
    try:
        if not secret.startswith(SECRET_PREFIX):
            raise ValueError
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise NotDelivered("notify.secret must be whsec_ and Base64", final=True) from None
    digest = hmac.digest(key, f"{identity}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


class Notifier:
    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        config: NotifyTable,
        *,
        base: Path,
        around: ProcessEnvironment = USUAL_ENVIRONMENT,
        settings: NotifierSettings | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._config, self._base, self._around = config, base, around
        self._settings = settings or NotifierSettings()
        self._environ = os.environ if environ is None else environ
        self._targets = [
            *(["command"] if config.command else []),
            *(["webhook"] if config.webhook is not None else []),
        ]
        self._sending: set[tuple[str, str]] = set()
        self._settled: set[tuple[str, str]] = set()
        """Settled by any process, as far as the stream was read."""
        self._read_up_to: int | None = None
        self._begun = False
        self._undriven: set[tuple[str, int]] = set()
        self._examined: dict[str, int] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._slots = anyio.Semaphore(self._settings.concurrent)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            self._tasks.cancel_scope.cancel()
        else:
            self._tasks.cancel_scope.deadline = anyio.current_time() + self._settings.exit_seconds
        return await self._tasks.__aexit__(kind, value, trace)

    def recorded(self, mission_id: str, state: MissionState, events: Sequence[tuple[int, Event]]) -> None:
        if not self._begun:
            self._begun = True
            self._tasks.start_soon(self._begin)
        try:
            for seq, event in events:
                if isinstance(event, IterationEnded):
                    self._tell_budget(mission_id, state, event.at)
                elif (kind := notice_in(event)) is not None:
                    self._tell(f"{mission_id}-{seq}", kind, mission_id, state, at=event.at)
        except Exception:
            log.exception("cannot notify", extra={"pursuit_fields": {"mission": mission_id}})

    def _tell_budget(self, mission_id: str, state: MissionState, at: float) -> None:
        if state.terminal or state.waiting_for == "budget":
            return  # already sent
        for name, use in budget_use(state).caps.items():
            if use.share is None or use.share < self._settings.budget_share:
                continue
            cap = use.limit or 0
            identity = f"{mission_id}-{name}-{cap:g}".replace(".", "_")  # no dot: the signature joins by dots
            self._tell(identity, "budget", mission_id, state, at=at, cap=name)

    def _tell(
        self, identity: str, kind: Notice, mission_id: str, state: MissionState, *, at: float, **more: Any
    ) -> bool:
        """Sends it to each target that this process knows to lack it; False if there is none."""
        targets = [one for one in self._targets if (identity, one) not in self._settled]
        if not targets or not self._is_wanted(kind, state.parent):
            return False
        message = notification(identity, kind, mission_id, state, at=at, **more)
        for target in targets:
            if (identity, target) not in self._sending:
                self._sending.add((identity, target))
                self._tasks.start_soon(self._deliver, message, target)
        return True

    def _is_wanted(self, kind: Notice, parent: str | None) -> bool:
        """True if the operator wants this notification. For child missions, only approvals are notified."""
        wanted = kind in self._config.events or (kind == "stuck" and "ended" in self._config.events)
        return wanted and (parent is None or kind == "waiting")

    async def _deliver(self, message: Notification, target: str) -> None:
        """Sends until it is delivered or given up; if this process ends before, a serving process continues."""
        key = (message.id, target)
        try:
            # The lock is on the message: only one process sends it at a time.
            claim = await self._ledger.claim(f"notify-{hashlib.sha256('/'.join(key).encode()).hexdigest()[:32]}")
            if claim is None:
                return
            try:
                await self._read_settled()
                if key not in self._settled:
                    await self._send_until_settled(message, target)
            finally:
                with anyio.CancelScope(shield=True):
                    await claim.release()
        except Exception as error:  # noqa: BLE001 - the boundary: a notification never breaks a mission
            _warn(message, target, f"{type(error).__name__}: {error}")
        finally:
            self._sending.discard(key)

    async def _send_until_settled(self, message: Notification, target: str) -> None:
        attempts, error = 0, None
        for wait in (*self._settings.retries, None):
            attempts += 1
            try:
                async with self._slots:
                    await self._attempt(message, target)
                error = None
                break
            except NotDelivered as failed:
                error = str(failed)
                _warn(message, target, error)
                if failed.final or wait is None:
                    break
                await anyio.sleep(wait)
        settled = NotificationSettled(
            at=self._clock.now(), id=message.id, target=target, attempts=attempts, error=error
        )
        await self._append(settled)
        self._settled.add((message.id, target))

    async def _attempt(self, message: Notification, target: str) -> None:
        try:
            with anyio.fail_after(self._config.timeout):
                await (self._post(message) if target == "webhook" else self._run(message))
        except TimeoutError:
            raise NotDelivered(f"no answer within {self._config.timeout:g} s") from None

    async def _run(self, message: Notification) -> None:
        try:
            done = await run_command(self._config.command, str(self._base), around=self._around, given=message.body)
        except CallFailed as failed:
            raise NotDelivered(str(failed), final=True) from None
        if done["exit_code"] != 0:
            said = done["stderr"].strip().splitlines()[-1:] or [""]
            raise NotDelivered(f"exit code {done['exit_code']} {said[0][:200]}".strip())

    async def _post(self, message: Notification) -> None:
        import httpx2  # noqa: PLC0415 - most missions send no notifications

        url, secret = (
            self._expanded(self._config.webhook or "", "webhook"),
            self._expanded(self._config.secret, "secret"),
        )
        timestamp = str(int(self._clock.now()))
        headers = {
            "content-type": "application/json",
            WEBHOOK_ID: message.id,
            WEBHOOK_TIMESTAMP: timestamp,
            WEBHOOK_SIGNATURE: signature(secret, message.id, timestamp, message.body),
        }
        try:
            # A proxy from the environment is meant for other machines.
            own = is_loopback(urlsplit(url).hostname or "")
            async with httpx2.AsyncClient(timeout=self._config.timeout, trust_env=not own) as client:
                response = await client.post(url, content=message.body, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise NotDelivered(f"{type(error).__name__} at {urlsplit(url).hostname}") from None  # paths hold secrets
        if not response.is_success:
            status = response.status_code
            final = 300 <= status < 500 and status not in _WORTH_ANOTHER_TRY
            raise NotDelivered(f"{urlsplit(url).hostname} answered with status {status}", final=final)

    def _expanded(self, text: str, key: str) -> str:
        value, missing = expand_variables(text, self._environ)
        if missing:
            raise NotDelivered(f"notify.{key} needs the variable {missing[0]}, which is not set", final=True)
        return value

    async def watch(self, service: Queries) -> NoReturn:
        while True:
            try:
                await self.look(service)
            except PursuitError as error:
                log.warning("cannot look for notifications", extra={"pursuit_fields": {"reason": str(error)}})
            await anyio.sleep(self._settings.look_seconds)

    async def look(self, service: Queries) -> None:
        """Notifies of events that a dead process left unsent, and of missions without a driver in two searches."""
        now = self._clock.now()
        since = max(await self._began(), now - self._settings.oldest)
        await self._read_settled()
        undriven: set[tuple[str, int]] = set()
        async for row in every_stream(self._ledger, kind="mission", since=now - 7 * self._settings.oldest):
            if row.updated_at < since:
                continue
            place = (row.name, row.head.seq)
            with suppress(SessionNotFound):
                if row.status == "running":
                    if cut_short(row.status, row.summary, now) and not await self._ledger.is_claimed(row.name):
                        undriven.add(place)
                    if place in undriven and place in self._undriven:
                        await self._tell_interrupted(row, service)
                elif self._examined.get(row.name) != row.head.seq and not await self._tell_again(row, service):
                    self._examined[row.name] = row.head.seq
        self._undriven = undriven
        if self._config.remind is not None:
            await self._remind(service, self._config.remind)

    async def _remind(self, service: Queries, every: float) -> None:
        """Reminds of open approvals every `every` seconds."""
        now, began = self._clock.now(), await self._began()
        async for row in every_stream(self._ledger, kind="mission", status=("waiting",)):
            if row.summary.get("waiting_for") != "approval":
                continue
            with suppress(SessionNotFound):
                state = await service.state(row.name)
                first = min(state.approvals.open(now), key=lambda one: one.asked_at, default=None)
                count = 0 if first is None else int((now - max(first.asked_at, began)) // every)
                if first is None or count < 1:
                    continue
                identity = f"{row.name}-{first.approval_id}-{count}"
                self._tell(identity, "waiting", row.name, state, at=now, reminder=count)

    async def stopped(self, service: Queries, names: Iterable[str]) -> None:
        """Notifies of the missions among `names` that a signal has just interrupted in this process."""
        await self._began()
        await self._read_settled()
        for name in names:
            row = await self._ledger.row(name)
            if row is not None and cut_short(row.status, row.summary, self._clock.now()):
                await self._tell_interrupted(row, service)

    async def _tell_interrupted(self, row: StreamRow, service: Queries) -> None:
        state = await service.state(row.name)
        shown = {"status": "interrupted", "next": advice("pursuit resume {}", row.name)}
        self._tell(f"{row.name}-{state.run}", "interrupted", row.name, state, at=row.updated_at, **shown)

    async def _tell_again(self, row: StreamRow, service: Queries) -> bool:
        """Sends the last notification due in a mission's stream; False if it was sent or no longer applies."""
        stored = await self._ledger.read(row.name, after=max(0, row.head.seq - 16))
        for seq, event in [(one.seq, event) for one, event in zip(stored, decoded(stored), strict=True)][::-1]:
            if (kind := notice_in(event)) is None:
                continue
            holds = {"waiting": ("waiting",), "interrupted": ("failed",)}.get(kind, tuple(TERMINAL))
            state = await service.state(row.name)
            return row.status in holds and self._tell(f"{row.name}-{seq}", kind, row.name, state, at=event.at)
        return False

    async def _begin(self) -> None:
        with suppress(PursuitError):  # a ledger that cannot be written stops the mission itself
            await self._began()

    async def _began(self) -> float:
        """When notifications were first configured for this ledger; earlier events are not notified."""
        first = await self._ledger.read(STREAM, limit=1)
        if first:
            return first[0].at
        began = self._clock.now()
        with suppress(Conflict):  # another process did so at the same moment
            await self._append(NotificationsBegan(at=began), expected=0)
        return began

    async def _read_settled(self) -> None:
        """Reads the notifications that any process has settled since the last read."""
        row = await self._ledger.row(STREAM)
        if row is None:
            return
        after = max(0, row.head.seq - self._settings.remembered) if self._read_up_to is None else self._read_up_to
        for stored in await self._ledger.read(STREAM, after):
            event = _decode(stored.body)
            if isinstance(event, NotificationSettled):
                self._settled.add((event.id, event.target))
            self._read_up_to = stored.seq

    async def _append(self, event: NotificationEvent, *, expected: int | None = None) -> None:
        at = ANY if expected is None else expected
        await self._ledger.append(STREAM, at, [Draft(*encode(event))], kind="notifications", status="open")


def _warn(message: Notification, target: str, why: str) -> None:
    log.warning("notification not delivered: %s", why, extra={"pursuit_fields": {"id": message.id, "target": target}})

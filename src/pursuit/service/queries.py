"""The operations that read missions: status, list, history, watch, report, verify, export.

Invariant: nothing here changes a mission, except to write the report that a dead driver left unwritten.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import msgspec

from pursuit.core.criteria import Check
from pursuit.core.decision import decide
from pursuit.core.events import AnyEvent, decoded
from pursuit.core.fold import advance, cut_short, due_in, summary_of
from pursuit.core.history import History, Iteration, Shown, iso
from pursuit.core.mission import FLEET, QUEUE
from pursuit.core.report import ChildRow, Status
from pursuit.core.state import FOR_PROVIDERS, STATUSES, TIMED, MissionState, StoredStatus
from pursuit.engine.context import Clock
from pursuit.engine.driver import Driver, assemble
from pursuit.engine.execute import worked_until
from pursuit.engine.journal import MISSION_ID, Seen, States, require_id, unknown_mission
from pursuit.engine.lessons import recall
from pursuit.errors import (
    AttemptNotFound,
    InvalidArgument,
    LedgerUnavailable,
    NoIterations,
    PursuitError,
    SessionNotFound,
    TaskNotFound,
    advice,
)
from pursuit.ledger.archive import export_stream
from pursuit.ledger.contract import FORGOTTEN, Ledger, StreamRow, Verification, every_stream
from pursuit.ledger.placement import CHECK, CODE, FILE, MACHINE, Placement, Requirements
from pursuit.reports.report import Report, Trial, every_trial
from pursuit.service.audit import OPERATOR, Audit, Caller, local_subject
from pursuit.service.gateway_journal import gateway_lines
from pursuit.tasks.host import MACHINE as TASK_MACHINE
from pursuit.tasks.limits import RUNNING

PAGE = 100
GRACE = 2.0
"""Seconds that a driver has to cancel a task after its mission's wall clock is used up, before others do it."""


class HistoryPage(Shown, frozen=True, kw_only=True):
    mission_id: str = msgspec.field(name="session_id")
    iterations: list[Iteration]
    next_cursor: str | None = None


class VerdictAgain(Shown, frozen=True, kw_only=True):
    mission_id: str = msgspec.field(name="session_id")
    iteration_index: int
    verdict: str
    verdict_reason: str


class ListedMission(Shown, frozen=True, kw_only=True):
    mission_id: str = msgspec.field(name="session_id")
    status: str
    created_at: str | None
    iteration_count: int
    directive: str
    waiting_for: str | None = None
    parent: str | None = None
    next: str | None = None
    resume: str | None = None

    @classmethod
    def of(cls, row: StreamRow) -> Self:
        summary = row.summary
        return cls(
            mission_id=row.name,
            status=row.status,
            created_at=iso(row.created_at),
            iteration_count=summary.get("iteration_count", 0),
            directive=summary.get("directive", ""),
            waiting_for=summary.get("waiting_for") if row.status == "waiting" else None,
            parent=summary.get("parent"),
        )


class MissionPage(Shown, frozen=True, kw_only=True):
    missions: list[ListedMission] = msgspec.field(name="sessions")
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The newest missions of each group; `more` names the groups that were cut."""

    needs_you: Sequence[ListedMission]
    under_way: Sequence[ListedMission]
    ended: Sequence[ListedMission]
    more: Sequence[str]
    next_cursor: str | None


def is_placeable(state: MissionState) -> bool:
    """True if a worker can drive the mission: a client that lends its model drives by itself."""
    return not state.mission.proposer.LENDS_MODEL


def requirements_of(state: MissionState) -> Requirements:
    """The requirements for a worker to drive a mission.

    A mission file brings its own servers. A workspace exists on one machine, that of the last driver.
    """
    mission = state.mission
    if state.file is not None:
        things = [f"{FILE}{state.file}"]
    else:
        servers = {name.partition(".")[0] for name in state.tools if name not in state.facts.tools} - {FLEET}
        named = {one.check for one in mission.criteria if isinstance(one, Check) and one.check is not None}
        things = sorted(servers) + [f"{CHECK}{name}" for name in sorted(named)]
        if mission.proposer.FROM_FILE:
            things += [f"{CODE}{one.words[0]}" for one in mission.proposer.starts()]
    if mission.workspace is not None and state.host is not None:
        things.append(f"{MACHINE}{state.host}")
    return Requirements(mission.queue, tuple(things))


ShownStatus = Literal[StoredStatus, "interrupted"]
"""`interrupted` is never stored: it means `running` in the ledger without a live process that drives the run."""
SHOWN_STATUSES: tuple[ShownStatus, ...] = get_args(ShownStatus)
MAX_CURSOR = 18
ANYONE = "*"


ASKS_PERSON = frozenset({"approval", "input", "budget"})
"""The waits of a mission that only a person can end."""
GROUP_SIZE = 50
MAX_SCANNED = 20_000
"""Rows that one request reads to find matches of a filter without an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionFilter:
    """Selects missions; None or empty selects all. `owner` is `""` for the operator's own missions."""

    status: ShownStatus | None = None
    words: str = ""
    owner: str | None = None
    queue: str = ""
    since: float | None = None
    until: float | None = None

    def selects(self, row: StreamRow) -> bool:
        about = f"{row.name} {row.summary.get('directive', '')}".lower() if self.words else ""
        return (
            all(word in about for word in self.words.lower().split())
            and self.owner in (None, row.summary.get("owner", ""))
            and self.queue in ("", row.summary.get("queue", QUEUE))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    ledger: Ledger
    states: States
    driver: Driver
    clock: Clock
    audit: Audit
    uid: int | None = None
    """The owner of the ledger file: records without an owner belong to this user, and to the operator."""
    scoped: bool = False
    """True if the operator serves a single mission, which each client may then see."""
    placement: Placement | None = None
    """Places missions on workers, for a ledger that several machines share."""
    jobs_in_commit: bool = False
    """True if the ledger has the jobs: then it stores one with the event that makes a mission due."""

    def is_visible(self, caller: Caller, row: StreamRow) -> bool:
        if caller.subject is None or self.scoped:
            return True
        share = row.summary.get("share", ())
        if ANYONE in share or (caller.credential is not None and caller.credential in share):
            return True
        return caller.subject == row.summary.get("owner", local_subject(self.uid))

    async def require_visible(self, caller: Caller, mission_id: str) -> None:
        """Raises `SessionNotFound` for another caller's mission, as if it did not exist."""
        row = await self.ledger.row(mission_id)
        if row is not None and not self.is_visible(caller, row):
            raise unknown_mission(mission_id)

    async def look(self, caller: Caller, mission_id: str) -> Seen:
        return await self.states.look(mission_id, lambda row: self.is_visible(caller, row))

    async def seen(self, mission_id: str) -> MissionState:
        return (self.states.seen(mission_id) or await self.states.look(mission_id))[0]

    async def state(self, mission_id: str) -> MissionState:
        return (await self.states.look(mission_id))[0]

    async def status(self, mission_id: str) -> Status:
        """Everything about a mission except its history; `interrupted` if no live process drives an unfinished run.

        `next` names the command that continues a mission whose run reached its goal.
        """
        state = await self.state(mission_id)
        now, driven = self.clock.now(), await self.ledger.is_claimed(mission_id)
        until = now if driven else await worked_until(self.ledger, state, now, self.driver.task_ended)
        status = Status.of(mission_id, state, state.wall_clock_at(until, driven=driven), now)
        found = await self._interruption(mission_id, state.status, summary_of(state))
        if (unplaced := await self._unplaced(mission_id, state)) is not None:
            found["placement"] = unplaced
        children: list[ChildRow] = []
        for child in status.children:
            row = await self.ledger.row(child.mission_id)
            standing = "pending" if row is None else (await self._row(row)).status
            directive = "" if row is None else row.summary.get("directive", "")
            children.append(msgspec.structs.replace(child, status=standing, directive=directive))
        return msgspec.structs.replace(status, children=children, **found)

    async def find(self, word: str) -> str:
        return word if MISSION_ID.fullmatch(word) else await find_id(self.ledger, "mission", word)

    async def interrupted(self, *, background: bool = False) -> list[str]:
        """The missions whose run may have stopped before its goal; with `background`, only background runs.

        A background run that waits for a task is listed once the task has ended, or the run's wall clock is used up.
        So is any run whose task is overdue: its driver has died. Where workers drive, a run that waits for a time is
        listed after that time. Children continue with their parents.
        """
        found: list[str] = []
        waiting: dict[str, str] = {}
        now = self.clock.now()
        async for row in every_stream(self.ledger, kind="mission", status=("running", "waiting")):
            late_by = now - row.summary.get("wait_until", math.inf)
            overdue = row.summary.get("waiting_for") == "task" and late_by >= GRACE
            wanted = row.summary.get("background") or overdue or not background
            if not wanted or "parent" in row.summary or not cut_short(row.status, row.summary, now):
                continue
            if self.placement is not None and row.summary.get("waiting_for") in TIMED and late_by < 0:
                continue  # it is enqueued for that time
            if background and late_by < 0 and (task := row.summary.get("task")) is not None:
                waiting[row.name] = task
            else:
                found.append(row.name)
        # One listing: a process does this every few seconds, and a thousand missions may wait for tasks.
        tasks = every_stream(self.ledger, kind="task", status=RUNNING) if waiting else None
        working: set[str] = set() if tasks is None else {row.name async for row in tasks}
        return found + [name for name, task in waiting.items() if task not in working]

    async def checkpoint(self, mission_id: str) -> VerdictAgain:
        state = await self.state(mission_id)
        if state.last_ended is None:
            raise NoIterations(f"{mission_id} has not finished an iteration yet", session_id=mission_id)
        decision = decide(state.last_ended.facts)
        return VerdictAgain(
            mission_id=mission_id,
            iteration_index=state.last_ended.iteration,
            verdict=decision.verdict,
            verdict_reason=decision.reason,
        )

    async def history(self, mission_id: str, *, full: bool = False, cursor: str | None = None) -> HistoryPage:
        await self.states.look(mission_id)
        if cursor is not None and (len(cursor) > MAX_CURSOR or not cursor.isdecimal()):
            raise InvalidArgument(f"invalid cursor {cursor[:40]!r}; pass one from an earlier page of the history")
        first = int(cursor or 0)
        ended = History.read(await self.ledger.read(mission_id)).ended_from(first)
        rows = [one.shown(full=full) for one in ended if one.index < first + PAGE]
        following = str(first + PAGE) if len(rows) < len(ended) else None
        return HistoryPage(mission_id=mission_id, iterations=rows, next_cursor=following)

    async def list(
        self,
        *,
        status: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        caller: Caller = OPERATOR,
    ) -> MissionPage:
        stored = "running" if status == "interrupted" else status or STATUSES
        found: list[ListedMission] = []
        while True:
            page = await self.ledger.streams(kind="mission", status=stored, cursor=cursor, limit=limit - len(found))
            rows = [await self._row(row) for row in page.rows if self.is_visible(caller, row)]
            found += [row for row in rows if status in (None, row.status)]
            cursor = page.next_cursor
            if cursor is None or len(found) == limit:
                return MissionPage(missions=found, next_cursor=cursor)

    async def overview(self, wanted: MissionFilter, *, cursor: str | None = None) -> Overview:
        """The missions in an operator's groups: those that need a person, those under way, those that ended.

        Each group has its newest missions; `more` names the truncated groups. `cursor` gets the next page of `ended`.
        """
        groups: dict[str, list[ListedMission]] = {"needs_you": [], "under_way": [], "ended": []}
        more: list[str] = []
        for status in ("failed", "waiting", "running", "paused", "pending"):
            if cursor is not None or wanted.status not in (None, status, *(["interrupted"] * (status == "running"))):
                continue
            rows, next_cursor = await self._matching(wanted, status, None, 2 * GROUP_SIZE)
            for row in rows:
                shown = await self._row(row)
                if wanted.status not in (None, shown.status):
                    continue
                stuck = shown.status == "failed" or shown.resume is not None
                needs = shown.waiting_for in ASKS_PERSON or (stuck and shown.parent is None)
                groups["needs_you" if needs else "under_way"].append(shown)
            if next_cursor is not None:
                more += ["needs_you" if status in ("failed", "waiting") else "under_way"]
        following: str | None = None
        if wanted.status in (None, "completed", "terminated"):
            ended = wanted.status or ("completed", "terminated")
            rows, following = await self._matching(wanted, ended, cursor, GROUP_SIZE)
            groups["ended"] = [ListedMission.of(row) for row in rows]
        for name in ("needs_you", "under_way"):
            if len(groups[name]) > GROUP_SIZE:
                more.append(name)
            groups[name] = sorted(groups[name], key=lambda row: row.created_at or "", reverse=True)[:GROUP_SIZE]
        return Overview(**groups, more=sorted(set(more)), next_cursor=following)

    async def _matching(
        self, wanted: MissionFilter, status: str | Sequence[str], cursor: str | None, limit: int
    ) -> tuple[list[StreamRow], str | None]:
        """The newest rows of a filter, at least `count` if they exist, and the cursor after them."""
        found: list[StreamRow] = []
        narrow = bool(wanted.words or wanted.owner is not None or wanted.queue)
        size, scanned = (4 * limit if narrow else limit), 0
        while True:
            page = await self.ledger.streams(
                kind="mission", status=status, since=wanted.since, until=wanted.until, cursor=cursor, limit=size
            )
            found += [row for row in page.rows if wanted.selects(row)]
            scanned, cursor = scanned + len(page.rows), page.next_cursor
            if cursor is None or len(found) >= limit or scanned >= MAX_SCANNED:
                return found, cursor

    async def is_stopped_short(self, mission_id: str) -> bool:
        """True if a run stopped before its goal and no process or worker will resume it.

        A run that reached its goal is over, and its caller advances the mission: a client that steps it.
        """
        row = await self.ledger.row(mission_id)
        return row is not None and (await self._row(row)).resume is not None

    async def lessons(self, words: str, *, limit: int = 10) -> dict[str, Any]:
        """Lessons of ended missions that match these words, the best match first."""
        return {"missions": [one.as_json() for one in await recall(self.ledger, words, limit=limit)]}

    async def watch(self, mission_id: str) -> AsyncIterator[tuple[AnyEvent, MissionState]]:
        await self.states.look(mission_id)
        state: MissionState | None = None
        async for stored in self.ledger.watch(mission_id):
            for event in decoded([stored]):
                state = advance(state, event)
                yield event, state

    async def report(self, mission_id: str) -> Report:
        state = await self.state(mission_id)
        if state.terminal and (not state.closed or state.report is None):
            with suppress(LedgerUnavailable):  # a read-only ledger
                state = await self.driver.close(mission_id) or state
        body = await self.ledger.blob(state.report) if state.report is not None else None
        if body is not None:
            return Report.read(msgspec.json.decode(body))
        data = await assemble(self.ledger, mission_id, state)
        found = await self._interruption(mission_id, state.status, summary_of(state))
        if "resume" in found:
            words = f"No process drives this mission; resume it with: {found['resume']}"
            data |= {**found, "reason_text": " ".join(filter(None, (words, data["reason_text"])))}
        return Report.read(data)

    async def trials(self, mission_id: str) -> list[Trial]:
        state = await self.state(mission_id)
        return every_trial(History.read(await self.ledger.read(mission_id)), state)

    async def audited(self, mission_id: str | None = None, *, limit: int = 100) -> Sequence[dict[str, Any]]:
        """The newest lines of the audit, oldest first; a forgotten mission still has its lines."""
        if mission_id is not None:
            require_id(mission_id)
            return await self.audit.lines(mission_id=mission_id, limit=limit)
        lines = [*await self.audit.lines(limit=limit), *await gateway_lines(self.ledger, limit=limit)]
        return sorted(lines, key=lambda line: line["at"])[-limit:]

    async def verify(self, *, expect: str | Sequence[str] | None = None) -> Verification:
        from pursuit.service.proof import FOLDS  # noqa: PLC0415 - it loads the JSON Schema library

        return await self.ledger.verify(expect=expect, folds=FOLDS)

    async def export(self, mission_id: str, path: Path) -> None:
        """Writes one file that can be verified elsewhere."""
        await self.states.look(mission_id)
        with suppress(LedgerUnavailable):  # a read-only ledger
            await self.ledger.root()
        await export_stream(self.ledger, mission_id, path)

    async def _row(self, row: StreamRow) -> ListedMission:
        found = await self._interruption(row.name, row.status, row.summary)
        return msgspec.structs.replace(ListedMission.of(row), **found)

    async def _interruption(self, mission_id: str, status: str, summary: Mapping[str, Any]) -> dict[str, str]:
        """Fields to show for a mission that should run, or wait for a provider, if no live process drives it.

        Children continue with their parents.
        """
        waits = status == "waiting" and summary.get("waiting_for") in FOR_PROVIDERS
        driven = status == "running" or (waits and summary.get("wait_until") is not None)
        if not driven or await self.ledger.is_claimed(mission_id):
            return {}
        background = self.placement is not None and (await self.state(mission_id)).background
        if background and await self.has_workers(mission_id):  # it is enqueued
            return {}
        if not cut_short(status, summary, self.clock.now()):
            return {"next": "mission_iterate"}
        row = await self.ledger.row(mission_id)
        last = [] if row is None else await self.ledger.read(mission_id, row.head.seq - 1, 1)
        found = {} if last and last[0].type == "ApprovalAnswered" else {"status": "interrupted"}  # just answered
        return {**found, "resume": advice("pursuit resume {}", summary.get("parent", mission_id))}

    async def due_in(self, state: MissionState) -> float | None:
        """Seconds until a driver has work to do, or None; handling an ended task is work."""
        if state.status == "waiting" and state.waiting_for == "task" and not await self._works(state.wait_detail):
            return 0.0
        return due_in(state, self.clock.now())

    async def _unplaced(self, mission_id: str, state: MissionState) -> str | None:
        """Why no worker drives a due mission that is left to workers, or None."""
        theirs = state.background or state.status == "pending"
        if self.placement is None or not theirs or not is_placeable(state):
            return None
        if state.waiting_for == "task" and await self._works(state.wait_detail):
            home = await self._machine_of(state.wait_detail)
            known = {one.host for one in (await self.placement.health()).workers if one.live}
            gone = home is not None and home not in known
            return f"it waits for {state.wait_detail} on {home}, where no worker is live" if gone else None
        if await self.due_in(state) != 0:
            return None
        if await self.ledger.is_claimed(mission_id):
            return None
        try:
            return (await self.placement.health()).why_unplaced(requirements_of(state))
        except LedgerUnavailable as error:  # the ledger is there, and what places missions is not
            return error.message

    async def has_workers(self, mission_id: str) -> bool:
        if self.placement is None or not is_placeable(state := await self.state(mission_id)):
            return False
        return (await self.placement.health()).why_unplaced(requirements_of(state)) is None

    async def is_for_workers(self, mission_id: str) -> bool:
        """True if a mission is left to workers: a worker can drive it, or it names a queue."""
        if self.placement is None:
            return False
        return (await self.state(mission_id)).mission.queue != QUEUE or await self.has_workers(mission_id)

    async def _machine_of(self, task_id: str | None) -> str | None:
        """The machine that a task is bound to, or None."""
        events = [] if task_id is None else await self.ledger.read(task_id, limit=1)
        created: dict[str, Any] = msgspec.json.decode(events[0].body) if events else {}
        return created.get("origin", {}).get(TASK_MACHINE)

    async def _works(self, task_id: str | None) -> bool:
        """True if the task that a mission waits for has not ended."""
        row = await self.ledger.row(task_id) if task_id is not None else None
        return row is not None and row.status in RUNNING


def new_mission_id() -> str:
    return f"mission-{secrets.token_hex(8)}"


LAST = "last"
_MAX_CANDIDATES = 5
_BEGINNING = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
_RECORDS: dict[str, tuple[type[PursuitError], str]] = {
    "mission": (SessionNotFound, advice("pursuit list")),
    "task": (TaskNotFound, advice("pursuit task list")),
    "attempt": (AttemptNotFound, advice("pursuit problem compare {}", "PROBLEM")),
}


async def find_id(ledger: Ledger, kind: str, word: str) -> str:
    """Resolves an id that a person typed: a full id, a unique beginning with or without its kind, or `last`.

    `last` is the newest record of the kind, never a child mission. Raises `InvalidArgument` with the candidates if
    several ids begin so.
    """
    missing, command = _RECORDS[kind]
    if _BEGINNING.fullmatch(word) and (row := await ledger.row(word)) is not None and row.kind == kind:
        return word
    rows = [row async for row in every_stream(ledger, kind=kind) if row.status != FORGOTTEN]
    if word == LAST:
        newest = next((row.name for row in rows if "parent" not in row.summary), None)
        if newest is None:
            raise missing(f"there is no {kind} yet")
        return newest
    begins = word if word.startswith(f"{kind}-") else f"{kind}-{word}"
    if word == f"{kind}-" or _BEGINNING.fullmatch(word) is None:
        advice = f"give the beginning of an id, or `{LAST}` for the newest; `{command}` lists them"
        raise InvalidArgument(f"{word[:100]!r} is not the id of a {kind}: {advice}")
    found = [row.name for row in rows if row.name.startswith(begins)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise missing(f"no {kind} id begins with {word[:100]!r}; `{command}` lists them")
    shown = ", ".join(found[:_MAX_CANDIDATES]) + (", …" if len(found) > _MAX_CANDIDATES else "")
    text = f"{word[:100]!r} matches {len(found)} ids: {shown}; give more characters"
    raise InvalidArgument(text, candidates=found[:100])

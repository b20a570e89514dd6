"""When an upstream is started, and started again.

Owns: the pace of restarts, the connection that is current, and the words of a failure. Does not know: what is asked
over a connection. Invariant: none is started that has ended `ENDS_A_MINUTE` times within a minute without anybody's
wish, so that a server that dies at once is no fork bomb, and further connections to one that lives are no matter here;
the pause before a start grows while it keeps dying and is forgotten after a healthy life; there is no number of deaths
after which it is given up.
"""

from __future__ import annotations

import logging
import math
from collections import deque

import anyio
import anyio.abc

from pursuit.config.servers import ServerConfig
from pursuit.errors import UpstreamUnavailable
from pursuit.upstream.connection import Connection, Era, Opener
from pursuit.upstream.transport import ClientSide, Heard, StderrTail

ENDS_A_MINUTE = 10
HEALTHY_SECONDS = 60.0
HEALTHY_ANSWERS = 3
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# A pause that is no longer than this is waited out; for a longer one the caller is told when to come back.
LONGEST_WAIT = 2.0
_OBITUARY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Restarts:
    """The pace: pure but for what it remembers, and shared by all connections to one server."""

    def __init__(self, *, most: float = ENDS_A_MINUTE, longest_pause: float = LONGEST_PAUSE) -> None:
        self._most = most
        self._longest_pause = longest_pause
        self._ends: deque[float] = deque()
        self._deaths = 0
        self._last_death = -math.inf

    def lost(self, now: float) -> None:
        """Notes an end that says nothing about health; it counts towards the ceiling all the same."""
        self._ends.append(now)

    def ended(self, now: float, *, lived: float, answers: int) -> None:
        """Notes an end that nobody wished for."""
        self._ends.append(now)
        healthy = lived >= HEALTHY_SECONDS or answers >= HEALTHY_ANSWERS
        self._deaths = 1 if healthy else self._deaths + 1
        self._last_death = now

    def pause(self, now: float) -> float:
        """For how long it must not be started; the first restart is at once."""
        if self._deaths < 2:
            return 0.0
        pause = min(FIRST_PAUSE * 2 ** min(self._deaths - 2, 20), self._longest_pause)
        return max(0.0, self._last_death + pause - now)

    def crowded(self, now: float) -> float:
        """For how long the ceiling of ends forbids another start."""
        while self._ends and now - self._ends[0] >= 60:
            self._ends.popleft()
        return 60 - (now - self._ends[0]) if len(self._ends) >= self._most else 0.0

    @property
    def deaths(self) -> int:
        """How often in a row it died."""
        return self._deaths


class Supervisor:
    """Keeps one connection to a server, opened when first needed. Its tasks live in `tasks`, which must outlive it."""

    def __init__(
        self,
        config: ServerConfig,
        opener: Opener,
        *,
        tasks: anyio.abc.TaskGroup,
        listener: Heard,
        restarts: Restarts,
        side: ClientSide | None = None,
        era: Era = "auto",
    ) -> None:
        self.config = config
        self.side = side or ClientSide()
        self.tail = StderrTail()
        self.era: Era = era
        self.lives = 0
        self._opener = opener
        self._tasks = tasks
        self._listener = listener
        self._restarts = restarts
        self._current: Connection | None = None
        self._alive: set[Connection] = set()
        self._closed = False

    @property
    def current(self) -> Connection | None:
        """The connection, if there is one that works."""
        connection = self._current
        usable = connection is not None and connection.settled.is_set() and not connection.spent
        return connection if usable else None

    async def connection(self) -> Connection:
        """A connection that works, opened if there is none; everybody who waits shares the one being opened."""
        if self._current is not None:
            await self._current.cleared()
        connection = await self._settled(self.era)
        if connection.lost_in_probe:
            # Some servers of the old era hang up on a first request that they do not know: once more, the old way.
            connection = await self._settled("legacy")
        if connection.failure is None:
            self.era = connection.era
            return connection
        await connection.done.wait()
        raise self.unavailable(connection.failure, "it could not be started, or does not answer")

    async def _settled(self, era: Era) -> Connection:
        connection = self._current
        if connection is None or connection.spent:
            if connection is not None:
                # Its end is counted before the next one starts.
                await connection.done.wait()
            pause = self._restarts.pause(anyio.current_time())
            if 0 < pause <= LONGEST_WAIT:
                await anyio.sleep(pause)
            if self._current is connection:
                self._current = self._open(era)
            connection = self._current
        if connection is None:
            raise self.unavailable("it is closed")
        if not connection.settled.is_set():
            await connection.settled.wait()
        return connection

    def _open(self, era: Era) -> Connection:
        if self._closed:
            raise self.unavailable("it is closed")
        now = anyio.current_time()
        if self._restarts.deaths and not self.config.restart:
            raise self.unavailable("it has ended, and its configuration says that it is not to be started again")
        pause, crowded = self._restarts.pause(now), self._restarts.crowded(now)
        if crowded > 0:
            raise self.unavailable(
                f"it ended {ENDS_A_MINUTE} times within a minute; next try in {math.ceil(crowded)} s"
            )
        if pause > 0:
            raise self.unavailable(f"it ended {self._restarts.deaths} times in a row; next try in {math.ceil(pause)} s")
        self.tail.clear()
        connection = Connection(
            self._opener,
            era=era,
            timeout=self.config.timeouts.connect,
            side=self.side,
            tail=self.tail,
            listener=self._listener,
        )
        self._alive.add(connection)
        self._tasks.start_soon(self._own, connection, name=f"upstream {self.config.name}")
        return connection

    async def _own(self, connection: Connection) -> None:
        born = anyio.current_time()
        self.lives += 1
        try:
            await connection.own()
        finally:
            self._alive.discard(connection)
            now = anyio.current_time()
            # What was never started did not die, and a probe that was hung up on says nothing about health.
            if connection.lost_in_probe:
                self._restarts.lost(now)
            elif connection.began and not connection.ended_by_us:
                self._restarts.ended(now, lived=now - born, answers=connection.answers)

    async def renew(self) -> None:
        """Ends the connection, if there is one, so that the next request opens another; calls under way fail."""
        if self._current is not None:
            await self._current.aclose()

    async def aclose(self) -> None:
        """Disconnects for good; calls under way fail."""
        self._closed = True
        async with anyio.create_task_group() as closing:
            for connection in tuple(self._alive):
                closing.start_soon(connection.aclose)

    async def obituary(self, connection: Connection, doubt: str = "") -> str:
        """Why the connection broke, and `doubt`; waits a moment for the exit code and the last words."""
        with anyio.move_on_after(_OBITUARY_SECONDS):
            await connection.done.wait()
        return self.sentence(f"the connection broke: {connection.ending()}{doubt}", f"the connection broke{doubt}")

    def unavailable(self, reason: str, bare: str | None = None) -> UpstreamUnavailable:
        """The error that says why it cannot be reached."""
        return UpstreamUnavailable(self.sentence(reason, bare), server=self.config.name)

    def sentence(self, reason: str, bare: str | None = None) -> str:
        """A failure in words, with the last lines of stderr and without secrets.

        Of a discreet server `bare` is told instead, and the rest is for the log: its stderr only where faults are
        looked for, as whoever started this process may show our own log.
        """
        tail = self.tail.text()
        who, said = f"server {self.config.name!r}", self.tail.redacted(reason)
        whole = said if said.startswith(f"{who} ") else f"{who}: {said}"
        if self.config.discreet:
            _log.warning("%s", whole)
            _log.debug("%s: last lines of its stderr: %s", who, tail)
            return whole if bare is None else f"{who}: {bare}"
        return whole + (f"\nlast lines of its stderr:\n{tail}" if tail else "")

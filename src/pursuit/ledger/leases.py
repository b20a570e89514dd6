"""The driver's locks on PostgreSQL: leases on the database's clock, each with an epoch that fences late appends.

Invariant: an append under an epoch is stored only while no other holder has the lease. A lease that is not renewed in
time is reported as lost; it must be renewed before anything is sent under it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import time
from contextlib import suppress
from pathlib import Path

import anyio
import psycopg

from pursuit.errors import Fenced
from pursuit.ledger.contract import Holder
from pursuit.ledger.locks import require_name
from pursuit.ledger.postgres_schema import Link

_CLAIM = "SELECT * FROM pursuit.claim(%s, %s, %s, %s, %s, %s, %s)"
_HELD = "SELECT pid, host, since, process, until > clock_timestamp() FROM pursuit.leases WHERE stream = %s"
_BOOT = Path("/proc/sys/kernel/random/boot_id")

# On Linux this clock runs on while the machine sleeps, as the database's does.
now = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _seconds() -> float:
    return time.clock_gettime(now)


class Lease:
    """A lease on one stream: see `contract.Claim`."""

    def __init__(self, leases: Leases, stream: str, epoch: int, until: float) -> None:
        self._leases = leases
        self.stream = stream
        self.epoch = epoch
        self.until = until
        self.lost = anyio.Event()

    @property
    def expired(self) -> bool:
        """True if the lease may have expired, by this machine's clock."""
        return _seconds() >= self.until or self.lost.is_set()

    async def confirm(self) -> None:
        if not self.lost.is_set():
            await self._leases.renew()
        if self.lost.is_set():
            raise fenced(self.stream)

    async def release(self) -> None:
        await self._leases.release(self)


def fenced(stream: str) -> Fenced:
    """The error for an append or a call under a lease that was lost."""
    return Fenced(
        f"this process lost its lease on {stream}: it did not renew it in time, and another process may drive it now; "
        "nothing more is stored or sent here",
        stream=stream,
    )


class Leases:
    """All leases of one open ledger; one statement renews them, after every third of their lease time."""

    def __init__(self, link: Link, seconds: float) -> None:
        # A separate connection: a slow read must not cost a lease.
        self.me = f"{_process(os.getpid())} {secrets.token_hex(8)}"
        """The identity of this process. The ledger compares it with the holder of a lease, because epochs may restart
        after a failover.
        """
        self._link = link
        self._seconds = seconds
        self._held: dict[int, Lease] = {}
        self._keeping: asyncio.Task[None] | None = None

    async def claim(self, stream: str) -> Lease | None:
        """Takes the lease of a stream; the lease of a dead process of this machine is free immediately."""
        require_name(stream)
        dead: int | None = None
        while True:
            asked = _seconds()
            values = (stream, self._seconds, platform.node(), os.getpid(), self.me, time.time(), dead)
            ((epoch, held, _host, pid, process),) = await self._link.read(_CLAIM, values)
            if epoch is not None:
                lease = self._held[epoch] = Lease(self, stream, epoch, asked + self._seconds)
                if self._keeping is None:
                    self._keeping = asyncio.create_task(self._keep())
                return lease
            # our own lease, unknown here: the answer was lost
            unknown = process == self.me and held not in self._held
            if dead == held or not (unknown or _is_dead(pid, process)):
                return None
            dead = held

    async def is_claimed(self, stream: str) -> bool:
        require_name(stream)
        rows = await self._link.read(_HELD, (stream,))
        return bool(rows) and rows[0][4] and not _is_dead(rows[0][0], rows[0][3])

    async def holder(self, stream: str) -> Holder | None:
        require_name(stream)
        rows = await self._link.read(_HELD, (stream,))
        return Holder(pid=rows[0][0], host=rows[0][1], since=rows[0][2]) if rows else None

    async def renew(self) -> None:
        """Renews all leases; marks those that another holder took or that expired as lost."""
        asked, mine = _seconds(), dict(self._held)
        try:
            rows = await self._link.ask(
                "SELECT * FROM pursuit.renew(%s::bigint[], %s, %s)",
                (list(mine), self.me, self._seconds),
                within=self._seconds / 3,
            )
        except psycopg.Error:
            for lease in mine.values():
                if _seconds() >= lease.until:
                    self._lose(lease)
            return
        kept = {row[0] for row in rows}
        for epoch, lease in mine.items():
            if epoch in kept:
                lease.until = asked + self._seconds
            elif epoch in self._held:  # not released while we asked
                self._lose(lease)

    async def release(self, lease: Lease) -> None:
        """Frees a lease; if the database cannot be reached, the lease expires."""
        if self._held.pop(lease.epoch, None) is None:
            return
        with suppress(psycopg.Error), anyio.CancelScope(shield=True):
            values = (lease.stream, lease.epoch, self.me)
            await self._link.ask("SELECT pursuit.release(%s, %s, %s)", values, within=self._seconds / 3)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        await self._link.close()

    async def _keep(self) -> None:
        while self._held:
            await asyncio.sleep(self._seconds / 3)
            await self.renew()
        self._keeping = None

    def _lose(self, lease: Lease) -> None:
        self._held.pop(lease.epoch, None)
        lease.lost.set()


def _process(pid: int) -> str:
    """The identity of a process among all machines: the boot id, the namespace of its pid, and its start time."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink()
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{_BOOT.read_text().strip()} {namespace} {started}"
    except OSError:
        return ""


def _is_dead(pid: int, process: str) -> bool:
    """True if the process ran on this machine and has ended; false if that cannot be determined."""
    place, started = process.split(" ")[:-2], process.split(" ")[-2:-1]
    own = _process(os.getpid()).split(" ")[:-1]
    return bool(place) and place == own and _process(pid).split(" ") != [*place, *started]

"""The network of an isolated agent: a proxy outside that connects only to the hosts that the operator lists.

The listening sockets come from inside (`launcher.py`), so each belongs to one mission. A name is resolved once, and the
connection goes to the addresses that were checked: a name that is allowed does not lead into the local network, unless
it is listed with its port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

HTTPS, HTTP = 443, 80
PORTS = range(1024, 65_536)  # that a process inside can bind
MAX_HEAD = 64 * 1024
CHUNK = 1 << 16
MAX_CONNECTIONS = 256
MAX_ROWS = 64
LOOK_EVERY = 1.0
SECONDS = 30.0  # for the head of a request, and for a connection to a host
_LOOPBACK = ("127.0.0.1", "localhost")
_NUMBERS = ipaddress.IPv6Network("2000::/3")
_EMBEDDED = (0xFFFF, 0x64FF9B << 64)  # ::ffff:a.b.c.d and 64:ff9b::a.b.c.d (RFC 6052)
# Strict, so that no server reads another request in it than we do.
_HEAD = re.compile(rb"([A-Z]{1,32}) ([!-~]+) (HTTP/1\.[01])\r\n((?:[!#-'*+.^-`|~\w-]+:[^\r\n\0]*\r\n)*)\r\n", re.ASCII)
_OURS = (b"connection", b"proxy-connection", b"host")


class AllowedHosts:
    """`example.org`, `*.example.org` and `host:port`; without a port, 443."""

    def __init__(self, entries: Sequence[str]) -> None:
        pairs = [entry.lower().partition(":") for entry in entries]
        self._rows = [(name, int(port or HTTPS), bool(port)) for name, _, port in pairs]
        self.loopback = sorted({int(port or 0) for name, _, port in pairs if name in _LOOPBACK}.intersection(PORTS))

    def allow(self, host: str, port: int) -> bool | None:
        """True if the host is listed with its port, so its address may be local; None if the host is not listed."""
        rows = [
            with_port
            for name, one, with_port in self._rows
            if one == port and (host == name or (name.startswith("*.") and host.endswith(name[1:])))
        ]
        return any(rows) if rows else None


async def addresses(host: str, port: int, *, local: bool) -> list[str]:
    """Where a connection may go. A name is resolved once."""
    with suppress(OSError, UnicodeError):
        rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = dict.fromkeys(str(row[4][0]) for row in rows)
        return [one for one in found if local or _is_global(one)]
    return []


def _is_global(text: str) -> bool:
    one = ipaddress.ip_address(text)
    if isinstance(one, ipaddress.IPv6Address):
        if int(one) >> 32 in _EMBEDDED:
            one = ipaddress.IPv4Address(int(one) & 0xFFFFFFFF)
        elif one not in _NUMBERS or one.sixtofour or one.teredo:
            return False
    return one.is_global and not one.is_multicast


class AgentNetwork:
    """The proxy of one mission's agent."""

    def __init__(self, entries: Sequence[str], look: Callable[[], Sequence[str]], tasks: TaskGroup) -> None:
        self.hosts, self._look, self._tasks = AllowedHosts(entries), look, tasks
        self.refused: dict[str, None] = {}
        """The hosts that the agent wanted and that are not allowed."""
        self._scope, self._look_at = anyio.CancelScope(), 0.0
        self._places = anyio.Semaphore(MAX_CONNECTIONS)

    @classmethod
    @asynccontextmanager
    async def serving(cls, entries: Sequence[str], look: Callable[[], Sequence[str]]) -> AsyncGenerator[Self]:
        """Serves for as long as the block; `look` tells the entries anew before a host is refused."""
        async with anyio.create_task_group() as tasks:
            yield cls(entries, look, tasks)
            tasks.cancel_scope.cancel()

    @contextmanager
    def joined(self) -> Generator[tuple[int, str]]:
        """What a launcher that starts in the block needs to send its sockets; ends those of an earlier one."""
        ports = (0, *self.hosts.loopback)
        self._scope.cancel()
        self._scope = anyio.CancelScope()
        ours, theirs = socket.socketpair()
        self._tasks.start_soon(self._take, ours, self._scope, ports)
        with theirs:
            yield theirs.fileno(), " ".join(map(str, ports[1:]))

    async def _take(self, ours: socket.socket, scope: anyio.CancelScope, ports: Sequence[int]) -> None:
        """Serves the sockets of a launcher; there are none if it did not start."""
        with ours, scope:
            await anyio.wait_readable(ours)
            _, numbers, _, _ = socket.recv_fds(ours, 1, len(ports))
            async with anyio.create_task_group() as tasks:
                for port, number in zip(ports, numbers, strict=False):
                    tasks.start_soon(self._accept, socket.socket(fileno=number), port, tasks)

    async def _accept(self, listening: socket.socket, port: int, tasks: TaskGroup) -> None:
        listening.setblocking(False)
        with listening:
            while True:
                await self._places.acquire()
                try:
                    accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                except OSError:  # the connection is gone already, or this process has no descriptor left
                    self._places.release()
                    await anyio.sleep(1)
                else:
                    tasks.start_soon(self._serve, accepted, port)

    async def _serve(self, accepted: socket.socket, port: int) -> None:
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                reading, writing = await asyncio.open_connection(sock=accepted, limit=MAX_HEAD)
                try:
                    await (_join(reading, writing, ["127.0.0.1"], port) if port else self._proxy(reading, writing))
                finally:
                    writing.close()
        finally:
            self._places.release()

    async def _proxy(self, reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(SECONDS):
            head = _HEAD.fullmatch(await reading.readuntil(b"\r\n\r\n"))
        if head is None:
            await _refuse(writing, "400 Bad Request")
            return
        method, target, version, fields = head.groups()
        tunnel = method == b"CONNECT"
        parts = urlsplit(f"//{target.decode()}" if tunnel else target.decode())
        host, port = (parts.hostname or "").rstrip("."), parts.port or (HTTPS if tunnel else HTTP)
        local = self._allow(host, port) if tunnel or parts.scheme == "http" else None
        found = [] if local is None else await addresses(host, port, local=local)
        if not found:
            await _refuse(writing, "403 Forbidden")
        elif tunnel:
            await _join(reading, writing, found, port, told=b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:  # one request for each connection: the next one may be for another host
            rows = [one for one in fields.split(b"\r\n") if one and one.partition(b":")[0].lower() not in _OURS]
            query = f"?{parts.query}" if parts.query else ""
            first = f"{method.decode()} {parts.path or '/'}{query} {version.decode()}".encode()
            own = [f"Host: {parts.netloc.rpartition('@')[2]}".encode(), b"Connection: close"]
            await _join(reading, writing, found, port, sent=b"\r\n".join([first, *own, *rows, b"", b""]))

    def _allow(self, host: str, port: int) -> bool | None:
        """As `AllowedHosts.allow`, with hosts that the operator listed since; these are looked up once a second."""
        found = self.hosts.allow(host, port)
        if found is None and anyio.current_time() >= self._look_at:
            self._look_at = anyio.current_time() + LOOK_EVERY
            self.hosts = AllowedHosts(self._look())
            found = self.hosts.allow(host, port)
        if found is None and len(self.refused) < MAX_ROWS:
            self.refused[f"{host[:253]}:{port}"] = None
        return found


async def _refuse(writing: asyncio.StreamWriter, why: str) -> None:
    writing.write(f"HTTP/1.1 {why}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    await writing.drain()


async def _join(
    reading: asyncio.StreamReader,
    writing: asyncio.StreamWriter,
    found: Sequence[str],
    port: int,
    *,
    told: bytes = b"",
    sent: bytes = b"",
) -> None:
    """Connects to the first address that answers, and copies in both directions until the host has ended."""
    for address in found:
        with suppress(OSError):
            async with asyncio.timeout(SECONDS):
                theirs, ours = await asyncio.open_connection(address, port)
            break
    else:
        await _refuse(writing, "502 Bad Gateway")
        return
    try:
        writing.write(told)
        ours.write(sent)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, reading, ours)
            await _copy(theirs, writing)
            tasks.cancel_scope.cancel()
    finally:
        ours.close()


async def _copy(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reading.read(CHUNK):
            writing.write(data)
            await writing.drain()
        writing.write_eof()

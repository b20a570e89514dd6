"""The network of an isolated agent: a proxy outside that connects only to the hosts that the operator lists.

The listening sockets come from inside (`network_launcher.py`), so each belongs to one mission. A name is resolved once,
and the connection goes to the checked address: an allowed name does not lead into the local network, unless it is
listed with its port.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self, cast
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream, TaskGroup, UNIXSocketStream

LAUNCHER = Path(__file__).with_name("network_launcher.py")
HTTPS = 443
MAX_HEAD = 64 * 1024
CHUNK = 1 << 16
MAX_SOCKETS = 16
CONNECT_SECONDS = 30.0
_LOOPBACK = ("127.0.0.1", "localhost")


class AllowedHosts:
    """`example.org`, `*.example.org` and `host:port`; without a port, 443."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._rows: list[tuple[str, int, bool]] = []
        for entry in entries:
            name, _, port = entry.lower().partition(":")
            self._rows.append((name, int(port or HTTPS), bool(port)))

    @property
    def loopback(self) -> list[int]:
        """The ports of this machine's loopback."""
        return sorted({port for name, port, _ in self._rows if name in _LOOPBACK})

    async def address(self, host: str, port: int) -> str | None:
        """The address to connect to; None if it is not allowed or not found."""
        wanted = host.lower().rstrip(".")
        found = [
            exact for name, one, exact in self._rows if one == port and (wanted == name or _is_below(wanted, name))
        ]
        if not found:
            return None
        with suppress(OSError, UnicodeError):
            rows = await asyncio.get_running_loop().getaddrinfo(wanted, port, type=socket.SOCK_STREAM)
            addresses = [str(row[4][0]) for row in rows]
            return next((one for one in addresses if any(found) or ipaddress.ip_address(one).is_global), None)
        return None


def _is_below(host: str, pattern: str) -> bool:
    return pattern.startswith("*.") and host.endswith(pattern[1:])


class AgentNetwork:
    """The proxy of one mission's agent."""

    def __init__(self, hosts: AllowedHosts, folder: Path, tasks: TaskGroup) -> None:
        self.folder = folder
        """The files that the agent must read: the launcher, and the socket to this process."""
        self.refused: dict[str, None] = {}
        """The hosts that the agent requested and that are not allowed."""
        self._hosts, self._tasks = hosts, tasks

    @classmethod
    @asynccontextmanager
    async def serving(cls, entries: Sequence[str]) -> AsyncGenerator[Self]:
        """Serves while the block runs."""
        folder = Path(tempfile.mkdtemp(prefix="pursuit-"))
        shutil.copy(LAUNCHER, folder)
        try:
            async with (
                anyio.create_task_group() as tasks,
                await anyio.create_unix_listener(folder / "net") as listener,
            ):
                network = cls(AllowedHosts(entries), folder, tasks)
                tasks.start_soon(listener.serve, network._take)
                yield network
                tasks.cancel_scope.cancel()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def words(self, argv: Sequence[str]) -> list[str]:
        """The command line that starts the agent inside through the launcher."""
        python = os.path.realpath(sys.executable)
        ports = json.dumps(self._hosts.loopback)
        return [python, "-I", "-S", str(self.folder / LAUNCHER.name), str(self.folder / "net"), ports, *argv]

    async def _take(self, stream: SocketStream) -> None:
        """Takes the sockets of a launcher."""
        async with stream:
            try:
                said, numbers = await cast("UNIXSocketStream", stream).receive_fds(MAX_HEAD, MAX_SOCKETS)
                sockets = [socket.socket(fileno=one) for one in numbers]
                for port, one in zip(json.loads(said), sockets, strict=True):
                    one.setblocking(False)
                    if port == 0 or port in self._hosts.loopback:
                        self._tasks.start_soon(self._accept, one, port)
                await stream.send(b"1")
            except (OSError, ValueError, TypeError, anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async def _accept(self, listening: socket.socket, port: int) -> None:
        with listening, suppress(OSError):  # it is not a listening socket
            while True:
                one, _ = await asyncio.get_running_loop().sock_accept(listening)
                self._tasks.start_soon(self._serve, one, port)

    async def _serve(self, accepted: socket.socket, port: int) -> None:
        try:
            reading, writing = await asyncio.open_connection(sock=accepted, limit=MAX_HEAD)
        except OSError:
            return
        try:
            if port:
                await _join(reading, writing, "127.0.0.1", port)
            else:
                await self._proxy(reading, writing)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writing.close()

    async def _proxy(self, reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        head = await reading.readuntil(b"\r\n\r\n")
        method, target, rest = head.split(b" ", 2)
        tunnel = method.upper() == b"CONNECT"
        parts = urlsplit(f"//{target.decode()}" if tunnel else target.decode())
        host, port = parts.hostname or "", parts.port or (HTTPS if tunnel else 80)
        address = await self._hosts.address(host, port)
        if address is None or (not tunnel and parts.scheme != "http"):
            if len(self.refused) < MAX_SOCKETS:
                self.refused[f"{host[:253]}:{port}"] = None
            writing.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writing.drain()
        elif tunnel:
            await _join(reading, writing, address, port, told=b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:  # one request for each connection: the next one may be for another host
            path = parts.path or "/"
            line, _, fields = rest.partition(b"\r\n")
            query = f"?{parts.query}" if parts.query else ""
            kept = [
                one
                for one in fields.split(b"\r\n")
                if one and one.partition(b":")[0].lower() not in (b"connection", b"proxy-connection", b"host")
            ]
            own = [f"Host: {parts.netloc}".encode(), b"Connection: close"]
            first = method + b" " + f"{path}{query}".encode() + b" " + line
            await _join(reading, writing, address, port, sent=b"\r\n".join([first, *own, *kept, b"", b""]))


async def _join(
    reading: asyncio.StreamReader,
    writing: asyncio.StreamWriter,
    address: str,
    port: int,
    *,
    told: bytes = b"",
    sent: bytes = b"",
) -> None:
    """Connects, and copies in both directions until both sides have ended."""
    async with asyncio.timeout(CONNECT_SECONDS):
        theirs, ours = await asyncio.open_connection(address, port)
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

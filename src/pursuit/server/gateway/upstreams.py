"""The servers behind a gateway, now.

Owns: which there are and what their things are called; both change when the configuration is read again. Does not know:
clients. Invariant: every server is listened to exactly while it is here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, unquote

import anyio.abc

from pursuit.server.gateway.routing import HeardFrom
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.in_memory_server import LocalUpstream
from pursuit.upstream.pool import Pool

# How a gateway is to serve.

Spelling = Literal["dotted", "escaped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """`alone`: it has one client for all time (stdio). `search`: three tools stand for all the others.

    `reloads`: SIGHUP makes it read its configuration again, and does not mean that its terminal has gone. `info`: whose
    answers its own are. `hello_seconds`: for how long discovery waits for the only server.
    """

    alone: bool = False
    spelling: Spelling = "dotted"
    search: bool = False
    reloads: bool = True
    info: Mapping[str, Any] | None = None
    hello_seconds: float | None = None


# What tools, prompts and resources of several servers are called behind one.
# Invariant: every spelling can be read back, and no two things share one; with a single server everything keeps its
# own name.

LONGEST_NAME = 128
"""What the protocol allows for the name of a tool."""

SCHEME = "via"
_PLAIN = re.compile(r"[A-Za-z0-9-]")
_KEPT = re.compile(r"[A-Za-z0-9_-]+")
_SEPARATOR = "_-"
_TOKEN = re.compile(r"_-|__|_x[0-9a-f]+_|[A-Za-z0-9-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of these servers' things; `spelling` is for clients whose model takes no dot in a name."""

    servers: Sequence[str]
    spelling: Spelling = "dotted"

    @property
    def single(self) -> bool:
        """Whether there is only one server, whose names are kept if the spelling allows it."""
        return len(self.servers) == 1

    def qualified(self, server: str, name: str) -> str:
        """How a client sees a tool or a prompt."""
        if not self.single:
            return self.spelled(server, name)
        kept = self.spelling == "dotted" or (_KEPT.fullmatch(name) and not name.startswith(_SEPARATOR))
        return name if kept else escaped("", name)

    def spelled(self, server: str, name: str) -> str:
        """A name of two parts."""
        return f"{server}.{name}" if self.spelling == "dotted" else escaped(server, name)

    def owner(self, name: str) -> tuple[str, str] | None:
        """The server and its own name for a thing; None if no server is meant."""
        if self.single:
            whose, found, rest = _read(name) if self.spelling == "escaped" else ("", "", "")
            return self.servers[0], rest if found and not whose else name
        server, found, rest = name.partition(".") if self.spelling == "dotted" else _read(name)
        return (server, rest) if found and server in self.servers else None

    def uri_of(self, server: str, uri: str) -> str:
        """How a client sees a resource that other servers have, too."""
        return f"{SCHEME}://{server}/{quote(uri, safe='')}"

    def uri_owner(self, uri: str) -> tuple[str, str] | None:
        """The server and its own URI behind such an address; None for any other one."""
        scheme, found, rest = uri.partition("://")
        server, slash, quoted = rest.partition("/")
        if scheme != SCHEME or not found or not slash or server not in self.servers:
            return None
        return server, unquote(quoted)


def escaped(server: str, name: str) -> str:
    """A name of letters, digits, `-` and `_` only: `_` is doubled, anything else is `_x` code `_`, between is `_-`."""
    return f"{_escape(server)}{_SEPARATOR}{_escape(name)}"


def _escape(text: str) -> str:
    return "".join("__" if c == "_" else c if _PLAIN.match(c) else f"_x{ord(c):x}_" for c in text)


def _read(name: str) -> tuple[str, str, str]:
    """The parts of an escaped name, as `partition` gives them; without a separator where it is none."""
    parts = [""]
    place = 0
    while place < len(name):
        token = _TOKEN.match(name, place)
        if token is None:
            return name, "", ""
        word = token.group()
        place = token.end()
        if word == _SEPARATOR:
            parts.append("")
        elif word == "__":
            parts[-1] += "_"
        elif word.startswith("_x"):
            code = int(word[2:-1], 16)
            if code > 0x10FFFF:
                return name, "", ""
            parts[-1] += chr(code)
        else:
            parts[-1] += word
    return (parts[0], _SEPARATOR, parts[1]) if len(parts) == 2 else (name, "", "")


_log = logging.getLogger(__name__)


class Upstreams(Mapping[str, McpUpstream]):
    """The servers by name; `heard` is told what any of them says outside of requests."""

    def __init__(self, pool: Pool, heard: HeardFrom, tasks: anyio.abc.TaskGroup, spelling: Spelling = "dotted") -> None:
        self._pool = pool
        self._tasks = tasks
        self._heard = heard
        self._spelling: Spelling = spelling
        self._upstreams: dict[str, McpUpstream] = {}
        self._stops: dict[McpUpstream, Callable[[], None]] = {}
        self.names = Names(servers=(), spelling=spelling)
        self.refresh()

    def __getitem__(self, server: str) -> McpUpstream:
        return self._upstreams[server]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._upstreams))

    def __len__(self) -> int:
        return len(self._upstreams)

    @property
    def only(self) -> McpUpstream:
        """The server, where there is only one."""
        (upstream,) = self._upstreams.values()
        return upstream

    def refresh(self) -> dict[str, McpUpstream]:
        """Takes over what the pool has now; returns the servers that were not here, or are others than before."""
        found = {name: self._server(name) for name in self._pool.names}
        fresh = {name: one for name, one in found.items() if self._upstreams.get(name) is not one}
        for upstream in [one for one in self._stops if one not in found.values()]:
            self._stops.pop(upstream)()
        for upstream in fresh.values():
            self._stops[upstream] = upstream.listen(partial(self._heard, upstream))
        self._upstreams = found
        self.names = Names(servers=tuple(found), spelling=self._spelling)
        if not found:
            _log.warning("no server is configured: there is nothing to serve")
        return fresh

    def _server(self, name: str) -> McpUpstream:
        """A server of the pool; what the program handed in speaks MCP here, too."""
        upstream, known = self._pool.upstream(name), self._upstreams.get(name)
        if isinstance(upstream, McpUpstream):
            return upstream
        if isinstance(known, LocalUpstream) and known.inner is upstream:
            return known
        return LocalUpstream(upstream, tasks=self._tasks)

    def leave(self) -> None:
        """Listens to nobody any more."""
        for stop in self._stops.values():
            stop()
        self._stops.clear()

"""The servers behind a gateway, the names of their tools, prompts and resources, and the options of a gateway.

Servers and names change when the configuration is reloaded. Invariant: the gateway listens to a server exactly while
the server is configured; each name can be converted back to a server and its own name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, unquote

import anyio.abc

from pursuit import __version__
from pursuit.config.commands import COMMANDS_SERVER
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.factory import InProcessUpstream
from pursuit.upstream.fixed_patterns import ESCAPED_CHARACTER, KEPT_NAME, PLAIN_CHARACTER
from pursuit.upstream.pool import Pool

INFO: Mapping[str, Any] = {"name": "pursuit-gateway", "title": "Pursuit gateway", "version": __version__}
Spelling = Literal["dotted", "escaped"]
NotifiedBy = Callable[[McpUpstream, str, Mapping[str, Any]], None]
"""Called with the server, the method and the parameters of a notification."""

MAX_NAME = 128
"""MCP's limit for the name of a tool."""

SCHEME = "via"
_SEPARATOR = "_-"
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GatewayLimits:
    """The time limits of a gateway, and its numbers of connections and calls.

    `connect_seconds` is for the slowest of several servers when a client connects. `optional_seconds` is for servers
    that a request can do without. `list_seconds` is for each of several servers in a list; `slow_list_seconds` if it
    was too slow the last time. `ask_seconds` is for a client's answer to a server. `own_connections` is the number of
    clients with a separate process of a server. `legacy_calls` is the number of concurrent calls of modern clients to
    each legacy server.
    """

    connect_seconds: float = 10.0
    optional_seconds: float = 2.0
    list_seconds: float = 15.0
    slow_list_seconds: float = 1.0
    ask_seconds: float = 55.0
    own_connections: int = 64
    legacy_calls: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of a gateway.

    With `alone` it serves a single client (stdio). With `search` three tools replace all others. With `reloads` SIGHUP
    reloads the configuration, and does not mean that the terminal was closed. `info` is the server's name in the
    gateway's own answers. `hello_seconds` limits how long discovery waits for an only server.
    """

    alone: bool = False
    spelling: Spelling = "dotted"
    search: bool = False
    reloads: bool = True
    info: Mapping[str, Any] | None = None
    hello_seconds: float | None = None
    limits: GatewayLimits = field(default_factory=GatewayLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of the servers' tools, prompts and resources; a single server keeps its own if the spelling permits.

    The operator's commands do not count as another server. The spelling `escaped` is for clients whose model does not
    accept a dot in a name.
    """

    servers: Sequence[str]
    spelling: Spelling = "dotted"

    @property
    def single(self) -> bool:
        return len(self.servers) == 1

    @property
    def bare(self) -> str | None:
        """The server whose names are not changed."""
        found = [server for server in self.servers if server != COMMANDS_SERVER] or self.servers
        return found[0] if len(found) == 1 else None

    def qualified(self, server: str, name: str) -> str:
        """The name that a client sees for a tool or a prompt."""
        if server != self.bare:
            return self.spelled(server, name)
        fits = self.spelling == "dotted" or (KEPT_NAME.fullmatch(name) and not name.startswith(_SEPARATOR))
        if fits and self.owner(name) == (server, name):
            return name
        return self.spelled(server if self.spelling == "dotted" else "", name)

    def spelled(self, server: str, name: str) -> str:
        return f"{server}.{name}" if self.spelling == "dotted" else escaped(server, name)

    def owner(self, name: str) -> tuple[str, str] | None:
        """The server and its own name for a tool or a prompt; None if the name belongs to no server."""
        server, found, rest = name.partition(".") if self.spelling == "dotted" else _unescape(name)
        if found and server in self.servers and not self.single:
            return server, rest
        if self.bare is None:
            return None
        return self.bare, rest if found and not server and self.spelling == "escaped" else name

    def uri_of(self, server: str, uri: str) -> str:
        """The URI that a client sees for a resource if other servers have one with the same URI."""
        return f"{SCHEME}://{server}/{quote(uri, safe='')}"

    def uri_owner(self, uri: str) -> tuple[str, str] | None:
        """The server and its own URI for such a URI; None for any other URI."""
        scheme, found, rest = uri.partition("://")
        server, slash, quoted = rest.partition("/")
        if scheme != SCHEME or not found or not slash or server not in self.servers:
            return None
        return server, unquote(quoted)


def escaped(server: str, name: str) -> str:
    """A name of letters, digits, `-` and `_`: `_` is doubled, others become `_x` code `_`, and `_-` separates."""
    return f"{_escape(server)}{_SEPARATOR}{_escape(name)}"


def _escape(text: str) -> str:
    return "".join("__" if c == "_" else c if PLAIN_CHARACTER.match(c) else f"_x{ord(c):x}_" for c in text)


def _unescape(name: str) -> tuple[str, str, str]:
    """The parts of an escaped name, like `partition`; without a separator if the name is not escaped."""
    parts, tokens = [""], ESCAPED_CHARACTER.findall(name)
    if "".join(tokens) != name:
        return name, "", ""
    for part in tokens:
        if part == _SEPARATOR:
            parts.append("")
        elif part == "__":
            parts[-1] += "_"
        elif part.startswith("_x"):
            code = int(part[2:-1], 16)
            if code > 0x10FFFF:
                return name, "", ""
            parts[-1] += chr(code)
        else:
            parts[-1] += part
    return (parts[0], _SEPARATOR, parts[1]) if len(parts) == 2 else (name, "", "")


class Upstreams(Mapping[str, McpUpstream]):
    """The servers by name; `notified` gets their notifications outside of requests."""

    def __init__(
        self, pool: Pool, notified: NotifiedBy, tasks: anyio.abc.TaskGroup, spelling: Spelling = "dotted"
    ) -> None:
        self._pool = pool
        self._tasks = tasks
        self._notified = notified
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
        (upstream,) = self._upstreams.values()
        return upstream

    def refresh(self) -> dict[str, McpUpstream]:
        """Adopts the servers of the pool; returns the new and the replaced ones."""
        found = {name: self._server(name) for name in self._pool.names}
        fresh = {name: one for name, one in found.items() if self._upstreams.get(name) is not one}
        for upstream in [one for one in self._stops if one not in found.values()]:
            self._stops.pop(upstream)()
        for upstream in fresh.values():
            self._stops[upstream] = upstream.listen(partial(self._notified, upstream))
        self._upstreams = found
        self.names = Names(servers=tuple(found), spelling=self.names.spelling)
        if not found:
            _log.warning("no server is configured: there is nothing to serve")
        return fresh

    def _server(self, name: str) -> McpUpstream:
        """A server of the pool; tools that the program passes in are also served over MCP."""
        upstream, known = self._pool.upstream(name), self._upstreams.get(name)
        if isinstance(upstream, McpUpstream):
            return upstream
        if isinstance(known, InProcessUpstream) and known.inner is upstream:
            return known
        return InProcessUpstream(upstream, tasks=self._tasks)

    def close(self) -> None:
        for stop in self._stops.values():
            stop()
        self._stops.clear()

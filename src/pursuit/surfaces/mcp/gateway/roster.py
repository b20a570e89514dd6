"""The servers behind a gateway, now.

Owns: which there are and what their things are called; both change when the configuration is read again. Does not know:
clients. Invariant: every server is listened to exactly while it is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import anyio.abc

from pursuit.surfaces.mcp.gateway.lines import HeardFrom
from pursuit.surfaces.mcp.gateway.names import Names
from pursuit.surfaces.mcp.gateway.options import Spelling
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.in_memory_server import LocalUpstream
from pursuit.upstream.pool import Pool

_log = logging.getLogger(__name__)


class Roster(Mapping[str, McpUpstream]):
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

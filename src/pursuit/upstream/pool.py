"""All upstream servers of a process.

Servers are connected on first use. A failing or hanging server does not affect others. No process outlives the pool.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc

from pursuit.config.servers import RELAYED, SERVER_NAME, ServerConfig, expand
from pursuit.core.base_model import nearest
from pursuit.core.catalogue import Catalogue
from pursuit.core.tools import Tool, Upstream
from pursuit.errors import Fault, PursuitError, UpstreamUnavailable, ValidationFailed
from pursuit.policy.rules import NetworkRules, Rule, network_ruling
from pursuit.upstream.functions import FunctionUpstream
from pursuit.upstream.listing import KNOWN_TRAITS, ToolTraits, is_offered
from pursuit.upstream.pins import Pins
from pursuit.upstream.resource_tools import READING, reading_tools

CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """The effect of a changed configuration on each server; `failed` has the reasons for unreachable servers."""

    removed: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    connected: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


class Pool:
    """Use it as an async context manager. `inproc` holds functions, SDK server objects, or ready upstreams."""

    def __init__(
        self,
        configs: Mapping[str, ServerConfig],
        inproc: Mapping[str, Any] | None = None,
        *,
        network: NetworkRules | None = None,
        pins: Pins | None = None,
        traits: ToolTraits = KNOWN_TRAITS,
    ) -> None:
        self.network = network or NetworkRules()
        self.pins = pins
        self._traits = traits
        self.serves_http = False
        self.names: tuple[str, ...] = ()
        self._things: dict[str, Any] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        for name, thing in (*configs.items(), *(inproc or {}).items()):
            self.add(name, thing)

    def add(self, name: str, thing: Any) -> None:
        """Adds a server: a `ServerConfig`, an upstream, an SDK server object, a function, or functions."""
        if not SERVER_NAME.match(name):
            raise ValidationFailed([Fault(field=f"servers.{name}", reason="is not a usable name for a server")])
        if name in self._things:
            raise ValidationFailed([Fault(field=f"servers.{name}", reason="another server already has that name")])
        # A tool's qualified name begins with its server's name, so both must agree.
        self._things[name] = thing.model_copy(update={"name": name}) if isinstance(thing, ServerConfig) else thing
        self._changed()

    def _changed(self) -> None:
        self.names = tuple(name for name, thing in self._things.items() if not _disabled(thing))

    def health(self) -> list[dict[str, Any]]:
        """The state of each server, without asking it: transport, connection, restarts."""
        rows: list[dict[str, Any]] = []
        for name, thing in self._things.items():
            upstream = self._upstreams.get(name)
            configured = isinstance(thing, ServerConfig)
            status = "disabled" if _disabled(thing) else "idle" if configured else "ready"
            row = {"server": name, "transport": thing.transport if configured else "in process", "status": status}
            if configured and upstream is not None:
                row["status"] = "connected" if getattr(upstream, "connected", False) else "idle"
                row |= {"restarts": getattr(upstream, "restarts", 0)}
                row |= {"protocol_version": getattr(upstream, "protocol_version", None)}
            rows.append({key: value for key, value in row.items() if value is not None})
        return rows

    def upstream(self, name: str) -> Upstream:
        """The upstream of that name, not yet connected; raises `UpstreamUnavailable` if it does not exist."""
        if name not in self._upstreams:
            if name not in self._things:
                known = nearest(name, self._things) or f"; known: {', '.join(sorted(self._things)) or 'none'}"
                raise UpstreamUnavailable(f"there is no server {name!r}{known}", server=name)
            if _disabled(self._things[name]):
                raise UpstreamUnavailable(f"server {name!r} is disabled in the configuration", server=name)
            self._upstreams[name] = self._make(name, self._things[name])
        return self._upstreams[name]

    def _make(self, name: str, thing: Any) -> Upstream:
        if self._tasks is None:
            raise UpstreamUnavailable(f"server {name!r}: the pool is not open", server=name)
        if isinstance(thing, Mapping):
            return FunctionUpstream(name, cast("Mapping[str, Callable[..., Any]]", thing))
        if isinstance(thing, Sequence) and not isinstance(thing, str):
            return FunctionUpstream(name, cast("Sequence[Callable[..., Any]]", thing))
        if hasattr(thing, "tools") and hasattr(thing, "call") and hasattr(thing, "aclose"):
            upstream = cast("Upstream", thing)
            if upstream.name != name:
                reason = f"the name of this upstream is {upstream.name!r}"
                raise ValidationFailed([Fault(field=f"servers.{name}", reason=reason)])
            return upstream
        # The SDK takes a second to import, and functions do not need it.
        from pursuit.upstream.factory import mcp_upstream  # noqa: PLC0415 - see above

        if isinstance(thing, ServerConfig) and thing.command is not None:
            relayed = "http" if self.serves_http else os.environ.get(RELAYED, "stdio")
            thing = thing.model_copy(update={"env": {**thing.env, RELAYED: relayed}})
        upstream = mcp_upstream(name, thing, self._tasks, network=self.network, pins=self.pins, traits=self._traits)
        if upstream is not None:
            return upstream
        if callable(thing):
            return FunctionUpstream(name, [thing])
        reason = f"{type(thing).__name__} is neither a server's configuration nor a server, upstream or function"
        raise ValidationFailed([Fault(field=f"servers.{name}", reason=reason)])

    async def catalogue(
        self, names: Sequence[str] | None = None, *, reading: bool = False, strict: bool = True
    ) -> Catalogue:
        """Lists the servers concurrently; `failures` names those that fail.

        With `reading`, tools include those that read a server's resources and prompts. With `strict`, raises
        `UpstreamUnavailable` if a required server fails.
        """
        wanted = list(dict.fromkeys(self.names if names is None else names))
        found: dict[str, Sequence[Tool]] = {}
        warnings: dict[str, Sequence[str]] = {}

        async def list_tools(name: str) -> None:
            upstream = self.upstream(name)
            own = await upstream.tools()
            more = await reading_tools(name, upstream) if reading else []
            config = self._things.get(name)
            if isinstance(config, ServerConfig):
                more = [tool for tool in more if is_offered(config, tool.name)]
            found[name] = [*more, *own]
            warnings[name] = tuple(getattr(upstream, "warnings", ()))

        failures = await _side_by_side(wanted, list_tools)
        missing = [name for name in wanted if name in failures and getattr(self._things.get(name), "required", False)]
        if missing and strict:
            reasons = "; ".join(failures[name] for name in missing)
            raise UpstreamUnavailable(f"required servers cannot be reached: {reasons}", servers=missing)
        return Catalogue(
            tools={tool.qualified: tool for name in wanted for tool in found.get(name, ())},
            failures=failures,
            warnings=[warning for name in wanted for warning in warnings.get(name, ())],
        )

    def asked_first(self) -> tuple[Rule, ...]:
        """Policy rules that ask before calls to servers whose host the network rules ask about."""
        hosts = {name: _asked_host(thing, self.network) for name, thing in self._things.items()}
        return tuple(
            Rule(decision="ask", server=name, reason=f"the network rules ask before {host} is reached")
            for name, host in hosts.items()
            if host is not None
        )

    async def connect_required(self) -> None:
        """Connects the required servers; raises `UpstreamUnavailable` if one fails."""
        await self.catalogue([name for name in self.names if getattr(self._things[name], "required", False)])

    async def reload(self, configs: Mapping[str, ServerConfig], *, network: NetworkRules | None = None) -> Reloaded:
        """Applies a changed configuration: connects new or changed servers, and does not touch others.

        Objects and functions of this process stay. Calls in progress on a removed or updated server fail. An
        unreachable server is in `failed`, and is retried when it is needed.
        """
        rules = self.network if network is None else network
        wanted = {name: config.model_copy(update={"name": name}) for name, config in configs.items()}
        before = {name: thing for name, thing in self._things.items() if isinstance(thing, ServerConfig)}
        taken = [name for name in wanted if name in self._things and name not in before]
        if taken:
            reason = "another server already has that name"
            raise ValidationFailed([Fault(field=f"servers.{name}", reason=reason) for name in taken])
        moved = {name for name, config in wanted.items() if config.url and rules != self.network}
        removed = [name for name, old in before.items() if old.enabled and not _enabled(wanted, name)]
        changed = [name for name, config in wanted.items() if before.get(name) != config or name in moved]
        gone = [self._upstreams.pop(name) for name in (*removed, *changed) if name in self._upstreams]
        self.network = rules
        self._things = {name: thing for name, thing in self._things.items() if name not in before} | wanted
        self._changed()
        await _close(gone)
        fresh = [name for name in changed if wanted[name].enabled]
        failed = await _side_by_side(fresh, lambda name: self.upstream(name).tools())
        return Reloaded(
            removed=tuple(removed),
            updated=tuple(name for name in fresh if _enabled(before, name)),
            connected=tuple(name for name in fresh if not _enabled(before, name) and name not in failed),
            kept=tuple(name for name in wanted if wanted[name].enabled and name not in fresh),
            failed=failed,
        )

    async def aclose(self) -> None:
        """Closes all servers concurrently, within `CLOSE_SECONDS`."""
        upstreams, self._upstreams = list(self._upstreams.values()), {}
        await _close(upstreams)

    async def __aenter__(self) -> Self:
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        # Shielded: even after a cancellation no process may remain. Every wait inside is bounded.
        with anyio.CancelScope(shield=True):
            await self.aclose()
        tasks.cancel_scope.cancel()
        # Exited without the caller's exception, which a group would wrap.
        await tasks.__aexit__(None, None, None)


def reads(names: Iterable[str]) -> bool:
    """True if one of these qualified names is a request for resources or prompts."""
    return any(name.partition(".")[2] in READING for name in names)


async def _close(upstreams: Sequence[Upstream]) -> None:
    with anyio.move_on_after(CLOSE_SECONDS):
        async with anyio.create_task_group() as closing:
            for upstream in upstreams:
                closing.start_soon(upstream.aclose)


async def _side_by_side(names: Sequence[str], act: Callable[[str], Awaitable[Any]]) -> dict[str, str]:
    """Acts on these servers concurrently; returns the reasons of failures."""
    failed: dict[str, str] = {}

    async def attempt(name: str) -> None:
        try:
            await act(name)
        except PursuitError as error:
            failed[name] = error.message

    async with anyio.create_task_group() as acting:
        for name in names:
            acting.start_soon(attempt, name)
    return {name: failed[name] for name in names if name in failed}


def _asked_host(thing: Any, network: NetworkRules) -> str | None:
    if not isinstance(thing, ServerConfig) or thing.url is None:
        return None
    try:
        url = expand(thing, os.environ).url or ""
    except UpstreamUnavailable:
        return None  # it cannot be connected to, either
    return urlsplit(url).hostname if network_ruling(network, url) == "ask" else None


def _enabled(configs: Mapping[str, ServerConfig], name: str) -> bool:
    return name in configs and configs[name].enabled


def _disabled(thing: Any) -> bool:
    return isinstance(thing, ServerConfig) and not thing.enabled

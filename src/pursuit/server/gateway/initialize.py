"""What a gateway says of itself: of one server, what that says; of several, all of it together.

Owns: the answers to the handshake and to discovery. Does not know: requests. Invariant: a server that cannot be reached
now costs the client nothing but its own part.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import anyio
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from pursuit import __version__
from pursuit.core.tools import About
from pursuit.errors import PursuitError
from pursuit.server.gateway.protocol_versions import as_object, enveloped
from pursuit.server.gateway.routing import HELLO_SECONDS
from pursuit.server.tasks import protocol
from pursuit.server.tasks.protocol import EXTENSION, FIRST_VERSIONS
from pursuit.upstream.client import McpUpstream

INFO: Mapping[str, Any] = {
    "name": "pursuit-gateway",
    "title": "Pursuit gateway",
    "version": __version__,
}
# What a server that is not there now may have when it comes back.
_ANYTHING: Mapping[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True},
    "prompts": {"listChanged": True},
}
_ROUTED = frozenset({"tools", "resources", "prompts", "completions", "logging"})
"""What a client of several servers can ask for: here it is known whose it is."""

_log = logging.getLogger(__name__)

Found = Mapping[str, About | None]
"""What each server says about itself; None of one that cannot be reached."""


async def everyone(
    upstreams: Mapping[str, McpUpstream],
    about: Callable[[McpUpstream], Awaitable[About]] = McpUpstream.about,
    *,
    seconds: float | None = None,
) -> Found:
    """Asks all servers, side by side; `about` is how one is asked, `seconds` how long the only one is waited for."""
    found: dict[str, About | None] = dict.fromkeys(upstreams)

    async def ask(name: str, upstream: McpUpstream) -> None:
        try:
            found[name] = await about(upstream)
        except PursuitError as error:
            _log.warning("%s", error.message)

    # One that hangs must not keep the client from all the others.
    with anyio.move_on_after(HELLO_SECONDS if len(found) > 1 else seconds):
        async with anyio.create_task_group() as asking:
            for name, upstream in upstreams.items():
                asking.start_soon(ask, name, upstream)
    return found


def initialized(params: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """The answer to `initialize`."""
    asked = params.get("protocolVersion")
    result: dict[str, Any] = {
        "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
        "capabilities": {**capabilities(found), **_first_tasks(asked)},
        "serverInfo": server_info(found),
    }
    words = instructions(found)
    return result if words is None else {**result, "instructions": words}


def discovered(found: Found) -> dict[str, Any]:
    """The answer to `server/discover`."""
    result: dict[str, Any] = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": _with_tasks(capabilities(found)),
    }
    words = instructions(found)
    body = result if words is None else {**result, "instructions": words}
    return enveloped("server/discover", body, server_info(found))


def _first_tasks(version: Any) -> dict[str, Any]:
    """Tasks are our own, whatever the servers know of them; versions before the first generation have none."""
    older = version in HANDSHAKE_PROTOCOL_VERSIONS and version not in FIRST_VERSIONS
    return {} if older else {"tasks": protocol.CAPABILITY}


def _with_tasks(declared: dict[str, Any]) -> dict[str, Any]:
    return {**declared, "extensions": {**as_object(declared.get("extensions")), EXTENSION: {}}}


def server_info(found: Found) -> Mapping[str, Any]:
    """Who answers: the server itself if there is only one."""
    if len(found) == 1:
        about = next(iter(found.values()))
        if about is not None and about.server_info is not None:
            return about.server_info
    return INFO


def instructions(found: Found) -> str | None:
    """The servers' own words: of one as they are, of several under their names."""
    said = {name: about.instructions for name, about in found.items() if about is not None and about.instructions}
    if len(found) == 1:
        return next(iter(said.values()), None)
    return "\n\n".join(f"## {name}\n{words}" for name, words in said.items()) or None


def capabilities(found: Found) -> dict[str, Any]:
    """What all servers together can do, without tasks."""
    union: dict[str, Any] = {}
    for about in found.values():
        mine = dict(_ANYTHING) if about is None else _without_tasks(about)
        union = _merged(union, mine)
    if len(found) > 1:
        # An extension's method does not say whose it is.
        return {key: value for key, value in union.items() if key in _ROUTED}
    return union


def _without_tasks(about: About) -> dict[str, Any]:
    """What one server can do, without its tasks: those of the two eras are not the same, and ours stand for both."""
    given = {key: value for key, value in about.capabilities.items() if key != "tasks"}
    known = as_object(given.get("extensions"))
    if EXTENSION in known:
        given["extensions"] = {key: value for key, value in known.items() if key != EXTENSION}
        if not given["extensions"]:
            del given["extensions"]
    return given


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    union = dict(one)
    for key, value in other.items():
        mine = union.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            union[key] = _merged(cast("Mapping[str, Any]", mine), cast("Mapping[str, Any]", value))
        elif not mine:
            union[key] = value
    return union

"""Which protocol a server speaks, and what it says about itself.

Owns: discovery (2026-07-28), the handshake (2025-11-25 and older), and the choice between them. Does not know:
transports, or what comes after. Invariant: anything but a proper discovery leads to the handshake, unless the server
says that it only speaks the new era or cannot be reached at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal, cast

import anyio
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from pursuit.core.tools import About, UpstreamError
from pursuit.tools.wire import ConnectionLost, HttpRefused, Wire

Era = Literal["auto", "legacy"]

CLIENT_INFO: Mapping[str, Any] = {"name": "pursuit", "version": version("pursuit")}
# What only the sender of a request may say; never handed on from somebody else's request.
ENVELOPE_KEYS = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY)
_LONGEST_PROBE = 10.0


class ProbeLost(Exception):
    """The server hung up on discovery: some of the old era do so on a first request that they do not know."""


def is_modern(protocol_version: str) -> bool:
    """Whether this version has no handshake."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS


def envelope(protocol_version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What each request of the new era says about who asks and what it can."""
    return {
        PROTOCOL_VERSION_META_KEY: protocol_version,
        CLIENT_INFO_META_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_META_KEY: capabilities,
    }


async def negotiate(wire: Wire, *, era: Era, capabilities: Mapping[str, Any], timeout: float) -> About:
    """Discovery first, then the handshake. Raises `UpstreamError`, `ProbeLost`, a failure of the wire, `ValueError`."""
    if era == "auto":
        # A short connect timeout must leave time for the handshake.
        about = await _discovered(wire, capabilities, min(timeout / 3, _LONGEST_PROBE))
        if about is not None:
            return about
    try:
        return await _handshake(wire, capabilities)
    except UpstreamError as error:
        # A slow start: the probe ran out of time here, and was taken up there after all.
        about = None
        if error.code == UNSUPPORTED_PROTOCOL_VERSION:
            about = await _discovered(wire, capabilities, timeout)
        if about is None:
            raise
        return about


async def _discovered(wire: Wire, capabilities: Mapping[str, Any], seconds: float) -> About | None:
    """None if it is not a server of the new era, or has not answered by then."""
    asked = LATEST_MODERN_VERSION
    with anyio.move_on_after(seconds):
        for _ in range(2):
            params = {"_meta": envelope(asked, capabilities)}
            try:
                return _read_discovery(wire, await wire.request("server/discover", params, cancellable=False))
            except UpstreamError as error:
                if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                    return None
                offered = _versions(error.data, "supported")
                if offered is not None and not any(one in HANDSHAKE_PROTOCOL_VERSIONS for one in offered):
                    common = [one for one in MODERN_PROTOCOL_VERSIONS if one in offered and one != asked]
                    if not common:
                        raise
                    asked = common[-1]
                    continue
                return None
            except ConnectionLost:
                raise ProbeLost from None
            except HttpRefused:
                return None
    return None


def _read_discovery(wire: Wire, result: Mapping[str, Any]) -> About | None:
    offered = _versions(result, "supportedVersions") or []
    common = [one for one in MODERN_PROTOCOL_VERSIONS if one in offered]
    capabilities = result.get("capabilities")
    if not common or not isinstance(capabilities, dict):
        return None
    meta = result.get("_meta")
    info = cast("dict[str, Any]", meta).get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
    wire.adopt(common[-1], modern=True)
    return _about(common[-1], cast("dict[str, Any]", capabilities), info, result.get("instructions"))


async def _handshake(wire: Wire, capabilities: Mapping[str, Any]) -> About:
    params = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    result = await wire.request("initialize", params, cancellable=False)
    agreed, offered = result.get("protocolVersion"), result.get("capabilities", {})
    if not isinstance(agreed, str) or not isinstance(offered, dict):
        raise ValueError("its answer to the handshake is malformed")
    if agreed not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise ValueError(f"it wants to speak protocol version {agreed[:40]!r}, which is not known here")
    wire.adopt(agreed, modern=False)
    await wire.notify("notifications/initialized", None)
    return _about(agreed, cast("dict[str, Any]", offered), result.get("serverInfo"), result.get("instructions"))


def _about(agreed: str, capabilities: dict[str, Any], info: Any, instructions: Any) -> About:
    return About(
        protocol_version=agreed,
        capabilities=capabilities,
        server_info=cast("dict[str, Any]", info) if isinstance(info, dict) else None,
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _versions(data: Any, key: str) -> list[object] | None:
    found = cast("dict[str, object]", data).get(key) if isinstance(data, dict) else None
    return cast("list[object]", found) if isinstance(found, list) else None

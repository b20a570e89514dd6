"""The table of well-known public servers, and how a configured server is recognised as one of them.

Only the configured command line counts; what a server says about itself could be a lie. A command line that is not
fully understood, or that leads to a file in an unknown place, is not a known server; that only costs the operator a
question.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

import msgspec

from pursuit.config.servers import PYTHON, ServerConfig
from pursuit.core.tools import ToolOverride
from pursuit.upstream.fixed_patterns import INTERPRETER, NPM, PYPI, STEERS

_SCRIPTS = ("bin", "Scripts")
# What may stand between a runner and the package; any other option (another index, say) makes the server unknown.
_PLAIN = ("-y", "--yes", "-q", "--quiet")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownServer:
    """One package of the table; `tools` has all four traits of each tool."""

    package: str
    registry: str
    program: str
    tools: Mapping[str, ToolOverride]
    read: str
    """The version that the table was read from."""
    module: str | None = None

    @property
    def table(self) -> str:
        return f"known of {self.package}"


@cache
def known_servers() -> Mapping[str, KnownServer]:
    data = tomllib.loads((files("pursuit.upstream") / "known_servers.toml").read_text(encoding="utf-8"))
    return {server.package: server for server in msgspec.convert(data["servers"], list[KnownServer])}


def recognised(config: ServerConfig) -> KnownServer | None:
    """The well-known server that this command line starts, or None."""
    if config.transport != "stdio" or config.command is None:
        return None
    if not config.operators or any(STEERS.fullmatch(name) for name in config.env):
        return None
    program = PurePosixPath(config.command)
    if not (program.name == config.command or _is_installed(config, program)):
        return None
    known = known_servers()
    words = [word for word in config.args if word not in _PLAIN]
    if config.command == PYTHON or INTERPRETER.fullmatch(program.name):
        if words[:1] != ["-m"] or config.cwd is not None:  # Python looks for modules where it is started
            return None
        return next((one for one in known.values() if one.module is not None and [one.module] == words[1:2]), None)
    if program.name in ("npx", "uvx"):
        registry, form = ("npm", NPM) if program.name == "npx" else ("pypi", PYPI)
        match = form.fullmatch(words[0]) if words else None
        server = known.get(match["name"]) if match else None
        elsewhere = registry == "npm" and config.cwd is not None  # npx prefers what lies there
        return server if server is not None and server.registry == registry and not elsewhere else None
    return next((one for one in known.values() if one.program == program.name), None)


def _is_installed(config: ServerConfig, program: PurePosixPath) -> bool:
    """True if a path leads into the programs of our own environment or of the configuration's `node_modules`."""
    if ".." in program.parts:
        return False
    place = PurePosixPath(config.base or "") / program.parent
    if place in [PurePosixPath(sys.prefix) / scripts for scripts in _SCRIPTS]:
        return True
    return config.base is not None and place == PurePosixPath(config.base) / "node_modules" / ".bin"

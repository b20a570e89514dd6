"""The table of well-known public servers, and how a configured server is recognised as one of them.

Only the configured command line counts; what a server says about itself could be a lie. A command line that is not
fully understood, or that leads to a file in an unknown place, is not a known server; that only costs the operator a
question.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath

import msgspec

from pursuit.config.servers import PYTHON, ServerConfig
from pursuit.core.tools import ToolOverride
from pursuit.upstream.fixed_patterns import INTERPRETER, NPM, PYPI, STEERS, Pattern

# A version or a tag. An alias (`npm:other`), a path or an address after the `@` is another package.
_SCRIPTS = ("bin", "Scripts")
# Variables that decide what is started or loaded.

_NPM_RUNNERS = (("npx",), ("bunx",), ("pnpx",), ("npm", "exec"), ("npm", "x"), ("pnpm", "dlx"), ("yarn", "dlx"))
_PYPI_RUNNERS = (("uvx",), ("uv", "tool", "run"), ("pipx", "run"))
# Options of a runner that do not change what runs; any other one (another index, say) makes the server unknown.
_PLAIN = ("-y", "--yes", "-q", "--quiet", "-s", "--silent", "--offline", "--prefer-offline", "--no-cache", "--")
_WITH_VALUE = ("-p", "--python")
_PYTHON_PLAIN = ("-u", "-I", "-s", "-E", "-P", "-B", "-O")


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
        """The name of the table in a reason."""
        return f"known of {self.package}"


@cache
def known_servers() -> Mapping[str, KnownServer]:
    """The whole table, by package."""
    data = tomllib.loads((files("pursuit.upstream") / "known_servers.toml").read_text(encoding="utf-8"))
    return {server.package: server for server in msgspec.convert(data["servers"], list[KnownServer])}


def recognised(config: ServerConfig) -> KnownServer | None:
    """The well-known server that this command line starts, or None."""
    if config.transport != "stdio" or config.command is None:
        return None
    if not config.operators or any(STEERS.fullmatch(name) for name in config.env):
        return None
    command, args = config.command, config.args
    program = PurePosixPath(command)
    if not (program.name == command or _is_installed(config, program)):
        return None
    if command == PYTHON or INTERPRETER.fullmatch(program.name):
        return _module(args) if config.cwd is None else None  # Python looks for modules where it is started
    if program.name in ("node", "bun"):
        return _script(config)
    for runner in _NPM_RUNNERS:
        if (rest := _after(runner, program.name, args)) is not None:
            return _package(rest, NPM, "npm") if config.cwd is None else None  # npx prefers what lies there
    for runner in _PYPI_RUNNERS:
        if (rest := _after(runner, program.name, args)) is not None:
            return _package(rest, PYPI, "pypi")
    return next((one for one in known_servers().values() if one.program == program.name), None)


def _is_installed(config: ServerConfig, program: PurePosixPath) -> bool:
    """Whether a path leads into the programs of our own environment or of the configuration's `node_modules`."""
    if ".." in program.parts:
        return False
    place = PurePosixPath(config.base or "") / program.parent
    if place in [PurePosixPath(sys.prefix) / scripts for scripts in _SCRIPTS]:
        return True
    return config.base is not None and place == PurePosixPath(config.base) / "node_modules" / ".bin"


def _after(runner: Sequence[str], name: str, args: Sequence[str]) -> Sequence[str] | None:
    words = len(runner) - 1
    return args[words:] if name == runner[0] and tuple(args[:words]) == tuple(runner[1:]) else None


def _package(args: Sequence[str], form: Pattern[str], registry: str) -> KnownServer | None:
    """The package that a runner runs: its first argument that is not an option."""
    words = list(args)
    source: KnownServer | None = None
    while words:
        word = words.pop(0)
        if word in _PLAIN:
            continue
        if registry == "pypi" and word in _WITH_VALUE and words:
            words.pop(0)
        elif registry == "pypi" and word == "--from" and words:
            source = _named(words.pop(0), form, registry)
            if source is None:
                return None
        elif source is not None:
            return source if word == source.program else None
        else:
            return _named(word, form, registry)
    return None


def _named(word: str, form: Pattern[str], registry: str) -> KnownServer | None:
    match = form.fullmatch(word)
    server = known_servers().get(match["name"]) if match else None
    return server if server is not None and server.registry == registry else None


def _module(args: Sequence[str]) -> KnownServer | None:
    """`python -m module`."""
    words = [word for word in args if word not in _PYTHON_PLAIN]
    if len(words) < 2 or words[0] != "-m":
        return None
    return next((one for one in known_servers().values() if one.module == words[1]), None)


def _script(config: ServerConfig) -> KnownServer | None:
    """`node …/node_modules/PACKAGE/…`, in the configuration's folder."""
    if config.base is None or not config.args or config.args[0].startswith("-"):
        return None
    path = Path(config.base, config.cwd or Path.cwd(), config.args[0])  # as the process will read it
    modules = config.base / "node_modules"
    if ".." in path.parts or not path.is_relative_to(modules):
        return None
    inside = path.relative_to(modules).parts
    if "node_modules" in inside:  # what another package brought along
        return None
    return known_servers().get("/".join(inside[: 2 if inside and inside[0].startswith("@") else 1]))

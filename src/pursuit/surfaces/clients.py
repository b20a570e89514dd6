"""The MCP clients that Pursuit can add itself to.

Owns: where each keeps its configuration on Linux and macOS, and what an entry looks like there, as data. Reads and
writes nothing. Invariant: an entry holds only absolute paths, for a client may start it in any folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

Base = Literal["home", "settings", "claude"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client: its configuration file, for the user and for a project, and the shape of an entry."""

    name: str
    title: str
    base: Base
    user_file: str
    project_file: str | None
    servers_key: str
    typed: bool
    then: str
    then_project: str | None = None

    def entry(self, argv: Sequence[str]) -> dict[str, Any]:
        """The entry for a server that is started with these words and talks over its standard streams."""
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": argv[0], "args": list(argv[1:])}


CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client(
            name="claude-desktop",
            title="Claude Desktop",
            base="settings",
            user_file="Claude/claude_desktop_config.json",
            project_file=None,
            servers_key="mcpServers",
            typed=False,
            then="quit Claude Desktop and start it again",
        ),
        Client(
            name="claude-code",
            title="Claude Code",
            base="claude",
            user_file=".claude.json",
            project_file=".mcp.json",
            servers_key="mcpServers",
            typed=True,
            then="start a new session of Claude Code; /mcp lists it",
            then_project="start Claude Code in this folder and approve the server; /mcp lists it",
        ),
        Client(
            name="vscode",
            title="VS Code",
            base="settings",
            user_file="Code/User/mcp.json",
            project_file=".vscode/mcp.json",
            servers_key="servers",
            typed=True,
            then="run `MCP: List Servers` in VS Code and start it there",
        ),
        Client(
            name="cursor",
            title="Cursor",
            base="home",
            user_file=".cursor/mcp.json",
            project_file=".cursor/mcp.json",
            servers_key="mcpServers",
            typed=False,
            then="start Cursor again and switch the server on in its settings",
        ),
    )
}


def user_file(client: Client, *, home: Path, environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The file that counts for everything the user does with this client."""
    match client.base:
        case "home":
            folder = home
        case "settings":
            folder = _settings_folder(home, environment, platform)
        case "claude":
            # Claude Code moves its file along with its folder.
            moved = environment.get("CLAUDE_CONFIG_DIR")
            folder = Path(moved).absolute() if moved else home
        case _:
            assert_never(client.base)
    return folder / client.user_file


def _settings_folder(home: Path, environment: Mapping[str, str], platform: str) -> Path:
    if platform == "darwin":
        return home / "Library" / "Application Support"
    said = environment.get("XDG_CONFIG_HOME", "")
    # The XDG rule: a relative path there is invalid, and is not looked at.
    return Path(said) if Path(said).is_absolute() else home / ".config"


def this_command(executable: Path) -> list[str]:
    """The words that run the Pursuit of this environment: its script beside the interpreter, else the module."""
    # Not resolved: the interpreter of an environment is a link, and its scripts lie beside the link.
    script = executable.with_name("pursuit")
    return [str(script)] if script.is_file() and os.access(script, os.X_OK) else [str(executable), "-m", "pursuit"]

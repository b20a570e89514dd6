"""Finds the coding agents of this machine: commands on `PATH` that are known to speak the Agent Client Protocol.

What each of them can do is what it says itself. Nothing else depends on which agent it is.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec

from pursuit.config.surroundings import USUAL_SURROUNDINGS
from pursuit.core.tools import CallFailed
from pursuit.proposers.agent.acp import AgentRefused, Connection
from pursuit.proposers.agent.process import AgentGone
from pursuit.proposers.agent.turns import explained, start_agent

PROBE_SECONDS = 20.0
KNOWN: tuple[tuple[str, ...], ...] = (
    ("opencode", "acp"),
    ("gemini", "--acp"),
    ("qwen", "--acp"),
    ("codex-acp",),
    ("claude-agent-acp",),
    ("claude-code-acp",),
    ("goose", "acp"),
)


def known_commands() -> list[str]:
    """The commands that are looked for."""
    return [words[0] for words in KNOWN]


class FoundAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent on this machine, as it describes itself; `problem` is why it cannot be used."""

    command: list[str]
    name: str = ""
    version: str = ""
    loads_sessions: bool = False
    mcp: list[str] = []
    problem: str | None = None

    @property
    def configuration(self) -> str:
        """The line for the mission file."""
        words = ", ".join(f'"{word}"' for word in self.command)
        return f'proposer = {{ kind = "agent", command = [{words}] }}'


async def find_agents() -> list[FoundAgent]:
    """The known agents on `PATH`, each asked what it can do, side by side."""
    wanted = [words for words in KNOWN if shutil.which(words[0]) is not None]
    found: dict[int, FoundAgent] = {}

    async def look(place: int, words: Sequence[str]) -> None:
        found[place] = await probe(words)

    async with anyio.create_task_group() as tasks:
        for place, words in enumerate(wanted):
            tasks.start_soon(look, place, words)
    return [found[place] for place in sorted(found)]


async def probe(words: Sequence[str]) -> FoundAgent:
    """Starts an agent in an empty folder, asks what it can do, and ends it with all that it started."""
    with tempfile.TemporaryDirectory(prefix="pursuit-") as folder:
        try:
            process = await start_agent(words, Path(folder), USUAL_SURROUNDINGS, tag=f"probe-{Path(folder).name}")
        except CallFailed as error:
            return FoundAgent(command=list(words), problem=str(error))
        connection, problem = Connection(process), None
        try:
            async with process.draining():
                with anyio.move_on_after(PROBE_SECONDS) as patience:
                    try:
                        await connection.initialize()
                    except (AgentGone, AgentRefused) as error:
                        problem = explained(error)
        finally:
            await process.aclose(at_once=True)
        if patience.cancelled_caught:
            problem = f"it did not answer within {PROBE_SECONDS:g} s"
        if problem is not None:
            return FoundAgent(command=list(words), problem=problem)
        able: Any = connection.capabilities.get("mcpCapabilities")
        kinds: Mapping[str, Any] = cast("Mapping[str, Any]", able) if isinstance(able, Mapping) else {}
        return FoundAgent(
            command=list(words),
            name=str(connection.info.get("title") or connection.info.get("name") or words[0])[:200],
            version=str(connection.info.get("version", ""))[:100],
            loads_sessions=connection.loads,
            mcp=["stdio", *(kind for kind in ("http", "sse") if kinds.get(kind) is True)],
        )

"""Finds the coding agents of this machine: commands on `PATH` that are known to support the Agent Client Protocol.

Each describes its own capabilities. Nothing else depends on the particular agent.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from pursuit.config.process_environment import USUAL_ENVIRONMENT
from pursuit.core.tools import CallFailed, as_object
from pursuit.proposers.agent.acp import Agent

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
    return [words[0] for words in KNOWN]


class FoundAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent on this machine, as it describes itself; `problem` is the reason why it cannot be used."""

    command: list[str]
    name: str = ""
    version: str = ""
    loads_sessions: bool = False
    mcp: list[str] = []
    problem: str | None = None

    @property
    def configuration(self) -> str:
        words = ", ".join(f'"{word}"' for word in self.command)
        return f'proposer = {{ kind = "agent", command = [{words}] }}'


async def find_agents() -> list[FoundAgent]:
    """The known agents on `PATH`, asked concurrently for their capabilities."""
    wanted = [words for words in KNOWN if shutil.which(words[0]) is not None]
    found: dict[int, FoundAgent] = {}

    async def look(place: int, words: Sequence[str]) -> None:
        found[place] = await probe(words)

    async with anyio.create_task_group() as tasks:
        for place, words in enumerate(wanted):
            tasks.start_soon(look, place, words)
    return [found[place] for place in sorted(found)]


async def probe(words: Sequence[str]) -> FoundAgent:
    """Starts an agent in an empty folder, asks for its capabilities, and ends it with all its processes."""
    with tempfile.TemporaryDirectory(prefix="pursuit-") as folder:
        try:
            tag = f"probe-{Path(folder).name}"
            agent = await Agent.begin(words, Path(folder), USUAL_ENVIRONMENT.environment(os.environ), tag=tag)
        except CallFailed as error:
            return FoundAgent(command=list(words), problem=str(error))
        try:
            problem = await agent.problem(agent.initialize, PROBE_SECONDS)
        finally:
            await agent.aclose(at_once=True)
        if problem is not None:
            return FoundAgent(command=list(words), problem=problem)
        kinds = as_object(agent.capabilities.get("mcpCapabilities"))
        return FoundAgent(
            command=list(words),
            name=str(agent.info.get("title") or agent.info.get("name") or words[0])[:200],
            version=str(agent.info.get("version", ""))[:100],
            loads_sessions=agent.loads,
            mcp=["stdio", *(kind for kind in ("http", "sse") if kinds.get(kind) is True)],
        )

"""Finds the coding agents of this machine: commands on `PATH` that are known to support the Agent Client Protocol.

Each describes its own capabilities. Only this table depends on the particular agent.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec

from pursuit.config.process_environment import USUAL_ENVIRONMENT
from pursuit.core.tools import as_object
from pursuit.processes.subreaper import TAG
from pursuit.proposers.agent.acp import Agent

PROBE_SECONDS = 20.0
_OPENAI = ("api.openai.com", "auth.openai.com", "chatgpt.com")
_ANTHROPIC = ("api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai")
_GOOGLE = tuple(f"{one}.googleapis.com" for one in ("generativelanguage", "cloudcode-pa", "aiplatform", "oauth2"))
_QWEN = ("portal.qwen.ai", "chat.qwen.ai", "dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com")
_ALL = (*_OPENAI, *_ANTHROPIC, *_GOOGLE, "opencode.ai", "models.dev", "openrouter.ai")


class KnownAgent(NamedTuple):
    """The words after its program for ACP (None: it lacks ACP), its files below home, and its hosts."""

    acp: Sequence[str] | None = ()
    sign_in: Sequence[str] = ()
    settings: Sequence[str] = ()
    hosts: Sequence[str] = ()


_GEMINI = (".gemini/oauth_creds.json", ".gemini/google_accounts.json")
_CODEX = KnownAgent((), (".codex/auth.json",), (".codex/config.toml",), _OPENAI)
_CLAUDE = KnownAgent((), (".claude/.credentials.json",), (".claude/settings.json",), _ANTHROPIC)
KNOWN: Mapping[str, KnownAgent] = {
    "opencode": KnownAgent(("acp",), (".local/share/opencode/auth.json",), (".config/opencode/opencode.json",), _ALL),
    "gemini": KnownAgent(("--acp",), _GEMINI, (".gemini/settings.json",), _GOOGLE),
    "qwen": KnownAgent(("--acp",), (".qwen/oauth_creds.json",), (".qwen/settings.json",), _QWEN),
    "codex-acp": _CODEX,
    "codex": _CODEX._replace(acp=None),
    "claude-agent-acp": _CLAUDE,
    "claude-code-acp": _CLAUDE,
    "claude": _CLAUDE._replace(acp=None),
    "goose": KnownAgent(("acp",), (".config/goose/secrets.yaml",), (".config/goose/config.yaml",), _ALL),
}


def known_agent(program: str) -> KnownAgent:
    """Nothing is known of another program."""
    return KNOWN.get(Path(program).name, KnownAgent())


def known_commands() -> list[str]:
    return [name for name, one in KNOWN.items() if one.acp is not None]


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
    wanted = [(name, *(KNOWN[name].acp or ())) for name in known_commands() if shutil.which(name) is not None]
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
            env = USUAL_ENVIRONMENT.environment(os.environ) | {TAG: f"probe-{Path(folder).name}"}
            agent = await Agent.start(words, cwd=Path(folder), env=env)
        except (OSError, ValueError) as error:
            return FoundAgent(command=list(words), problem=f"it cannot be started: {error}")
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

"""The settings of the proposer `agent`: a coding agent that works in a git repository."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pursuit.config.process_environment import no_isolation
from pursuit.core.base_model import Broken, Flag, Name, Number, Text, value_in
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StartedProcess

SERVER = "agent"
"""The server of the proposer's tools; a step for which an agent asks permission is `agent.KIND`."""
TURN = f"{SERVER}.turn"
NOT_FOR_CLIENTS = "a client cannot run an agent; that is for mission files of the operator"
Argv = Annotated[list[Text], Field(min_length=1, max_length=1_000)]


class AgentProposer(ProposerSettings):
    """A coding agent: one iteration is one turn of the agent in the workspace.

    `command` uses the Agent Client Protocol over stdio. `headless` gets the prompt on its standard input and asks for
    no permission, so it must be `unattended`.
    """

    WORKSPACE: ClassVar[bool] = True
    LEARNS: ClassVar[bool] = True
    CLIENTS: ClassVar[str | None] = NOT_FOR_CLIENTS
    RESERVED: ClassVar[tuple[str, ...]] = (SERVER,)
    CHILDREN: ClassVar[str | None] = 'a child can be an agent only if proposer.kind = "best_of" names it'

    kind: Literal["agent"] = "agent"
    name: Name | None = None
    """The agent's name in reports and comparisons (default: its command)."""
    command: Argv | None = None
    headless: Argv | None = None
    unattended: Flag = False
    inherit_env: Flag | Annotated[list[Name], Field(max_length=256)] = Field(default_factory=list[str])
    """Further environment variables of ours for the agent: all, or those that match a name or glob."""
    on_cut: Literal["keep", "rollback"] = "keep"
    """The tree after a turn that was cut off: with its changes, or rolled back."""
    turn_seconds: Annotated[Number, Field(gt=0, le=86_400)] = 3_600
    turn_idle_seconds: Annotated[Number, Field(gt=0, le=86_400)] = 600
    """Seconds without an update after which a turn is cut off."""
    on_limit: Literal["wait", "stop"] = "wait"
    """At a usage limit of the agent: wait until it ends, or fail, which `pursuit resume` continues."""
    limit_wait_seconds: Annotated[Number, Field(ge=0, le=691_200)] = 21_600
    """Seconds of waiting, together, for limits whose end the agent does not tell."""
    permission_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 60
    """Seconds that a question of the agent waits; then the answer is no, and the mission waits."""
    allow_unknown_cost: Flag = False
    """True if a cap on tokens or cost may be set although the agent does not report them."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        if (given.get("command") is None) == (given.get("headless") is None):
            yield Broken("needs exactly one of command and headless")
        if given.get("headless") is not None and not given.get("unattended"):
            why = "must be true with headless, because such an agent never asks for permission"
            yield Broken(why, "unattended")

    @cached_property
    def argv(self) -> list[str]:
        return self.command or self.headless or []

    @property
    def label(self) -> str:
        return self.name or " ".join(self.argv)[:100]

    def facts(self) -> ProposerFacts:
        return ProposerFacts(tools=(TURN,))

    def starts(self) -> Iterable[StartedProcess]:
        # At a terminal the question about trust names this, and accepting it is enough.
        yield self.started("agent", unisolated=sys.platform == "linux" and bool(no_isolation()))

    def started(self, name: str, **more: bool) -> StartedProcess:
        asks = {"inherit": self.inherit_env, "unattended": self.command and self.unattended}
        return StartedProcess(name, self.argv, {**asks, **more})

    @classmethod
    def rules(cls, mission: Mapping[str, Any]) -> Iterable[Broken]:
        """The user's own tree is not rolled back, and an agent that never asks for permission may not work in it."""
        if not value_in(mission.get("workspace"), "in_place"):
            return
        proposer = mission.get("proposer")
        if value_in(proposer, "on_cut") == "rollback":
            yield Broken('on_cut = "rollback" needs a worktree: it would overwrite your own files', "workspace")
        if value_in(proposer, "headless") is not None:
            yield Broken("a headless agent never asks for permission, so it needs a worktree", "workspace")

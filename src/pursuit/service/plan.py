"""What a mission would do first, and what policy would say to it.

Owns: one proposal outside of any ledger. Invariant: no tool is called and nothing is stored; a language model that
proposes is asked for as long as a mission would, and what that used up is told, a cost that nobody knows as None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from pursuit.core.budgets import learnt
from pursuit.core.events import AnyEvent, MissionCreated, ModelAnswer
from pursuit.core.fold import advance
from pursuit.core.mission import Mission, Proposal
from pursuit.core.state import MissionState
from pursuit.engine.context import Deadline, Tools
from pursuit.engine.driver import ProposerFactory
from pursuit.engine.models import affordable, offered
from pursuit.engine.turn import REPAIRS, faults_in, qualified
from pursuit.proposers.contract import Failed, Proposer, Waiting
from pursuit.proposers.language import LanguageModel, Means, ModelRequest, Models, NoAnswer, Terms
from pursuit.service.admission import admit
from pursuit.upstream.host import ToolHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Asks proposers without driving anything."""

    host: ToolHost
    checks: Mapping[str, Mapping[str, Any]]
    models: Models
    proposer_for: ProposerFactory
    prompt_bytes: int | None = None
    model_timeout: float = 600.0

    async def plan(self, mission: Mission) -> dict[str, Any]:
        """The first proposal of a mission, each of its calls with policy's word, and what asking for it used up."""
        admitted = await admit(mission, self.host.pool, self.checks, self.models, room=self.prompt_bytes)
        created = MissionCreated(
            mission=admitted.mission.model_dump(mode="json"), tools=list(admitted.tools), parameters=admitted.parameters
        )
        state = advance(None, created)
        tools = await self.host.tools_for(admitted.tools, mission.policy)
        spent = _Spent(state, self.model_timeout)

        async def past(after: int) -> list[tuple[int, AnyEvent]]:
            return [(1, created)] if after < 1 else []

        means = Means(tools=offered(state, tools), record=spent.over, past=past)
        shown = await _first(self.proposer_for(admitted.mission, None, means), state, tools)
        frame: dict[str, Any] = {"proposer": mission.proposer.kind, "calls": []}
        return {**frame, **shown, "used": spent.as_json(), "warnings": list(admitted.warnings)}


async def _first(proposer: Proposer, state: MissionState, tools: Tools) -> dict[str, Any]:
    """What is proposed, mended as often as it would be in a mission."""
    reasons: Sequence[str] = ()
    for _ in range(1 + REPAIRS):
        answer = await proposer.propose(state, reasons)
        match answer:
            case Waiting():
                return {"waiting_for": answer.waiting_for}
            case Failed():
                reasons = [answer.reason]
                if answer.final:
                    break
            case Proposal():
                reasons = faults_in(state, tools, answer, own=proposer.operators_own)
                if not reasons:
                    return _shown(state, tools, answer)
    return {"failed": list(reasons)}


def _shown(state: MissionState, tools: Tools, proposal: Proposal) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for call in proposal.tool_calls or ():
        name = qualified(state, call.tool_name) or call.tool_name
        tool = tools.get(name)
        decision, reason = "deny", tools.missing(name)
        if tool is not None:
            ruling = tools.rule(tool, call.args)
            decision, reason = ruling.decision, ruling.reason
        calls.append({"name": name, "args": dict(call.args), "decision": decision, "reason": reason})
    return {"calls": calls, "script": proposal.script, "rationale": proposal.rationale}


@dataclass(slots=True)
class _Spent:
    """Counts what models used up, against the budget and the time that the mission would have."""

    state: MissionState
    timeout: float
    began: float = field(default_factory=anyio.current_time)
    unpriced: bool = False

    def over(self, model: LanguageModel) -> LanguageModel:
        return _Counted(model, self)

    def as_json(self) -> dict[str, Any]:
        """What is told of it; the budget counts a cost that nobody knows as nothing, people must not."""
        return {"tokens": self.state.tokens, "cost_usd": None if self.unpriced else self.state.cost_usd}

    def deadline(self) -> Deadline:
        """Until when the next question may take."""
        cap = self.state.budget["max_wall_clock_seconds"]
        left = None if cap == -1 else cap - (anyio.current_time() - self.began)
        return Deadline(set(), timeout=self.timeout, ceiling=self.timeout, wall_clock_left=left)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The same model; its answers are counted and not stored."""

    model: LanguageModel
    spent: _Spent

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def terms(self) -> Terms | None:
        return self.model.terms

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        state = self.spent.state
        request = affordable(state, request, self.terms)
        limit = self.spent.deadline()
        answer = await limit.bound(self.model.answer(request))
        if answer is None:
            raise NoAnswer(f"{self.name}: {limit.why()}")
        state.densest = learnt(state.densest, size=request.size, tokens=answer.input_tokens)
        state.tokens += answer.input_tokens + answer.output_tokens
        state.cost_usd = round(state.cost_usd + (answer.cost_usd or 0.0), 9)
        self.spent.unpriced = self.spent.unpriced or answer.cost_usd is None
        return answer

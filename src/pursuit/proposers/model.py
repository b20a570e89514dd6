"""The proposer that asks a language model, a provider's or the client's.

It turns the state into a question and the answer into a proposal. The model is handed in, already recorded; what it
writes is checked like any other proposal.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pursuit.core.events import ModelAnswer, WantedCall
from pursuit.core.mission import AskedProposer, Mission, Proposal, parse_proposal
from pursuit.core.state import MissionState
from pursuit.errors import ValidationFailed
from pursuit.proposers.contract import Failed, Waiting
from pursuit.proposers.language import LanguageModel, ModelRequest, NoAnswer, NoAnswerYet, OfferedTool, OutOfBudget
from pursuit.proposers.prompt import LIMIT, LONGEST_DESCRIPTION, ROOM, PromptParts, build_prompt, lacking, offer

LONGEST = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_HASH = 10


class ToolNames:
    """Tool names as providers accept them: `server.tool` is `server__tool`, with a digest if too long or not unique.

    Each name has at most 64 characters of `[A-Za-z0-9_-]`, begins with a letter and means one tool. The same tools
    always get the same names, in whatever order they come.
    """

    def __init__(self, names: Iterable[str], *, reserved: Iterable[str] = ()) -> None:
        tools = sorted(set(names))
        taken = Counter(_plain(name) for name in tools)
        taken.update(reserved)
        self._shown = {name: self._free(name, taken) for name in tools}
        self._meant = {shown: name for name, shown in self._shown.items()}

    @staticmethod
    def _free(name: str, taken: Counter[str]) -> str:
        plain = _plain(name)
        if len(plain) <= LONGEST and taken[plain] == 1:
            return plain
        salt = 0
        while True:  # the name of one tool may equal that of another with its digest
            digest = hashlib.sha256(f"{salt}:{name}".encode(errors="replace")).hexdigest()[:_HASH]
            shown = f"{plain[: LONGEST - _HASH - 1]}_{digest}"
            if not taken[shown]:
                taken[shown] += 1
                return shown
            salt += 1

    def shown(self, name: str) -> str:
        """What a model sees instead of a tool's full name."""
        return self._shown.get(name) or _plain(name)[:LONGEST]

    def meant(self, shown: str) -> str | None:
        """The full name of the tool that a model means; it may also write the full name itself."""
        return self._meant.get(shown) or (shown if shown in self._shown else None)

    def all(self) -> list[str]:
        """All names that the model sees."""
        return list(self._meant)


def _plain(name: str) -> str:
    plain = _ODD.sub("_", name.replace(".", "__"))
    return plain if plain[:1].isascii() and plain[:1].isalpha() else f"t_{plain}"


NOTHING = "do_nothing"
SCRIPT = "run_script"
MOST_CALLS = 256
LONGEST_RATIONALE = 8_192

_DO_NOTHING = OfferedTool(
    name=NOTHING,
    description="Make no call in this iteration; it is evaluated all the same.",
    schema={"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]},
)
_RUN_SCRIPT = OfferedTool(
    name=SCRIPT,
    description="Run a Python script instead of calls; tools are server.tool(...) in it. Call it alone.",
    schema={"type": "object", "properties": {"script": {"type": "string"}}, "required": ["script"]},
)


class AskModel:
    """Asks a language model in each iteration; a wrong answer goes back to it with the reasons."""

    operators_own = False

    def __init__(
        self,
        settings: AskedProposer,
        model: LanguageModel,
        tools: Sequence[OfferedTool],
        *,
        lessons: Sequence[str] = (),
        limit: int = LIMIT,
        room: int = ROOM,
    ) -> None:
        self._settings = settings
        self._model = model
        self._names = ToolNames((tool.name for tool in tools), reserved=(NOTHING, SCRIPT))
        self._offer = offer([self._shown(tool) for tool in tools], room)
        self._lessons = lessons
        self._limit = limit
        self._attempt = 0
        self._answer: ModelAnswer | None = None

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """What the model proposes; `reasons` say why its last answer for this iteration was refused."""
        self._attempt = self._attempt + 1 if reasons else 0
        request = self.request(state, reasons)
        try:
            self._answer = await self._model.answer(request)
        except OutOfBudget as spent:
            return Waiting("budget", spent.cap)
        except NoAnswerYet as later:
            return Waiting("input", str(later))
        except NoAnswer as error:
            return Failed(str(error), final=True)
        return self._proposal(self._answer)

    def request(self, state: MissionState, reasons: Sequence[str] = ()) -> ModelRequest:
        """The question for the next iteration."""
        scripted = state.mission.allow_scripted_strategies
        parts = PromptParts(
            name_of=self._names.shown,
            nothing=NOTHING,
            script=SCRIPT if scripted else None,
            instructions=self._settings.instructions,
            reasons=reasons,
            refused=None if self._answer is None else _as_json(self._answer),
            lessons=self._lessons,
            left_off=self._offer.left_off,
            limit=self._limit,
        )
        prompt = build_prompt(state, parts)
        own = (_DO_NOTHING, _RUN_SCRIPT) if scripted else (_DO_NOTHING,)
        return ModelRequest(
            system=prompt.system,
            prompt=prompt.prompt,
            tools=(*self._offer.tools, *own),
            iteration=state.iteration_count,
            attempt=self._attempt,
            max_tokens=self._settings.max_tokens,
            temperature=self._settings.temperature,
        )

    def _shown(self, tool: OfferedTool) -> OfferedTool:
        description = tool.description[:LONGEST_DESCRIPTION]
        return OfferedTool(name=self._names.shown(tool.name), description=description, schema=tool.schema)

    def _proposal(self, answer: ModelAnswer) -> Proposal | Failed:
        faults = self._faults(answer)
        if faults:
            return Failed("; ".join(faults))
        said = answer.text.strip()
        row: dict[str, Any] = {"rationale": said[:LONGEST_RATIONALE] or None}
        script = next((call for call in answer.calls if call.name == SCRIPT), None)
        if script is not None:
            row["script"] = (script.args or {}).get("script")
        else:
            row["tool_calls"] = [
                {"tool_name": self._names.meant(call.name), "args": call.args}
                for call in answer.calls
                if call.name != NOTHING
            ]
            if not row["tool_calls"] and not said:
                row["rationale"] = str((answer.calls[0].args or {}).get("why", ""))[:LONGEST_RATIONALE] or None
        try:
            return parse_proposal(row)
        except ValidationFailed as failed:
            return Failed("; ".join(str(fault) for fault in failed.faults))

    def _faults(self, answer: ModelAnswer) -> list[str]:
        """What is wrong with an answer, before any schema is checked."""
        if not answer.calls:
            cut = "the answer was cut off before it called a tool, because it was too long"
            why = cut if answer.cut else "no tool was called, and text alone does nothing"
            return [f"{why}; call tools, or call {NOTHING}"]
        if len(answer.calls) > MOST_CALLS:
            return [f"{len(answer.calls)} calls at once; at most {MOST_CALLS} are allowed"]
        faults = [fault for place, call in enumerate(answer.calls) for fault in self._call_faults(place, call)]
        if any(call.name == SCRIPT for call in answer.calls) and len(answer.calls) > 1:
            faults.append(f"{SCRIPT} must be called alone")
        return faults

    def _call_faults(self, place: int, call: WantedCall) -> list[str]:
        at = f"tool_calls[{place}]"
        if call.args is None:
            return [f"{at}: the arguments of {call.name!r} are not a JSON object: {(call.malformed or '')[:200]!r}"]
        if call.name in (NOTHING, SCRIPT):
            return []
        if self._names.meant(call.name) is None:
            known = ", ".join(self._names.all()[:20])
            return [f"{at}: there is no tool {call.name[:100]!r}; the tools are {known}"]
        return []


def lack_of_room(mission: Mission, limit: int) -> int:
    """How many bytes a prompt lacks to hold the mission's goal, instructions and criteria whole."""
    if not isinstance(mission.proposer, AskedProposer):
        return 0
    script = SCRIPT if mission.allow_scripted_strategies else None
    instructions = mission.proposer.instructions
    parts = PromptParts(name_of=str, nothing=NOTHING, script=script, instructions=instructions, limit=limit)
    return lacking(mission, parts)


def _as_json(answer: ModelAnswer) -> dict[str, Any]:
    """An answer as its model sees it again."""
    calls = [{"call": call.name, "args": call.malformed if call.args is None else call.args} for call in answer.calls]
    return {"calls": calls, "text": answer.text} if answer.text else {"calls": calls}

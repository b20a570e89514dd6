"""The proposer that holds a conversation with a language model, a provider's or the client's.

It turns the state into the next request and the answer into calls. The model is handed in, already recorded. A
conversation that grows too long for the model's window is cut: large old results go first, then old exchanges, for
which the model writes a summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pursuit.core.budgets import bytes_of, estimate, expected
from pursuit.core.evaluate import check_is_due, observations_met
from pursuit.core.events import ConversationCompacted, ModelAnswer, WantedCall
from pursuit.core.patterns import checked_script
from pursuit.core.state import Exchange, MissionState
from pursuit.core.tools import OWN_TOOLS
from pursuit.proposers.contract import (
    AnswerCall,
    Blocked,
    Failed,
    ModelAsker,
    Proposed,
    ProposerContext,
    Turn,
    Waiting,
)
from pursuit.proposers.language import (
    CHARACTERS,
    LONGEST_DESCRIPTION,
    MEDIA_BYTES,
    LanguageModel,
    ModelRequest,
    NoAnswer,
    NoAnswerYet,
    OfferedTool,
    OutOfBudget,
    Rejected,
    ToolMessage,
    ToolNames,
    Unreachable,
    encoded_tools,
    offer,
)
from pursuit.proposers.model.conversation import (
    SUMMARISE,
    WINDOW,
    Prefixes,
    Transcript,
    changes,
    first_message,
    system_text,
    wanted_id,
)
from pursuit.proposers.model.settings import AskedProposer, ModelProposer

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
    description="Run a Python script instead of calls; tools are server.tool(...) in it. Call it alone and first.",
    schema={"type": "object", "properties": {"script": {"type": "string"}}, "required": ["script"]},
)


class AskModel(ModelAsker):
    """Asks a language model for its next calls; what is wrong with one of them is that call's result."""

    def __init__(
        self,
        settings: AskedProposer,
        models: Sequence[LanguageModel],
        means: ProposerContext,
    ) -> None:
        access = means.place.access
        self._settings = settings
        self._models = models
        self._means = means
        self._patience = access.patience
        tools = means.tools()
        self._names = ToolNames((tool.name for tool in tools), reserved=(NOTHING, SCRIPT))
        own = [self._shown(tool) for tool in tools if tool.name in OWN_TOOLS]
        self._offer = offer([self._shown(tool) for tool in tools if tool.name not in OWN_TOOLS], access.tools_bytes)
        self._offer.tools.extend(own)
        self._all_tools: tuple[OfferedTool, ...] | None = None
        self._tools_body = b""
        self._transcript = Transcript(
            blob=means.blob,
            name_of=self._names.shown,
            result_tokens=settings.result_tokens,
            mission_id=means.mission_id,
            prefixes=access.kept.setdefault("prefixes", Prefixes()),
        )

    def continues(self, state: MissionState) -> bool:
        """In a turn of several requests: until the model stops calling, or the criteria can be decided."""
        iteration, settings = state.open, self._settings
        if iteration is None or settings.turn == "single":
            return False
        if iteration.turn_over or iteration.requests >= settings.max_requests:
            return False
        return not (observations_met(state) or check_is_due(state))

    def tries_again(self, state: MissionState) -> bool:
        """In a turn of several requests."""
        return self._settings.turn == "agent"

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """What the model wants to do next, at the beginning of an iteration or in the middle of its turn."""
        place = min(self._order(state.conversation.fallback), key=self._rests(state).__getitem__)
        model = self._models[place]
        try:
            request = await self.request(state)
            if request.attempt not in state.conversation.answers:
                request = await self._fitting(state, model, request)
            return self._turn(state, await model.answer(request), request)
        except OutOfBudget as spent:
            return Waiting("budget", spent.cap)
        except NoAnswerYet as later:
            return Waiting("input", str(later))
        except Unreachable as outage:
            return self._later(state, place, outage)
        except Rejected as error:
            return await self._rejected(state, place, error)
        except NoAnswer as error:
            return Failed(str(error), final=True)

    async def request(self, state: MissionState, *, said: str | None = None) -> ModelRequest:
        """The next request; `said` is what is told at the end, if it is known."""
        began = state.conversation.began
        scripted = state.mission.allow_scripted_strategies
        if began is None:
            script = SCRIPT if scripted else None
            system = system_text(turn=self._settings.turn, nothing=NOTHING, script=script, name_of=self._names.shown)
            first = first_message(
                state,
                instructions=self._settings.instructions,
                lessons=self._means.lessons,
                left_off=self._offer.left_off,
                name_of=self._names.shown,
            )
        else:
            system, first = began.system, began.first
        if said is None:
            said = changes(state, tools=state.tools, name_of=self._names.shown)
        messages, measured = await self._transcript.messages(state, first, said)
        model = self._settings if isinstance(self._settings, ModelProposer) else None
        return ModelRequest(
            system=system,
            messages=messages,
            measured=measured,
            tools=self._tools(scripted),
            tools_body=self._tools_body,
            iteration=state.current_index,
            attempt=_attempt(state),
            max_tokens=self._settings.max_tokens,
            temperature=self._settings.temperature,
            first=first,
            said=said,
            words_told=len(state.words),
            compactions=state.conversation.compactions,
            window=self._window(state, self._models[0]),
            stream=model is not None and model.stream,
            settings={} if model is None else model.settings,
            cache_key=self._means.mission_id,
        )

    def _tools(self, scripted: bool) -> tuple[OfferedTool, ...]:
        """The tools of each request, which are the same for a whole run."""
        if self._all_tools is None:
            own = (_DO_NOTHING, _RUN_SCRIPT) if scripted else (_DO_NOTHING,)
            self._all_tools = (*self._offer.tools, *own)
            self._tools_body = encoded_tools(self._all_tools)
        return self._all_tools

    def _window(self, state: MissionState, model: LanguageModel) -> int:
        known = None if model.terms is None else model.terms.window
        told = self._settings.window or known or WINDOW
        return min(told, state.conversation.windows.get(model.name, told))

    def _order(self, first: int) -> list[int]:
        """The models from this one on, all of them."""
        count = len(self._models)
        return [(first + step) % count for step in range(count)]

    def _rests(self, state: MissionState) -> list[float]:
        """For how many seconds from now the provider of each model wants to be left alone."""
        now = self._means.now()
        return [max(state.conversation.not_before.get(model.name, now) - now, 0.0) for model in self._models]

    def _later(self, state: MissionState, place: int, outage: Unreachable) -> Waiting:
        """When the model is asked again.

        After repeated failures, and if its provider wants to be left alone for longer than our own pause, the next
        model is asked that may be.
        """
        pause, after = self._pause(state), outage.after or 0.0
        if len(self._models) == 1 or (state.conversation.unanswered % self._patience.failures and after <= pause):
            return Waiting("model", str(outage), until=max(pause, after), lost=outage.lost, after=outage.after)
        following, pause = self._following(state, place, after)
        return Waiting("model", str(outage), until=pause, fallback=following, lost=outage.lost, after=outage.after)

    def _following(self, state: MissionState, place: int, after: float | None) -> tuple[int, float]:
        """The model that is asked after this one, and the pause before: the first that may be asked, or will be first.

        This one itself may be asked `after` so many seconds, or not at all. After a round there is a pause of our own.
        """
        order, rests = self._order(place + 1), self._rests(state)
        if after is None:
            order.remove(place)
        else:
            rests[place] = max(rests[place], after)
        following = min(order, key=rests.__getitem__)
        return following, max(rests[following], self._pause(state) if following <= place else 0.0)

    def _pause(self, state: MissionState) -> float:
        doubled = self._patience.first_pause * 2 ** min(state.conversation.outages // len(self._models), 30)
        return min(doubled, self._patience.longest_pause)

    async def _rejected(self, state: MissionState, place: int, error: Rejected) -> Waiting | Blocked:
        """What follows when the provider refuses a request.

        If it is too long, or may have an image that the provider cannot read, it is cut and sent again. A fallback
        that refuses is skipped. The mission's own model must be repaired by the operator.
        """
        if self._means.compact is not None and state.conversation.outages < self._patience.cuts:
            if error.kind == "length":
                narrower = self._patience.narrower
                sent = min(self._window(state, self._models[place]), expected(state, state.conversation.question_size))
                return Waiting("model", str(error), until=0.0, lost=error.lost, window=int(sent * narrower))
            shown = _results(state, await self.request(state))
            if error.kind == "content" and (media := [call_id for call_id, one in shown.items() if one.media]):
                await self._trim(state, media)
                return Waiting("model", str(error), until=0.0, lost=error.lost)
        if not place:
            return Blocked(str(error), error.lost)
        following, pause = self._following(state, place, None)
        refusal = f"skipped, because it refuses: {error}"
        return Waiting("model", refusal, until=pause, fallback=following, lost=error.lost)

    def _shown(self, tool: OfferedTool) -> OfferedTool:
        description = tool.description[:LONGEST_DESCRIPTION]
        return OfferedTool(name=self._names.shown(tool.name), description=description, schema=tool.schema)

    def _turn(self, state: MissionState, answer: ModelAnswer, request: ModelRequest) -> Turn:
        """The calls of an answer, each with what is wrong with it."""
        said = answer.text.strip()
        why = next((str((one.args or {}).get("why", "")) for one in answer.calls if one.name == NOTHING), "")
        rationale = (said or why)[:LONGEST_RATIONALE] or None
        if not answer.calls:
            return Turn(rationale=rationale, ends=True, failed=self._empty(state, answer, said))
        exchange, fault = Exchange(iteration=request.iteration, attempt=request.attempt), None
        script = next((one for one in answer.calls if one.name == SCRIPT), None)
        if script is not None and len(answer.calls) == 1 and state.open is None:
            source = (script.args or {}).get("script")
            fault = _script_fault(source)
            if fault is None:
                return Turn(script=str(source), rationale=rationale)
        calls = [
            self._call(call, wanted_id(exchange, place, call), place, fault)
            for place, call in enumerate(answer.calls)
            if call.name != NOTHING
        ]
        return Turn(calls=calls, rationale=rationale, ends=len(calls) < len(answer.calls))

    def _empty(self, state: MissionState, answer: ModelAnswer, said: str) -> list[str]:
        """Why an answer without calls is none; words that end a turn in which something was done are one."""
        if answer.cut:
            return ["the answer was cut off before it called a tool, because it was too long"]
        if state.open is not None and said:
            return []
        return [f"no tool was called, and text alone does nothing; call tools, or call {NOTHING}"]

    def _call(self, call: WantedCall, wanted: str, place: int, fault: str | None) -> AnswerCall:
        meant = self._names.meant(call.name)
        own: str | None = None
        if place >= MOST_CALLS:
            own = f"at most {MOST_CALLS} calls are allowed at once"
        elif call.args is None:
            own = f"the arguments are not a JSON object: {(call.malformed or '')[:200]!r}"
        elif call.name == SCRIPT:
            own = f"{SCRIPT} must be the only call, and the first of a turn"
        elif meant is None:
            known = ", ".join(self._names.all()[:20])
            own = f"there is no tool {call.name[:100]!r}; the tools are {known}"
        return AnswerCall(tool=meant or call.name or "?", args=call.args or {}, wanted_id=wanted, fault=fault or own)

    # The window.

    async def _fitting(self, state: MissionState, model: LanguageModel, request: ModelRequest) -> ModelRequest:
        """The request; a conversation that fills too much of the model's window is cut until it fits."""
        window = self._window(state, model)
        most = int(window * self._patience.full)
        while self._means.compact is not None and (tokens := expected(state, request.size)) > most:
            older = len(state.conversation.exchanges) - self._kept(state, request, window)
            trimmed = self._large_results(state, request, older)
            if trimmed and tokens - sum(trimmed.values()) // CHARACTERS < most * 3 // 4:
                await self._trim(state, trimmed)
            elif older:
                await self._summarise(state, model, request, older)
            elif tokens > window - request.max_tokens and (last := self._large_results(state, request, None)):
                await self._trim(state, [max(last, key=lambda one: last[one])])
            else:
                break
            request = await self.request(state)
        return request

    async def _trim(self, state: MissionState, calls: Iterable[str]) -> None:
        if self._means.compact is not None:
            await self._means.compact(ConversationCompacted(iteration=state.current_index, trimmed=list(calls)))

    def _kept(self, state: MissionState, request: ModelRequest, window: int) -> int:
        """How many of the newest exchanges stay, by what is shown of them; at least the last one."""
        sizes = self._transcript.sizes
        rest = estimate(request.size - sum(sizes), state.conversation.densest)
        room = min(int(window * self._patience.kept), int(window * self._patience.full) - rest)
        shown = kept = 0
        for size in reversed(sizes):
            shown += size
            if kept and estimate(shown, state.conversation.densest) > room:
                break
            kept += 1
        return kept

    def _large_results(self, state: MissionState, request: ModelRequest, older: int | None) -> dict[str, int]:
        """The results of the oldest exchanges, or of all, that are large, with their sizes."""
        sizes = {
            call_id: len(one.text) + len(one.media) * MEDIA_BYTES
            for call_id, one in _results(state, request, older).items()
        }
        return {call_id: size for call_id, size in sizes.items() if size > self._patience.large * CHARACTERS}

    async def _summarise(self, state: MissionState, model: LanguageModel, request: ModelRequest, replaced: int) -> None:
        """Lets the model write the summary that replaces the oldest exchanges; it is recorded with its answer."""
        first = "" if state.conversation.began is None else state.conversation.began.first
        window = self._window(state, model)
        tokens = min(int(window * self._patience.full), window - request.max_tokens)
        room = bytes_of(tokens, state.conversation.densest) - (request.size - request.measured.size)
        messages, measured = await self._transcript.oldest(state, first, SUMMARISE, count=replaced, room=room)
        await model.answer(
            replace(request, messages=messages, measured=measured, said=SUMMARISE, purpose="summary", replaces=replaced)
        )


def _results(state: MissionState, request: ModelRequest, older: int | None = None) -> dict[str, ToolMessage]:
    """The results of the oldest exchanges, or of all, that are not left out yet, by the ids of their calls."""
    shown = {one.call_id: one for one in request.messages if isinstance(one, ToolMessage)}
    return {
        planned.call_id: shown[planned.wanted_id]
        for exchange in state.conversation.exchanges[:older]
        for planned in exchange.planned
        if planned.wanted_id in shown and planned.call_id not in state.conversation.trimmed
    }


def _attempt(state: MissionState) -> int:
    """The number of the next request; one whose answer is recorded, but not what follows from it, is not repeated."""
    answers = state.conversation.answers
    if state.open is None:
        return max(answers, default=0)
    return state.open.requests


def _script_fault(source: object) -> str | None:
    if not isinstance(source, str):
        return "script must be a text"
    try:
        checked_script(source)
    except ValueError as error:
        return str(error)
    return None

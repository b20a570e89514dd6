"""The kinds `model` and `sampling`: a proposer that holds a conversation with a language model.

The model is a provider's or the client's. The proposer turns the state into the next request and the answer
into calls. A conversation that grows too long for the model's window is cut: first large old results, then old
exchanges, for which the model writes a summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pursuit.core.budgets import bytes_of, estimate, expected
from pursuit.core.evaluate import check_is_due, observations_met
from pursuit.core.events import ConversationCompacted, ModelAnswer, WantedCall
from pursuit.core.mission import Mission
from pursuit.core.patterns import checked_script
from pursuit.core.state import Exchange, MissionState
from pursuit.core.tools import OWN_TOOLS
from pursuit.errors import ExtraMissing, Fault, ModelUnavailable, advice
from pursuit.proposers.contract import (
    AnswerCall,
    Blocked,
    DrivingPlace,
    Failed,
    MissionAdmission,
    ModelAsker,
    Proposed,
    Proposer,
    ProposerContext,
    SimpleKind,
    Turn,
    Waiting,
)
from pursuit.proposers.language import (
    CHARACTERS,
    MAX_DESCRIPTION,
    MEDIA_BYTES,
    OWN_SETTINGS,
    LanguageModel,
    ModelRequest,
    Models,
    NoAnswer,
    NoAnswerYet,
    NoSampler,
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
    Transcript,
    before_conversation,
    changes,
    first_message,
    system_text,
    wanted_id,
)
from pursuit.proposers.model.settings import AskedProposer, ModelProposer, SamplingProposer

NOTHING = "do_nothing"
SCRIPT = "run_script"
MAX_CALLS = 256
MAX_RATIONALE = 8_192

_DO_NOTHING = OfferedTool(
    name=NOTHING,
    description="Make no call in this iteration; it is evaluated anyway.",
    schema={"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]},
)
_RUN_SCRIPT = OfferedTool(
    name=SCRIPT,
    description="Run a Python script instead of calls; tools are server.tool(...) in it. Call it alone and first.",
    schema={"type": "object", "properties": {"script": {"type": "string"}}, "required": ["script"]},
)


class AskModel(ModelAsker):
    def __init__(self, settings: AskedProposer, models: Iterable[LanguageModel], means: ProposerContext) -> None:
        access = means.place.access
        self._settings = settings
        self._models = [means.record(model) for model in models]
        self._means = means
        self._patience = access.patience
        tools = means.tools()
        self._names = ToolNames((tool.name for tool in tools), reserved=(NOTHING, SCRIPT))
        own = [self._shown(tool) for tool in tools if tool.name in OWN_TOOLS]
        found = offer([self._shown(tool) for tool in tools if tool.name not in OWN_TOOLS], access.tools_bytes)
        self._left_off = found.left_off
        scripted = (_RUN_SCRIPT,) if means.mission.allow_scripted_strategies else ()
        self._tools = (*found.tools, *own, _DO_NOTHING, *scripted)
        self._tools_body = encoded_tools(self._tools)
        self._transcript = Transcript(
            blob=means.blob,
            name_of=self._names.shown,
            result_tokens=settings.result_tokens,
            mission_id=means.mission_id,
            prefixes=access.kept.setdefault("prefixes", {}),
        )

    def after_calls(self, state: MissionState) -> bool:
        """True in a turn of several requests until the model stops calling, or the criteria can be decided."""
        iteration, settings = state.open, self._settings
        if iteration is None or settings.turn == "single":
            return False
        if iteration.turn_over or iteration.requests >= settings.max_requests:
            return False
        return not (observations_met(state) or check_is_due(state))

    def tries_again(self, state: MissionState) -> bool:
        return self._settings.turn == "agent"

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
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
        """The next request; `said` is the text at its end, if it is known."""
        began = state.conversation.began
        if began is None:
            script = SCRIPT if state.mission.allow_scripted_strategies else None
            system = system_text(turn=self._settings.turn, nothing=NOTHING, script=script, name_of=self._names.shown)
            first = first_message(
                state,
                instructions=self._settings.instructions,
                lessons=self._means.lessons,
                left_off=self._left_off,
                name_of=self._names.shown,
            ) + before_conversation(state, self._names.shown)
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
            tools=self._tools,
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

    def _window(self, state: MissionState, model: LanguageModel) -> int:
        known = None if model.terms is None else model.terms.window
        told = self._settings.window or known or WINDOW
        return min(told, state.conversation.windows.get(model.name, told))

    def _order(self, first: int) -> list[int]:
        count = len(self._models)
        return [(first + step) % count for step in range(count)]

    def _rests(self, state: MissionState) -> list[float]:
        """The seconds for which the provider of each model refuses requests."""
        now = self._means.now()
        return [max(state.conversation.not_before.get(model.name, now) - now, 0.0) for model in self._models]

    def _later(self, state: MissionState, place: int, outage: Unreachable) -> Waiting:
        """Decides when a model is asked again, and which.

        After repeated failures, or if its provider demands a longer pause than our own, the next available model is
        asked.
        """
        pause, after, why = self._pause(state), outage.after or 0.0, str(outage)
        if outage.limited:
            why = f"usage limit of {self._models[place].name}: {why}"
        if len(self._models) == 1 or (state.conversation.unanswered % self._patience.failures and after <= pause):
            return Waiting("model", why, until=max(pause, after), lost=outage.lost, after=outage.after)
        following, pause = self._following(state, place, after)
        return Waiting("model", why, until=pause, fallback=following, lost=outage.lost, after=outage.after)

    def _following(self, state: MissionState, place: int, after: float | None) -> tuple[int, float]:
        """The model to ask after this one, and the pause before: the first that is available, or the earliest to be.

        This model itself is available `after` so many seconds, or not at all. Each round ends with our own pause.
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
        """Handles a refused request.

        If it is too long, or may contain an image that the provider cannot read, it is cut and sent again. A fallback
        that refuses is skipped. The operator must repair the mission's own model.
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
        refusal = f"skipped after a refusal: {error}"
        return Waiting("model", refusal, until=pause, fallback=following, lost=error.lost)

    def _shown(self, tool: OfferedTool) -> OfferedTool:
        description = tool.description[:MAX_DESCRIPTION]
        return OfferedTool(name=self._names.shown(tool.name), description=description, schema=tool.schema)

    def _turn(self, state: MissionState, answer: ModelAnswer, request: ModelRequest) -> Turn:
        said = answer.text.strip()
        why = next((str((one.args or {}).get("why", "")) for one in answer.calls if one.name == NOTHING), "")
        rationale = (said or why)[:MAX_RATIONALE] or None
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
        """Why an answer without calls is unusable; text is an answer if it ends a turn with calls."""
        if answer.cut:
            return ["the answer was cut off at its maximum length before it called a tool"]
        if state.open is not None and said:
            return []
        return [f"the answer calls no tool, and text has no effect; call tools, or call {NOTHING}"]

    def _call(self, call: WantedCall, wanted: str, place: int, fault: str | None) -> AnswerCall:
        meant = self._names.meant(call.name)
        own: str | None = None
        if place >= MAX_CALLS:
            own = f"at most {MAX_CALLS} calls are allowed in one answer"
        elif call.args is None:
            own = f"the arguments are not a JSON object: {(call.malformed or '')[:200]!r}"
        elif call.name == SCRIPT:
            own = f"{SCRIPT} must be the only call, and the first of a turn"
        elif meant is None:
            known = ", ".join(self._names.all()[:20])
            own = f"unknown tool {call.name[:100]!r}; the tools are {known}"
        return AnswerCall(tool=meant or call.name or "?", args=call.args or {}, wanted_id=wanted, fault=fault or own)

    # The window.

    async def _fitting(self, state: MissionState, model: LanguageModel, request: ModelRequest) -> ModelRequest:
        """The request, with a conversation that is cut until it fits the model's window."""
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
        """The number of newest exchanges to keep, by their shown size; at least the last one."""
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
        """The large results of the oldest exchanges, or of all, with their sizes."""
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
    """The results of the oldest exchanges, or of all, that are not omitted yet, by the ids of their calls."""
    shown = {one.call_id: one for one in request.messages if isinstance(one, ToolMessage)}
    return {
        planned.call_id: shown[planned.wanted_id]
        for exchange in state.conversation.exchanges[:older]
        for planned in exchange.planned
        if planned.wanted_id in shown and planned.call_id not in state.conversation.trimmed
    }


def _attempt(state: MissionState) -> int:
    """The number of the next request; a request with a recorded answer is not repeated."""
    answers = state.conversation.answers
    if state.open is None:
        return max(answers, default=0)
    return state.open.requests


def _script_fault(source: object) -> str | None:
    if not isinstance(source, str):
        return "script must be text"
    try:
        checked_script(source)
    except ValueError as error:
        return str(error)
    return None


class ModelKind(SimpleKind[ModelProposer]):
    settings = ModelProposer

    async def admit(self, settings: ModelProposer, admission: MissionAdmission) -> None:
        """Checks that this client may use each model from here, and that the caps on it can be enforced."""
        if admission.models is None:
            return
        admission.faults += [
            Fault(
                field=f"proposer.settings.{key}",
                reason="settings must not change the model, the budget's caps or the request as a whole; remove it, "
                "and use the proposer's own keys model, max_tokens and temperature",
            )
            for key in OWN_SETTINGS
            if key in settings.settings
        ]
        await _admit_model(admission, admission.models, "proposer.model", settings.model)
        for place, name in enumerate(settings.fallback):
            await _admit_model(admission, admission.models, f"proposer.fallback[{place}]", name)

    async def ready(
        self, settings: ModelProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        for name in (settings.model, *settings.fallback):
            await place.access.models.check(name)
        return {}

    def make(self, settings: ModelProposer, context: ProposerContext) -> Proposer:
        models = context.place.access.models
        return AskModel(settings, map(models.open, (settings.model, *settings.fallback)), context)


class SamplingKind(SimpleKind[SamplingProposer]):
    settings = SamplingProposer

    def make(self, settings: SamplingProposer, context: ProposerContext) -> Proposer:
        return AskModel(settings, [context.sampler or NoSampler()], context)


async def _admit_model(admission: MissionAdmission, models: Models, field: str, name: str) -> None:
    """Checks a model; a mission that the operator did not write may use only allowed ones, for the operator pays."""
    among = admission.among
    if among is not None and name not in among:
        known = f"; it may be {', '.join(sorted(among))}" if among else ""
        add = advice('client_models = ["{}"]', name)
        reason = f"{name} may not be chosen here: the operator pays for it{known}"
        admission.fault(field, f"{reason}; the operator can add {add} to pursuit.toml")
        return
    try:
        await models.check(name)
    except (ExtraMissing, ModelUnavailable) as error:
        admission.fault(field, error.message)
        return
    if admission.mission.budget.max_cost_usd != -1 and not models.priced(name):
        price = advice('`"{}" = {{ input = {}, output = {} }}` in `[prices]`', name, "DOLLARS", "DOLLARS")
        admission.fault(
            "budget.max_cost_usd",
            f"the price of {name} is not known, so this cap cannot be enforced; "
            f"write it in pursuit.toml, in dollars for a million tokens: {price}; or cap max_tokens",
        )

"""Whatever happened in a mission, each provider accepts the next request; equal states give equal bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from model_endpoint import ModelEndpoint, Reply, transcript
from model_stage import ANTHROPIC, OPENAI, RESPONSES

from pursuit.core import events as ev
from pursuit.core.fold import advance
from pursuit.core.state import MissionState
from pursuit.proposers.contract import DrivingPlace, ProposerContext
from pursuit.proposers.language import ModelRequest, NoSampler, OfferedTool, ToolNames
from pursuit.proposers.model.asking import AskModel
from pursuit.proposers.model.provider import Providers
from simulation import mission_data, threshold

TOOLS = ["lab.run", "lab.read"]
OUTCOMES = ["ok", "failed", "unknown", "timed_out", "refused", "lost", "never"]
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
wanted = st.tuples(
    st.sampled_from(["lab__run", "lab__read", "lab__fly", "do_nothing", "pursuit__note"]),
    st.none() | st.fixed_dictionaries({"x": st.integers(0, 9)}),
    st.sampled_from(OUTCOMES),
)
requests = st.fixed_dictionaries(
    {
        "calls": st.lists(wanted, max_size=3),
        "text": text,
        "error": st.sampled_from([False, False, False, True]),
        "killed": st.booleans(),
        "ends": st.booleans(),
        "word": st.none() | text,
        "cut": st.integers(0, 3),
        "result": text,
    }
)


class Story:
    """Writes the events of a mission as a driver would, with everything that may go wrong."""

    def __init__(self) -> None:
        mission = mission_data(
            criteria=[threshold()],
            proposer={"kind": "model", "model": OPENAI, "turn": "agent"},
            stagnation_threshold="off",
        )
        self.state: MissionState = advance(None, ev.MissionCreated(mission=mission, tools=TOOLS))
        self.attempt = 0
        self.place = DrivingPlace()  # it keeps the prefixes
        self.tell(ev.RunClaimed(run="r", pid=1, host="h"))
        self.tell(ev.ConversationBegan(system="Be good.", first="# Goal\n\nRun."))

    def tell(self, event: ev.Event) -> None:
        advance(self.state, event)

    @property
    def index(self) -> int:
        return self.state.current_index

    def one(self, number: int, given: dict[str, Any]) -> None:
        """One request and what comes of it."""
        said = f"Iteration {self.index + 1} begins." if self.state.open is None else ""
        asked = ev.ModelAsked(iteration=self.index, attempt=self.attempt, model="m", digest="", said=said)
        for _ in range(1 + given["killed"]):
            self.tell(asked)
        calls = [] if given["error"] else given["calls"]
        answer = ev.ModelAnswer(
            text=given["text"],
            calls=[
                ev.WantedCall(name=name, args=args, malformed=None if args else "{", id=f"call_{number}_{place}")
                for place, (name, args, _outcome) in enumerate(calls)
            ],
        )
        error = "no" if given["error"] else None
        self.tell(
            ev.ModelAnswered(
                iteration=self.index,
                attempt=self.attempt,
                answer=None if error else answer,
                error=error,
                read=9,
                tokens=9,
            )
        )
        self.calls(number, calls, error, given)
        if given["word"]:
            self.tell(ev.MissionPaused(reason=given["word"]))
            self.tell(ev.MissionResumed())
        iteration = self.state.open
        assert iteration is not None
        if given["ends"] or iteration.turn_over:
            facts = ev.Facts()
            self.tell(ev.IterationEnded(iteration=self.index, verdict="continue", reason="in_progress", facts=facts))
            self.attempt = 0
        else:
            self.attempt += 1
        if cut := min(given["cut"], max(0, len(self.state.conversation.exchanges) - 1)):
            self.tell(ev.ConversationCompacted(iteration=self.index, replaced=cut, summary="It was so."))

    def calls(self, number: int, calls: list[Any], error: str | None, given: dict[str, Any]) -> None:
        planned = [
            (
                ev.PlannedCall(
                    call_id=f"m:{number}:{place}", tool=name, args=args or {}, wanted_id=f"call_{number}_{place}"
                ),
                outcome,
            )
            for place, (name, args, outcome) in enumerate(calls)
            if name != "do_nothing"
        ]
        plans = [one for one, _outcome in planned]
        if self.state.open is None:
            failed = [error] if error else []
            self.tell(ev.IterationProposed(iteration=self.index, proposer="model", calls=plans, failed=failed))
        else:
            self.tell(ev.TurnContinued(iteration=self.index, calls=plans))
        for one, outcome in planned:
            if outcome == "refused":
                self.tell(
                    ev.CallRefused(
                        call_id=one.call_id, iteration=self.index, tool=one.tool, args={}, outcome="denied", reason="no"
                    )
                )
            elif outcome != "never":
                self.tell(ev.CallIntended(call_id=one.call_id, iteration=self.index, tool=one.tool, args=one.args))
                if outcome != "lost":
                    result = {"content": [{"type": "text", "text": given["result"]}]} if outcome == "ok" else None
                    self.tell(
                        ev.CallSettled(
                            call_id=one.call_id, iteration=self.index, outcome=outcome, result=result, error="e"
                        )
                    )

    def request(self) -> ModelRequest:
        tools = [OfferedTool(name=name, description="d", schema={"type": "object", "properties": {}}) for name in TOOLS]
        means = ProposerContext(mission=self.state.mission, tools=lambda: tools, place=self.place)
        asker = AskModel(self.state.mission.proposer, [NoSampler()], means)  # type: ignore[arg-type]
        return anyio.run(asker.request, self.state)


class Told(NamedTuple):
    """The stand-in of the providers, and how to send it a request in each of their forms."""

    endpoint: ModelEndpoint
    send: Callable[[ModelRequest], None]


@pytest.fixture(scope="module")
def providers() -> Iterator[Told]:
    with (
        ModelEndpoint(Reply(text="So be it.")) as endpoint,
        mock.patch.dict(os.environ, endpoint.environment),
        start_blocking_portal() as portal,
    ):
        models = Providers()

        async def sent(request: ModelRequest) -> None:
            for model in (OPENAI, RESPONSES, ANTHROPIC):
                await models.open(model).answer(request)

        yield Told(endpoint, lambda request: portal.call(sent, request))
        portal.call(models.aclose)


@pytest.mark.guarantee("any-events-make-a-valid-request")
@pytest.mark.guarantee("prompt-is-deterministic")
@settings(max_examples=20, deadline=None)
@given(st.lists(requests, max_size=8))
def test_any_events_make_a_request_that_each_provider_accepts(providers: Told, story: list[Any]) -> None:
    """One reader makes the conversation as it grows, the other one at its end."""
    told, again = Story(), Story()
    for number, given_now in enumerate(story):
        told.one(number, given_now)
        told.request()
        again.one(number, given_now)
    request, whole = told.request(), again.request()
    assert (request.messages, request.size) == (whole.messages, whole.size)
    assert request.digest() == whole.digest()

    providers.send(request)
    endpoint = providers.endpoint
    assert endpoint.violations == []
    chat, responses, anthropic = [
        [(turn.role, turn.call_id) for turn in transcript(seen) if turn.role == "tool"] for seen in endpoint.seen[-3:]
    ]
    assert chat == responses == anthropic


tool_names = st.text(min_size=1, max_size=80) | st.sampled_from(["a.b", "a__b", "a/b", "a-b.c", "1.x", "do_nothing"])


@pytest.mark.guarantee("tool-names-map-back")
@settings(max_examples=100, deadline=None)
@given(st.lists(tool_names, max_size=12), st.randoms())
def test_every_tool_has_one_name_that_providers_accept(names: list[str], random: Any) -> None:
    known = ToolNames(names, reserved=("do_nothing", "run_script"))
    shown = [known.shown(name) for name in set(names)]
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name) for name in shown)
    assert len(set(shown)) == len(shown)
    assert not {"do_nothing", "run_script"} & set(shown)
    assert all(known.meant(known.shown(name)) == name for name in names)
    shuffled = list(names)
    random.shuffle(shuffled)
    again = ToolNames(shuffled, reserved=("do_nothing", "run_script"))
    assert all(again.shown(name) == known.shown(name) for name in names)

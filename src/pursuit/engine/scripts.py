"""Runs a scripted strategy in the sandbox, durable at every call.

Owns: the dialogue between a script and the executor. Replay is the truth: after a crash the script starts
again and is answered from the ledger until it is where it was.
Invariant: a call that was settled is answered from its record and never made again.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from pursuit.core.events import ScriptEnded
from pursuit.core.observe import value_of
from pursuit.core.state import CallRecord, Iteration, MissionState
from pursuit.engine.context import Run
from pursuit.engine.execute import Planned, execute
from pursuit.sandbox import Calls, Finished, ScriptCall, ScriptFailure, ScriptSpec


class Diverged(Exception):
    """A replayed script asked for something else than it did the first time."""


async def run_script(run: Run, iteration: Iteration, source: str) -> None:
    """Runs the script of an iteration to its end, or to the operator's stop."""
    own = iteration.proposed.own_script
    async with run.sandbox.script(_spec(run, iteration, source)) as script:
        step = await script.start()
        while isinstance(step, Calls):
            try:
                answers = await _answer(run, iteration, step.calls, guarded=not own)
            except Diverged as error:
                memory = run.state.memory
                step = Finished(memory=memory, observed=(), events=(), error=str(error), printed="")
                break
            if run.state.stopped:
                return
            step = await script.answer(answers)
    run.journal.stage(
        ScriptEnded(
            at=run.clock.now(),
            iteration=iteration.index,
            memory=step.memory,
            observed=dict(step.observed),
            events=[{**event["data"], "event_name": event["name"]} for event in step.events],
            error=step.error,
            printed=step.printed,
            claimed=not own,
        )
    )


def _spec(run: Run, iteration: Iteration, source: str) -> ScriptSpec:
    seed = hashlib.sha256(f"{run.mission_id}:{iteration.index}".encode()).digest()[:8]
    return ScriptSpec(
        source=source,
        tools=_signatures(run.state),
        state=iteration.view or {},
        seed=int.from_bytes(seed, "big"),
        now=datetime.datetime.fromtimestamp(iteration.started_at, tz=datetime.UTC),
    )


def _signatures(state: MissionState) -> dict[str, dict[str, Sequence[str]]]:
    """The tools of the mission by server, each with its parameters as they were when the mission began."""
    servers: dict[str, dict[str, Sequence[str]]] = {}
    for name in state.tools:
        server, _, tool_name = name.partition(".")
        servers.setdefault(server, {})[tool_name] = state.parameters.get(name, ())
    return servers


async def _answer(run: Run, iteration: Iteration, calls: Sequence[ScriptCall], *, guarded: bool) -> dict[int, Any]:
    planned = [
        Planned(
            call_id=f"{run.mission_id}:{iteration.index}:{call.index}",
            tool=call.tool,
            args=dict(call.arguments),
            order=call.index,
            purpose="script",
            guarded=guarded,
        )
        for call in calls
    ]
    for wanted in planned:
        _same_as_recorded(iteration.calls.get(wanted.call_id), wanted)
    await execute(run, planned, durable=True)
    answers: dict[int, Any] = {}
    for call, wanted in zip(calls, planned, strict=True):
        record = iteration.calls.get(wanted.call_id)
        answers[call.index] = await _value(run, record)
    return answers


def _same_as_recorded(record: CallRecord | None, wanted: Planned) -> None:
    if record is not None and (record.tool, record.args) != (wanted.tool, wanted.args):
        raise Diverged(
            f"the script does not repeat itself: call {wanted.order} was {record.tool} and is now {wanted.tool} "
            "or has other arguments; scripts must depend on nothing but state, results and random"
        )


async def _value(run: Run, record: CallRecord | None) -> Any:
    """What the script sees: the value of a good call, an exception for any other."""
    if record is None:
        return ScriptFailure(message="the call was not made: the mission was stopped")
    if record.outcome != "ok":
        return ScriptFailure(message=f"{record.tool} {record.outcome}: {record.error}")
    if record.blob is not None:
        body = await run.ledger.blob(record.blob)
        return value_of(msgspec.json.decode(body)) if body is not None else record.preview
    return value_of(record.result)

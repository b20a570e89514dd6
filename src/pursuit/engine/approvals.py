"""Asks a person about calls of a mission: before its driver makes them, or while its agent's turn holds them.

A question is durable before anyone sees it, waiting for its answer holds nothing, and silence is a no. A call that a
yes covers already is not asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from pursuit.core.approvals import Approval, approval_id, call_scope, read_question, unattended_answer
from pursuit.core.events import ApprovalAsked, Event, WaitBegan
from pursuit.core.state import MissionState
from pursuit.core.tools import Tool
from pursuit.engine.call_admission import MustWait, Planned, driving_client, question_id, ruling_on, tool_of
from pursuit.engine.context import Run
from pursuit.policy.rules import Ruling
from pursuit.policy.traits import question_texts


async def ask_first(run: Run, calls: Sequence[Planned]) -> None:
    """Asks about those calls that policy wants a person for, in one commit; raises `MustWait` until answered."""
    # One question for all changed tools of a server has one id.
    questions = {one.approval_id: one for call in calls if (one := question_about(run, call)) is not None}
    if questions and await _must_wait(run, list(questions.values())):
        raise MustWait


async def wait_for_answers(run: Run) -> None:
    """Raises `MustWait` while a question of the agent's last turn is open."""
    if run.state.approvals.open() and await _must_wait(run):
        raise MustWait


async def _must_wait(run: Run, questions: Sequence[ApprovalAsked] = ()) -> bool:
    """Writes the questions that no yes covers, and which have expired; whether one of them, or any, is open."""
    waits = False

    def build(state: MissionState) -> Sequence[Event]:
        nonlocal waits
        waits = False
        if state.stopped or state.open is None:
            return ()
        now, known = run.clock.now(), state.approvals
        wanted = {one.approval_id: one for one in questions if not _is_granted(state, one)}
        fresh = [one for key, one in wanted.items() if known.get(key) is None]
        left = [one for one in known.open(now) if not questions or one.approval_id in wanted]
        left += map(read_question, fresh)
        events: list[Event] = [*fresh, *known.expiries(now)]
        if left:
            waits, tool, until = True, left[0].tool, min(one.until for one in left)
            if (state.waiting_for, state.wait_until) != ("approval", until):
                elapsed = run.elapsed()
                events.append(WaitBegan(at=now, waiting_for="approval", detail=tool, until=until, elapsed=elapsed))
        return events

    await run.journal.record(build)
    return waits


async def answer_question(
    run: Run, tool: Tool, arguments: dict[str, Any], *, unattended: bool, seconds: float
) -> bool | None:
    """Whether an agent may do this; None if no person answered within these seconds, so that the turn must end."""
    ruling = run.tools.rule_step(tool, arguments)
    if ruling.decision != "ask":
        return ruling.decision == "allow"
    number = len(run.used_approvals)
    call_id = f"{run.mission_id}:{run.state.current_index}:{tool.qualified}"
    key = f"{run.mission_id}:{call_scope(tool.qualified, arguments)}:{run.state.current_index}:{number}"
    asked = _question(run, tool, arguments, ruling, call_id=call_id, question=approval_id(key))
    if _is_granted(run.state, asked):
        return True
    if unattended:
        alone = msgspec.structs.replace(asked, require=1)
        await run.journal.record(lambda state: () if state.stopped else [alone, unattended_answer(alone)])
    known = await _ask_and_hold(run, asked, seconds)
    return None if known is None else known.granted


async def hold_call(run: Run, planned: Planned, seconds: float) -> Planned | None:
    """A call of an agent with the question that a person answered, if one was asked; None without an answer."""
    asked = question_about(run, planned)
    if asked is None or _is_granted(run.state, asked):
        return planned
    known = await _ask_and_hold(run, asked, seconds)
    return None if known is None else msgspec.structs.replace(planned, question=known.approval_id)


async def _ask_and_hold(run: Run, asked: ApprovalAsked, seconds: float) -> Approval | None:
    """The question of an agent with its answer, for which the turn is held so many seconds.

    None without an answer: the turn must end, and the mission waits. An answer to the same question of an earlier turn
    that was not used yet is the answer.
    """
    known = _unused_answer(run, asked)
    question = asked.approval_id if known is None else known.approval_id
    run.used_approvals.add(question)  # at once: the same call beside this one needs an answer of its own
    try:
        if known is None:
            await run.journal.record(lambda state: () if state.stopped or state.approvals.get(question) else [asked])
        if _is_open(run, question):
            run.report_phase("execute")  # shows the question
            with anyio.move_on_after(seconds):
                while _is_open(run, question):
                    await run.interrupted.wait()
                    run.interrupted = anyio.Event()
                    await run.journal.catch_up()
        if _is_open(run, question):
            await _must_wait(run)
    finally:
        known = run.state.approvals.get(question)
        if known is None or known.answer is None:
            run.used_approvals.discard(question)
    return None if known is None or known.answer is None else known


def _is_open(run: Run, question: str) -> bool:
    known = run.state.approvals.get(question)
    return known is not None and known.answer is None


def _unused_answer(run: Run, asked: ApprovalAsked) -> Approval | None:
    """The same question, open or answered, that no call of this run uses."""
    scope = call_scope(asked.tool, asked.args)
    return next(
        (
            one
            for one in run.state.approvals.asked.values()
            if call_scope(one.tool, one.args) == scope
            and one.approval_id not in run.used_approvals
            and one.accepts == asked.accepts
            and one.answer != "expired"
            and one.require >= asked.require
        ),
        None,
    )


def _is_granted(state: MissionState, asked: ApprovalAsked) -> bool:
    """Whether a yes covers the call that a question is about; a question about changes is about no call."""
    return asked.accepts is None and state.approvals.is_granted(
        asked.approval_id, asked.tool, asked.args, client=asked.subject, digest=asked.digest, require=asked.require
    )


def question_about(run: Run, planned: Planned) -> ApprovalAsked | None:
    """The question to a person about a call; None if policy wants none."""
    tool = tool_of(run, planned)
    ruling = None if tool is None else ruling_on(run, planned, tool)
    if tool is None or ruling is None or ruling.decision != "ask":
        return None
    question = question_id(run.state, planned, tool, ruling)
    return _question(run, tool, planned.args, ruling, call_id=planned.call_id, question=question)


def _question(
    run: Run, tool: Tool, args: dict[str, Any], ruling: Ruling, *, call_id: str, question: str
) -> ApprovalAsked:
    """The question with this id about a call of a tool, or about the changes of its server."""
    now, changes = run.clock.now(), ruling.changes
    description, whole = question_texts(tool, args, ruling.reason, changes)
    return ApprovalAsked(
        at=now,
        approval_id=question,
        call_id=call_id,
        iteration=run.state.current_index,
        tool=tool.qualified,
        args=args,
        description=description,
        reason=ruling.reason,
        until=now + run.settings.approval_timeout,
        subject=driving_client(run.state),
        require=ruling.require,
        cut=whole != description,
        digest=tool.digest or None,
        accepts=None if changes is None else changes.what,
    )

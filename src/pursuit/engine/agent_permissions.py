"""Answers the questions of an agent ("may I run this?") by policy and by durable approvals.

A question that policy wants asked is recorded and held for a while. Without an answer it is rejected, the turn ends and
the mission waits. The stored answer meets the question when the agent asks it again in its next turn: the same kind
with the same arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import anyio

from pursuit.agents.acp import Question
from pursuit.core.approvals import GRANTS, Approval, call_scope, is_granted, pending
from pursuit.core.events import ApprovalAsked, ApprovalExpired, Event, WaitBegan
from pursuit.core.mission import AGENT
from pursuit.core.state import MissionState
from pursuit.core.tools import Tool, Traits
from pursuit.engine.call_admission import MustWait
from pursuit.engine.call_admission import question as ask_about
from pursuit.engine.context import Run

READS = frozenset({"read", "search", "think"})
WRITES = frozenset({"edit", "delete", "move"})


async def answer_question(run: Run, question: Question) -> bool | None:
    """Whether the agent may; None if no person answered in time, so that the turn must end."""
    tool, arguments = _step(run, question), dict(question.arguments)
    ruling = run.tools.rule_step(tool, arguments)
    if ruling.decision != "ask":
        return ruling.decision == "allow"
    number = len(run.used_approvals)
    call_id = f"{run.mission_id}:{run.state.current_index}:{tool.qualified}"
    key = f"{run.mission_id}:{call_scope(tool.qualified, arguments)}:{run.state.current_index}:{number}"
    asked = ask_about(run, tool, arguments, ruling, call_id=call_id, key=key)
    if is_granted(run.state.granted, None, asked.tool, arguments, asked.subject, digest=None, require=asked.require):
        return True
    known = unused_answer(run, asked)
    if known is None:
        await run.journal.record(lambda state: () if state.stopped else [asked])
        known = run.state.approvals.get(asked.approval_id)
    if known is None:
        return None
    return await hold_or_wait(run, known)


async def hold_or_wait(run: Run, approval: Approval) -> bool | None:
    """The answer of a person, held for a while; None without one, and then the mission waits."""
    if approval.answer is None:
        run.report_phase("execute")  # shows the question
        await _hold(run, approval)
    if approval.answer is None:
        await _begin_wait(run, approval.tool)
    return None if approval.answer is None else _used(run, approval)


async def wait_for_answers(run: Run) -> None:
    """Raises `MustWait` while a question of the agent's last turn is open; silence is a no."""
    if not pending(run.state.approvals) or run.state.stopped:
        return

    def build(state: MissionState) -> Sequence[Event]:
        now = run.clock.now()
        late = [one for one in pending(state.approvals) if now >= one.until]
        return [ApprovalExpired(at=now, approval_id=one.approval_id) for one in late]

    await run.journal.record(build)
    left = pending(run.state.approvals)
    if left and not run.state.stopped:
        await _begin_wait(run, left[0].tool)
        if pending(run.state.approvals):
            raise MustWait


def _step(run: Run, question: Question) -> Tool:
    """What the agent wants to do, as a tool for policy. Work inside the workspace is its own, and is recorded."""
    paths = question.arguments.get("paths")
    reads, inside = question.kind in READS and not paths, _is_inside(run, paths)
    traits = Traits()
    if reads or (inside and question.kind in READS | WRITES):
        why = "the agent says that it only reads" if question.kind in READS else "it only writes inside the workspace"
        traits = Traits(read_only=True, destructive=False, why={"read_only": why})
    description = question.title or question.kind
    return Tool(
        server=AGENT, name=question.kind, description=description, input_schema={}, definition={}, traits=traits
    )


def _is_inside(run: Run, paths: object) -> bool:
    if run.agent is None or not isinstance(paths, list) or not paths:
        return False
    tree = run.agent.workspace.tree.resolve()
    places = [(run.agent.workspace.agent_folder / str(one)).resolve() for one in cast("list[object]", paths)]
    return all(place.is_relative_to(tree) and ".git" not in place.relative_to(tree).parts for place in places)


def unused_answer(run: Run, asked: ApprovalAsked) -> Approval | None:
    """The question of an earlier turn that is this one, with an answer that was not used yet."""
    scope = call_scope(asked.tool, asked.args)
    return next(
        (
            one
            for one in run.state.approvals.values()
            if call_scope(one.tool, one.args) == scope
            and one.approval_id not in run.used_approvals
            and one.answer != "expired"
            and one.require >= asked.require
        ),
        None,
    )


def _used(run: Run, approval: Approval) -> bool:
    run.used_approvals.add(approval.approval_id)
    return approval.answer in GRANTS


async def _hold(run: Run, approval: Approval) -> None:
    """Waits for the answer for as long as the mission says."""
    if run.agent is None:
        return
    with anyio.move_on_after(run.agent.settings.permission_seconds):
        while approval.answer is None:
            await run.interrupted.wait()
            run.interrupted = anyio.Event()
            await run.journal.catch_up()


async def _begin_wait(run: Run, tool: str) -> None:
    def build(state: MissionState) -> Sequence[Event]:
        left = pending(state.approvals)
        if state.stopped or not left or state.waiting_for == "approval":
            return ()
        until = min(one.until for one in left)
        return [WaitBegan(at=run.clock.now(), waiting_for="approval", detail=tool, until=until, elapsed=run.elapsed())]

    await run.journal.record(build)

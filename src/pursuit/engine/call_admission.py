"""Decides whether a call may run: a call of a proposal or of a script, or a check by tool or by command.

The checks of a call, in order: approval if policy requires it, policy, the tool's schema, the loop guard, the budget.
A call that passes gets a `CallIntended`, any other a `CallRefused`. Only this module writes these two events, and
nothing is sent before its intent is durable.

A person is asked before the driver makes the call, or while an agent's turn holds it. The question is durable before
anyone sees it, waiting for its answer holds no resources, and silence means no. A call that an earlier answer
approves does not need another question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import anyio
import msgspec

from pursuit.core.approvals import Approval, approval_id, call_scope, read_question, unattended_answer
from pursuit.core.budgets import RemainingBudget, child_id, is_spawn, kept_for_checks
from pursuit.core.child_admission import Refused, Spawns
from pursuit.core.events import ApprovalAsked, CallIntended, CallRefused, Event, Purpose, WaitBegan
from pursuit.core.pins import Changes
from pursuit.core.state import CallRecord, MissionState, fingerprint
from pursuit.core.tools import OWN_TOOLS, Tool, Traits
from pursuit.engine.context import Run
from pursuit.policy.rules import Ruling
from pursuit.policy.traits import question_texts
from pursuit.tasks.record import generate_task_id

LOOP_LIMIT = 2
"""The number of identical consecutive calls that may run without any change; the loop guard refuses the next."""
ONE_CALL = {"max_tool_calls": 1.0}
COMMAND = Tool(
    server="check",
    name="command",
    description="The command of a check",
    input_schema={},
    definition={},
    traits=Traits(timeout=600.0),  # a build or a test suite takes minutes
)
"""Stands for the tool where a check runs a command. Its arguments are `argv` and `cwd`."""
_OUR_OWN = Ruling(decision="allow", reason="it only reads and writes this mission's record")


class Denial(NamedTuple):
    """Why a call may not run; `unapproved` is true if a person said no or did not answer in time."""

    reason: str
    unapproved: bool = False


class MustWait(Exception):
    """The iteration stays open: the mission waits in the ledger for a person or for a task."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A requested call. `missing` says why it cannot run, if that is already known.

    A language model's call with a `fault` is refused for that reason. `question` is the id of the question about the
    call, if it was asked in an earlier turn of an agent.
    """

    call_id: str
    tool: str
    args: dict[str, Any]
    order: int
    purpose: Purpose = "proposal"
    repeatable: bool = False
    timeout: float | None = None
    criterion_id: str | None = None
    command: bool = False
    missing: str | None = None
    fault: str | None = None
    question: str | None = None


def tool_of(run: Run, planned: Planned) -> Tool | None:
    """The tool that the call reaches, or None if it is not available now."""
    if planned.fault is not None:
        return None
    if planned.command:
        return COMMAND if planned.missing is None else None
    if planned.tool in OWN_TOOLS and planned.tool not in run.state.tools:
        return OWN_TOOLS[planned.tool]
    return run.tools.get(planned.tool)


def ruling_on(run: Run, planned: Planned, tool: Tool) -> Ruling:
    """The policy's ruling on the call."""
    if tool.qualified in OWN_TOOLS and tool is OWN_TOOLS[tool.qualified]:
        return _OUR_OWN
    if tool is not COMMAND:
        if tool.changes is not None and _is_accepted(run.state, tool.changes):
            tool = replace(tool, changes=None)
        return run.tools.rule(tool, planned.args)
    # Rules name it `check.NAME`, by the name in the configuration or else by its criterion.
    name = run.named_check(planned.criterion_id) or planned.criterion_id or tool.name
    return run.tools.rule_own(replace(tool, name=name), planned.args)


def question_id(state: MissionState, planned: Planned, tool: Tool, ruling: Ruling) -> str:
    """The id of the question about a call, or about the changes of its server.

    If the tool's definition changed after a question, the id differs and the person is asked again.
    """
    if ruling.changes is not None:
        return approval_id(ruling.changes.key)
    first = planned.question or approval_id(planned.call_id)
    known = state.approvals.get(first)
    same = known is None or known.digest in (None, tool.digest)
    return first if same else approval_id(f"{planned.call_id} {tool.digest}")


def _is_accepted(state: MissionState, changes: Changes) -> bool:
    """True if a person approved these changes of a server in this mission."""
    known = state.approvals.get(approval_id(changes.key))
    return known is not None and known.accepts is not None and known.granted


def driving_client(state: MissionState) -> str | None:
    """The driving client, for which an approval is valid; None is the operator."""
    return None if state.driver is None else state.driver.subject


class Admission:
    """Admits the calls of one batch in order, and counts the batch's own use of the budget."""

    def __init__(self, run: Run, state: MissionState, *, check: bool = False) -> None:
        self._run = run
        self._state = state
        self._check = check
        self._counts = state.budget["max_tool_calls"] != -1
        self._spawns: Spawns | None = None
        self._guarded = state.open is not None and state.open.guarded
        self._guard_key, self._guard_count = state.guard_key, state.guard_count

    @cached_property
    def _budget(self) -> RemainingBudget:
        return RemainingBudget(self._state, check=self._check)

    def admit(
        self, planned: Planned, tool: Tool | None, before: CallRecord | None
    ) -> CallIntended | CallRefused | None:
        """The intent of a call that may run, or the refusal of one that may not.

        None for a call that was sent `before` and may not be repeated. A repeated call counts again.
        """
        denied = None if tool is None else self._denied(planned, tool)
        if before is not None:
            if tool is None or denied is not None or self._used_up():
                return None
            self._take()
            return self._intent(planned, tool, attempt=before.attempt + 1)
        if tool is None:
            return self._refuse(
                planned, "failed", planned.fault or planned.missing or self._run.tools.missing(planned.tool)
            )
        if denied is not None:
            return self._refuse(planned, "denied", denied.reason, unapproved=denied.unapproved)
        if self._used_up():
            kept = planned.purpose != "check" and kept_for_checks(self._state)
            rest = f", except for {kept} reserved for checks" if kept else ""
            return self._refuse(planned, "skipped", f"max_tool_calls is used up{rest}")
        left = self._run.wall_clock_left()
        if left is not None and left <= 0:
            return self._refuse(planned, "skipped", "max_wall_clock_seconds is used up")
        self._take()
        intent = self._intent(planned, tool, attempt=1)
        return self._spawn(planned, intent) if tool.long and is_spawn(self._state, planned.tool) else intent

    def _used_up(self) -> bool:
        return self._counts and self._budget.lacks(ONE_CALL) is not None

    def _take(self, calls: int = 1) -> None:
        if self._counts:
            self._budget.take({"max_tool_calls": calls})

    def _denied(self, planned: Planned, tool: Tool) -> Denial | None:
        """Why a person, policy, the schema or the loop guard refuses a call, or None."""
        ruling = ruling_on(self._run, planned, tool)
        if ruling.decision == "deny":
            return Denial(ruling.reason)
        if ruling.decision == "ask" and (refused := self._not_approved(planned, tool, ruling)) is not None:
            return refused
        # The arguments of a proposal were checked when it was made, those of a check when the mission began.
        if planned.purpose == "script" and (faults := self._run.tools.check(planned.tool, planned.args)):
            return Denial("the arguments do not fit the tool's schema: " + "; ".join(faults))
        if self._guarded and planned.purpose != "check" and self._loops(planned):
            same = f"the same call was made {LOOP_LIMIT} times in a row and nothing changed"
            return Denial(f"{same}; try other arguments or another tool")
        return None

    def _not_approved(self, planned: Planned, tool: Tool, ruling: Ruling) -> Denial | None:
        question, client = question_id(self._state, planned, tool, ruling), driving_client(self._state)
        digest, require = tool.digest or None, ruling.require
        if ruling.changes is None and self._state.approvals.is_granted(
            question, planned.tool, planned.args, client=client, digest=digest, require=require
        ):
            return None
        approval = self._state.approvals.get(question)
        if approval is None or approval.answer is None:
            return Denial("it requires approval, but none was requested")
        if approval.answer == "expired":
            return Denial("it was not approved in time", unapproved=True)
        if approval.granted and ruling.changes is not None:
            return Denial(f"the tools of its server changed again after {approval.by} accepted them")
        if approval.granted:
            before = f"so far only {approval.by} approved"
            return Denial(f"{ruling.require} people must approve it now; {before}")
        return Denial(f"denied by {approval.by}" + (f": {approval.why}" if approval.why else ""), unapproved=True)

    def _loops(self, planned: Planned) -> bool:
        key = fingerprint([planned.tool, planned.args])
        if any(one.key == key and one.missing for one in self._state.confirmations.latest.values()):
            return False  # a criterion requires these repetitions
        same = key == self._guard_key
        if same and self._guard_count >= LOOP_LIMIT:
            return True
        self._guard_key, self._guard_count = key, self._guard_count + 1 if same else 1
        return False

    def _spawn(self, planned: Planned, intent: CallIntended) -> CallIntended | CallRefused:
        """The intent to start a child mission, with the budget reserved for it."""
        self._spawns = self._spawns or Spawns(self._state, self._budget, self._mutates)
        try:
            reserved = self._spawns.admit(planned.args, child_id(intent.task or ""))
        except Refused as refused:
            self._take(-1)
            return self._refuse(planned, refused.outcome, str(refused))
        return msgspec.structs.replace(intent, reserved=reserved)

    def _mutates(self, name: str) -> bool:
        tool = self._run.tools.get(name)
        return tool is None or not tool.traits.read_only

    def _intent(self, planned: Planned, tool: Tool, *, attempt: int) -> CallIntended:
        return CallIntended(
            at=self._run.clock.now(),
            call_id=planned.call_id,
            iteration=self._state.current_index,
            tool=planned.tool,
            args=planned.args,
            purpose=planned.purpose,
            order=planned.order,
            attempt=attempt,
            criterion_id=planned.criterion_id,
            repeatable=planned.repeatable or tool.traits.read_only or tool.traits.idempotent,
            task=generate_task_id() if tool.long else None,
        )

    def _refuse(
        self,
        planned: Planned,
        outcome: Literal["denied", "skipped", "failed"],
        reason: str,
        *,
        unapproved: bool = False,
    ) -> CallRefused:
        return CallRefused(
            at=self._run.clock.now(),
            call_id=planned.call_id,
            iteration=self._state.current_index,
            tool=planned.tool,
            args=planned.args,
            purpose=planned.purpose,
            order=planned.order,
            outcome=outcome,
            reason=reason,
            unapproved=unapproved,
        )


async def ask_first(run: Run, calls: Sequence[Planned]) -> None:
    """Asks about the calls that require approval, in one commit; raises `MustWait` until all are answered."""
    # One question for all changed tools of a server has one id.
    questions = {one.approval_id: one for call in calls if (one := question_about(run, call)) is not None}
    if questions and await _must_wait(run, list(questions.values())):
        raise MustWait


async def wait_for_answers(run: Run) -> None:
    """Raises `MustWait` while a question of the agent's last turn is open."""
    if run.state.approvals.asked and await _must_wait(run):
        raise MustWait


async def _must_wait(run: Run, questions: Sequence[ApprovalAsked] = ()) -> bool:
    """Records unapproved new questions and expired ones; true if one of `questions` (if empty, any at all) is open."""
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
    """True if an agent may do this; None if nobody answered within these seconds, so that the turn must end."""
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
    """An agent's call, with the answered question if one was asked; None if nobody answered."""
    asked = question_about(run, planned)
    if asked is None or _is_granted(run.state, asked):
        return planned
    known = await _ask_and_hold(run, asked, seconds)
    return None if known is None else msgspec.structs.replace(planned, question=known.approval_id)


async def _ask_and_hold(run: Run, asked: ApprovalAsked, seconds: float) -> Approval | None:
    """Asks an agent's question and holds the turn for up to this many seconds, until it is answered.

    None without an answer: the turn must end, and the mission waits. An unused answer to the same question from an
    earlier turn counts.
    """
    known = _unused_answer(run, asked)
    question = asked.approval_id if known is None else known.approval_id
    run.used_approvals.add(question)  # at once: an identical concurrent call needs a separate answer
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
    """An identical question, open or answered, that no call of this run uses."""
    scope = read_question(asked).scope
    return next(
        (
            one
            for one in run.state.approvals.asked.values()
            if one.scope == scope
            and one.approval_id not in run.used_approvals
            and one.accepts == asked.accepts
            and one.answer != "expired"
            and one.require >= asked.require
        ),
        None,
    )


def _is_granted(state: MissionState, asked: ApprovalAsked) -> bool:
    """True if the question's call is approved; false for questions about changes, which do not have a call."""
    return asked.accepts is None and state.approvals.is_granted(
        asked.approval_id, asked.tool, asked.args, client=asked.subject, digest=asked.digest, require=asked.require
    )


def question_about(run: Run, planned: Planned) -> ApprovalAsked | None:
    """The question to a person about a call; None if policy does not require one."""
    tool = tool_of(run, planned)
    ruling = None if tool is None else ruling_on(run, planned, tool)
    if tool is None or ruling is None or ruling.decision != "ask":
        return None
    question = question_id(run.state, planned, tool, ruling)
    return _question(run, tool, planned.args, ruling, call_id=planned.call_id, question=question)


def _question(
    run: Run, tool: Tool, args: dict[str, Any], ruling: Ruling, *, call_id: str, question: str
) -> ApprovalAsked:
    """Creates the question with this id, about a tool call or about the changes of its server."""
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

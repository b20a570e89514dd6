"""The table of the nine tools: what each is called, what it says of itself, and who answers.

Owns: names, words, annotations. Invariant: an annotation is true: what says that it only reads changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_types import Tool, ToolAnnotations, ToolExecution

from pursuit.core.base_model import InputModel
from pursuit.errors import PursuitError, ValidationFailed
from pursuit.server.approval_form import how_to_approve
from pursuit.server.errors import Context
from pursuit.server.missions import arguments
from pursuit.server.missions.handlers import Missions, Result

# A tool's answer: structured for programs, a few lines for people.
# Invariant: a refusal is a tool error with `code`, `message` and `details`, never a failed request.

StructuredContent = Mapping[str, Any]
Lines = Callable[[StructuredContent], list[str]]

MOST_ROWS = 20


def result(answer: StructuredContent, lines: list[str]) -> dict[str, Any]:
    """The answer of a call that was done."""
    return _result(answer, lines, is_error=False)


def refusal(error: PursuitError, besides: StructuredContent) -> dict[str, Any]:
    """The answer of a call that was refused; `besides` is what such an answer has unless the error knows more."""
    body = {**besides, **json.loads(json.dumps(error.as_dict(), default=str).encode(errors="replace"))}
    if "iterations" in error.details:
        body["iterations"] = body["details"].pop("iterations")
    lines = [f"{error.code}: {error.message}"]
    if isinstance(error, ValidationFailed):
        lines += [f"- {fault}" for fault in error.faults]
    return _result(body, lines, is_error=True)


def _result(body: StructuredContent, lines: list[str], *, is_error: bool) -> dict[str, Any]:
    """A result as the wire has it: a plain mapping costs half of what a model does."""
    text = "\n".join(lines).encode(errors="replace").decode()
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "structuredContent": body,
        "isError": is_error,
    }


def started(answer: StructuredContent) -> list[str]:
    """A mission that was accepted."""
    return [
        f"{answer['session_id']} is {answer['status']}; nothing runs yet.",
        *(f"warning: {warning}" for warning in answer["warnings"]),
        f"Proposer: {answer['proposer']}. Go on with mission_iterate.",
    ]


def status(answer: StructuredContent) -> list[str]:
    """How a mission stands."""
    criteria: list[StructuredContent] = answer["criteria"]
    met = sum(row["status"] == "met" for row in criteria)
    head = f"{answer['session_id']}: {answer['status']}"
    if "resume" in answer:
        head += f", no process drives it; go on with mission_iterate or `{answer['resume']}`"
    if "waiting_for" in answer:
        head += f", waiting for {answer['waiting_for']}"
    if "verdict" in answer:
        head += f" ({answer['verdict']}: {answer['verdict_reason']})"
    used = answer["budget"]["used"]
    lines = [
        head,
        f"goal: {answer['directive'][:200]}",
        f"{answer['iteration_count']} iterations, {used['tool_calls']} calls; {met} of {len(criteria)} criteria met",
    ]
    for row in criteria:
        need = "" if row["required"] else " (optional)"
        lines.append(f"- {row['criterion_id']}: {row['status']}{need}")
    return [*lines, *_approvals(answer)]


def iterated(answer: StructuredContent) -> list[str]:
    """What iterations came to."""
    rows: list[StructuredContent] = answer["iterations"]
    lines = [f"{answer['session_id']} is {answer['status']} after {len(rows)} iteration{'s' * (len(rows) != 1)}."]
    lines += [_iteration(row) for row in rows[-MOST_ROWS:]]
    return [*lines, *_approvals(answer)]


def checkpoint(answer: StructuredContent) -> list[str]:
    """The verdict again."""
    return [f"{answer['session_id']}: {_iteration(answer)}"]


def ended(answer: StructuredContent) -> list[str]:
    """Where an operator's word left a mission."""
    return [f"{answer['session_id']} is {answer['status']}."]


def history(answer: StructuredContent) -> list[str]:
    """Some iterations."""
    rows: list[StructuredContent] = answer["iterations"]
    lines = [_iteration(row) for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more on this page")
    return [*(lines or ["no iteration has ended yet"]), *_more(answer)]


def listing(answer: StructuredContent) -> list[str]:
    """Some missions."""
    rows: list[StructuredContent] = answer["sessions"]
    lines = [
        f"{row['session_id']}  {row['status']}  {row['iteration_count']} iterations  {row['directive'][:80]}"
        for row in rows[:MOST_ROWS]
    ]
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more on this page")
    return [*(lines or ["no missions"]), *_more(answer)]


def _iteration(row: StructuredContent) -> str:
    return f"iteration {row['iteration_index']}: {row['verdict']} ({row['verdict_reason']})"


def _approvals(answer: StructuredContent) -> list[str]:
    """What waits for a person's yes, and how the operator gives it."""
    rows: list[StructuredContent] = answer.get("pending_approvals", [])
    return [f"{row['tool']} needs the operator's yes: {how_to_approve(row['approval_id'])}" for row in rows[:MOST_ROWS]]


def _more(answer: StructuredContent) -> list[str]:
    return [f"next_cursor: {answer['next_cursor']}"] if "next_cursor" in answer else []


READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
DRIVES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)

SESSION = "The mission's id, from mission_start or mission_list."
CURSOR = "next_cursor of the page before."


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionTool:
    """One tool: `answer` is its verb, `lines` what people read of the answer, `refused` what a refusal has besides."""

    name: str
    title: str
    description: str
    shape: type[InputModel]
    gives: arguments.Schema
    annotations: ToolAnnotations
    answer: Callable[[Missions, Context, Any], Awaitable[Result]]
    lines: Lines
    words: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, Any] = field(default_factory=dict[str, Any])
    long: bool = False
    """Whether it may take so long that a client can have it as a task."""

    def declared(self) -> Tool:
        """The tool as clients see it."""
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=arguments.input_schema(self.shape, self.words),
            output_schema=self.gives,
            annotations=self.annotations,
            execution=ToolExecution(task_support="optional") if self.long else None,
        )


TOOLS = (
    MissionTool(
        name="mission_start",
        title="Start a mission",
        description=(
            "Accept a goal with criteria that a machine can check, a budget and the tools it may use. Nothing runs "
            "yet: drive it with mission_iterate. The answer says who proposes the calls; client is you. "
            "All faults of the input are reported at once. The prompt write_criteria shows how to write good criteria."
        ),
        shape=arguments.Start,
        gives=arguments.STARTED,
        annotations=ADDS,
        answer=Missions.start,
        lines=started,
        words={
            "directive": "The goal in words.",
            "criteria": "What must be true at the end, each with an id, a kind and `required`. Name a `source` tool "
            "where several could report the value.",
            "budget": "Caps; max_iterations or max_wall_clock_seconds must be real unless unbounded. -1 is no cap.",
            "tool_allowlist": "Names (server.tool) or globs of the tools it may call; or set allow_all_tools.",
            "allow_all_tools": "Instead of tool_allowlist: every tool of every configured server.",
            "checkpoint_cadence": "When criteria are looked at; every iteration unless you say otherwise.",
            "stagnation_threshold": "Checkpoints without progress until it gives up: 1 to 1000, or off. Unless given "
            "it is 3, and off for the proposers repeat and search.",
            "pace": "Least seconds between iterations, growing while nothing changes.",
            "observe": "Rules that lift a metric out of a tool's result by JMESPath or regular expression.",
            "proposer": "Who suggests the calls: client (you, with mission_iterate), sampling (your client's model), "
            "model (one that the operator lets clients name), script, search, repeat or replay. Unless given it is "
            "sampling if your client declares it, else "
            "the configured model, else client.",
            "allow_scripted_strategies": "Whether proposals may be scripts.",
            "lessons": "Whether a language model that proposes is told what similar missions learned.",
            "policy": "Tools that this mission may not use (deny) or asks about first (ask); it can only tighten.",
            "use_sampling": "Whether your client's model proposes by sampling: true requires it, false rules it out.",
            "sampling_model_preferences": "MCP's model preferences: hints, costPriority, speedPriority, "
            "intelligencePriority.",
            "fleet": "Lets the mission start child missions out of its own budget, by the tool fleet.spawn.",
        },
    ),
    MissionTool(
        name="mission_status",
        title="How a mission stands",
        description="Status, criteria with their evidence, budget with what is used, metrics and the latest verdict.",
        shape=arguments.Session,
        gives=arguments.STATE,
        annotations=READS,
        answer=Missions.status,
        lines=status,
        words={"session_id": SESSION},
    ),
    MissionTool(
        name="mission_iterate",
        title="Drive a mission",
        description=(
            "Advance a mission by iterations: propose, execute, observe, verify, evaluate, decide. Stops early when "
            "it ends, has to wait, or it is your turn to propose. With the proposer client give the next calls as "
            "`proposal`. With background=true the server drives on and answers at once; watch it with mission_status "
            "or the resource mission://ID. Its tool calls can change the world."
        ),
        shape=arguments.Iterate,
        gives=arguments.ITERATED,
        annotations=DRIVES,
        answer=Missions.iterate,
        lines=iterated,
        words={
            "session_id": SESSION,
            "max_iterations_this_call": "How far to go, also in the background.",
            "proposal": "For the proposer client: exactly one of tool_calls and script. No calls is nothing to do.",
            "background": "Answer at once and drive on in the server, also after you have gone.",
            "after": "How many iterations you know of: an answer that you missed is repeated, nothing is run twice.",
        },
        refused={"iterations": []},
        long=True,
    ),
    MissionTool(
        name="mission_checkpoint",
        title="The latest verdict again",
        description="Decide the latest iteration again from what was recorded; changes nothing.",
        shape=arguments.Session,
        gives=arguments.CHECKPOINT,
        annotations=READS,
        answer=Missions.checkpoint,
        lines=checkpoint,
        words={"session_id": SESSION},
    ),
    MissionTool(
        name="mission_complete",
        title="Call a mission done",
        description="End a mission as completed on your word, also in the middle of a call. The reason is kept.",
        shape=arguments.Complete,
        gives=arguments.WHERE,
        annotations=ENDS,
        answer=Missions.complete,
        lines=ended,
        words={"session_id": SESSION, "reason": "Why; it is in the report."},
    ),
    MissionTool(
        name="mission_abort",
        title="Stop a mission",
        description="End a mission as terminated, or with pause=true stop it so that mission_resume lets it go on.",
        shape=arguments.Abort,
        gives=arguments.WHERE,
        annotations=ENDS,
        answer=Missions.abort,
        lines=ended,
        words={"session_id": SESSION, "pause": "Stop, but stay resumable.", "reason": "Why; it is kept."},
    ),
    MissionTool(
        name="mission_resume",
        title="Let a mission go on",
        description="Let a paused or failed mission go on. It does not drive it: call mission_iterate.",
        shape=arguments.Session,
        gives=arguments.WHERE,
        annotations=ADDS,
        answer=Missions.resume,
        lines=ended,
        words={"session_id": SESSION},
    ),
    MissionTool(
        name="mission_history",
        title="The iterations of a mission",
        description="What each iteration did and came to, 100 a page; full adds calls, observations and criteria.",
        shape=arguments.History,
        gives=arguments.HISTORY,
        annotations=READS,
        answer=Missions.history,
        lines=history,
        words={"session_id": SESSION, "format": "How much of each iteration.", "cursor": CURSOR},
    ),
    MissionTool(
        name="mission_list",
        title="The missions",
        description="All missions in this ledger, newest first, whoever started them.",
        shape=arguments.Listing,
        gives=arguments.LISTING,
        annotations=READS,
        answer=Missions.list,
        lines=listing,
        words={"status": "Only those with this status.", "cursor": CURSOR},
    ),
)


_ALONE = {
    "mission_list": {
        "title": "The mission",
        "description": "The mission that is served here, and the children that it started.",
    }
}
OF_ONE_MISSION = tuple(
    replace(
        tool,
        **_ALONE.get(tool.name, {}),
        words={
            key: "The mission's id, from mission_list." if word == SESSION else word for key, word in tool.words.items()
        },
    )
    for tool in TOOLS
    if tool.name != "mission_start"
)
"""The tools where one mission is served: none begins another."""

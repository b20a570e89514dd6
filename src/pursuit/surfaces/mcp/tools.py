"""The table of the nine tools: what each is called, what it says of itself, and who answers.

Owns: names, words, annotations. Invariant: an annotation is true: what says that it only reads changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_types import Tool, ToolAnnotations, ToolExecution

from pursuit.core.base_model import InputModel
from pursuit.surfaces.mcp import answers, arguments, schemas
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.missions import Answer, Missions

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
    gives: schemas.Schema
    annotations: ToolAnnotations
    answer: Callable[[Missions, Context, Any], Awaitable[Answer]]
    lines: answers.Lines
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
            input_schema=schemas.input_schema(self.shape, self.words),
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
        gives=schemas.STARTED,
        annotations=ADDS,
        answer=Missions.start,
        lines=answers.started,
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
        gives=schemas.STATE,
        annotations=READS,
        answer=Missions.status,
        lines=answers.status,
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
        gives=schemas.ITERATED,
        annotations=DRIVES,
        answer=Missions.iterate,
        lines=answers.iterated,
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
        gives=schemas.CHECKPOINT,
        annotations=READS,
        answer=Missions.checkpoint,
        lines=answers.checkpoint,
        words={"session_id": SESSION},
    ),
    MissionTool(
        name="mission_complete",
        title="Call a mission done",
        description="End a mission as completed on your word, also in the middle of a call. The reason is kept.",
        shape=arguments.Complete,
        gives=schemas.WHERE,
        annotations=ENDS,
        answer=Missions.complete,
        lines=answers.ended,
        words={"session_id": SESSION, "reason": "Why; it is in the report."},
    ),
    MissionTool(
        name="mission_abort",
        title="Stop a mission",
        description="End a mission as terminated, or with pause=true stop it so that mission_resume lets it go on.",
        shape=arguments.Abort,
        gives=schemas.WHERE,
        annotations=ENDS,
        answer=Missions.abort,
        lines=answers.ended,
        words={"session_id": SESSION, "pause": "Stop, but stay resumable.", "reason": "Why; it is kept."},
    ),
    MissionTool(
        name="mission_resume",
        title="Let a mission go on",
        description="Let a paused or failed mission go on. It does not drive it: call mission_iterate.",
        shape=arguments.Session,
        gives=schemas.WHERE,
        annotations=ADDS,
        answer=Missions.resume,
        lines=answers.ended,
        words={"session_id": SESSION},
    ),
    MissionTool(
        name="mission_history",
        title="The iterations of a mission",
        description="What each iteration did and came to, 100 a page; full adds calls, observations and criteria.",
        shape=arguments.History,
        gives=schemas.HISTORY,
        annotations=READS,
        answer=Missions.history,
        lines=answers.history,
        words={"session_id": SESSION, "format": "How much of each iteration.", "cursor": CURSOR},
    ),
    MissionTool(
        name="mission_list",
        title="The missions",
        description="All missions in this ledger, newest first, whoever started them.",
        shape=arguments.Listing,
        gives=schemas.LISTING,
        annotations=READS,
        answer=Missions.list,
        lines=answers.listing,
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

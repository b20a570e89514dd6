"""The `mission_*` tools: arguments, results, handlers and declarations.

A client may say less than a mission file: it must say `required` of each criterion, runs no command of its own, looks
for no files and does not say that a call may be repeated.
Invariant: a refused call has changed nothing. The text of a result says what a model needs to go on, since many
clients hand their model the text alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from mcp_types import ToolAnnotations
from pydantic import AfterValidator, Field, StringConstraints

from pursuit.core.base_model import Broken, Flag, InputModel, Name, Whole, plain_text
from pursuit.core.caps import CAPS, NO_CAP
from pursuit.core.catalogue import is_control_tool
from pursuit.core.mission import (
    MAX_STAGNATION,
    Mission,
    Proposal,
    without_tools,
)
from pursuit.core.proposing import LENDS_A_MODEL, ProposerSettings, settings_type
from pursuit.core.report import ApprovalRow
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.core.tools import Tool
from pursuit.core.truncate import cut_text
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.policy.rules import Layers, decide
from pursuit.policy.traits import effect
from pursuit.proposers.model.settings import Preferences
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, caller_of, elicitation_channel
from pursuit.server.missions.elicitation import Elicitation
from pursuit.server.missions.iterating import IterateCall, MissionRun, reported_to
from pursuit.server.missions.result_text import iteration_line, iteration_lines, page_lines, run_lines, status_lines
from pursuit.server.missions.tool_dispatch import (
    COUNT,
    OBJECT,
    OBJECTS,
    TEXT,
    Result,
    Schema,
    ServerTool,
    array,
    record,
    result,
)
from pursuit.server.sampling import declares_sampling
from pursuit.server.tasks.promotion import TaskPlan
from pursuit.server.tasks.protocol import capabilities_of
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller
from pursuit.service.queries import MISSION_ID, ShownStatus
from pursuit.service.run_loop import RunLoop
from pursuit.tasks.execution import TaskContext, as_tool_result
from pursuit.tasks.host import Work
from pursuit.tasks.store import Ending
from pursuit.upstream.host import UpstreamTools

MOST_ITERATIONS = 1_000_000
MOST_NAMED = 100
MOST_TOOLS, MOST_SCHEMAS = 500, 64_000
"""Of mission_tools: rows, and characters of all schemas together."""
LONGEST_DESCRIPTION = 300


def _mission_id(value: str) -> str:
    if MISSION_ID.fullmatch(value) is None:
        raise ValueError("is no mission id; one is `mission-` and 16 hex digits, as mission_start and mission_list say")
    return value


SessionId = Annotated[str, AfterValidator(_mission_id), Field(json_schema_extra={"pattern": f"^{MISSION_ID.pattern}$"})]
Reason = Annotated[str, StringConstraints(max_length=8_192), AfterValidator(plain_text)]
Cursor = Annotated[str, StringConstraints(max_length=1_024)]


class SessionArguments(InputModel):
    """A mission by its id."""

    session_id: SessionId


class StartArguments(Mission):
    """A mission, and who proposes its calls."""

    use_sampling: Flag | None = None
    sampling_model_preferences: Preferences | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """The rules of a mission, and those for a client."""
        yield from super().between(given)
        yield from without_tools(given)
        kind = settings_type(given.get("proposer"))
        if kind is not None and kind.CLIENTS is not None:
            yield Broken(kind.CLIENTS, "proposer")
        criteria = given.get("criteria")
        for place, criterion in enumerate(cast("list[Any]", criteria) if isinstance(criteria, list) else ()):
            if isinstance(criterion, Mapping):
                yield from _client_rules(cast("Mapping[str, Any]", criterion), ("criteria", place))

    @classmethod
    def model_json_schema(cls, *args: Any, **named: Any) -> Schema:
        """The schema with the rules for a client, and with what the validators of a mission add."""
        schema = super().model_json_schema(*args, **named)
        definitions = cast("dict[str, Schema]", schema["$defs"])
        for definition in definitions.values():
            if "criterion_id" in definition["properties"]:
                definition["required"].append("required")
                definition["properties"]["required"].pop("default", None)
        for field in ("command", "cwd", "idempotent"):
            definitions["Check"]["properties"].pop(field)
        definitions["Expectation"]["properties"].pop("file")
        definitions.pop("Workspace")
        schema["properties"].pop("workspace")
        kinds = schema["properties"]["proposer"]
        for name, reference in [*kinds["discriminator"]["mapping"].items()]:
            kind = settings_type(name)
            if kind is not None and kind.CLIENTS is not None:
                del kinds["discriminator"]["mapping"][name]
                definitions.pop(reference.rpartition("/")[2])
                kinds["oneOf"] = [one for one in kinds["oneOf"] if one.get("$ref") != reference]
        for cap in CAPS:
            declared = definitions["Budget"]["properties"][cap]
            declared["anyOf"] = [{"type": declared.pop("type"), "exclusiveMinimum": 0}, {"const": NO_CAP}]
        properties = schema["properties"]
        properties["pace"]["anyOf"].insert(1, definitions["Pace"]["properties"]["seconds"])
        properties["proposer"]["oneOf"].append({"const": "client"})
        properties["stagnation_threshold"] = {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_STAGNATION},
                {"const": "off"},
                {"type": "null"},
            ]
        }
        return schema

    def mission(self, model: str | None = None, *, sampling: bool = False) -> Mission:
        """The mission alone. Without a proposer the client's model proposes if it has one (`sampling`).

        Else it is the configured `model`, else the client itself.
        """
        kept: dict[str, Any] = {
            name: getattr(self, name) for name in self.model_fields_set if name in Mission.model_fields
        }
        faults = list(self._sampling_faults(kept.get("proposer"), able=sampling))
        if faults:
            raise ValidationFailed(faults)
        if "proposer" not in kept and (sampling if self.use_sampling is None else self.use_sampling):
            kept["proposer"] = LENDS_A_MODEL
        elif model is not None:
            kept.setdefault("proposer", model)
        mission = Mission(**kept)
        if self.sampling_model_preferences is None:
            return mission
        return mission.model_copy(
            update={"proposer": mission.proposer.with_preferences(self.sampling_model_preferences)}
        )

    def _sampling_faults(self, proposer: ProposerSettings | None, *, able: bool) -> Iterable[Fault]:
        if self.use_sampling and not able:
            why = "this client declares no sampling, so its model cannot be asked; leave it out"
            yield Fault(field="use_sampling", reason=why)
        if proposer is None or self.use_sampling is None:
            return
        if self.use_sampling != proposer.LENDS_MODEL:
            why = f"does not go with the proposer {proposer.kind}; leave one of the two out"
            yield Fault(field="use_sampling", reason=why)


def _client_rules(criterion: Mapping[str, Any], place: tuple[str, int]) -> Iterable[Broken]:
    """What a client must say of a criterion, and what only the operator may say, also beside a named check."""
    if "required" not in criterion:
        yield Broken("must be said: true, or false for one that never blocks", (*place, "required"))
    for field in ("command", "cwd"):
        if field in criterion:
            why = "a client cannot run a command; use tool_name, or a named check of the configuration"
            yield Broken(why, (*place, field))
    if criterion.get("idempotent"):
        why = "a client cannot say that a call may be repeated; that is for the operator's configuration"
        yield Broken(why, (*place, "idempotent"))
    expect = criterion.get("expect")
    if isinstance(expect, Mapping) and cast("Mapping[str, Any]", expect).get("file") is not None:
        why = "a client cannot look for files of this machine; let a tool or the command of a named check look"
        yield Broken(why, (*place, "expect", "file"))


class IterateArguments(SessionArguments):
    """How far to go, and what a client proposes."""

    max_iterations_this_call: Annotated[Whole, Field(ge=1, le=MOST_ITERATIONS)] = 1
    proposal: Proposal | None = None
    background: Flag = False
    after: Annotated[Whole, Field(ge=0)] | None = None


class ToolsArguments(InputModel):
    """Which tools, and of which mission."""

    session_id: SessionId | None = None
    names: Annotated[list[Name], Field(min_length=1, max_length=MOST_NAMED)] | None = None


class CompleteArguments(SessionArguments):
    """Why the mission is called done."""

    reason: Reason = "forced_complete"


class AbortArguments(SessionArguments):
    """Whether to stop for good, and why."""

    pause: Flag = False
    reason: Reason | None = None


class HistoryArguments(SessionArguments):
    """Which iterations, and how much of each."""

    format: Literal["summary", "full"] = "summary"
    cursor: Cursor | None = None


class ListArguments(InputModel):
    """Which missions."""

    status: ShownStatus | None = None
    cursor: Cursor | None = None


# What is left out is as MCP's defaults say: not idempotent, and about an open world.
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DRIVES = ToolAnnotations(read_only_hint=False, destructive_hint=True)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

CURSOR = {"cursor": "next_cursor of the page before."}
ITERATION = record({"iteration_index": COUNT, "verdict": TEXT, "verdict_reason": TEXT})
STANDING = record({"session_id": TEXT, "status": TEXT})
STATE = record(
    {"session_id": TEXT, "status": TEXT, "criteria": OBJECTS, "budget": OBJECT, "iteration_count": COUNT},
    {"metrics": OBJECT, "best": OBJECT, "best_point": OBJECT, "verdict": TEXT, "verdict_reason": TEXT},
)


class MissionTools:
    """The handlers. Where the runtime knows one mission only, no tool starts another."""

    def __init__(self, runtime: Runtime, runs: RunLoop, approvals: Approvals, elicitation: Elicitation) -> None:
        self._runtime = runtime
        self._service = runtime.runner
        self._runs = runs
        self._approvals = approvals
        self._elicitation = elicitation

    def tools(self) -> list[ServerTool]:
        """The declarations, in the order of `tools/list`."""
        alone = self._runtime.only is not None
        known_from = "mission_list" if alone else "mission_start or mission_list"
        session = {"session_id": f"From {known_from}."}
        start = ServerTool(
            name="mission_start",
            title="Start a mission",
            description=(
                "Accept a goal with criteria that a machine can check, a budget and the tools it may use. Nothing runs "
                "yet: drive it with mission_iterate. In descriptions `?` is optional, `=` the default, and a field "
                "without a type is a string."
            ),
            arguments=StartArguments,
            result=record({"session_id": TEXT, "status": TEXT, "proposer": TEXT, "warnings": array(TEXT)}),
            annotations=ADDS,
            handler=self._start,
            descriptions={
                "directive": "The goal in words.",
                "criteria": "What must be true at the end. Name a `source` tool where several could report the value.",
                "budget": "Caps; left out is no cap. It needs max_iterations or max_wall_clock_seconds, or unbounded "
                "if the operator lets clients.",
                "tool_allowlist": "Names (server.tool) or globs of the tools it may call, from mission_tools.",
                "allow_all_tools": "Instead of tool_allowlist: every tool of every server.",
                "checkpoint_cadence": "When criteria are evaluated (default: every iteration).",
                "stagnation_threshold": "Checkpoints without progress until it gives up (default 3; off for the "
                "proposers repeat and search, and while only events and predicates are unmet).",
                "pace": "Least seconds between iterations, growing while nothing changes.",
                "observe": "Rules that lift a metric out of a tool's result.",
                "proposer": "Who suggests the calls. client is you, with mission_iterate; sampling your client's "
                "model; model one that the operator lets clients name. Default: sampling if your client declares it, "
                "else the configured model, else client.",
                "allow_scripted_strategies": "Whether proposals may be scripts.",
                "lessons": "Whether a model that proposes sees what similar missions learned.",
                "policy": "Tools that this mission may not use (deny) or asks about first (ask).",
                "use_sampling": "true requires that your client's model proposes, false rules it out.",
                "sampling_model_preferences": "MCP's modelPreferences.",
                "share": "Names of tokens that may see and drive it, too; * is all.",
                "fleet": "Lets it start child missions out of its own budget, by the tool fleet.spawn.",
            },
            in_words=("checkpoint_cadence", "pace", "observe", "proposer", "policy", "fleet", "expect"),
            app=True,
        )
        return [
            *([] if alone else [start]),
            ServerTool(
                name="mission_tools",
                title="The tools of missions",
                description="The servers' tools that a new mission may use, or that one mission may use. With names "
                "also what they take.",
                arguments=ToolsArguments,
                result=record({"tools": OBJECTS}),
                handler=self._tools,
                descriptions={"session_id": "Of this mission.", "names": "Names or globs."},
            ),
            ServerTool(
                name="mission_status",
                title="How a mission stands",
                description="Status, criteria with values and evidence, what is used of the budget, metrics, verdict.",
                arguments=SessionArguments,
                result=STATE,
                handler=self._status,
                descriptions=session,
                app=True,
            ),
            ServerTool(
                name="mission_iterate",
                title="Drive a mission",
                description=(
                    "Run iterations: propose, execute, observe, verify, evaluate, decide. Says what the calls "
                    "returned. Stops early when it ends, has to wait, or it is your turn to propose. With the proposer "
                    "client give the next calls as `proposal`. Its tool calls can change the world."
                ),
                arguments=IterateArguments,
                result=record({"session_id": TEXT, "status": TEXT, "iterations": OBJECTS}),
                annotations=DRIVES,
                handler=self._iterate,
                descriptions={
                    **session,
                    "max_iterations_this_call": "How far to go, also in the background.",
                    "proposal": "Either tool_calls or script; an empty tool_calls is nothing to do.",
                    "background": "Answer at once and drive on in the server; watch mission_status.",
                    "after": "How many iterations you know of: a lost answer is repeated, nothing is run twice.",
                },
                refusal={"iterations": []},
                plan=self._iterate_as_task,
                looks=True,
            ),
            ServerTool(
                name="mission_checkpoint",
                title="The latest verdict again",
                description="Decide the latest iteration again from what was recorded; changes nothing.",
                arguments=SessionArguments,
                result=ITERATION,
                handler=self._checkpoint,
                descriptions=session,
            ),
            ServerTool(
                name="mission_complete",
                title="Call a mission done",
                description="End a mission as completed, whether or not its criteria are met.",
                arguments=CompleteArguments,
                result=STANDING,
                annotations=ENDS,
                handler=self._complete,
                descriptions={**session, "reason": "Why; it is in the report."},
            ),
            ServerTool(
                name="mission_abort",
                title="Stop a mission",
                description="End a mission as terminated, or with pause=true stop it so that mission_resume "
                "lets it go on.",
                arguments=AbortArguments,
                result=STANDING,
                annotations=ENDS,
                handler=self._abort,
                descriptions={**session, "pause": "Stop, but stay resumable.", "reason": "Why; it is kept."},
            ),
            ServerTool(
                name="mission_resume",
                title="Let a mission go on",
                description="Let a paused or failed mission go on. It does not drive it: call mission_iterate.",
                arguments=SessionArguments,
                result=STANDING,
                annotations=ADDS,
                handler=self._resume,
                descriptions=session,
            ),
            ServerTool(
                name="mission_history",
                title="The iterations of a mission",
                description="What each iteration did and came to, 100 a page; full adds calls, observations "
                "and criteria.",
                arguments=HistoryArguments,
                result=record({"iterations": OBJECTS}, {"next_cursor": TEXT}),
                handler=self._history,
                descriptions={**session, "format": "How much of each iteration.", **CURSOR},
            ),
            ServerTool(
                name="mission_list",
                title="The mission" if alone else "The missions",
                description="The mission that is served here, and the children that it started."
                if alone
                else "Your missions, and those that are shared with you, newest first.",
                arguments=ListArguments,
                result=record({"sessions": OBJECTS}, {"next_cursor": TEXT}),
                handler=self._list,
                descriptions={"status": "Only those with this status.", **CURSOR},
            ),
        ]

    async def _start(self, ctx: Context, asked: StartArguments) -> Result:
        able = declares_sampling(ctx)
        mission = asked.mission(self._runtime.model, sampling=able)
        proposer = mission.proposer
        started = await self._service.start(mission, caller=caller_of(ctx), operators_own=False)
        sampling = proposer.LENDS_MODEL
        model = LENDS_A_MODEL if sampling else next(iter(proposer.models), None)
        warnings = [*started.warnings]
        if sampling and not able:
            warnings.append("this client declares no sampling; the mission waits until one drives it that does")
        if not proposer.USAGE_KNOWN and (mission.budget.max_tokens != NO_CAP or mission.budget.max_cost_usd != NO_CAP):
            warnings.append(
                "MCP does not say what a client's model uses up, so max_tokens and max_cost_usd are never reached by it"
            )
        body = {
            "session_id": started.session_id,
            "status": "pending",
            "use_sampling": sampling,
            "sampling_backend_resolved": model,
            "proposer": proposer.kind,
            "warnings": warnings,
        }
        lines = [
            f"{started.session_id} is pending; nothing runs yet.",
            *(f"warning: {warning}" for warning in warnings),
            f"Proposer: {proposer.kind}. Go on with mission_iterate.",
        ]
        return result(body, lines)

    async def _tools(self, ctx: Context, asked: ToolsArguments) -> Result:
        offered = await self._offered(asked.session_id or self._runtime.only, caller_of(ctx))
        tools = offered.catalogue.tools
        names = list(tools)
        if asked.names is not None:
            names, faults = offered.catalogue.resolve(asked.names)
            if faults:
                raise ValidationFailed([Fault(field=f"names{one.field[5:]}", reason=one.reason) for one in faults])
        rows: list[dict[str, Any]] = []
        lines: list[str] = []
        left = MOST_SCHEMAS
        for tool in (tools[name] for name in names[:MOST_TOOLS]):
            rows.append(row := _tool_row(offered.layers, tool))
            asks = ", asks the operator first" if row["policy"] == "ask" else ""
            lines.append(f"{tool.qualified}{row['arguments']} ({row['effect']}{asks}): {row['description']}")
            schema = json.dumps(tool.input_schema, ensure_ascii=False, default=str)
            if asked.names is not None and len(schema) <= left:
                left -= len(schema)
                row["input_schema"] = tool.input_schema
                lines.append(f"  takes {schema}")
        if len(names) > MOST_TOOLS:
            lines.append(f"… and {len(names) - MOST_TOOLS} more; ask with names, such as a glob of one server")
        failures = offered.catalogue.failures
        lines += [f"{server} cannot be asked: {why}" for server, why in failures.items()]
        body = {"tools": rows, "of": len(names), "failures": dict(failures)}
        return result(body, lines or ["none: the operator has to configure a server"])

    async def _offered(self, mission_id: str | None, caller: Caller) -> UpstreamTools:
        """The tools of a mission, or those that this caller's missions may name, without those that policy denies."""
        host = self._runtime.toolbox.host
        if mission_id is not None:
            state = await self._service.state(mission_id)
            await self._runtime.use_servers_of(mission_id)
            own = () if caller.credential is None else (caller.credential,)
            found = await host.tools_for(state.tools, state.mission.policy, (*state.callers, *own))
            named = state.tools
        else:
            catalogue = await host.pool.catalogue(strict=False)
            layers = host.layers(None, None, *host.caller_layers(caller.credential))
            found = UpstreamTools(pool=host.pool, catalogue=catalogue, layers=layers, asking=True)
            named = [tool.qualified for tool in catalogue if not is_control_tool(tool.name)]
        tools = {name: tool for name in named if (tool := found.get(name)) is not None}
        usable = {name: tool for name, tool in tools.items() if found.rule(tool, {}).decision != "deny"}
        return replace(found, catalogue=replace(found.catalogue, tools=usable))

    async def _status(self, _ctx: Context, asked: SessionArguments) -> Result:
        status = await self._service.status(asked.session_id)
        return result(status.as_json(), status_lines(status))

    async def _iterate(self, ctx: Context, asked: IterateArguments) -> Result:
        name, count = asked.session_id, asked.max_iterations_this_call
        state, _ = seen = await self._service.look(caller_of(ctx), name)
        if asked.background:
            answer = await self._service.iterate(
                name,
                iterations=count,
                proposal=asked.proposal,
                after=asked.after,
                caller=caller_of(ctx),
                begin=self._runs.begin,
                seen=seen,
            )
            return _iterated(answer)
        if state.file is not None:
            await self._runtime.use_servers_of(name)
        answers = await self._elicitation.take_answers(ctx, name)
        model = self._elicitation.model_of(ctx, name, state, answers)
        async with reported_to(ctx.session, count) as observer:
            call = IterateCall(
                service=self._service,
                elicitation=self._elicitation,
                ctx=ctx,
                mission_id=name,
                count=count,
                model=model,
                observer=observer,
            )
            run = call.begin(seen, asked.proposal, asked.after) if answers is None else call.resume(answers)
            answer = await run
        asks = answer["status"] == "waiting" and (await self._service.seen(name)).approvals.asked
        open_ones = await self._approvals.open(name) if asks else []
        waits_for = [ApprovalRow.of(one).as_json() for one in open_ones]
        return _iterated({**answer, "pending_approvals": waits_for} if waits_for else answer)

    async def _iterate_as_task(self, ctx: Context, asked: IterateArguments) -> TaskPlan:
        """A run as a task, with what another process needs to resume it; a background run is none."""
        if asked.background:
            return TaskPlan(title="mission_iterate", when="never")
        state, _ = await self._service.look(caller_of(ctx), asked.session_id)
        unable = capabilities_of(ctx).get("elicitation") is None
        run = MissionRun(
            session_id=asked.session_id,
            first=state.iteration_count if asked.after is None else asked.after,
            iterations=asked.max_iterations_this_call,
            proposal=asked.proposal,
            caller=caller_of(ctx),
            channel=None if unable else elicitation_channel(ctx, self._elicitation.channels),
        )
        return TaskPlan(title=f"mission_iterate {asked.session_id}", kind="mission", origin=run.origin())

    def resume_run(self, state: TaskState) -> Work:
        """The rest of a run that is a task, after its process died."""
        run = MissionRun.of(state)

        async def work(task: TaskContext) -> Ending:
            try:
                await self._runtime.use_servers_of(run.session_id)
                answer = await run.drive(self._service, self._elicitation, task)
            except PursuitError as error:
                said = {**as_tool_result(error.as_dict()), "isError": True}
                return Ending(status="failed", message=f"{error.code}: {error.message}", result=said)
            shown = {key: value for key, value in _iterated(answer).items() if key != "resultType"}
            return Ending(status="completed", result=shown)

        return work

    async def _checkpoint(self, _ctx: Context, asked: SessionArguments) -> Result:
        verdict = await self._service.checkpoint(asked.session_id)
        row = verdict.as_json()
        return result(row, [f"{asked.session_id}: {iteration_line(row)}"])

    async def _complete(self, ctx: Context, asked: CompleteArguments) -> Result:
        state = await self._service.complete(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        return _standing(asked, state)

    async def _abort(self, ctx: Context, asked: AbortArguments) -> Result:
        stop = self._service.pause if asked.pause else self._service.abort
        return _standing(asked, await stop(asked.session_id, reason=asked.reason, caller=caller_of(ctx)))

    async def _resume(self, ctx: Context, asked: SessionArguments) -> Result:
        return _standing(asked, await self._service.resume(asked.session_id, caller=caller_of(ctx)))

    async def _history(self, _ctx: Context, asked: HistoryArguments) -> Result:
        page = await self._service.history(asked.session_id, full=asked.format == "full", cursor=asked.cursor)
        rows = iteration_lines([one.as_json() for one in page.iterations], raw=True)
        return result(page.as_json(), page_lines(rows, page.next_cursor, none="no iteration has ended yet"))

    async def _list(self, ctx: Context, asked: ListArguments) -> Result:
        page = await self._service.list(status=asked.status, cursor=asked.cursor, caller=caller_of(ctx))
        rows = [
            f"{row.mission_id}  {row.status}  {row.iteration_count} iterations  {row.directive[:80]}"
            for row in page.missions
        ]
        return result(page.as_json(), page_lines(rows, page.next_cursor, none="no missions"))


def _iterated(answer: Mapping[str, Any]) -> Result:
    return result(answer, run_lines(answer))


def _standing(asked: SessionArguments, state: MissionState) -> Result:
    """The status that a request left a mission in."""
    body = {"session_id": asked.session_id, "status": state.status}
    return result(body, [f"{asked.session_id} is {state.status}."])


def _tool_row(layers: Layers, tool: Tool) -> dict[str, Any]:
    required: Sequence[str] = tool.input_schema.get("required") or ()
    arguments: Mapping[str, Any] = tool.input_schema.get("properties") or {}
    written = ", ".join(name if name in required else f"{name}?" for name in arguments)
    return {
        "tool_name": tool.qualified,
        "arguments": f"({cut_text(written, LONGEST_DESCRIPTION)})",
        "description": cut_text(" ".join((tool.description or "").split()), LONGEST_DESCRIPTION),
        "effect": effect(tool),
        "policy": decide(layers, tool, {}).decision,
    }

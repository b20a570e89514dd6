"""The `mission_*` tools: arguments, results, handlers and declarations.

A client may set less than a mission file: it must set `required` on each criterion, and may not define commands, look
for files or declare that a call may be repeated.
Invariant: a refused call has changed nothing. The text of a result contains everything that a model needs, because many
clients give their model only the text.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from mcp_types import ToolAnnotations
from pydantic import AfterValidator, Field, StringConstraints

from pursuit.core.base_model import Broken, Flag, InputModel, Name, Whole, plain_text
from pursuit.core.caps import NO_CAP
from pursuit.core.catalogue import is_control_tool
from pursuit.core.mission import (
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
from pursuit.engine.journal import MISSION_ID
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.policy.rules import Layers, decide
from pursuit.policy.traits import effect
from pursuit.proposers.model.settings import Preferences
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, as_object, caller_of, capabilities_of, elicitation_channel
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
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller
from pursuit.service.queries import ShownStatus
from pursuit.service.run_loop import RunLoop
from pursuit.tasks.execution import TaskContext, as_tool_result
from pursuit.tasks.host import Work
from pursuit.tasks.store import Ending
from pursuit.upstream.host import UpstreamTools

MAX_ITERATIONS = 1_000_000
MAX_NAMED = 100
MAX_TOOLS, MAX_SCHEMAS = 500, 64_000
"""Limits of mission_tools: rows, and characters of all schemas together."""
MAX_DESCRIPTION = 300


def _mission_id(value: str) -> str:
    if MISSION_ID.fullmatch(value) is None:
        raise ValueError("is not a mission id: `mission-` and 16 hex digits, as in mission_start and mission_list")
    return value


SessionId = Annotated[str, AfterValidator(_mission_id), Field(json_schema_extra={"pattern": f"^{MISSION_ID.pattern}$"})]
Reason = Annotated[str, StringConstraints(max_length=8_192), AfterValidator(plain_text)]
Cursor = Annotated[str, StringConstraints(max_length=1_024)]


class SessionArguments(InputModel):
    session_id: SessionId = Field(description="From mission_start or mission_list.")


class StartArguments(Mission):
    use_sampling: Flag | None = None
    sampling_model_preferences: Preferences | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
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
        """The schema with the rules for a client."""
        schema = super().model_json_schema(*args, **named)
        definitions = cast("dict[str, Schema]", schema["$defs"])
        for definition in definitions.values():
            if "criterion_id" in definition["properties"]:
                definition["required"].append("required")
                definition["properties"]["required"].pop("default", None)
        for field in _OPERATORS_ONLY:
            definitions["Check"]["properties"].pop(field)
        definitions["Expectation"]["properties"].pop("file")
        schema["properties"].pop("workspace")
        kinds = schema["properties"]["proposer"]
        named = {name: settings_type(name) for name in kinds["discriminator"]["mapping"]}
        refused = {
            kinds["discriminator"]["mapping"][name]
            for name, kind in named.items()
            if kind is not None and kind.CLIENTS is not None
        }
        kinds["oneOf"] = [one for one in kinds["oneOf"] if one.get("$ref") not in refused]
        mapping = kinds["discriminator"]["mapping"]
        kinds["discriminator"]["mapping"] = {name: place for name, place in mapping.items() if place not in refused}
        while unused := [name for name in definitions if f"'#/$defs/{name}'" not in str(schema)]:
            for name in unused:
                del definitions[name]
        return schema

    def mission(self, model: str | None = None, *, sampling: bool = False) -> Mission:
        """The mission itself. Without a proposer, the client's model proposes if it has one (`sampling`).

        Otherwise the configured `model` proposes, else the client itself.
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
            why = "this client does not declare sampling, so its model cannot be asked; leave it out"
            yield Fault(field="use_sampling", reason=why)
        if proposer is None or self.use_sampling is None:
            return
        if self.use_sampling != proposer.LENDS_MODEL:
            why = f"contradicts the proposer {proposer.kind}; leave one of the two out"
            yield Fault(field="use_sampling", reason=why)


_RUNS = "a client cannot run a command; use tool_name, or a named check of the configuration"
_OPERATORS_ONLY = {
    "command": _RUNS,
    "cwd": _RUNS,
    "idempotent": "a client cannot declare that a call may be repeated; only the operator's configuration can",
    "isolated": _RUNS,
    "network": _RUNS,
    "metrics": "a client cannot look for metrics on this machine; let a tool report them",
}
"""The keys of a check that only the operator may set, and why."""


def _client_rules(criterion: Mapping[str, Any], place: tuple[str, int]) -> Iterable[Broken]:
    """Faults of a client's criterion: missing keys, and keys that only the operator may set."""
    if "required" not in criterion:
        yield Broken("must be given: true, or false for a criterion that never blocks", (*place, "required"))
    for field, why in _OPERATORS_ONLY.items():
        if criterion.get(field) not in ((None, True) if field == "isolated" else (None, False)):
            yield Broken(why, (*place, field))
    expect = criterion.get("expect")
    if isinstance(expect, Mapping) and cast("Mapping[str, Any]", expect).get("file") is not None:
        why = "a client cannot look for files of this machine; let a tool or the command of a named check look"
        yield Broken(why, (*place, "expect", "file"))


class IterateArguments(SessionArguments):
    max_iterations_this_call: Annotated[Whole, Field(ge=1, le=MAX_ITERATIONS)] = Field(
        1, description="Maximum iterations, even in the background."
    )
    proposal: Proposal | None = Field(None, description="Either tool_calls or script; empty tool_calls do nothing.")
    background: Flag = Field(False, description="Return immediately and run in the server; watch mission_status.")
    after: Annotated[Whole, Field(ge=0)] | None = Field(
        None, description="How many iterations you have seen: a lost answer is repeated and nothing runs twice."
    )


class ToolsArguments(InputModel):
    session_id: SessionId | None = Field(None, description="Only this mission's tools.")
    names: Annotated[list[Name], Field(min_length=1, max_length=MAX_NAMED)] | None = Field(
        None, description="Names or globs."
    )


class CompleteArguments(SessionArguments):
    reason: Reason = Field("forced_complete", description="Reason, shown in the report.")


class AbortArguments(SessionArguments):
    pause: Flag = Field(False, description="Stop, but stay resumable.")
    reason: Reason | None = Field(None, description="Reason, recorded.")


class PageArguments(InputModel):
    cursor: Cursor | None = Field(None, description="next_cursor of the previous page.")


class HistoryArguments(SessionArguments, PageArguments):
    format: Literal["summary", "full"] = Field("summary", description="Detail of each iteration.")


class ListArguments(PageArguments):
    status: ShownStatus | None = Field(None, description="Only those with this status.")


# Omitted hints have MCP's defaults: not idempotent, open world.
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DRIVES = ToolAnnotations(read_only_hint=False, destructive_hint=True)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

OF_A_MISSION = {
    "directive": "The goal in words.",
    "criteria": "What must be true at the end. Name a `source` tool where several could report the value.",
    "budget": "Caps; omitted means no cap. Requires max_iterations or max_wall_clock_seconds, or unbounded if the "
    "operator allows that.",
    "tool_allowlist": "Names (server.tool) or globs of the tools it may call, from mission_tools.",
    "allow_all_tools": "Instead of tool_allowlist: every tool of every server.",
    "checkpoint_cadence": "When criteria are evaluated (default: every iteration).",
    "stagnation_threshold": "Checkpoints without progress before it gives up (default 3; off for the proposers repeat "
    "and search, and while only events and predicates are unmet).",
    "pace": "Minimum seconds between iterations, growing while nothing changes.",
    "observe": "Rules that extract a metric from a tool's result.",
    "proposer": "Who suggests the calls. client: you, with mission_iterate; sampling: your client's model; model: one "
    "that the operator allows. Default: sampling if your client declares it, else the configured model, "
    "else client.",
    "allow_scripted_strategies": "Whether proposals may be scripts.",
    "lessons": "Whether a model that proposes sees what similar missions learned.",
    "policy": "Tools that this mission may not use (deny) or must ask about first (ask).",
    "use_sampling": "true requires that your client's model proposes, false rules it out.",
    "sampling_model_preferences": "MCP's modelPreferences.",
    "share": "Names of other tokens that may see and drive it; * means all.",
    "fleet": "Lets it start child missions out of its own budget, by the tool fleet.spawn.",
}
"""The descriptions of mission_start's arguments in `tools/list`."""

ITERATION = record({"iteration_index": COUNT, "verdict": TEXT, "verdict_reason": TEXT})
STANDING = record({"session_id": TEXT, "status": TEXT})
STATE = record(
    {"session_id": TEXT, "status": TEXT, "criteria": OBJECTS, "budget": OBJECT, "iteration_count": COUNT},
    {"metrics": OBJECT, "best": OBJECT, "best_point": OBJECT, "verdict": TEXT, "verdict_reason": TEXT},
)


Warn = Callable[[Context, str, str], Awaitable[None]]
"""Sends a warning from a named logger to a client that set a log level."""


class MissionTools:
    """The handlers. If the runtime serves a single mission, no tool starts another."""

    def __init__(
        self, runtime: Runtime, runs: RunLoop, approvals: Approvals, elicitation: Elicitation, warn: Warn
    ) -> None:
        self._runtime = runtime
        self._service = runtime.runner
        self._runs = runs
        self._approvals = approvals
        self._elicitation = elicitation
        self._warn = warn

    def tools(self) -> list[ServerTool]:
        of, alone = ServerTool.of, self._runtime.only is not None
        start = of(
            self.mission_start,
            "Start a mission",
            record({"session_id": TEXT, "status": TEXT, "proposer": TEXT, "warnings": array(TEXT)}),
            annotations=ADDS,
            descriptions=OF_A_MISSION,
            in_words=("checkpoint_cadence", "pace", "observe", "proposer", "policy", "fleet", "expect"),
            app=True,
        )
        return [
            *([] if alone else [start]),
            of(self.mission_tools, "The tools of missions", record({"tools": OBJECTS})),
            of(self.mission_status, "The state of a mission", STATE, app=True),
            of(
                self.mission_iterate,
                "Drive a mission",
                record({"session_id": TEXT, "status": TEXT, "iterations": OBJECTS}),
                annotations=DRIVES,
                refusal={"iterations": []},
                plan=self._iterate_as_task,
                looks=True,
            ),
            of(self.mission_checkpoint, "The latest verdict again", ITERATION),
            of(self.mission_complete, "Complete a mission", STANDING, annotations=ENDS),
            of(self.mission_abort, "Stop a mission", STANDING, annotations=ENDS),
            of(self.mission_resume, "Resume a mission", STANDING, annotations=ADDS),
            of(
                self.mission_history,
                "The iterations of a mission",
                record({"iterations": OBJECTS}, {"next_cursor": TEXT}),
            ),
            of(self.mission_list, "The missions", record({"sessions": OBJECTS}, {"next_cursor": TEXT})),
        ]

    async def mission_start(self, ctx: Context, asked: StartArguments) -> Result:
        """Accept a goal with criteria that a machine can check, a budget and the tools it may use.

        Nothing runs yet: drive it with mission_iterate. In descriptions `?` means optional, `=` gives the default, and
        a field without a type is a string.
        """
        able = declares_sampling(ctx)
        mission = asked.mission(self._runtime.model, sampling=able)
        proposer = mission.proposer
        started = await self._service.start(mission, caller=caller_of(ctx), operators_own=False)
        sampling = proposer.LENDS_MODEL
        model = LENDS_A_MODEL if sampling else next(iter(proposer.models), None)
        warnings = [*started.warnings]
        if sampling and not able:
            warnings.append("this client does not declare sampling; the mission waits for a client that does")
        if not proposer.USAGE_KNOWN and (mission.budget.max_tokens != NO_CAP or mission.budget.max_cost_usd != NO_CAP):
            warnings.append(
                "MCP does not report the usage of a client's model, so it never reaches max_tokens or max_cost_usd"
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
            f"Proposer: {proposer.kind}. Continue with mission_iterate.",
        ]
        return result(body, lines)

    async def mission_tools(self, ctx: Context, asked: ToolsArguments) -> Result:
        """The servers' tools that a new mission, or the given mission, may use. With names, also their arguments."""
        offered = await self._offered(asked.session_id or self._runtime.only, caller_of(ctx))
        tools = offered.catalogue.tools
        names = list(tools)
        if asked.names is not None:
            names, faults = offered.catalogue.resolve(asked.names)
            if faults:
                raise ValidationFailed([Fault(field=f"names{one.field[5:]}", reason=one.reason) for one in faults])
        rows: list[dict[str, Any]] = []
        lines: list[str] = []
        left = MAX_SCHEMAS
        for tool in (tools[name] for name in names[:MAX_TOOLS]):
            rows.append(row := _tool_row(offered.layers, tool))
            asks = ", asks the operator first" if row["policy"] == "ask" else ""
            lines.append(f"{tool.qualified}{row['arguments']} ({row['effect']}{asks}): {row['description']}")
            schema = json.dumps(tool.input_schema, ensure_ascii=False, default=str)
            if asked.names is not None and len(schema) <= left:
                left -= len(schema)
                row["input_schema"] = tool.input_schema
                lines.append(f"  takes {schema}")
        if len(names) > MAX_TOOLS:
            lines.append(
                f"… and {len(names) - MAX_TOOLS} more; narrow the list with names, such as a glob of one server"
            )
        failures = offered.catalogue.failures
        lines += [f"{server} cannot be asked: {why}" for server, why in failures.items()]
        body = {"tools": rows, "of": len(names), "failures": dict(failures)}
        return result(body, lines or ["none: the operator must configure a server"])

    async def _offered(self, mission_id: str | None, caller: Caller) -> UpstreamTools:
        """The tools of a mission, or those that this caller's missions may name, without denied tools."""
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

    async def mission_status(self, _ctx: Context, asked: SessionArguments) -> Result:
        """Status, criteria with values and evidence, used budget, metrics, verdict."""
        status = await self._service.status(asked.session_id)
        return result(status.as_json(), status_lines(status))

    async def mission_iterate(self, ctx: Context, asked: IterateArguments) -> Result:
        """Run iterations: propose, execute, observe, verify, evaluate, decide. Returns the results of the calls.

        Stops early when the mission ends, has to wait, or needs your proposal. With the proposer client, give the next
        calls as `proposal`. The tool calls can have side effects.
        """
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
        given = as_object((ctx.params or {}).get("inputResponses"))
        answers = await self._elicitation.take_answers(ctx, name, given) if given else None
        lends = state.mission.proposer.LENDS_MODEL
        model = self._elicitation.model_of(ctx, name, state, answers) if lends else None
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
        """Continues a run that is a task, after its process died."""
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

    async def mission_checkpoint(self, _ctx: Context, asked: SessionArguments) -> Result:
        """Compute the latest verdict again from the record; changes nothing."""
        verdict = await self._service.checkpoint(asked.session_id)
        row = verdict.as_json()
        return result(row, [f"{asked.session_id}: {iteration_line(row)}"])

    async def mission_complete(self, ctx: Context, asked: CompleteArguments) -> Result:
        """End a mission as completed, even if its criteria are not met."""
        state = await self._service.complete(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        return _standing(asked, state)

    async def mission_abort(self, ctx: Context, asked: AbortArguments) -> Result:
        """End a mission as terminated; with pause=true only pause it, so that mission_resume can continue it."""
        stop = self._service.pause if asked.pause else self._service.abort
        state = await stop(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        if not asked.pause:
            why = f": {asked.reason}" if asked.reason else ""
            await self._warn(ctx, asked.session_id, f"{asked.session_id} was aborted{why}")
        return _standing(asked, state)

    async def mission_resume(self, ctx: Context, asked: SessionArguments) -> Result:
        """Lift a pause or a failure. Does not run the mission: call mission_iterate."""
        return _standing(asked, await self._service.resume(asked.session_id, caller=caller_of(ctx)))

    async def mission_history(self, _ctx: Context, asked: HistoryArguments) -> Result:
        """The iterations with their verdicts, 100 per page; full adds calls, observations and criteria."""
        page = await self._service.history(asked.session_id, full=asked.format == "full", cursor=asked.cursor)
        rows = iteration_lines([one.as_json() for one in page.iterations], raw=True)
        return result(page.as_json(), page_lines(rows, page.next_cursor, none="no iteration has ended yet"))

    async def mission_list(self, ctx: Context, asked: ListArguments) -> Result:
        """Your missions, and those that are shared with you, newest first."""
        page = await self._service.list(status=asked.status, cursor=asked.cursor, caller=caller_of(ctx))
        rows = [
            f"{row.mission_id}  {row.status}  {row.iteration_count} iterations  {row.directive[:80]}"
            for row in page.missions
        ]
        return result(page.as_json(), page_lines(rows, page.next_cursor, none="no missions"))


def _iterated(answer: Mapping[str, Any]) -> Result:
    return result(answer, run_lines(answer))


def _standing(asked: SessionArguments, state: MissionState) -> Result:
    body = {"session_id": asked.session_id, "status": state.status}
    return result(body, [f"{asked.session_id} is {state.status}."])


def _tool_row(layers: Layers, tool: Tool) -> dict[str, Any]:
    required: Sequence[str] = tool.input_schema.get("required") or ()
    arguments: Mapping[str, Any] = tool.input_schema.get("properties") or {}
    written = ", ".join(name if name in required else f"{name}?" for name in arguments)
    return {
        "tool_name": tool.qualified,
        "arguments": f"({cut_text(written, MAX_DESCRIPTION)})",
        "description": cut_text(" ".join((tool.description or "").split()), MAX_DESCRIPTION),
        "effect": effect(tool),
        "policy": decide(layers, tool, {}).decision,
    }

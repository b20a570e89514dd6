"""The nine `mission_*` tools: arguments, results, handlers and declarations.

A client may say less than a mission file: it must say `required` of each criterion, runs no command of its own, looks
for no files and does not say that a call may be repeated.
Invariant: a refused call has changed nothing, and every result that is no error fits its output schema.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args

import anyio
from mcp.server.session import ServerSession
from mcp_types import ToolAnnotations
from pydantic import AfterValidator, Field, StringConstraints

from pursuit.core.base_model import Broken, Flag, InputModel, Whole, plain_text
from pursuit.core.events import Verdict, WaitingFor
from pursuit.core.mission import (
    CAPS,
    MAX_STAGNATION,
    AnyProposer,
    Mission,
    ModelProposer,
    Preferences,
    Proposal,
    SamplingProposer,
)
from pursuit.core.state import MissionState
from pursuit.engine.context import Observer, Phase
from pursuit.errors import Fault, ValidationFailed
from pursuit.runtime import Runtime
from pursuit.server.approval_form import how_to_approve
from pursuit.server.errors import Context, caller_of, may_approve
from pursuit.server.missions.elicitation import MOST_ROUNDS, ClientAnswers, Elicitation
from pursuit.server.missions.tool_dispatch import (
    COUNT,
    FLAG,
    MOST_ROWS,
    NUMBER,
    OBJECT,
    READS,
    TEXT,
    TIME,
    Result,
    Schema,
    ServerTool,
    array,
    page_lines,
    record,
    result,
)
from pursuit.server.sampling import ClientModel, declares_sampling
from pursuit.server.tasks.promotion import Plan, answers_to
from pursuit.server.tasks.protocol import capabilities_of
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller
from pursuit.service.background import BackgroundRuns, MissionRun, MissionTasks
from pursuit.service.queries import MISSION_ID, SHOWN_STATUSES, ShownStatus
from pursuit.service.service import Service
from pursuit.tasks.execution import TaskContext

MOST_ITERATIONS = 1_000_000
NO_CAP = -1


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
        for cap in CAPS:
            declared = definitions["Budget"]["properties"][cap]
            declared["anyOf"] = [{"type": declared.pop("type"), "exclusiveMinimum": 0}, {"const": NO_CAP}]
        properties = schema["properties"]
        properties["pace"]["anyOf"].insert(1, definitions["Pace"]["properties"]["seconds"])
        properties["proposer"]["oneOf"].append({"const": "client"})
        properties["stagnation_threshold"] = {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_STAGNATION}, {"enum": ["off", None]}]
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
            kept["proposer"] = SamplingProposer()
        elif model is not None:
            kept.setdefault("proposer", model)
        proposer = kept.get("proposer")
        if isinstance(proposer, SamplingProposer) and self.sampling_model_preferences is not None:
            kept["proposer"] = proposer.model_copy(update={"model_preferences": self.sampling_model_preferences})
        return Mission(**kept)

    def _sampling_faults(self, proposer: AnyProposer | None, *, able: bool) -> Iterable[Fault]:
        if self.use_sampling and not able:
            why = "this client declares no sampling, so its model cannot be asked; leave it out"
            yield Fault(field="use_sampling", reason=why)
        if proposer is None or self.use_sampling is None:
            return
        if self.use_sampling != isinstance(proposer, SamplingProposer):
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


ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
DRIVES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)

CURSOR = {"cursor": "next_cursor of the page before."}
ANYTHING: Schema = {}
ID: Schema = {"type": "string", "pattern": f"^{MISSION_ID.pattern}$"}
STATUS: Schema = {"type": "string", "enum": list(SHOWN_STATUSES)}
RESUME: Schema = {"type": "string", "description": "The command that resumes an interrupted mission."}
VERDICT: Schema = {"type": "string", "enum": list(get_args(Verdict))}
WAITING_FOR: Schema = {"type": "string", "enum": list(get_args(WaitingFor))}
ITERATION = {"iteration_index": COUNT, "verdict": VERDICT, "verdict_reason": TEXT}
STANDING = record({"session_id": ID, "status": STATUS})
BUDGET = record(
    {
        **dict.fromkeys(CAPS, NUMBER),
        "used": record(
            {
                "iterations": COUNT,
                "wall_clock_seconds": NUMBER,
                "tool_calls": COUNT,
                "tokens": COUNT,
                "cost_usd": {"type": ["number", "null"], "description": "null: not known"},
            }
        ),
    },
    {"on_exhausted": TEXT},
)
CRITERION = record(
    {"criterion_id": TEXT, "kind": TEXT, "required": FLAG, "status": TEXT},
    {"evidence": ANYTHING, "source": ANYTHING, "text": TEXT},
)
STATE = record(
    {
        "session_id": ID,
        "status": STATUS,
        "directive": TEXT,
        "criteria": array(CRITERION),
        "budget": BUDGET,
        "tool_allowlist": array(TEXT),
        "iteration_count": COUNT,
        "no_progress_counter": COUNT,
        "created_at": TIME,
        "pending_approvals": array(ANYTHING),
    },
    {
        "waiting_for": WAITING_FOR,
        "waiting_detail": TEXT,
        "waiting_until": TIME,
        "proposer": TEXT,
        "metrics": OBJECT,
        "best": OBJECT,
        "best_point": OBJECT,
        "resume": RESUME,
        "warnings": array(TEXT),
        "verdict": VERDICT,
        "verdict_reason": TEXT,
        "rationale": TEXT,
        "started_at": TIME,
        "ended_at": TIME,
        "failure": TEXT,
        "report": {"type": "string", "description": "The resource with the final report."},
        "parent": ID,
        "children": array(record({"session_id": ID, "status": TEXT, "reserved": ANYTHING, "used": ANYTHING})),
    },
)


class MissionTools:
    """The handlers. Where the runtime knows one mission only, no tool starts another."""

    def __init__(self, runtime: Runtime, runs: BackgroundRuns, approvals: Approvals, elicitation: Elicitation) -> None:
        self._runtime = runtime
        self._service = runtime.service
        self._runs = runs
        self._approvals = approvals
        self._elicitation = elicitation

    def tools(self) -> list[ServerTool]:
        """The declarations, in the order of `tools/list`."""
        alone = self._runtime.only is not None
        known_from = "mission_list" if alone else "mission_start or mission_list"
        session = {"session_id": f"The mission's id, from {known_from}."}
        start = ServerTool(
            name="mission_start",
            title="Start a mission",
            description=(
                "Accept a goal with criteria that a machine can check, a budget and the tools it may use. Nothing runs "
                "yet: drive it with mission_iterate. The answer says who proposes the calls; client is you. All faults "
                "of the input are reported at once. The prompt write_criteria shows how to write good criteria."
            ),
            arguments=StartArguments,
            result=record(
                {
                    "session_id": ID,
                    "status": STATUS,
                    "use_sampling": FLAG,
                    "sampling_backend_resolved": {"type": ["string", "null"]},
                    "proposer": TEXT,
                    "warnings": array(TEXT),
                }
            ),
            annotations=ADDS,
            handler=self._start,
            descriptions={
                "directive": "The goal in words.",
                "criteria": "What must be true at the end, each with an id, a kind and `required`. Name a `source` "
                "tool where several could report the value.",
                "budget": "Caps; max_iterations or max_wall_clock_seconds must be real unless unbounded. -1 is no cap.",
                "tool_allowlist": "Names (server.tool) or globs of the tools it may call; or set allow_all_tools.",
                "allow_all_tools": "Instead of tool_allowlist: every tool of every configured server.",
                "checkpoint_cadence": "When criteria are evaluated (default: every iteration).",
                "stagnation_threshold": "Checkpoints without progress until it gives up: 1 to 1000, or off (default 3; "
                "off for the proposers repeat and search).",
                "pace": "Least seconds between iterations, growing while nothing changes.",
                "observe": "Rules that lift a metric out of a tool's result by JMESPath or regular expression.",
                "proposer": "Who suggests the calls: client (you, with mission_iterate), sampling (your client's "
                "model), model (one that the operator lets clients name), script, search, repeat or replay. Default: "
                "sampling if your client declares it, else the configured model, else client.",
                "allow_scripted_strategies": "Whether proposals may be scripts.",
                "lessons": "Whether a language model that proposes sees what similar missions learned.",
                "policy": "Tools that this mission may not use (deny) or asks about first (ask); it can only tighten.",
                "use_sampling": "Whether your client's model proposes by sampling: true requires it, false rules it "
                "out.",
                "sampling_model_preferences": "MCP's model preferences: hints, costPriority, speedPriority, "
                "intelligencePriority.",
                "fleet": "Lets the mission start child missions out of its own budget, by the tool fleet.spawn.",
            },
        )
        return [
            *([] if alone else [start]),
            ServerTool(
                name="mission_status",
                title="How a mission stands",
                description="Status, criteria with their evidence, budget with what is used, metrics and the latest "
                "verdict.",
                arguments=SessionArguments,
                result=STATE,
                annotations=READS,
                handler=self._status,
                descriptions=session,
            ),
            ServerTool(
                name="mission_iterate",
                title="Drive a mission",
                description=(
                    "Advance a mission by iterations: propose, execute, observe, verify, evaluate, decide. Stops early "
                    "when it ends, has to wait, or it is your turn to propose. With the proposer client give the next "
                    "calls as `proposal`. With background=true the server drives on and answers at once; watch it with "
                    "mission_status or the resource mission://ID. Its tool calls can change the world."
                ),
                arguments=IterateArguments,
                result=record(
                    {"session_id": ID, "status": STATUS, "iterations": array(record(ITERATION))},
                    {"pending_approvals": array(ANYTHING), "warnings": array(TEXT)},
                ),
                annotations=DRIVES,
                handler=self._iterate,
                descriptions={
                    **session,
                    "max_iterations_this_call": "How far to go, also in the background.",
                    "proposal": "For the proposer client: exactly one of tool_calls and script. No calls is nothing "
                    "to do.",
                    "background": "Answer at once and drive on in the server, also after you have gone.",
                    "after": "How many iterations you know of: an answer that you missed is repeated, nothing is run "
                    "twice.",
                },
                refusal={"iterations": []},
                plan=self._iterate_as_task,
            ),
            ServerTool(
                name="mission_checkpoint",
                title="The latest verdict again",
                description="Decide the latest iteration again from what was recorded; changes nothing.",
                arguments=SessionArguments,
                result=record({"session_id": ID, **ITERATION}),
                annotations=READS,
                handler=self._checkpoint,
                descriptions=session,
            ),
            ServerTool(
                name="mission_complete",
                title="Call a mission done",
                description="End a mission as completed, whether or not its criteria are met, also in the middle of a "
                "call. The reason is kept.",
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
                result=record(
                    {
                        "session_id": ID,
                        "iterations": array(
                            record(
                                ITERATION,
                                {
                                    "started_at": TIME,
                                    "ended_at": TIME,
                                    "strategy": OBJECT,
                                    "calls": array(OBJECT),
                                    "observation": OBJECT,
                                    "criteria": array(OBJECT),
                                },
                            )
                        ),
                    },
                    {"next_cursor": TEXT},
                ),
                annotations=READS,
                handler=self._history,
                descriptions={**session, "format": "How much of each iteration.", **CURSOR},
            ),
            ServerTool(
                name="mission_list",
                title="The mission" if alone else "The missions",
                description="The mission that is served here, and the children that it started."
                if alone
                else "All missions in this ledger, newest first, of all callers.",
                arguments=ListArguments,
                result=record(
                    {
                        "sessions": array(
                            record(
                                {
                                    "session_id": ID,
                                    "status": STATUS,
                                    "created_at": TIME,
                                    "iteration_count": COUNT,
                                    "directive": TEXT,
                                },
                                {"waiting_for": WAITING_FOR, "parent": ID, "resume": RESUME},
                            )
                        )
                    },
                    {"next_cursor": TEXT},
                ),
                annotations=READS,
                handler=self._list,
                descriptions={"status": "Only those with this status.", **CURSOR},
            ),
        ]

    async def _start(self, ctx: Context, asked: StartArguments) -> Result:
        able = declares_sampling(ctx)
        mission = asked.mission(self._runtime.model, sampling=able)
        proposer = mission.proposer
        started = await self._service.start(mission, caller=caller_of(ctx), operators_own=False)
        sampling = proposer.kind == "sampling"
        model = proposer.model if isinstance(proposer, ModelProposer) else "sampling" if sampling else None
        warnings = [*started.warnings]
        if sampling and not able:
            warnings.append("this client declares no sampling; the mission waits until one drives it that does")
        if sampling and (mission.budget.max_tokens != NO_CAP or mission.budget.max_cost_usd != NO_CAP):
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

    async def _status(self, _ctx: Context, asked: SessionArguments) -> Result:
        status = await self._service.status(asked.session_id)
        criteria: list[Mapping[str, Any]] = status["criteria"]
        met = sum(row["status"] == "met" for row in criteria)
        head = f"{status['session_id']}: {status['status']}"
        if "resume" in status:
            head += f", no process drives it; continue with mission_iterate or `{status['resume']}`"
        if "waiting_for" in status:
            head += f", waiting for {status['waiting_for']}"
        if "verdict" in status:
            head += f" ({status['verdict']}: {status['verdict_reason']})"
        calls = status["budget"]["used"]["tool_calls"]
        lines = [
            head,
            f"goal: {status['directive'][:200]}",
            f"{status['iteration_count']} iterations, {calls} calls; {met} of {len(criteria)} criteria met",
        ]
        for row in criteria:
            need = "" if row["required"] else " (optional)"
            lines.append(f"- {row['criterion_id']}: {row['status']}{need}")
        lines += [f"warning: {warning}" for warning in status["warnings"]]
        return result(status, [*lines, *_approval_lines(status)])

    async def _iterate(self, ctx: Context, asked: IterateArguments) -> Result:
        name, count = asked.session_id, asked.max_iterations_this_call
        if asked.background:
            answer = await self._service.iterate_later(
                name,
                iterations=count,
                proposal=asked.proposal,
                after=asked.after,
                drive=lambda iterations, proposal: self._runs.begin(name, iterations, proposal, asked.after),
                caller=caller_of(ctx),
            )
            return _iterated(answer)
        await self._runtime.use_servers_of(name)
        answers = await self._elicitation.take_answers(ctx, name)
        model = await self._elicitation.model_of(ctx, name, answers)
        async with progress(ctx.session, count) as observer:
            call = IterateCall(
                service=self._service,
                elicitation=self._elicitation,
                ctx=ctx,
                mission_id=name,
                count=count,
                model=model,
                observer=observer,
            )
            answer = await (call.begin(asked.proposal, asked.after) if answers is None else call.resume(answers))
        waits_for = await self._approvals.open(name) if answer["status"] == "waiting" else []
        return _iterated({**answer, "pending_approvals": waits_for} if waits_for else answer)

    async def _iterate_as_task(self, ctx: Context, asked: IterateArguments) -> Plan:
        """A run as a task, with what another process needs to resume it; a background run is none."""
        if asked.background:
            return Plan(title="mission_iterate", when="never")
        state = await self._service.state(asked.session_id)
        run = MissionRun(
            session_id=asked.session_id,
            first=state.iteration_count if asked.after is None else asked.after,
            iterations=asked.max_iterations_this_call,
            proposal=asked.proposal,
            asks=may_approve(ctx) and capabilities_of(ctx).get("elicitation") is not None,
        )
        return Plan(title=f"mission_iterate {asked.session_id}", kind="mission", origin=run.origin())

    def resumed_runs(self) -> MissionTasks:
        """How runs that are tasks go on after their process died."""
        elicitation = self._elicitation

        async def ask(task: TaskContext, mission_id: str) -> bool:
            async def put(questions: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
                return await answers_to(task, questions, lambda: elicitation.until_answered(mission_id, questions))

            return await elicitation.ask_later(put, mission_id, Caller(who=task.state.requestor, transport="task"))

        def tool_result(answer: Mapping[str, Any]) -> Mapping[str, Any]:
            return {key: value for key, value in _iterated(answer).items() if key != "resultType"}

        return MissionTasks(self._service, self._runtime.use_servers_of, ask=ask, words=tool_result)

    async def _checkpoint(self, _ctx: Context, asked: SessionArguments) -> Result:
        verdict = await self._service.checkpoint(asked.session_id)
        return result(verdict, [f"{asked.session_id}: {_iteration_line(verdict)}"])

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
        rows = [_iteration_line(row) for row in page["iterations"]]
        return result(page, page_lines(rows, page, none="no iteration has ended yet"))

    async def _list(self, _ctx: Context, asked: ListArguments) -> Result:
        page = await self._service.list(status=asked.status, cursor=asked.cursor)
        rows = [
            f"{row['session_id']}  {row['status']}  {row['iteration_count']} iterations  {row['directive'][:80]}"
            for row in page["sessions"]
        ]
        return result(page, page_lines(rows, page, none="no missions"))


def _iterated(answer: Mapping[str, Any]) -> Result:
    """What iterations came to."""
    rows: list[Mapping[str, Any]] = answer["iterations"]
    lines = [f"{answer['session_id']} is {answer['status']} after {len(rows)} iteration{'s' * (len(rows) != 1)}."]
    lines += [_iteration_line(row) for row in rows[-MOST_ROWS:]]
    lines += [f"warning: {warning}" for warning in answer.get("warnings", ())]
    return result(answer, [*lines, *_approval_lines(answer)])


def _standing(asked: SessionArguments, state: MissionState) -> Result:
    """The status that a request left a mission in."""
    body = {"session_id": asked.session_id, "status": state.status}
    return result(body, [f"{asked.session_id} is {state.status}."])


def _iteration_line(row: Mapping[str, Any]) -> str:
    return f"iteration {row['iteration_index']}: {row['verdict']} ({row['verdict_reason']})"


def _approval_lines(answer: Mapping[str, Any]) -> list[str]:
    """What waits for a person's yes, and how the operator gives it."""
    rows: list[Mapping[str, Any]] = answer.get("pending_approvals", [])
    return [f"{row['tool']} needs the operator's yes: {how_to_approve(row['approval_id'])}" for row in rows[:MOST_ROWS]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterateCall:
    """One call of `mission_iterate`, which may take several requests; `model` is the client's own.

    Invariant: however often a request is repeated, no more iterations run than the call asked for; a request that
    comes too late gets the answer that it missed.
    """

    service: Service
    elicitation: Elicitation
    ctx: Context
    mission_id: str
    count: int
    model: ClientModel | None
    observer: Observer

    async def begin(self, proposal: Proposal | None, after: int | None) -> dict[str, Any]:
        """The call's first request."""
        answer = await self._drive(self.count, proposal, after)
        rows = answer["iterations"]
        first = rows[0]["iteration_index"] if rows else (await self._state()).iteration_count
        return await self._while_asked(range(first, first + self.count)) or answer

    async def resume(self, answers: ClientAnswers) -> dict[str, Any]:
        """The rest of a call that came back with answers; a repeated request gets the answer that it missed."""
        span = range(answers.first, answers.first + self.count)
        if answers.answered and self._unfinished(await self._state(), span):
            await self._continue(span)
        answer = await self.service.missed(self.mission_id, self.count, span.start)
        if not answers.answered:
            return answer
        return await self._while_asked(span) or answer

    def _unfinished(self, state: MissionState, span: range) -> bool:
        """Whether the run that stopped for a question can go on."""
        if state.iteration_count >= span.stop:
            return False
        asks_model = self.model is not None and state.waiting_for == "input"
        return state.open is not None or state.status == "running" or asks_model

    async def _while_asked(self, span: range) -> dict[str, Any] | None:
        """Goes on for as long as the person behind the client answers; None if the mission asks nothing."""
        answer: dict[str, Any] | None = None
        for _ in range(MOST_ROUNDS):
            waits_for = (await self._state()).waiting_for
            if waits_for == "input" and self.model is not None and self.model.question is not None:
                name, question = self.model.question
                self.elicitation.put(self.ctx, self.mission_id, {name: question}, span.start)
            if waits_for != "approval" or not self.elicitation.can_ask(self.ctx, self.mission_id):
                break
            if not await self.elicitation.ask(self.ctx, self.mission_id, span.start):
                break
            await self._continue(span)
            answer = await self.service.missed(self.mission_id, len(span), span.start)
        return answer

    async def _continue(self, span: range) -> None:
        """Drives the rest of the run that stopped for a question."""
        await self._drive(max(1, span.stop - (await self._state()).iteration_count))

    async def _drive(
        self, iterations: int, proposal: Proposal | None = None, after: int | None = None
    ) -> dict[str, Any]:
        return await self.service.iterate(
            self.mission_id,
            iterations=iterations,
            proposal=proposal,
            after=after,
            observer=self.observer,
            caller=caller_of(self.ctx),
            sampler=self.model,
        )

    async def _state(self) -> MissionState:
        return await self.service.state(self.mission_id)


_SHARE: dict[Phase, float] = {"propose": 0.1, "execute": 0.2, "verify": 0.7, "evaluate": 0.8}
"""How much of an iteration is done when a phase begins."""
BACKLOG = 64


@asynccontextmanager
async def progress(session: ServerSession, total: int) -> AsyncGenerator[Observer]:
    """An observer that reports progress to the caller while the block runs.

    The numbers only rise, as MCP wants; whole ones are iterations of this call. A slow client never holds up the run.
    """
    send, receive = anyio.create_memory_object_stream[tuple[float, str]](BACKLOG)
    first: int | None = None
    last = -1.0

    async def report() -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the caller has gone
            async for value, message in receive:
                await session.report_progress(value, total, message)

    def observe(_mission_id: str, phase: Phase, state: MissionState) -> None:
        nonlocal first, last
        first = state.iteration_count if first is None else first
        value = state.iteration_count - first + _SHARE.get(phase, 0.0)
        if value <= last:
            return
        last = value
        met = sum(one.status == "met" for one in state.results.values())
        of = len(state.mission.criteria)
        if send.statistics().current_buffer_used < BACKLOG:
            send.send_nowait((value, f"iteration {state.iteration_count}: {phase}; {met} of {of} criteria met"))

    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report)
            try:
                yield observe
            finally:
                send.close()

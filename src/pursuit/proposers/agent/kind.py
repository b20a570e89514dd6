"""The kind `agent`: one iteration is one turn of a coding agent in its workspace.

A turn that is cut off (the agent died, a limit, the operator's stop) first ends all of the agent's processes; then the
tree is kept or rolled back. Its effect is unknown, and it is never sent again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, cast

import anyio
import msgspec

from pursuit.config.process_environment import CannotIsolate, Isolation, ProcessEnvironment
from pursuit.core.events import ISOLATION, CallSettled, WorkspaceChange
from pursuit.core.mission import Mission
from pursuit.core.state import CallRecord, MissionState
from pursuit.core.tools import CallFailed, CheckPlace, Tool, Traits
from pursuit.errors import InvalidArgument, UpstreamUnavailable, advice
from pursuit.processes.subreaper import TAG
from pursuit.processes.tree import AGENT_TAG, ProcessTable, Root
from pursuit.proposers.agent.acp import Agent, AgentGone, AgentRefused, Answer, Question, TurnUpdates
from pursuit.proposers.agent.isolation import AgentIsolation, SignIn, in_force, must_isolate, not_isolated, reach
from pursuit.proposers.agent.limits import MAX_FREE, MAX_SAID, WORDS, UsageLimit, limit_in
from pursuit.proposers.agent.network import AgentNetwork
from pursuit.proposers.agent.settings import SERVER, TURN, AgentProposer
from pursuit.proposers.agent.tool_server import ToolServer
from pursuit.proposers.agent.workspace import AgentWorkspace, TreeSnapshot, WorkspaceFailed
from pursuit.proposers.contract import (
    AnswerCall,
    Blocked,
    ChecksImpossible,
    DrivingPlace,
    Performed,
    Proposed,
    Proposer,
    ProposerContext,
    ProposerKind,
    Services,
    Turn,
    Waiting,
)
from pursuit.proposers.model.conversation import first_message, standing

CANCEL_SECONDS = 1.0
"""Seconds for an agent to save its session after its turn was cut off."""
START_SECONDS = 60.0
"""Seconds for an agent to start, and to begin or load a session."""
KILLED = 128
"""A larger exit code than this means that a signal ended the process."""
SHOWN = 4_000
MAX_PRINTED = 6_000
"""Characters of the output of one check in a prompt."""
MAX_ERROR = 500
MAX_FILES = 200
READS = frozenset({"read", "search", "think"})
WRITES = frozenset({"edit", "delete", "move"})
TurnOutcome = Literal["ok", "failed", "unknown"]
_DESCRIPTION = "One turn of the mission's coding agent in its workspace."
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string"}},
    "required": ["prompt"],
    "additionalProperties": False,
}


def find_command(settings: AgentProposer) -> None:
    """Raises `UpstreamUnavailable` if the command of an agent is not installed."""
    if shutil.which(settings.argv[0]) is None:
        raise UpstreamUnavailable(f"the command of the agent, {settings.argv[0]!r}, was not found")


class AgentWork(Proposer):
    """The agent of one mission in this process: proposes its turns, and runs them in one session."""

    keeps_result = True

    def __init__(
        self,
        settings: AgentProposer,
        mission_id: str,
        mission: Mission,
        place: DrivingPlace,
        now: Callable[[], float] = time.time,
    ) -> None:
        assert mission.workspace is not None  # noqa: S101 - a rule of missions
        inherit = settings.inherit_env if isinstance(settings.inherit_env, bool) else tuple(settings.inherit_env)
        self._around = replace(place.process_environment, inherit=inherit or place.process_environment.inherit)
        self._settings = settings
        self._now = now
        self._silent = 0
        """The turns in a row without any sign of life."""
        self._tag = f"{AGENT_TAG}{mission_id}"
        self.access = in_force(place.agents, mission)
        self.workspace = AgentWorkspace(mission.workspace, mission_id, place.workspaces / mission_id)
        self.lessons: Sequence[str] = ()
        self.server: ToolServer | None = None
        """Gives the sessions of the agent the tools of the mission."""
        self.network: AgentNetwork | None = None
        """Connects the sessions of the agent to the hosts that are allowed."""
        self._session_file = self.workspace.folder / "session.json"
        self._agent: Agent | None = None
        self._session = ""
        self._cost: float = 0.0
        self._sign_in: SignIn | None = None
        self._prepared = self._proposed = False
        self._last_end: Performed | None = None

    async def prepare(self) -> None:
        """Creates the workspace, once. Raises `WorkspaceFailed`."""
        if not self._prepared:
            # `kill -9` of a process leaves its git processes: they would change the tree, and hold locks.
            await self._end_leftovers()
            self.workspace.tag = self._tag
            await self.workspace.prepare()
            self._prepared = True

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """The call of the turn, unless the operator must fix a problem first.

        The problem is an agent that could not be asked in this run, or a cap on use that the agent does not report.
        """
        why = _not_asked(state) if self._proposed else None
        if (limit := _limit_of(_turn_of(state))) is not None:
            why = None
            if (answer := self._at_limit(state, limit)) is not None:
                return answer
        if (why := why or _cannot_be_kept(state, self._settings)) is not None:
            return Blocked(why)
        self._proposed = True
        prompt = _prompt_of(state, self.lessons)
        return Turn(calls=[AnswerCall(tool=TURN, args={"prompt": prompt}, wanted_id="")], ends=True)

    def _at_limit(self, state: MissionState, limit: UsageLimit) -> Waiting | Blocked | None:
        """The wait for the end of a usage limit; None if the agent is asked now."""
        words = f"{WORDS[limit.kind]} of {self._settings.label}"
        if limit.kind == "billing" or self._settings.on_limit == "stop":
            return Blocked(f"{words}: {_turn_error(state)}") if self._proposed else None
        limits = _limits_in_a_row(state)
        self._silent = sum(one.kind == "silent" for one in limits)
        open_ended = sum(one.pause(place) for place, one in enumerate(limits, 1) if one.resets_at is None)
        if limit.resets_at is None and open_ended > self._settings.limit_wait_seconds:
            seconds = f"{self._settings.limit_wait_seconds:g} s (limit_wait_seconds)"
            return Waiting("limit", f"{words} did not end within {seconds}") if self._proposed else None
        left = limit.until(len(limits), self._tag) - self._now()
        return Waiting("limit", words, until=left) if left > 0 else None

    def after_calls(self, state: MissionState) -> bool:
        """A turn that a stop cut off, or that a usage limit ended without a change, does not count as an iteration."""
        if state.open is None or not state.open.calls:
            return False
        turn = _turn_of(state)
        free = _limit_of(turn) is not None and (turn is None or turn.change is None or _unchanged(turn))
        return list(state.open.calls.values())[-1].cut or (free and len(_limits_in_a_row(state)) <= MAX_FREE)

    async def perform(self, call: CallRecord, services: Services) -> Performed:
        """Runs a turn. The effect of a turn that was cut off is unknown, whatever the reason."""
        self._last_end = None
        async with nullcontext() if self.server is None else self.server.turn():
            try:
                self._last_end = await self._turn(str(call.args["prompt"]), call.iteration, services)
            except CallFailed as error:
                self._last_end = Performed(outcome=error.outcome, error=str(error))
        return self._last_end

    async def _turn(self, prompt: str, iteration: int, services: Services) -> Performed:
        """After a cancellation, `_last_end` is its end. Raises `CallFailed` if the agent was not asked."""
        try:
            await self.prepare()
            before = await self.workspace.before(iteration)
        except WorkspaceFailed as error:
            raise CallFailed(str(error), sent=False) from None
        updates = TurnUpdates()
        try:
            outcome, error = await self._asked(prompt, updates, partial(self._answer, services))
        except CallFailed as failed:
            limit = limit_in(updates.signs, [str(failed)], self._now())
            said = {} if limit is None else {"limit": msgspec.to_builtins(limit)}
            return Performed(outcome=failed.outcome, error=str(failed), said=said)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                self._last_end = await self._cut_off(before, updates, "the turn was cut off")
            raise
        end = Performed(outcome="unknown", error=error or "the turn was cut off")
        with anyio.CancelScope(shield=True):  # the turn is over: its changes are kept in any case
            if outcome == "unknown":
                end = await self._cut_off(before, updates, end.error or "")
            else:
                end = await self._ended(outcome, error, before, updates)
        self._last_end = end
        return end

    def interrupted(self) -> Performed | None:
        return self._last_end

    async def recover(self, call: CallRecord) -> Performed | None:
        """Ends the processes of the turn, and keeps its changes or rolls them back."""
        why = "the process ended before the outcome was known; it was not sent again"
        try:
            await self.prepare()
            before = await self.workspace.find(f"before/{call.iteration}")
            if before is None:
                return Performed(outcome="unknown", error=why)
            return await self._cut_off(before, TurnUpdates(), why)
        except WorkspaceFailed as error:
            return Performed(outcome="unknown", error=f"{why}; {error}")

    @asynccontextmanager
    async def before_checks(self, *, running: Callable[[], bool]) -> AsyncGenerator[CheckPlace | None]:
        """Commands run in a temporary worktree with the protected files of the start; the agent is stopped."""
        workspace = self.workspace
        try:
            await self.prepare()
            async with self._stopped():
                await workspace.open_checks(again=not running())
                try:
                    yield CheckPlace(workspace.checked_folder, self.check_isolation)
                except BaseException:  # a check continues as a task: the agent must not continue before its end
                    with anyio.CancelScope(shield=True):
                        await self.aclose(at_once=True)
                    raise
        except WorkspaceFailed as error:
            raise ChecksImpossible(str(error)) from None
        finally:
            if not running():
                with anyio.CancelScope(shield=True):
                    await workspace.close_checks()

    async def completed(self, state: MissionState) -> Mapping[str, str]:
        """Publishes the result as a branch; if that fails, returns a warning."""
        try:
            await self.prepare()
            await self.workspace.write_branch(state.mission.directive, again=not state.terminal)
        except WorkspaceFailed as error:
            return {f"the branch of the result was not made: {error}": "no_branch"}
        return {}

    def notes(self) -> Mapping[str, str]:
        refused = () if self.network is None else self.network.refused
        added = {one: advice('`network = ["{}"]` in `[agents]`', one) for one in refused}
        told = [f"the agent requested {one}, which its network does not allow; add {row}" for one, row in added.items()]
        told += [f"the agent did not respond in {self._silent} turns in a row"] if self._silent > 1 else []
        return {**self.workspace.notes, self.isolated(): ISOLATION, **dict.fromkeys(told, "network")}

    async def aclose(self, *, at_once: bool = False) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.aclose(at_once=at_once)
        self._take_back()

    def _take_back(self) -> None:
        if self._sign_in is not None:
            with suppress(OSError, ValueError):  # the agent changes its files during this
                self._sign_in.take_back()

    # The agent's questions.

    async def _answer(self, services: Services, question: Question) -> bool | None:
        """True if the agent has permission; None if nobody answered in time, so that the turn must end."""
        return await services.ask(
            self._step(question),
            dict(question.arguments),
            unattended=self._settings.unattended,
            seconds=self._settings.permission_seconds,
        )

    def _step(self, question: Question) -> Tool:
        """A step of the agent, as a tool for policy. Steps inside the workspace need no permission."""
        paths = question.arguments.get("paths")
        reads, inside = question.kind in READS and not paths, self._is_inside(paths)
        traits = Traits()
        if reads or (inside and question.kind in READS | WRITES):
            only_reads = question.kind in READS
            why = "the agent declares that it only reads" if only_reads else "it only writes inside the workspace"
            traits = Traits(read_only=True, destructive=False, why={"read_only": why})
        description = question.title or question.kind
        return Tool(
            server=SERVER, name=question.kind, description=description, input_schema={}, definition={}, traits=traits
        )

    def _is_inside(self, paths: object) -> bool:
        if not isinstance(paths, list) or not paths:
            return False
        tree = self.workspace.tree.resolve()
        places = [(self.workspace.agent_folder / str(one)).resolve() for one in cast("list[object]", paths)]
        return all(place.is_relative_to(tree) and ".git" not in place.relative_to(tree).parts for place in places)

    # The process and its session.

    async def _asked(self, prompt: str, updates: TurnUpdates, answer: Answer) -> tuple[TurnOutcome, str | None]:
        """Sends the prompt and waits for the end of the turn. Raises `CallFailed` if the agent was not asked."""
        idle = anyio.CancelScope(deadline=math.inf)

        def sign() -> None:
            idle.deadline = anyio.current_time() + self._settings.turn_idle_seconds

        async def held(question: Question) -> bool | None:
            idle.deadline = math.inf  # the agent waits for us
            return await answer(question)

        ended: tuple[TurnOutcome, str | None] = ("ok", None)
        headless = self._settings.headless is not None
        agent = await (self._started() if headless else self._connected(updates))
        async with agent.draining():
            with idle:
                sign()
                try:
                    if headless:
                        ended = await self._headless(agent, prompt, updates, sign)
                    else:
                        await agent.prompt(self._session, prompt, updates, answer=held, sign=sign)
                except AgentGone as error:
                    ended = ("unknown", f"the agent has ended: {error}")
                except AgentRefused as error:
                    updates.signs.append(("error", error.error))
                    ended = ("failed", f"the agent ended its turn with an error: {error}")
            if idle.cancelled_caught:
                silence = f"{self._settings.turn_idle_seconds:g} s (turn_idle_seconds)"
                updates.silent = not updates.updates
                ended = ("unknown", f"the agent did not respond for {silence}")
        return ended

    async def _headless(
        self, agent: Agent, prompt: str, updates: TurnUpdates, sign: Callable[[], None]
    ) -> tuple[TurnOutcome, str | None]:
        """Runs a command with the prompt on its standard input; its end is the end of the turn."""
        try:
            await agent.send(prompt.encode())
            await agent.end_input()
            while True:
                updates.learn_line(await agent.line())
                sign()
        except AgentGone as error:
            code, why = agent.process.returncode, str(error)
        await self.aclose(at_once=True)
        self._cost = 0.0  # each process counts its own use
        if code is None or code > KILLED:
            return "unknown", f"the agent has ended: {why}"
        return ("ok", None) if code == 0 else ("failed", f"the agent failed: {why}")

    async def _started(self) -> Agent:
        words, folder, program = self._settings.argv, self.workspace.agent_folder, self._settings.argv[0]
        try:
            if why := must_isolate(self.access):
                raise CannotIsolate(why)
            environment, network = self._around.environment(os.environ), self.network
            isolation = self._isolation(environment)
            if isolation is not None:
                self._sign_in = SignIn(program, isolation.places.folder)
                self._sign_in.take_back()  # of an agent whose process here was killed
                self._sign_in.give()
            with nullcontext() if network is None else network.joined() as joined:
                words = words if isolation is None else isolation.words(words, folder, joined=joined)
                fds = [] if joined is None else [joined[0]]
                self._agent = await Agent.start(words, cwd=folder, env={**environment, TAG: self._tag}, fds=fds)
        except (OSError, ValueError) as error:
            raise CallFailed(f"the agent {program!r} cannot be started: {error}", sent=False) from None
        return self._agent

    def _isolation(self, environment: Mapping[str, str]) -> AgentIsolation | None:
        """The paths and hosts that the agent can write, read and reach; None without isolation."""
        if not_isolated(self.access):
            return None
        places = self.workspace.places()
        if self.server is not None:
            places = replace(places, read=[*places.read, self.server.folder])
        shared = reach(self.access, self._settings.argv[0]) is None
        return AgentIsolation(settings=self.access, places=places, environment=environment, network=shared)

    def check_isolation(self, given: ProcessEnvironment, network: bool) -> Isolation | None:
        """A check of the agent's files sees what the agent sees, and has no network unless it says so."""
        if not_isolated(self.access):
            return given.isolation
        said = asdict(given.isolation or Isolation(network=network))
        environment, places = {**given.inherited(os.environ), **given.env}, self.workspace.places(check=True)
        return AgentIsolation(settings=self.access, places=places, environment=environment, check=True, **said)

    def isolated(self) -> str:
        """Describes the isolation of the agent, or why it does not work; empty without isolation."""
        if (why := not_isolated(self.access)) or must_isolate(self.access):
            return why
        isolation = self._isolation(self._around.inherited(os.environ))
        return "" if isolation is None else isolation.told(self._settings.argv[0])

    async def _connected(self, updates: TurnUpdates) -> Agent:
        """The agent with its session; starts it if it does not run. Raises `CallFailed`."""
        if self._agent is not None and self._agent.process.returncode is not None:
            await self.aclose()  # it ended between two turns without a request, so it is started again
        if self._agent is not None:
            return self._agent
        agent, problem = await self._started(), "it was not asked"
        try:
            problem = await agent.problem(partial(self._begin_session, agent, updates), START_SECONDS)
        finally:
            if problem is not None:
                await self.aclose(at_once=True)
        if problem is not None:
            raise CallFailed(f"the agent {self._settings.argv[0]!r} cannot be used: {problem}", sent=False)
        return agent

    async def _begin_session(self, agent: Agent, updates: TurnUpdates) -> None:
        await agent.initialize()
        servers = [] if self.server is None else [self.server.described]
        asked, self._cost = {"cwd": str(self.workspace.agent_folder), "mcpServers": servers}, 0.0
        known, cost = self._remembered()
        if known and agent.loads:
            with suppress(AgentRefused):  # it may have forgotten the session
                await agent.request("session/load", {"sessionId": known, **asked})  # it repeats its history
                self._session, self._cost = known, cost
                return
        try:
            begun = await agent.request("session/new", asked)
        except AgentRefused as error:
            updates.signs.append(("error", error.error))
            raise
        self._session = str(begun.get("sessionId", ""))
        self._remember(self._session)

    def _remembered(self) -> tuple[str, float]:
        """The session of an earlier process, and its cost so far; empty if there is none."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._session_file.read_text(encoding="utf-8"))
            if known["argv"] == self._settings.argv:
                return str(known["session_id"]), float(known["cost"])
        return "", 0.0

    def _remember(self, session_id: str) -> None:
        body = json.dumps({"session_id": session_id, "argv": self._settings.argv, "cost": self._cost})
        self._session_file.write_text(body, encoding="utf-8")

    @asynccontextmanager
    async def _stopped(self) -> AsyncGenerator[None]:
        """Stops the agent's processes while the block runs, so that they do not change what is being checked."""
        if self._agent is None:
            yield
            return
        async with ProcessTable().stopped(Root(tag=self._tag, subreaper=self._agent.identity)):
            yield

    async def _end_leftovers(self) -> None:
        """Ends the processes with the tag of this mission's agent, since its subreaper may have been killed."""
        await ProcessTable().end(Root(tag=self._tag), CANCEL_SECONDS)

    # The end of a turn.

    async def _cut_off(self, before: TreeSnapshot, updates: TurnUpdates, why: str) -> Performed:
        """Ends the agent with all its processes, then examines its changes."""
        if self._agent is not None and self._settings.headless is None:
            with suppress(AgentGone):
                with anyio.move_on_after(CANCEL_SECONDS):
                    await self._agent.cancel(self._session)
                    await self._agent.settle(CANCEL_SECONDS)
        await self.aclose(at_once=True)
        await self._end_leftovers()
        return await self._ended("unknown", why, before, updates, rollback=self._settings.on_cut == "rollback")

    async def _ended(
        self,
        outcome: TurnOutcome,
        error: str | None,
        before: TreeSnapshot,
        updates: TurnUpdates,
        *,
        rollback: bool = False,
    ) -> Performed:
        """The end of a turn, with the diff that we compute."""
        self._take_back()
        try:
            after = await self.workspace.snapshot("after a turn")
            changes = await self.workspace.changes(before, after)
            if rollback:
                await self.workspace.rollback(before)
                self._remember("")
                after = before
        except WorkspaceFailed as failed:
            return Performed(outcome="unknown", error="; ".join(filter(None, (error, f"no snapshot: {failed}"))))
        digest = hashlib.sha256(changes.diff).hexdigest() if changes.diff else None
        change = WorkspaceChange(
            before=before.tree,
            after=after.tree,
            files=len(changes.files),
            protected=list(changes.protected)[:MAX_FILES] if not rollback else [],
            diff=digest,
        )
        said: dict[str, Any] = {
            "stop_reason": updates.stop_reason or None,
            "text": updates.text[-SHOWN:],
            "tool_calls": updates.shown_calls(),
            "files": list(changes.files)[:MAX_FILES],
            "diff_bytes": changes.size,
        }
        said |= {"protected": change.protected} if change.protected else {}
        said |= {"rolled_back": True} if rollback else {}
        if (limit := self._limit(error, updates, changed=bool(changes.files))) is not None:
            said |= {"limit": msgspec.to_builtins(limit)}
            await self.aclose(at_once=True)  # it is started again after the wait
        blobs = {} if digest is None else {digest: changes.diff}
        return Performed(outcome=outcome, error=error, said=said, used=self._used(updates), change=change, blobs=blobs)

    def _limit(self, error: str | None, updates: TurnUpdates, *, changed: bool) -> UsageLimit | None:
        """The usage limit that ended a turn. A turn without an error that changed files was work."""
        self._silent = self._silent + 1 if updates.silent and not changed else 0
        if self._silent:
            return UsageLimit(kind="silent", at=self._now())
        if error is None and (changed or len(updates.text) > MAX_SAID):
            return None
        return limit_in(updates.signs, [updates.text[-MAX_SAID:], error or ""], self._now())

    def _used(self, updates: TurnUpdates) -> dict[str, float]:
        used: dict[str, float] = {}
        if updates.tokens is not None:
            used["max_tokens"] = float(updates.tokens)
        if updates.session_cost is not None:
            used["max_cost_usd"] = round(max(0.0, updates.session_cost - self._cost), 9)
            self._cost = updates.session_cost
            if self._session:
                self._remember(self._session)
        return used


# The prompt repeats everything each time: a session that could not be loaded again knows nothing.


def _turn_of(state: MissionState) -> CallRecord | None:
    """The last turn; that of the open iteration was cut off."""
    iteration = state.open or state.last
    calls = () if iteration is None else reversed(iteration.calls.values())
    return next((call for call in calls if call.tool == TURN), None)


def _limit_of(turn: CallRecord | None) -> UsageLimit | None:
    """The usage limit that ended a turn."""
    said: Any = None if turn is None else (cast("dict[str, Any]", turn.result or {}).get("structuredContent") or {})
    try:
        return msgspec.convert(said["limit"], UsageLimit) if said and "limit" in said else None
    except msgspec.ValidationError:
        return None


def _limits_in_a_row(state: MissionState) -> list[UsageLimit]:
    """The limits of the last turns of this iteration, or of the last one, without a turn that worked in between."""
    iteration = state.open or state.last
    found: list[UsageLimit] = []
    for call in () if iteration is None else reversed(iteration.calls.values()):
        if call.tool == TURN:
            if (limit := _limit_of(call)) is None:
                break
            found.append(limit)
    return found


def _unchanged(turn: CallRecord) -> bool:
    return turn.change is not None and turn.change.before == turn.change.after


def _turn_error(state: MissionState) -> str:
    turn = _turn_of(state)
    return "" if turn is None else (turn.error or "")[:MAX_ERROR]


def _not_asked(state: MissionState) -> str | None:
    """Why the agent was not asked in the last turn: it cannot be started, or it needs a login."""
    turn = _turn_of(state)
    return turn.error if turn is not None and turn.outcome == "failed" and turn.change is None else None


def _cannot_be_kept(state: MissionState, settings: AgentProposer) -> str | None:
    """The cap on use that the agent does not report, with possible remedies."""
    unknown = {"max_cost_usd": state.unpriced, "max_tokens": state.uncounted}
    caps = [name for name, is_unknown in unknown.items() if is_unknown and state.cap(name) is not None]
    if not caps or settings.allow_unknown_cost:
        return None
    lift = " and ".join(advice("pursuit extend {} {} -1", "ID", f"--{name.replace('_', '-')}") for name in caps)
    return (
        f"the agent does not report what its turns use, so {' and '.join(caps)} cannot be enforced; lift the cap with "
        f"`{lift}`, or start again with allow_unknown_cost = true under [proposer]"
    )


def _prompt_of(state: MissionState, lessons: Sequence[str] = ()) -> str:
    """The first message and the status, as for a language model, and the rules for the agent's turns."""
    workspace = state.mission.workspace
    parts = [first_message(state, lessons=lessons)]
    if workspace is not None and workspace.protect:
        globs = ", ".join(workspace.protect)
        parts.append(f"Protected files: {globs}. Changes to them never count: the checks run with the originals.")
    words = [f"The operator says: {word}" for word in state.words]
    parts.append("\n".join([*_last_turn(state), *standing(state, printed=MAX_PRINTED), *words]))
    parts.append("Work in the current folder. End your turn when you are done: then the runtime checks the criteria.")
    return "\n\n".join(parts)


def _last_turn(state: MissionState) -> list[str]:
    turn = _turn_of(state)
    if turn is None:
        return []
    rows: list[str] = []
    said: dict[str, Any] = cast("dict[str, Any]", turn.result or {}).get("structuredContent") or {}
    if turn.outcome == "unknown":
        kept = "Its changes were rolled back." if said.get("rolled_back") else "Its changes were kept."
        rows.append(f"Your last turn was cut off ({(turn.error or '')[:MAX_ERROR]}). {kept}")
    elif turn.error is not None:
        rows.append(f"Your last turn failed: {turn.error[:MAX_ERROR]}")
    if turn.change is not None and turn.change.protected:
        rows.append(
            f"You changed protected files; these changes do not count: {', '.join(turn.change.protected[:20])}."
        )
    if _unchanged(turn):
        rows.append("Your last turn changed no file.")
    return rows


class AgentKind(ProposerKind[AgentProposer]):
    settings = AgentProposer

    def tools(self, settings: AgentProposer) -> Sequence[Tool]:
        """A turn as a call of an internal server: neither read-only nor idempotent, so it is never repeated."""
        name = TURN.partition(".")[2]
        turn = Tool(
            server=SERVER,
            name=name,
            description=_DESCRIPTION,
            input_schema=_SCHEMA,
            traits=Traits(timeout=settings.turn_seconds),
            definition={"name": name, "description": _DESCRIPTION, "inputSchema": _SCHEMA},
            metrics=(),
            allowed_because="the operator wrote the agent's command; what it asks is decided",
        )
        return [turn]

    async def ready(
        self, settings: AgentProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        find_command(settings)
        work = AgentWork(settings, mission_id, mission, place)
        if why := must_isolate(work.access):
            raise InvalidArgument(why, session_id=mission_id, field="proposer")
        try:
            await work.prepare()
        except WorkspaceFailed as error:
            raise InvalidArgument(str(error), session_id=mission_id, field="workspace.path") from None
        return work.notes()

    @asynccontextmanager
    async def open(self, settings: AgentProposer, context: ProposerContext) -> AsyncGenerator[Proposer]:
        work = AgentWork(settings, context.mission_id, context.mission, context.place, context.now)
        work.lessons = context.lessons
        if not work.workspace.settings.in_place:
            settled = [event for _, event in await context.past(0) if isinstance(event, CallSettled)]
            work.workspace.known_start = next((one.change.before for one in settled if one.change is not None), "")
        try:
            async with AsyncExitStack() as stack:
                services = context.services
                if services is not None and (tools := services.offered()):
                    serving = ToolServer.serving(tools, services, settings.permission_seconds)
                    work.server = await stack.enter_async_context(serving)
                hosts = reach(work.access, settings.argv[0])
                if hosts is not None and not not_isolated(work.access):
                    now = context.place.agents_now or (lambda: work.access)
                    serving = AgentNetwork.serving(hosts, lambda: reach(now(), settings.argv[0]) or hosts)
                    work.network = await stack.enter_async_context(serving)
                yield work
        finally:
            await work.aclose()

"""The composition root: the only module that knows every concrete class. It puts the parts together."""

from __future__ import annotations

import asyncio
import os
import platform
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import anyio
from anyio.from_thread import start_blocking_portal

from pursuit.config.commands import COMMANDS_SERVER
from pursuit.config.configuration import (
    AgentsTable,
    AuditConfig,
    Configuration,
    ScheduleTable,
    SettingsTable,
    find_configuration,
    load_configuration,
)
from pursuit.config.files import live_folder, locate_state, workspaces_folder
from pursuit.config.mission_file import MissionFile, load_mission_file, servers_in
from pursuit.config.servers import ServerConfig
from pursuit.config.trust import of_configuration, of_mission, of_servers, own_files, require_trusted
from pursuit.config.variables import expand_variables
from pursuit.core.approvals import Approval
from pursuit.core.events import AnyEvent, Permission
from pursuit.core.mission import FLEET, Mission, Proposal
from pursuit.core.report import Status
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.core.tools import Upstream
from pursuit.engine.context import Clock, Observer, Settings, SystemClock
from pursuit.engine.driver import Driver
from pursuit.engine.journal import States, require_id
from pursuit.errors import ExtraMissing, Fault, InvalidArgument, PursuitError, ValidationFailed
from pursuit.ledger.contract import LEASE_SECONDS, Ledger, TaskStore, Verification
from pursuit.ledger.opening import open_ledger, open_placement
from pursuit.ledger.placement import CHECK, CODE, Placement
from pursuit.policy.rules import Mode, OperatorPolicy, parse_mode
from pursuit.proposers.contract import DrivingPlace
from pursuit.proposers.language import ROOM, ModelAccess, Price, Retries
from pursuit.proposers.model.provider import Providers
from pursuit.reports.report import Report
from pursuit.sandbox.pool import SandboxLimits
from pursuit.sandbox.sandbox import Sandbox
from pursuit.service.approvals import Approvals
from pursuit.service.audit import OPERATOR, Audit, Caller
from pursuit.service.command_tools import CommandUpstream
from pursuit.service.limits import ClientLimits
from pursuit.service.queries import HistoryPage, MissionPage, VerdictAgain
from pursuit.service.runner import Begin, Runner
from pursuit.service.service import Started
from pursuit.service.tasks import Tasks, mission_of
from pursuit.service.toolbox import Toolbox
from pursuit.service.tracking import open_tracking
from pursuit.tasks.calls import HostedCalls
from pursuit.tasks.host import MACHINE_WAIT
from pursuit.tasks.limits import DAY, TaskLimits
from pursuit.tasks.store import LedgerWithTasks, TaskRecords
from pursuit.upstream.host import ToolHost
from pursuit.upstream.listing import KNOWN_TRAITS, ToolTraits
from pursuit.upstream.pins import Pins
from pursuit.upstream.pool import Pool, Reloaded

if TYPE_CHECKING:
    from pursuit.service.doctor import Finding
    from pursuit.service.fleet import Children
    from pursuit.service.notifications import Notifier
    from pursuit.service.run_loop import RunLoop
    from pursuit.service.schedules import Schedules

MEGABYTE = 1024 * 1024
OWN_TOOLS = "python"
"""The server of the functions that a program passes as `tools`."""
OWN_FILES = "problems"
"""The folder beside the ledger with the mission files of attempts."""

# The `[settings]` of a configuration for each part; a setting that is not given is the part's own default.


def model_access(configuration: Configuration) -> ModelAccess:
    """The language models, with the operator's prices and limits."""
    settings = configuration.settings
    prices = {name: Price(**dict(row)) for name, row in configuration.prices.items()}
    retries = Retries(**settings.given(stall="model_stall"))
    return ModelAccess(models=Providers(prices=prices, retries=retries), tools_bytes=settings.tools_bytes or ROOM)


def sandbox_limits(settings: SettingsTable) -> SandboxLimits:
    """The limits of predicates and scripts."""
    given = settings.given("predicate_seconds", "script_seconds", "script_calls", "script_workers")
    memory = settings.given(predicate_memory="predicate_memory_mb", script_memory="script_memory_mb")
    return SandboxLimits(**given, **{name: int(value * MEGABYTE) for name, value in memory.items()})


def engine_settings(settings: SettingsTable) -> Settings:
    """The engine's timeouts, and the number of remembered lessons."""
    names = ("call_timeout", "call_ceiling", "approval_timeout", "task_patience", "model_timeout", "memory_lessons")
    return Settings(**settings.given(*names))


def task_limits(settings: SettingsTable, of_clients: ClientLimits) -> TaskLimits:
    """The limits on the number and the lifetime of tasks."""
    given = settings.given(concurrent="tasks_at_once", concurrent_each="tasks_each", longest="task_ttl_max")
    given |= settings.given(kept="task_kept", kept_seconds="task_kept_days")
    if "kept_seconds" in given:
        given["kept_seconds"] *= DAY
    return TaskLimits(**given, of_requestor=of_clients.tasks_of)


class Update(NamedTuple):
    """An event of a mission, and the mission's state after it, which is valid until the next update."""

    event: AnyEvent
    state: MissionState


@dataclass(frozen=True, slots=True)
class MissionApprovals:
    """The questions of one mission to a person."""

    _approvals: Approvals
    mission_id: str

    async def list(self) -> list[Approval]:
        """The questions that wait for an answer."""
        return await self._approvals.open(self.mission_id)

    async def approve(
        self, approval_id: str, answer: Permission = "once", *, reason: str | None = None, unseen: bool = False
    ) -> None:
        """Allows a call `once`, with these `arguments`, or its tool for the `mission`.

        `unseen` is needed for a call whose arguments the question shows only in part.
        """
        await self._approvals.answer(approval_id, answer, reason=reason, stream=self.mission_id, unseen=unseen)

    async def deny(self, approval_id: str, *, reason: str | None = None) -> None:
        """Refuses a call."""
        await self._approvals.answer(approval_id, "denied", reason=reason, stream=self.mission_id)


@dataclass(frozen=True, slots=True)
class MissionHandle:
    """A mission of the ledger, by its id. Any process can hold a handle, even if another process drives the mission."""

    _runtime: Runtime
    mission_id: str

    async def run(self, *, observer: Observer | None = None) -> Report:
        """Drives the mission in this process until it ends or waits; resumes a paused or failed one first."""
        await self._runtime.use_servers_of(self.mission_id)
        await self._runtime.runner.run(self.mission_id, observer=observer)
        return await self.report()

    async def iterate(self, iterations: int = 1, *, proposal: Proposal | None = None) -> dict[str, Any]:
        """Drives this many iterations in this process; `proposal` is the next one if the proposer is `client`."""
        await self._runtime.use_servers_of(self.mission_id)
        return await self._runtime.runner.iterate(self.mission_id, iterations=iterations, proposal=proposal)

    async def place(self) -> bool:
        """Hands the mission to the workers of the placement; False if it is not due, or no worker can drive it."""
        return await self._runtime.runner.place(self.mission_id)

    async def result(self) -> Report:
        """Waits until the mission has ended, whichever process drives it; never drives."""
        with self._runtime.runner.ledger.wakeup(self.mission_id) as wakeup:
            while not (await self._runtime.runner.state(self.mission_id)).terminal:
                await wakeup.wait()
        return await self.report()

    async def events(self) -> AsyncGenerator[Update]:
        """Every event of the mission, past and future, until it has ended."""
        async for event, state in self._runtime.runner.watch(self.mission_id):
            yield Update(event, state)
            if state.terminal and state.seq >= (await self._runtime.runner.state(self.mission_id)).seq:
                return

    async def status(self) -> Status:
        """Everything about the mission except its history."""
        return await self._runtime.runner.status(self.mission_id)

    async def history(self, *, full: bool = False, cursor: str | None = None) -> HistoryPage:
        """The iterations, a hundred a page."""
        return await self._runtime.runner.history(self.mission_id, full=full, cursor=cursor)

    async def report(self) -> Report:
        """The final report, or the current one."""
        return await self._runtime.report(self.mission_id)

    async def checkpoint(self) -> VerdictAgain:
        """The verdict of the last iteration, computed again from the record."""
        return await self._runtime.runner.checkpoint(self.mission_id)

    async def pause(self, *, reason: str | None = None) -> None:
        """Stops the mission at its current step, even during a call; it stays resumable."""
        await self._runtime.runner.pause(self.mission_id, reason=reason)

    async def resume(self) -> None:
        """Lifts a pause or a failure; it does not drive the mission."""
        await self._runtime.runner.resume(self.mission_id)

    async def abort(self, *, reason: str | None = None) -> None:
        """Ends the mission as terminated, even during a call."""
        await self._runtime.runner.abort(self.mission_id, reason=reason)

    async def complete(self, *, reason: str | None = None) -> None:
        """Ends the mission as completed, by the operator's decision."""
        await self._runtime.runner.complete(self.mission_id, reason=reason)

    async def extend(self, **caps: float) -> None:
        """Raises caps of the budget: `extend(max_iterations=40)`. It does not drive the mission."""
        await self._runtime.runner.extend(self.mission_id, caps)

    def approvals(self) -> MissionApprovals:
        """The questions of the mission to a person."""
        return MissionApprovals(Approvals(self._runtime.runner), self.mission_id)

    async def export(self, path: Path) -> None:
        """Writes one file that can be verified elsewhere."""
        await self._runtime.runner.export(self.mission_id, path)

    async def forget(self) -> None:
        """Removes an ended mission from the ledger."""
        await self._runtime.runner.forget(self.mission_id)


class Runtime:
    """Everything needed to pursue missions, opened and closed together.

    `servers` are upstreams in this process: MCP server objects of the SDK, or plain Python functions (`{"beam":
    [evaluate, certify]}`); `tools` are functions of a server `python`, and the tools of a mission that names none.
    Configured servers come from `pursuit.toml` or `mcp.json`. `caller` is the caller of this runtime's operations, for
    the audit. `mode` (auto, ask or never) overrides the configuration's. With `only`, this mission and its children are
    the only missions; any other is unknown.

    `placement`, `task_store` and `traits` replace the built-in ports (`pursuit.ports`); the program closes its own.
    `clock` is the engine's.

    A configuration or mission file by its path must be trusted (`config/trust.py`); a loaded `Configuration` is the
    program's own.
    """

    def __init__(
        self,
        *,
        state: Path | str | None = None,
        config: Path | str | Configuration | None = None,
        servers: Mapping[str, Any] | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        caller: Caller = OPERATOR,
        mode: Mode | None = None,
        only: str | None = None,
        placement: Placement | None = None,
        task_store: TaskStore | None = None,
        traits: ToolTraits = KNOWN_TRAITS,
        clock: Clock | None = None,
    ) -> None:
        self.only = only
        self._task_store = task_store
        self._traits = traits
        self._clock = clock or SystemClock()
        self._placement = placement
        self._state = state
        self._config = config
        self._path: Path | None = None
        self._servers = {**({OWN_TOOLS: list(tools)} if tools else {}), **(servers or {})}
        self._caller = caller
        self._mode: Mode | None = None if mode is None else parse_mode(mode)
        self._stack = AsyncExitStack()
        self._configured: Mapping[str, ServerConfig] = {}
        self._from_files: dict[str, ServerConfig] = {}
        self._schedules: Mapping[str, ScheduleTable] = {}
        self._children: Children | None = None
        self._settings = SettingsTable.model_construct()
        self.runner: Runner
        """The operations by mission id, for user interfaces."""
        self.toolbox: Toolbox
        self.tasks: Tasks
        self.state_path: Path
        self.placement: Placement | None = None
        """The placement of missions on workers: the given one, or that of a ledger that several machines share."""
        self.model: str | None = None
        """The language model that proposes if a client names no proposer."""
        self.notifier: Notifier | None = None
        """Sends notifications to the operator, if they are configured."""
        self.serves_http = False
        """True if its clients come over HTTP; the stdio servers that it starts learn this."""
        self.runs: RunLoop | None = None
        """Drives missions in the background, in a process that serves missions."""

    async def _sign_roots(self, stack: AsyncExitStack, ledger: Ledger, clock: Clock, config: AuditConfig) -> None:
        if config.key is None or config.sign_every is None:
            return
        from pursuit.service.signed_roots import RootSigner  # noqa: PLC0415 - cryptography loads only when needed

        path = config.signatures or self.state_path.with_name("signatures.jsonl")
        await stack.enter_async_context(RootSigner(ledger, clock, config.sign_every, config.key, path))

    async def __aenter__(self) -> Self:
        configuration = self._configuration()
        self._path = configuration.path
        async with AsyncExitStack() as stack:
            state = self._state
            self.state_path = state if isinstance(state, Path) else locate_state(state, configuration.path)
            self.model = configuration.model
            self._schedules = configuration.schedule
            self._settings = configuration.settings
            self._placement_table = configuration.placement
            ledger = self._open_ledger(self.state_path)
            stack.push_async_callback(ledger.close)
            if self._task_store is not None:
                ledger = LedgerWithTasks(ledger, self._task_store)
            self.placement = self._placement or self._open_placement(self.state_path)
            if self.placement is not None and self._placement is None:
                stack.push_async_callback(self.placement.close)
            clock = self._clock
            if configuration.notify is not None:
                from pursuit.service.notifications import Notifier  # noqa: PLC0415 - few configurations have it

                self.notifier = await stack.enter_async_context(
                    Notifier(
                        ledger,
                        clock,
                        configuration.notify,
                        base=configuration.base,
                        around=configuration.process_environment,
                    )
                )
            pins = Pins(ledger, clock.now, self._traits)
            if self.only is not None:
                ledger = await _scoped(ledger, self.only)
            sandbox = await stack.enter_async_context(Sandbox(sandbox_limits(configuration.settings)))
            self._configured = self._not_in_process(configuration)
            audit = Audit(ledger, clock, reads=configuration.audit.reads)
            await self._sign_roots(stack, ledger, clock, configuration.audit)
            limits = ClientLimits(ledger, clock, configuration.limits)
            log_megabytes = configuration.settings.task_log_mb
            self.tasks = await stack.enter_async_context(
                Tasks(
                    TaskRecords(ledger, limits=task_limits(configuration.settings, limits), now=clock.now),
                    self.state_path.absolute().parent / "tasks",
                    audit=audit,
                    commands=configuration.commands,
                    servers=lambda: (*self._configured.values(), *self._from_files.values()),
                    caller=self._caller,
                    log_bytes=None if log_megabytes is None else int(log_megabytes * MEGABYTE),
                    machine=None if self.placement is None else platform.node(),
                    machine_wait=configuration.settings.machine_wait or MACHINE_WAIT,
                )
            )
            self._pool = await stack.enter_async_context(
                Pool(
                    self._configured,
                    self._in_process(configuration),
                    network=configuration.policy.network,
                    pins=pins,
                    traits=self._traits,
                )
            )
            self._pool.serves_http = self.serves_http
            self._later = HostedCalls(self.tasks.host, self._upstream, self.tasks.tail)
            self.tasks.resume["call"] = self._later.resume
            host = ToolHost(self._pool, self._policy(configuration), self._later)
            states = States(ledger)
            access = model_access(configuration)
            stack.push_async_callback(access.models.aclose)
            tracking = open_tracking(configuration.tracking.places)
            if tracking is not None:
                stack.push_async_callback(tracking.aclose)
            driver = Driver(
                ledger=ledger,
                states=states,
                source=host,
                sandbox=sandbox,
                clock=clock,
                place=DrivingPlace(
                    access=access,
                    workspaces=workspaces_folder(self.state_path),
                    process_environment=configuration.process_environment,
                    agents=configuration.agents,
                    agents_now=lambda: self._agents_now(configuration.agents),
                    callables=set(configuration.proposers.callables),
                    client_kinds=frozenset(configuration.proposers.clients),
                ),
                task_ended=self.tasks.ended_at,
                settings=engine_settings(configuration.settings),
                checks=configuration.named_checks,
                process_environment=configuration.process_environment,
                live=live_folder(self.state_path),
                recorded=None if self.notifier is None else self.notifier.recorded,
                tracking=None if tracking is None else tracking.see,
                ceiling=limits.ceiling,
            )
            self.runner = Runner(
                ledger=ledger,
                states=states,
                driver=driver,
                pool=self._pool,
                clock=clock,
                checks=configuration.named_checks,
                models=access.models,
                client_models=frozenset([*configuration.client_models, *([self.model] if self.model else [])]),
                may_force_complete=configuration.callers.may_force_complete,
                channels=configuration.approvals.channels,
                limits=limits,
                audit=audit,
                uid=self.state_path.stat().st_uid,
                scoped=self.only is not None,
                placement=self.placement,
                jobs_in_commit=self._placement is None and self._placement_table.kind == "postgres",
                caller=self._caller,
            )
            if self.placement is not None:
                self.tasks.store.on_ended = self._wake
            self.tasks.resume["child"] = lambda state: self._fleet().resume(state)
            stack.push_async_callback(self._close_children)
            self.toolbox = _toolbox(host, configuration, audit=audit, caller=self._caller)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, value, trace)

    @property
    def tools(self) -> Toolbox:
        """The predicates of tools by full name, such as `await runtime.tools.is_read_only("db.query")`."""
        return self.toolbox

    @property
    def service(self) -> Runner:
        """The operations by mission id. Deprecated: `start` and `mission` give a handle with the same operations."""
        why = "runtime.service is deprecated: runtime.start() and runtime.mission(id) give a handle; see CHANGELOG.md"
        warnings.warn(why, DeprecationWarning, stacklevel=2)
        return self.runner

    async def start(self, mission: Mission | Path | str) -> MissionHandle:
        """Accepts a mission, or a TOML file with one, without running it. The functions in `tools` are its default."""
        if isinstance(mission, Mission):
            given = mission
            if given.names_no_tools and OWN_TOOLS in self._servers:
                given = given.model_copy(update={"tool_allowlist": [f"{OWN_TOOLS}.*"]})
            started = await self.runner.start(given, mode=self._mode)
        else:
            started = await self.start_file(load_mission_file(Path(mission)))
        return self.mission(started.session_id)

    def mission(self, mission_id: str, *, proposer: Callable[..., Any] | None = None) -> MissionHandle:
        """The handle of a mission of this ledger. Code is never taken from the ledger: `proposer` supplies it."""
        if proposer is not None:
            self.runner.driver.place.handed[mission_id] = proposer
        return MissionHandle(self, mission_id)

    async def pursue(self, mission: Mission, *, observer: Observer | None = None) -> Report:
        """Runs a mission until it ends or waits, and reports."""
        return await (await self.start(mission)).run(observer=observer)

    async def resume(self, mission_id: str, *, observer: Observer | None = None) -> Report:
        """Continues a mission, even if its process died, and reports."""
        return await self.mission(mission_id).run(observer=observer)

    async def report(self, mission_id: str) -> Report:
        """The current report of a mission."""
        return await self.runner.report(mission_id)

    async def missions(self, *, status: str | None = None, cursor: str | None = None, limit: int = 100) -> MissionPage:
        """The missions of the ledger, newest first; `next_cursor` is the start of the next page."""
        return await self.runner.list(status=status, cursor=cursor, limit=limit)

    async def interrupted(self) -> list[str]:
        """The ids of the missions whose process died before it finished their run."""
        return await self.runner.interrupted()

    async def lessons(self, words: str, *, limit: int = 10) -> dict[str, Any]:
        """The lessons of ended missions that match these words, the best match first."""
        return await self.runner.lessons(words, limit=limit)

    async def verify(self, *, expect: str | Sequence[str] | None = None) -> Verification:
        """Checks the whole ledger, and compares it with earlier roots."""
        return await self.runner.verify(expect=expect)

    async def start_file(
        self,
        file: MissionFile,
        *,
        session_id: str | None = None,
        caller: Caller | None = None,
        for_workers: bool = False,
        trusted: bool = False,
    ) -> Started:
        """Starts the mission of a file with the file's servers, under this id or a new one.

        For `for_workers` see `Service.start`. With `trusted`, the caller has checked the things that the file starts.
        """
        if not trusted:
            require_trusted([of_mission(file)])
        self._use_file(file)
        needed = file.servers or file.mission.proposer.FROM_FILE
        path = file.path if needed else None
        # A mission with a chosen id was written for one attempt or one due time: its file starts no second one.
        origin = file.path if session_id is None else None
        return await self.runner.start(
            file.mission,
            file=path,
            origin=origin,
            session_id=session_id,
            caller=caller,
            mode=self._mode,
            for_workers=for_workers,
        )

    def schedules(self, begin: Begin, clock: Clock | None = None) -> Schedules | None:
        """The configured schedules, for a process that drives missions in the background; None if there are none."""
        if not self._schedules:
            return None
        from pursuit.service.schedules import Schedules  # noqa: PLC0415 - most configurations have none

        async def start(path: Path, session_id: str, caller: Caller) -> None:
            await self.start_file(load_mission_file(path), session_id=session_id, caller=caller)

        clock = clock or self.runner.clock
        return Schedules(service=self.runner, configs=self._schedules, start=start, begin=begin, clock=clock)

    async def use_servers_of(self, mission_id: str) -> None:
        """Adds the servers of the mission's own file, so that it can continue in this process."""
        state = await self.runner.state(mission_id)
        path = None if state.file is None else Path(state.file)
        if path is not None and state.mission.proposer.FROM_FILE and await anyio.Path(path).is_file():
            file = load_mission_file(path)
            require_trusted([of_mission(file)])
            self._use_file(file)
        elif path is not None:
            servers = servers_in(path)
            # Pursuit itself wrote the mission files of attempts at problems beside its ledger.
            if path.resolve().parent != self.state_path.resolve().parent / OWN_FILES:
                require_trusted([of_servers(path, servers)])
            self._add_servers(path, servers)

    async def reload(self, check: Callable[[Sequence[str]], None] | None = None) -> Reloaded:
        """Reloads the configuration: connects new or changed servers, and leaves the others unchanged.

        Raises `ValidationFailed`, and then changes nothing. `check` gets the names of the future servers, and may
        raise, too. The toolbox uses the new policy immediately; a running mission keeps its own.
        """
        configuration = Configuration.model_construct() if self._path is None else _trusted_configuration(self._path)
        configured = self._not_in_process(configuration)
        kept = {name: server for name, server in self._from_files.items() if name not in configured}
        if check is not None:
            check([*self._servers, *(name for name, one in {**configured, **kept}.items() if one.enabled)])
        reloaded = await self._pool.reload({**configured, **kept}, network=configuration.policy.network)
        self._configured, self._from_files = configured, kept
        self.toolbox = replace(self.toolbox, host=ToolHost(self._pool, self._policy(configuration), self._later))
        return reloaded

    def _agents_now(self, before: AgentsTable) -> AgentsTable:
        """`[agents]` as the operator has changed it, once it is trusted."""
        with suppress(PursuitError):
            return before if self._path is None else _trusted_configuration(self._path).agents
        return before

    async def _wake(self, task: TaskState) -> None:
        """Enqueues the mission that waits for a task, once the task has ended."""
        if (call := mission_of(task)) is not None:
            with suppress(PursuitError):  # a worker that looks for such missions finds it
                await self.runner.wake(call[0])

    def _use_file(self, file: MissionFile) -> None:
        """Registers the servers and the proposing Python code of a trusted mission file."""
        self._add_servers(file.path, file.servers)
        self.runner.driver.place.callables.update(_code_of(file))

    def _add_servers(self, path: Path, servers: Mapping[str, ServerConfig]) -> None:
        """Adds the servers of a mission file; a name that is already used by another server is a fault."""
        known = {**self._configured, **self._from_files}
        other = "the configuration or another mission file has a different server of that name; rename one"
        spawns = "is the server that starts children; rename this one"
        faults = [
            Fault(field=f"servers.{name}", reason=spawns if name == FLEET else other, source=str(path))
            for name, server in servers.items()
            if name == FLEET
            or name in self._servers
            or (name in known and known[name].model_copy(update={"operators": False}) != server)
        ]
        if faults:
            raise ValidationFailed(faults)
        for name, server in servers.items():
            if name not in known:
                self._pool.add(name, server)
                self._from_files[name] = server

    def _not_in_process(self, configuration: Configuration) -> dict[str, ServerConfig]:
        return {name: one for name, one in configuration.servers.items() if name not in self._servers}

    def _policy(self, configuration: Configuration) -> OperatorPolicy:
        """The configured policy in the mode of this runtime; it trusts the servers that the program passed in."""
        policy = configuration.policy
        protected = own_files(configuration, self.state_path)
        return replace(policy, mode=self._mode or policy.mode, own=frozenset(self._servers), protected=protected)

    def _upstream(self, name: str) -> Upstream:
        """The server of that name; the server that starts children is not in the pool."""
        return self._fleet() if name == FLEET and name not in self._pool.names else self._pool.upstream(name)

    def _fleet(self) -> Children:
        from pursuit.service.fleet import Children  # noqa: PLC0415 - most runtimes have no fleet

        self._children = self._children or Children(self.runner, self.use_servers_of)
        return self._children

    async def _close_children(self) -> None:
        if self._children is not None:
            await self._children.aclose()

    def _in_process(self, configuration: Configuration) -> dict[str, Any]:
        """The servers of this process: those that the program passed in, and the configured commands."""
        if not configuration.commands:
            return self._servers
        if COMMANDS_SERVER in self._servers:
            why = f"is the name of [{COMMANDS_SERVER}] inside missions; rename this server"
            raise ValidationFailed([Fault(field=f"servers.{COMMANDS_SERVER}", reason=why)])
        return {**self._servers, COMMANDS_SERVER: CommandUpstream(configuration.commands, self.tasks)}

    def _open_ledger(self, path: Path) -> Ledger:
        return open_ledger(path, lease=self._settings.lease_seconds, migrate=self._settings.migrate_ledger != 0)

    def _open_placement(self, path: Path) -> Placement | None:
        given = self._settings.given(heartbeat="worker_heartbeat", dequeue="worker_poll")
        found, table = open_placement(path, **given), self._placement_table
        if found is None or table.kind == "postgres":
            return found
        try:
            from pursuit.temporal.placement import TemporalPlacement, TemporalSettings  # noqa: PLC0415 - few have it
        except ImportError as error:
            why = f"missions placed by Temporal need a package: pip install 'pursuit[temporal]' ({error})"
            raise ExtraMissing(why, extra="temporal") from None
        key = None if table.key is None else expand_variables(table.key, os.environ)[0]
        lease = self._settings.given(lease="lease_seconds")
        settings = TemporalSettings(address=table.address, namespace=table.namespace, tls=table.tls, key=key, **lease)
        return TemporalPlacement(settings, found)

    def worker(self, **settings: Any) -> RunLoop:
        """A worker that drives missions with the servers of this runtime; `settings` are those of `LoopSettings`.

        Raises `InvalidArgument` for a ledger in a file.
        """
        from pursuit.service.run_loop import LoopSettings, RunLoop  # noqa: PLC0415 - few processes are workers

        if self.placement is None:
            raise InvalidArgument(
                f"a worker needs a ledger that machines share: --state postgresql://…, not {self.state_path}",
                field="state",
            )
        has = [f"{CHECK}{name}" for name in self.runner.checks]
        has += [f"{CODE}{name}" for name in self.runner.driver.place.callables]
        lease = self._settings.lease_seconds or LEASE_SECONDS
        return RunLoop(
            self.runner,
            self.use_servers_of,
            self.placement,
            LoopSettings(lease_seconds=lease, **settings),
            has=[*self._pool.names, *has],
            finish_calls=self.tasks.finish_calls,
        )

    def _configuration(self) -> Configuration:
        if isinstance(self._config, Configuration):
            return self._config
        path = Path(self._config) if self._config is not None else find_configuration(Path.cwd())
        if path is None:
            return Configuration.model_construct()
        return _trusted_configuration(path)


def _code_of(file: MissionFile) -> list[str]:
    """The Python code that trusted mission files name as proposers."""
    proposer = file.mission.proposer
    return [one.words[0] for one in proposer.starts()] if proposer.FROM_FILE else []


def _trusted_configuration(path: Path) -> Configuration:
    configuration = load_configuration(path)
    workspace = of_configuration(configuration)
    require_trusted([] if workspace is None else [workspace])
    return configuration


async def _scoped(ledger: Ledger, mission_id: str) -> Ledger:
    """The ledger restricted to one mission, which must exist."""
    from pursuit.service.scoped_ledger import ScopedLedger  # noqa: PLC0415 - most runtimes have all missions

    require_id(mission_id)
    scoped = ScopedLedger(ledger, mission_id)
    await scoped.require()
    return scoped


@asynccontextmanager
async def open_toolbox(
    configuration: Configuration,
    state: Path,
    *,
    mode: Mode | None = None,
    servers: Mapping[str, ServerConfig] | None = None,
) -> AsyncGenerator[Toolbox]:
    """The tools of the configured servers and of `servers`; the ledger at `state` is not opened."""
    everything = {**(servers or {}), **configuration.servers}  # the operator's server wins
    commands = {COMMANDS_SERVER: CommandUpstream(configuration.commands)} if configuration.commands else {}
    async with Pool(everything, commands, network=configuration.policy.network) as pool:
        protected = own_files(configuration, state)
        policy = replace(configuration.policy, mode=mode or configuration.policy.mode, protected=protected)
        yield _toolbox(ToolHost(pool, policy), configuration.model_copy(update={"servers": everything}))


async def first_proposal(
    configuration: Configuration, state: Path, file: MissionFile, *, mode: Mode | None = None
) -> dict[str, Any]:
    """The first proposal of a trusted mission file; the ledger at `state` is not opened."""
    access = model_access(configuration)
    place = DrivingPlace(access=access, callables={*configuration.proposers.callables, *_code_of(file)})
    try:
        async with open_toolbox(configuration, state, mode=mode, servers=file.servers) as toolbox:
            return await toolbox.plan(file.mission, place)
    finally:
        await access.models.aclose()


def run(
    mission: Mission,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    servers: Mapping[str, Any] | None = None,
    state: Path | str | None = None,
    config: Path | str | Configuration | None = None,
) -> Report:
    """Runs a mission until it ends or waits, and reports: the short form of `Runtime.pursue`.

    `tools` are Python functions, and the tools of a mission that names none. The ledger is that of the nearest project,
    or a new one in `.pursuit`. A configuration is read only if it is given. If an event loop runs in this thread, the
    mission runs in a second thread, and the call still blocks.
    """

    async def main() -> Report:
        own = Configuration.model_construct() if config is None else config
        async with Runtime(state=state, config=own, servers=servers, tools=tools) as runtime:
            return await runtime.pursue(mission)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(main)
    with start_blocking_portal() as portal:  # an interrupt cancels the mission
        return portal.call(main)


async def examine_installation(config: Path | None, state: Path) -> list[Finding]:
    """The findings of `pursuit doctor` about a configuration, its servers and a ledger."""
    from pursuit.service.doctor import examine  # noqa: PLC0415 - only `pursuit doctor` needs it

    return await examine(config, state, open_ledger)


def _toolbox(
    host: ToolHost, configuration: Configuration, *, audit: Audit | None = None, caller: Caller = OPERATOR
) -> Toolbox:
    return Toolbox(
        host=host,
        audit=audit,
        caller=caller,
        checks=configuration.named_checks,
        settings=engine_settings(configuration.settings),
        disabled=[name for name, server in configuration.servers.items() if not server.enabled],
    )

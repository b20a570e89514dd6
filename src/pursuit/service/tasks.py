"""The operations on tasks: run, show, tail, wait, cancel, prune.

Invariant: every start is in the audit first, and a refused operation has started nothing; a process that only reads
opens no host, and adopts only the orphans that it is asked about.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.abc

from pursuit.config.commands import CommandConfig, refuse_parent_paths
from pursuit.config.servers import PYTHON, ServerConfig, secrets_of
from pursuit.config.variables import as_secrets, expand_variables, inherited_secrets, secret_arguments, secret_entries
from pursuit.core.base_model import nearest
from pursuit.core.state import TERMINAL
from pursuit.core.tasks import TaskKind, TaskState, TaskStatus
from pursuit.core.tools import CheckPlace
from pursuit.errors import Fault, InvalidArgument, ValidationFailed
from pursuit.ledger.contract import FORGOTTEN, Ledger
from pursuit.service.audit import OPERATOR, Audit, Caller
from pursuit.tasks.calls import TaskJob
from pursuit.tasks.command import GRACE, HEARTBEAT, Command
from pursuit.tasks.execution import GRACE_KEY, ITS_TIMEOUT, TaskContext, is_alive, stopping_time
from pursuit.tasks.host import MACHINE_WAIT, Resume, Retention, TaskHost, Work
from pursuit.tasks.reader import ended_at
from pursuit.tasks.record import record_of, sound_text
from pursuit.tasks.store import Ending, TaskRecords

if TYPE_CHECKING:
    from pursuit.tasks.runner import Processes


TIMEOUT = "timeout"
"""The key of a task's timeout in its origin."""


def configured_command(
    config: CommandConfig, arguments: Mapping[str, Any], environ: Mapping[str, str], *, known: Iterable[str] = ()
) -> Command:
    """The command for these arguments; `known` are further secrets. Raises `ValidationFailed` or `PathTraversal`."""
    words = _program(config.words(arguments))
    cwd, env = _environment_of(config, environ)
    metrics = [
        rule if rule.file is None else replace(rule, file=str(Path(cwd, rule.file).absolute()))
        for rule in config.rules(arguments)
    ]
    around = config.process_environment
    whole = {**around.inherited(environ), **env}
    command = Command(
        argv=words,
        cwd=cwd,
        env=whole,
        isolation=around.isolation,
        withheld=sorted(environ.keys() - whole.keys()),
        title=config.title,
        total=config.units(arguments),
        unit_pattern=config.unit_pattern,
        failure_pattern=config.failure_pattern,
        item_pattern=config.item_pattern,
        metrics=metrics,
        disclaimer=config.disclaimer,
        grace=GRACE if config.grace is None else config.grace,
        heartbeat=HEARTBEAT if config.heartbeat is None else config.heartbeat,
        secrets=as_secrets([*secret_arguments(words), *(known := [*secret_entries(around.env, env), *known])]),
        referenced=as_secrets(known),
    )
    command.check()
    return command


def check_startable(config: CommandConfig, environ: Mapping[str, str]) -> None:
    cwd, env = _environment_of(config, environ)
    program = "".join(map(str, config.argv.groups[0][0]))  # it cannot contain parameters
    around = config.process_environment
    env = {**around.inherited(environ), **env}
    Command(argv=_program([program]), cwd=cwd, env=env, isolation=around.isolation).check()


def _program(words: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable if words[0] == PYTHON else words[0], *words[1:])


def _environment_of(config: CommandConfig, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The command's folder and environment variables. Raises `ValidationFailed` for variables that are not set."""
    missing: list[Fault] = []

    def full(text: str, at: str) -> str:
        value, unset = expand_variables(text, environ)
        reason = "${{{}}} is not set in the environment"
        missing.extend(Fault(field=f"commands.{config.name}.{at}", reason=reason.format(name)) for name in unset)
        return value

    env = {key: full(value, f"env.{key}") for key, value in config.process_environment.env.items()}
    cwd = Path(config.base or ".", full(config.cwd or ".", "cwd")).expanduser()
    if missing:
        raise ValidationFailed(missing, f"{config.name} cannot be started")
    return str(cwd), env


def plain_command(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    env: Mapping[str, str] | None = None,
    allow_parent_paths: bool = False,
    known: Iterable[str] = (),
    **more: Any,
) -> Command:
    """The command that an operator typed; `known` are further secrets.

    Raises `ValidationFailed` or `PathTraversal`.
    """
    given, known = dict(env or {}), list(known)
    # A value that the operator passes in another variable can be recognised as a secret only by the variable's name.
    secrets = as_secrets([*secret_entries(given, given), *secret_arguments(argv), *known])
    command = Command(argv=tuple(argv), env={**environ, **given}, secrets=secrets, referenced=as_secrets(known), **more)
    command.check()
    if not allow_parent_paths:
        refuse_parent_paths(Path(argv[0]).name, list(argv[1:]))
    return command


def known_secrets(
    servers: Iterable[ServerConfig], commands: Iterable[CommandConfig], environ: Mapping[str, str]
) -> list[str]:
    """The secrets of the configuration and of the environment, which no command may show."""
    found = inherited_secrets(environ)

    def full(said: Mapping[str, str]) -> dict[str, str]:
        # A variable that is not set has no value to hide.
        return {key: expand_variables(value, environ)[0] for key, value in said.items()}

    for server in servers:
        args = tuple(expand_variables(word, environ)[0] for word in server.args)
        ready = server.model_copy(update={"env": full(server.env), "headers": full(server.headers), "args": args})
        found += [*secrets_of(server, ready, environ), *secret_arguments([server.url or ""])]
    for command in commands:
        found += secret_entries(command.process_environment.env, full(command.process_environment.env))
    return found


def within(work: Work, seconds: float | None) -> Work:
    """The same work, stopped and failed when its task is older than `seconds`."""
    if seconds is None:
        return work

    async def limited(ctx: TaskContext) -> Ending:
        ending: Ending | None = None

        async def stop() -> None:
            await anyio.sleep(max(0.0, ctx.state.created_at + seconds - ctx.store.now()))
            why = f"stopped by its timeout of {seconds:g} s"
            await ctx.store.order_cancel(ctx.task_id, by=ITS_TIMEOUT, reason=why, settle=False)

        async with anyio.create_task_group() as both:
            both.start_soon(stop)
            ending = await work(ctx)
            both.cancel_scope.cancel()
        assert ending is not None  # noqa: S101 - the group ends when the work has returned
        return ending

    return limited


PARTS = 3
"""The parts of a call's id: the mission, the iteration, and the number of the call."""


def mission_of(state: TaskState) -> tuple[str, int] | None:
    """The mission and the iteration of the call that a task runs; None for other tasks."""
    call_id = state.origin.get("call_id")
    parts = call_id.split(":") if isinstance(call_id, str) else []
    if len(parts) < PARTS or not parts[0].startswith("mission-") or not parts[1].isdecimal():
        return None
    return parts[0], int(parts[1])


async def is_awaited(ledger: Ledger, state: TaskState) -> bool:
    """True if a mission may still ask for the outcome of this call: the call's iteration is open."""
    if (call := mission_of(state)) is None:
        return False
    row = await ledger.row(call[0])
    if row is None or row.status == FORGOTTEN or row.status in TERMINAL:
        return False
    return int(row.summary.get("iteration_count", 0)) <= call[1]


LOCAL = "local"
STARTED_EVERY = 0.02
LOOK_EVERY = 1.0
CATCH_UP = 5.0
"""Maximum seconds that a reader waits for the remaining output of an ended command."""
GLANCE = 0.3
"""Maximum seconds that a reader waits for the output of a running command."""


def requestor_of(caller: Caller) -> str:
    """The requestor of a caller's tasks: its subject; all callers without a token share one."""
    return LOCAL if caller.credential is None or caller.subject is None else caller.subject


class Tasks:
    """The tasks of one ledger, and the commands that can run as tasks. Use it as an async context manager.

    Only tasks of `requestor` are visible; None is the operator, who sees all. Secrets in the configurations of the
    `servers` are hidden in the output of every command.
    """

    def __init__(
        self,
        store: TaskRecords,
        folder: Path,
        *,
        audit: Audit,
        commands: Mapping[str, CommandConfig] | None = None,
        servers: Callable[[], Iterable[ServerConfig]] = tuple,
        caller: Caller = OPERATOR,
        log_bytes: int | None = None,
        machine: str | None = None,
        machine_wait: float = MACHINE_WAIT,
    ) -> None:
        self.store = store
        self._machine = machine
        self._machine_wait = machine_wait
        self.commands = dict(commands or {})
        self.resume: dict[TaskKind, Resume] = {"process": self._resume}
        """Resumes tasks of each kind after their process died; others may add kinds before the host is opened."""
        self._folder = folder
        self._audit = audit
        self._servers = servers
        self._caller = caller
        self._log_bytes = log_bytes
        self._retention = Retention(store)
        self._opening = anyio.Lock()
        self._host: TaskHost | None = None
        self._processes: Processes
        self._group: anyio.abc.TaskGroup

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._group.cancel_scope.cancel()
        # Exits without the caller's exception, which a group would wrap.
        await self._group.__aexit__(None, None, None)

    async def host(self) -> TaskHost:
        """The host of this process, opened on first use."""
        async with self._opening:
            host = self._host or await self._group.start(self._open)
            self._host = host
        return host

    async def maintain(self) -> None:
        """Adopts every orphan from now on and removes old tasks: for a long-running process."""
        (await self.host()).maintain()

    async def finish_calls(self) -> None:
        """Returns once every tool call in this process has ended; commands and children continue without it."""
        if self._host is not None:
            await self._host.finish_calls()

    async def _open(self, *, task_status: anyio.abc.TaskStatus[TaskHost]) -> None:
        from pursuit.tasks.runner import Processes  # noqa: PLC0415 - a process that only reads does not need it

        more: dict[str, Any] = {} if self._log_bytes is None else {"log_bytes": self._log_bytes}
        async with (
            Processes(self._folder, known_secrets=lambda: as_secrets(self._known_secrets()), **more) as self._processes,
            TaskHost(self.store, resume=self.resume, machine=self._machine, machine_wait=self._machine_wait) as host,
        ):
            host.retention.clear, host.retention.needed = self._clear, partial(is_awaited, self.store.ledger)
            task_status.started(host)
            await anyio.sleep_forever()

    async def _clear(self, task_id: str) -> bool:
        """Deletes a task's files; False if its command may still run, since the files are the only way to find it."""
        await self._processes.remove(task_id)
        return not (self._folder / task_id).exists()

    def _resume(self, state: TaskState) -> Work | None:
        work = self._processes.resume(state)
        return None if work is None else within(work, state.origin.get(TIMEOUT))

    async def run(
        self, argv: Sequence[str], *, caller: Caller | None = None, ttl: float | None = None, **parts: Any
    ) -> TaskState:
        """Runs an operator's command as a task; `parts` are those of `plain_command`.

        Raises `ValidationFailed`, `PathTraversal` or `TooManyTasks` before anything starts.
        """
        command = plain_command(argv, environ=os.environ, known=self._known_secrets(), **parts)
        return await self._begin(command, {"argv": command.shown}, caller=caller, ttl=ttl)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, caller: Caller | None = None, ttl: float | None = None
    ) -> TaskState:
        """Runs a configured command as a task. Raises `InvalidArgument` if it is unknown, and otherwise as `run`."""
        command = self._configured(name, arguments)
        return await self._begin(command, {"command": name}, caller=caller, ttl=ttl)

    async def _begin(
        self, command: Command, origin: Mapping[str, Any], *, caller: Caller | None, ttl: float | None
    ) -> TaskState:
        who = caller or self._caller
        host = await self.host()
        job = self._job(command, origin)
        async with self._audit.control(who, "task run", None, origin):
            return await host.begin(
                job.work,
                kind=job.kind,
                title=command.shown,
                requestor=requestor_of(who),
                by=str(who),
                ttl=ttl,
                total=job.total,
                origin=job.origin,
            )

    def job(
        self, name: str, arguments: Mapping[str, Any], *, caller: Caller | None = None, place: CheckPlace | None = None
    ) -> TaskJob:
        """A call of a configured command as a task, not started yet.

        The host must be open. A caller's own call is recorded in the audit; a mission's call is in the mission.
        """
        origin = {"command": name}
        job = self._job(self._configured(name, arguments, place), origin)

        async def audited(ctx: TaskContext) -> Ending:
            if caller is not None:
                async with self._audit.control(caller, "task run", None, origin):
                    pass
            if ctx.state.total is None and job.total is not None:
                await ctx.update_status(total=job.total)
            return await job.work(ctx)

        return replace(job, work=audited)

    def _job(self, command: Command, origin: Mapping[str, Any]) -> TaskJob:
        config = self.commands.get(origin.get("command", ""))
        limit = None if config is None else config.timeout
        kept = dict(origin) if limit is None else {**origin, TIMEOUT: limit}
        if command.grace != GRACE:
            kept[GRACE_KEY] = command.grace
        return TaskJob(
            work=within(self._processes.work(command), limit), kind="process", total=command.total, origin=kept
        )

    def _configured(self, name: str, arguments: Mapping[str, Any], place: CheckPlace | None = None) -> Command:
        config = self.config(name)
        if place is not None:
            config = config.model_copy(update={"cwd": place.folder(_environment_of(config, os.environ)[0])})
        command = configured_command(config, arguments, os.environ, known=self._known_secrets())
        return (
            command if place is None else replace(command, isolation=place.isolation(config.process_environment, False))
        )

    def _known_secrets(self) -> list[str]:
        return known_secrets(self._servers(), self.commands.values(), os.environ)

    def config(self, name: str) -> CommandConfig:
        """A configured command by its name. Raises `InvalidArgument`."""
        found = self.commands.get(name)
        if found is None:
            known = nearest(name, self.commands) or f"; known: {', '.join(self.commands) or 'none'}"
            raise InvalidArgument(f"command {name[:100]!r} is not configured{known}", command=name[:100])
        return found

    async def get(self, task_id: str, *, requestor: str | None = None) -> TaskState:
        """The current state of a task. Raises `TaskNotFound`, even for another requestor's task."""
        return await self.store.get(task_id, requestor=requestor)

    async def show(self, task_id: str, *, requestor: str | None = None) -> dict[str, Any]:
        state = await self.get(task_id, requestor=requestor)
        result = await self.store.result(state) if state.terminal else None
        return record_of(state) if result is None else {**record_of(state), "result": dict(result)}

    def ended_at(self, task_id: str) -> float | None:
        """When the command of a task ended, even before the ledger has it; None while it runs."""
        return ended_at(self._folder / task_id)

    async def list(
        self,
        *,
        requestor: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        page = await self._retention.list(requestor=requestor, status=status, cursor=cursor, limit=limit)
        rows = [record_of(await self.store.get(row.name)) for row in page.rows]
        return {"tasks": rows} if page.next_cursor is None else {"tasks": rows, "next_cursor": page.next_cursor}

    async def tail(self, task_id: str, lines: int = 100, *, requestor: str | None = None) -> list[str]:
        """The last lines of a process's output, without secrets; empty for other tasks."""
        await self.get(task_id, requestor=requestor)
        await self.host()
        return await self._processes.tail(task_id, lines)

    async def follow(
        self, task_id: str, lines: int = 100, *, errors: bool = False, requestor: str | None = None
    ) -> AsyncGenerator[str]:
        """The last `lines`, then each new line until the task has ended; with `errors`, only lines of stderr."""
        await self.get(task_id, requestor=requestor)
        await self.host()
        if (await self.started(task_id)).terminal:
            for line in await self._processes.tail(task_id, lines, errors=errors):
                yield line
            return
        async for line in self._processes.follow(task_id, lines, errors=errors):
            yield line

    async def started(self, task_id: str) -> TaskState:
        """The task once its command runs, and this process may leave it, or once it has ended."""
        from pursuit.tasks.reader import read_meta  # noqa: PLC0415 - see above

        while True:
            state = await self.get(task_id)
            if state.terminal or read_meta(self._folder / task_id) is not None:
                return state
            await anyio.sleep(STARTED_EVERY)

    async def cancel(
        self,
        task_id: str,
        *,
        requestor: str | None = None,
        caller: Caller | None = None,
        reason: str | None = None,
    ) -> TaskState:
        """Requests the cancellation of a task; an ended one stays as it is. A process is `working` until it exits."""
        await self.get(task_id, requestor=requestor)
        who, reason = caller or self._caller, None if reason is None else sound_text(reason)
        host = await self.host()
        async with self._audit.control(who, "task cancel", None, {"task_id": task_id, "reason": reason}):
            return await host.cancel(task_id, requestor=requestor, by=str(who), reason=reason)

    async def stop(self, task_id: str, *, caller: Caller | None = None, reason: str | None = None) -> TaskState:
        """Cancels a task and waits through its command's grace period, even if the caller is cancelled."""
        with anyio.CancelScope(shield=True):
            state = await self.cancel(task_id, caller=caller, reason=reason)
            await self.wait(task_id, timeout=stopping_time(state))
        return await self.get(task_id)

    async def wait(self, task_id: str, *, timeout: float | None = None, requestor: str | None = None) -> TaskState:
        """The task once it has ended, or as it is after `timeout` seconds."""
        state = await self.get(task_id, requestor=requestor)
        if not state.terminal:
            with anyio.move_on_after(timeout):
                async with self.kept_up(task_id):
                    return await self.store.wait(task_id, requestor=requestor)
        return await self.get(task_id, requestor=requestor)

    @asynccontextmanager
    async def kept_up(self, task_id: str) -> AsyncGenerator[None]:
        """While the block runs, adopts the task whenever it is an orphan."""

        async def look() -> None:
            while True:
                await self.take_up(task_id)
                await anyio.sleep(LOOK_EVERY)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            yield
            tasks.cancel_scope.cancel()

    async def take_up(self, task_id: str) -> bool:
        """Resumes a task whose process died, if this process can; returns whether it did."""
        state = await self.store.get(task_id)
        if state.terminal or state.kind not in self.resume or await is_alive(self.store.ledger, state.owner):
            return False
        return await (await self.host()).take_up(state)

    async def prune(self, *, keep: int | None = None, older_than: float | None = None) -> list[str]:
        """Removes ended tasks with their output: those too old, and the oldest beyond the limit."""
        said = {"keep": keep, "older_than": older_than}
        host = await self.host()
        async with self._audit.control(self._caller, "task prune", None, said):
            return await host.retention.prune(keep=keep, older_than=older_than)

    async def catch_up(self) -> None:
        """Adopts the tasks of dead processes, and waits briefly until ended commands are recorded."""
        async with anyio.create_task_group() as tasks:
            over = False
            async for row in self._retention.running():
                # Missions are not driven for one brief read: that would only cut off their calls.
                if row.summary.get("task_kind") != "child" and await self.take_up(row.name):
                    over = over or (self._folder / row.name / "exit").exists()
                    tasks.start_soon(self.store.wait, row.name)
            tasks.cancel_scope.deadline = anyio.current_time() + (CATCH_UP if over else GLANCE)

"""The verbs about tasks: run, look, tail, wait, cancel, prune.

Owns: what each verb means, whose tasks a caller sees, and when the host of this process is opened. Knows no surface and
no protocol. Invariant: nothing starts that is not in the audit, and what is refused has started nothing; a process that
only looks opens no host, and takes up no orphan but those that it is asked about.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.abc

from pursuit.config.commands import CommandConfig
from pursuit.core.base_model import nearest
from pursuit.core.tasks import TaskKind, TaskState, TaskStatus
from pursuit.errors import InvalidArgument, TaskNotFound
from pursuit.service.audit import Audit
from pursuit.service.awaited import is_awaited
from pursuit.service.caller import OPERATOR, Caller
from pursuit.tasks.deadlines import GRACE, USUAL_GRACE, stopping_time
from pursuit.tasks.owners import is_alive
from pursuit.tasks.record import record_of
from pursuit.tasks.shelf import Shelf
from pursuit.tasks.soundness import sound_text
from pursuit.tasks.store import Ending, TaskStore

if TYPE_CHECKING:
    from pursuit.config.servers import ServerConfig
    from pursuit.tasks.calls import Job
    from pursuit.tasks.execution import TaskContext
    from pursuit.tasks.host import Resume, TaskHost, Work
    from pursuit.tasks.processes.command import Command
    from pursuit.tasks.processes.processes import Processes

LOCAL = "local"
ID_START = "task-"
LEAST_PREFIX = 1
STARTED_EVERY = 0.02
LOOK_EVERY = 1.0
CATCH_UP = 5.0
"""Seconds that a look waits at most for what a command that has ended left to be read."""
GLANCE = 0.3
"""The same for one that still runs."""


def requestor_of(caller: Caller) -> str:
    """Whose tasks a caller's are: a token's own, and everybody else's on this machine together."""
    return LOCAL if caller.credential is None else f"client:{caller.credential}"


class Tasks:
    """The tasks of one ledger, and the commands that can be run as one. Use it as an async context manager.

    `requestor` is whose tasks are looked at; None is the operator, who sees all. What the configurations of the
    `servers` hold of secrets, no command tells.
    """

    def __init__(
        self,
        store: TaskStore,
        folder: Path,
        *,
        audit: Audit,
        commands: Mapping[str, CommandConfig] | None = None,
        servers: Callable[[], Iterable[ServerConfig]] = tuple,
        caller: Caller = OPERATOR,
        log_bytes: int | None = None,
    ) -> None:
        self.store = store
        self.commands = dict(commands or {})
        self.resume: dict[TaskKind, Resume] = {"process": self._resume}
        """How tasks of each kind go on after their process died; others may add theirs before the host is opened."""
        self._folder = folder
        self._audit = audit
        self._servers = servers
        self._caller = caller
        self._log_bytes = log_bytes
        self._shelf = Shelf(store)
        self._opening = anyio.Lock()
        self._host: TaskHost | None = None
        self._processes: Processes
        self._group: anyio.abc.TaskGroup

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.cancel_scope.cancel()
        # Left without the caller's exception, which would come out wrapped in a group.
        await self._group.__aexit__(None, None, None)

    async def host(self) -> TaskHost:
        """The host of this process, opened when first needed."""
        async with self._opening:
            host = self._host or await self._group.start(self._open)
            self._host = host
        return host

    async def tend(self) -> None:
        """Takes up every orphan from now on and clears old tasks away: for a process that stays."""
        (await self.host()).tend()

    async def _open(self, *, task_status: anyio.abc.TaskStatus[TaskHost]) -> None:
        from pursuit.tasks.host import TaskHost  # noqa: PLC0415 - whoever only looks does without
        from pursuit.tasks.processes.processes import Processes  # noqa: PLC0415

        limits = {} if self._log_bytes is None else {"log_bytes": self._log_bytes}
        async with (
            Processes(self._folder, **limits) as self._processes,
            TaskHost(self.store, resume=self.resume) as host,
        ):
            host.shelf.clear, host.shelf.needed = self._clear, partial(is_awaited, self.store.ledger)
            task_status.started(host)
            await anyio.sleep_forever()

    async def _clear(self, task_id: str) -> bool:
        """Deletes what a task left on disk; False if its command may still run, which is found by its task only."""
        await self._processes.remove(task_id)
        return not (self._folder / task_id).exists()

    def _resume(self, state: TaskState) -> Work | None:
        from pursuit.service.commands import timeout_of, within  # noqa: PLC0415 - see above

        work = self._processes.resume(state)
        return None if work is None else within(work, timeout_of(state))

    async def run(
        self, argv: Sequence[str], *, caller: Caller | None = None, ttl: float | None = None, **parts: Any
    ) -> TaskState:
        """Runs a command of the operator's as a task; `parts` are those of `plain_command`.

        Raises `ValidationFailed`, `PathTraversal` or `TooManyTasks`, and then nothing was started.
        """
        from pursuit.service.commands import environment, plain_command  # noqa: PLC0415 - see above

        environ = environment()
        command = plain_command(argv, environ=environ, known=self._known(environ), **parts)
        return await self._begin(command, {"argv": command.shown}, caller=caller, ttl=ttl)

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, caller: Caller | None = None, ttl: float | None = None
    ) -> TaskState:
        """Runs a configured command as a task. Raises `InvalidArgument` if there is none, and otherwise as `run`."""
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

    def job(self, name: str, arguments: Mapping[str, Any], *, caller: Caller | None = None) -> Job:
        """What a call of a configured command is as a task, in whoever's hands; nothing has started.

        The host must be open. A caller's own call is put into the audit; a mission's is in the mission.
        """
        origin = {"command": name}
        job = self._job(self._configured(name, arguments), origin)

        async def audited(ctx: TaskContext) -> Ending:
            if caller is not None:
                async with self._audit.control(caller, "task run", None, origin):
                    pass
            if ctx.state.total is None and job.total is not None:
                await ctx.update_status(total=job.total)
            return await job.work(ctx)

        return replace(job, work=audited)

    def _job(self, command: Command, origin: Mapping[str, Any]) -> Job:
        from pursuit.service.commands import TIMEOUT, within  # noqa: PLC0415 - see above
        from pursuit.tasks.calls import Job  # noqa: PLC0415

        config = self.commands.get(origin.get("command", ""))
        limit = None if config is None else config.timeout
        kept = dict(origin) if limit is None else {**origin, TIMEOUT: limit}
        if command.grace != USUAL_GRACE:
            kept[GRACE] = command.grace
        return Job(work=within(self._processes.work(command), limit), kind="process", total=command.total, origin=kept)

    def _configured(self, name: str, arguments: Mapping[str, Any]) -> Command:
        from pursuit.service.commands import configured_command, environment  # noqa: PLC0415 - see above

        environ = environment()
        return configured_command(self.config(name), arguments, environ, known=self._known(environ))

    def _known(self, environ: Mapping[str, str]) -> list[str]:
        from pursuit.service.commands import known_secrets  # noqa: PLC0415 - see above

        return known_secrets(self._servers(), self.commands.values(), environ)

    def config(self, name: str) -> CommandConfig:
        """A configured command by its name. Raises `InvalidArgument`."""
        found = self.commands.get(name)
        if found is None:
            known = nearest(name, self.commands) or f"; known: {', '.join(self.commands) or 'none'}"
            raise InvalidArgument(f"there is no command {name[:100]!r} in the configuration{known}", command=name[:100])
        return found

    async def get(self, task_id: str, *, requestor: str | None = None) -> TaskState:
        """A task as it stands. Raises `TaskNotFound`, also for somebody else's."""
        return await self.store.get(task_id, requestor=requestor)

    async def show(self, task_id: str, *, requestor: str | None = None) -> dict[str, Any]:
        """A task as JSON, with its result if it has ended."""
        state = await self.get(task_id, requestor=requestor)
        result = await self.store.result(state) if state.terminal else None
        return record_of(state) if result is None else {**record_of(state), "result": dict(result)}

    async def named(self, word: str) -> str:
        """The task whose id begins like this, if there is one; raises `TaskNotFound` or `InvalidArgument`."""
        begins = word if word.startswith(ID_START) else f"{ID_START}{word}"
        if len(begins) < len(ID_START) + LEAST_PREFIX:
            raise InvalidArgument(f"{word[:100]!r} is too short for a task's id; give how its digits begin")
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._shelf.list(cursor=cursor, limit=1_000)
            found += [row.name for row in page.rows if row.name.startswith(begins)]
            cursor = page.next_cursor
            if cursor is None:
                break
        if not found:
            raise TaskNotFound(f"no task {word[:100]!r}; `pursuit task list` shows which there are", task_id=word[:100])
        if len(found) > 1:
            raise InvalidArgument(f"{word[:100]!r} begins {len(found)} ids; give more of it", tasks=found[:10])
        return found[0]

    async def list(
        self,
        *,
        requestor: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """The tasks, newest first."""
        page = await self._shelf.list(requestor=requestor, status=status, cursor=cursor, limit=limit)
        rows = [record_of(await self.store.get(row.name)) for row in page.rows]
        return {"tasks": rows} if page.next_cursor is None else {"tasks": rows, "next_cursor": page.next_cursor}

    async def tail(self, task_id: str, lines: int = 100, *, requestor: str | None = None) -> list[str]:
        """The last lines of a process's output, without its secrets; of other tasks there are none."""
        await self.get(task_id, requestor=requestor)
        await self.host()
        return await self._processes.tail(task_id, lines)

    async def follow(
        self, task_id: str, lines: int = 100, *, errors: bool = False, requestor: str | None = None
    ) -> AsyncGenerator[str]:
        """The same, and then each line as it comes, until the task has ended; with `errors` those of stderr only."""
        await self.get(task_id, requestor=requestor)
        await self.host()
        if (await self.started(task_id)).terminal:
            for line in await self._processes.tail(task_id, lines, errors=errors):
                yield line
            return
        async for line in self._processes.follow(task_id, lines, errors=errors):
            yield line

    async def started(self, task_id: str) -> TaskState:
        """The task once its command runs, so that this process may leave it; or once it has ended."""
        from pursuit.tasks.processes.identity import read_meta  # noqa: PLC0415 - see above

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
        """Orders a task stopped; one that has ended stays as it is. A process is still `working` until it is gone."""
        await self.get(task_id, requestor=requestor)
        who, reason = caller or self._caller, None if reason is None else sound_text(reason)
        host = await self.host()
        async with self._audit.control(who, "task cancel", None, {"task_id": task_id, "reason": reason}):
            return await host.cancel(task_id, requestor=requestor, by=str(who), reason=reason)

    async def stop(self, task_id: str, *, caller: Caller | None = None, reason: str | None = None) -> TaskState:
        """Cancels a task and gives it the time that its command has to leave; also when the caller is cancelled."""
        with anyio.CancelScope(shield=True):
            state = await self.cancel(task_id, caller=caller, reason=reason)
            await self.wait(task_id, timeout=stopping_time(state))
        return await self.get(task_id)

    async def wait(self, task_id: str, *, timeout: float | None = None, requestor: str | None = None) -> TaskState:
        """The task once it has ended, or as it stands after so many seconds."""
        state = await self.get(task_id, requestor=requestor)
        if not state.terminal:
            with anyio.move_on_after(timeout):
                async with self.kept_up(task_id):
                    return await self.store.wait(task_id, requestor=requestor)
        return await self.get(task_id, requestor=requestor)

    @asynccontextmanager
    async def kept_up(self, task_id: str) -> AsyncGenerator[None]:
        """Takes this task up whenever it turns out to be an orphan, while the block runs."""

        async def look() -> None:
            while True:
                await self.take_up(task_id)
                await anyio.sleep(LOOK_EVERY)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            yield
            tasks.cancel_scope.cancel()

    async def take_up(self, task_id: str) -> bool:
        """Goes on with a task whose process died, if this one knows how; whether it did."""
        state = await self.store.get(task_id)
        if state.terminal or state.kind not in self.resume or await is_alive(self.store.ledger, state.owner):
            return False
        return await (await self.host()).take_up(state)

    async def prune(
        self, *, keep: int | None = None, older_than: float | None = None, caller: Caller | None = None
    ) -> list[str]:
        """Removes ended tasks with their output: those too old, and the oldest of too many. Never a running one."""
        said = {"keep": keep, "older_than": older_than}
        host = await self.host()
        async with self._audit.control(caller or self._caller, "task prune", None, said):
            return await host.shelf.prune(keep=keep, older_than=older_than)

    async def catch_up(self) -> None:
        """Takes up what dead processes left, and gives it a moment: a command that has ended is then on record."""
        async with anyio.create_task_group() as tasks:
            over = False
            async for row in self._shelf.running():
                # A mission is not driven for the moment of a look: that would only cut off its calls.
                if row.summary.get("task_kind") != "child" and await self.take_up(row.name):
                    over = over or self._is_over(row.name)
                    tasks.start_soon(self.store.wait, row.name)
            tasks.cancel_scope.deadline = anyio.current_time() + (CATCH_UP if over else GLANCE)

    def _is_over(self, task_id: str) -> bool:
        """Whether its command has ended, and only its end is to be written down."""
        return (self._folder / task_id / "exit").exists()

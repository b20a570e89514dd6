"""A configured command with a caller's arguments, ready to be started.

Owns: what its environment, its folder and its secrets are, and its time limit. Does not know: how processes are kept.
Invariant: whatever is wrong is told before anything starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from pursuit.config.commands import CommandConfig, refuse_climbing
from pursuit.config.servers import PYTHON, ServerConfig, secrets_of
from pursuit.config.variables import as_secrets, filled, inherited_secrets, secret_entries, secret_words
from pursuit.core.tasks import TaskState
from pursuit.errors import Fault, ValidationFailed
from pursuit.tasks.deadlines import stopped_by
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.host import Work
from pursuit.tasks.processes.command import GRACE, HEARTBEAT, Command
from pursuit.tasks.store import Ending

ITS_TIMEOUT = "its timeout"
"""Who orders a command stopped that has taken too long."""

TIMEOUT = "timeout"
"""Where a task's origin keeps how many seconds it may take."""


def configured_command(
    config: CommandConfig, arguments: Mapping[str, Any], environ: Mapping[str, str], *, known: Iterable[str] = ()
) -> Command:
    """The command for these arguments; `known` are secrets of others. Raises `ValidationFailed` or `PathTraversal`."""
    words = _program(config.words(arguments))
    cwd, env = _surroundings(config, environ)
    command = Command(
        argv=words,
        cwd=cwd,
        env={**environ, **env},
        title=config.title,
        total=config.units(arguments),
        unit_pattern=config.unit_pattern,
        failure_pattern=config.failure_pattern,
        item_pattern=config.item_pattern,
        disclaimer=config.disclaimer,
        grace=GRACE if config.grace is None else config.grace,
        heartbeat=HEARTBEAT if config.heartbeat is None else config.heartbeat,
        secrets=as_secrets([*secret_entries(config.env, env), *secret_words(words), *known]),
    )
    command.check()
    return command


def check_startable(config: CommandConfig, environ: Mapping[str, str]) -> None:
    """Raises `ValidationFailed` with what would keep it from starting, whatever its arguments."""
    cwd, env = _surroundings(config, environ)
    program = "".join(map(str, config.argv.groups[0][0]))  # no parameter stands in it
    Command(argv=_program([program]), cwd=cwd, env={**environ, **env}).check()


def _program(words: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable if words[0] == PYTHON else words[0], *words[1:])


def _surroundings(config: CommandConfig, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Its folder, and what is added to its environment. Raises `ValidationFailed` for variables that are not set."""
    missing: list[Fault] = []

    def full(text: str, at: str) -> str:
        value, unset = filled(text, environ)
        reason = "${{{}}} is not set in the environment"
        missing.extend(Fault(field=f"commands.{config.name}.{at}", reason=reason.format(name)) for name in unset)
        return value

    env = {key: full(value, f"env.{key}") for key, value in config.env.items()}
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
    """The command that an operator wrote out; `known` are secrets of others.

    Raises `ValidationFailed` or `PathTraversal`.
    """
    given = dict(env or {})
    # What the operator hands over by a variable of its own is known to us by its name alone.
    secrets = as_secrets([*secret_entries(given, given), *secret_words(argv), *known])
    command = Command(argv=tuple(argv), env={**environ, **given}, secrets=secrets, **more)
    command.check()
    if not allow_parent_paths:
        refuse_climbing(Path(argv[0]).name, list(argv[1:]))
    return command


def known_secrets(
    servers: Iterable[ServerConfig], commands: Iterable[CommandConfig], environ: Mapping[str, str]
) -> list[str]:
    """What no command may tell, whosever it is: the configuration's secrets, and those of the environment."""
    found = inherited_secrets(environ)

    def full(said: Mapping[str, str]) -> dict[str, str]:
        return {key: filled(value, environ)[0] for key, value in said.items()}  # what is not set has no value to hide

    for server in servers:
        args = tuple(filled(word, environ)[0] for word in server.args)
        ready = replace(server, env=full(server.env), headers=full(server.headers), args=args)
        found += [*secrets_of(server, ready, environ), *secret_words([server.url or ""])]
    for command in commands:
        found += secret_entries(command.env, full(command.env))
    return found


def within(work: Work, seconds: float | None) -> Work:
    """The same work, stopped and failed when it has taken so long since its task was made."""
    if seconds is None:
        return work

    async def limited(ctx: TaskContext) -> Ending:
        ending: Ending | None = None

        async def stop() -> None:
            await anyio.sleep(ctx.state.created_at + seconds - ctx.store.now())
            await ctx.store.order_cancel(ctx.task_id, by=ITS_TIMEOUT, reason=f"{seconds:g} s are over", settle=False)

        async with anyio.create_task_group() as both:
            both.start_soon(stop)
            ending = await work(ctx)
            both.cancel_scope.cancel()
        assert ending is not None  # noqa: S101 - the group is left when the work has returned
        return stopped_by(ending, ctx.state, ITS_TIMEOUT, f"stopped by its timeout of {seconds:g} s")

    return limited


def timeout_of(state: TaskState) -> float | None:
    """How long a task may take, as it was begun."""
    return state.origin.get(TIMEOUT)


def environment() -> dict[str, str]:
    """The environment of this process."""
    return dict(os.environ)

"""The `@command` decorator, and the context that it passes to each command.

The context holds the shared options (`--config`, `--state`, `--json`), finds the configuration and the ledger, opens
the runtime and runs the command so that a signal stops it cleanly. A read-only command never reads the configuration
and never creates a ledger. Importing this module costs no more than typer itself.
"""

from __future__ import annotations

import gc
import inspect
import os
import shlex
import signal
import stat
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pursuit.cli.console import CommandAnswer, Screen
from pursuit.errors import (
    Fault,
    InvalidArgument,
    LedgerUnavailable,
    PolicyDenied,
    PursuitError,
    ValidationFailed,
    advice,
)

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from pursuit.config.configuration import Configuration
    from pursuit.config.trust import TrustedFolder
    from pursuit.runtime import Runtime
    from pursuit.server.tokens import Tokens
    from pursuit.service.service import Service

T = TypeVar("T")

_LEDGER_FILES = ("", "-wal", "-shm", "-journal", "-gate")


class NoLedger(InvalidArgument, code="no_ledger"):
    """The ledger does not exist yet."""


class Interrupted(Exception):
    """A signal stopped this process; all work in progress is recorded."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


DATABASE_SECONDS = 30.0
"""Seconds that a command which drives missions waits for an unresponsive database."""


class Context:
    """One invocation of `pursuit`: its shared options, its output and, for a coroutine command, its open runtime.

    The configuration, the ledger and trust are each looked up once, at first use.
    """

    runtime: Runtime

    def __init__(self, click: typer.Context, *, config: Path | None, state: str | None, json: bool) -> None:
        self.click = click
        self.config = config
        self.state = state
        self.json = json
        self._new: list[TrustedFolder] = []
        self._trusted = False

    @cached_property
    def screen(self) -> Screen:
        return Screen(json=self.json, command=self.command)

    @property
    def service(self) -> Service:
        return self.runtime.runner

    def command(self, verb: str, *words: str) -> str:
        """Returns a command line for the same ledger, for the user to copy."""
        from pursuit.ledger.opening import without_password

        state = None if self.state is None else without_password(self.state)
        given = [("--config", self.config), ("--state", state)]
        options = [part for name, value in given if value is not None for part in (name, str(value))]
        return shlex.join(["pursuit", verb, *words, *options])

    @cached_property
    def configuration_path(self) -> Path | None:
        """The configuration file, given or found; a given file must exist."""
        from pursuit.config.configuration import find_configuration

        if self.config is None:
            return find_configuration(Path.cwd())
        if not self.config.is_file():
            reason = "is a folder" if self.config.is_dir() else "the file does not exist"
            raise InvalidArgument(f"--config {self.config}: {reason}", field="--config")
        return self.config.resolve()

    @cached_property
    def configuration(self) -> Configuration:
        from pursuit.config.configuration import Configuration, load_configuration

        path = self.configuration_path
        return Configuration.model_construct() if path is None else load_configuration(path)

    def trusted_configuration(self, *more: TrustedFolder) -> Configuration:
        """The configuration, after the user has trusted it and `more`; see `require_trust`."""
        from pursuit.config.trust import of_configuration

        own = of_configuration(self.configuration)
        self.require_trust(*([] if own is None else [own]), *more)
        return self.configuration

    def trust_here(self, *more: TrustedFolder, schedules: bool = False) -> None:
        """Asks for trust in everything that the configuration, the ledger and `more` may start.

        Later calls in the same invocation ask only about their `more`.
        """
        from pursuit.config.trust import new_state, of_schedules, of_state, open_to_globs

        if not self._trusted:
            ledger = self.ledger_path
            scheduled = of_schedules(self.configuration) if schedules else []
            configuration = self.trusted_configuration(of_state(ledger), *scheduled, *more)
            for warning in open_to_globs(configuration, ledger):
                self.screen.note(f"warning: {warning}")
            if not ledger.exists():
                self._trust_new(new_state(ledger))
            self._trusted = True
        elif more:
            self.require_trust(*more)

    def trusted_runtime(self, mode: str | None = None, *, only: str | None = None) -> Runtime:
        """Returns a runtime, not yet open, with the configured servers; `mode` overrides the policy's mode.

        With `only`, the runtime serves only that mission. Asks for trust if that has not happened yet.
        """
        from pursuit.policy.rules import parse_mode

        self.trust_here()
        chosen = None if mode is None else parse_mode(mode)
        return _runtime(self.ledger_path, self.configuration, mode=chosen, only=only)

    def trust_credentials(self, path: Path) -> None:
        """Asks for trust in an existing file of tokens or sessions; a new file belongs to this user."""
        from pursuit.config.trust import of_credentials

        if path.exists():
            self.require_trust(of_credentials(path))
        else:
            self._trust_new(of_credentials(path))

    @property
    def tokens(self) -> Tokens:
        """The tokens beside the ledger; agents may not see them."""
        from pursuit.server.tokens import Tokens

        self.refuse_agents(always=True)
        tokens = Tokens.beside(self.ledger_path)
        self.trust_credentials(tokens.path)
        return tokens

    def _trust_new(self, workspace: TrustedFolder) -> None:
        """Trusts what this command is about to create; repeats all of it, because `record` drops missing files."""
        from pursuit.config.trust import record

        self._new.append(workspace)
        try:
            record(self._new)
        except ValidationFailed as failed:  # the next command asks again
            self.screen.note(f"warning: {failed.message}")

    def require_trust(self, *workspaces: TrustedFolder) -> None:
        """Asks at the terminal for trust in what is not trusted yet; raises `NotTrusted` unless the user agrees."""
        from pursuit.config.trust import group_writable, not_trusted, record, trusts_everything, untrusted

        missing = untrusted(workspaces)
        for path in (place for one in workspaces for place in (one.path, *one.files)):
            if not trusts_everything() and group_writable(path):
                self.screen.note(f"warning: {path} is writable by its group")
        if not missing:
            return
        refusal = not_trusted(missing)
        self.refuse_agents(always=True)
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise refusal
        self.screen.note("The following starts with your rights, or decides what is allowed:")
        for row in refusal.details["starts"]:
            self.screen.note(f"  {row}")
        if not typer.confirm("Do you trust it?", default=False, err=True):
            raise refusal
        paths = {one.path for one in missing}
        record(one for one in workspaces if one.path in paths)

    def refuse_agents(self, *, always: bool = False) -> None:
        """Refuses to run below an agent: on the ledger of its mission, or `always`."""
        from pursuit.processes.tree import agents_above

        above = agents_above()

        async def held(runtime: Runtime) -> bool:
            return any([await runtime.runner.ledger.row(one) is not None for one in above])

        if above and (always or (self.ledger_path.exists() and self.look(held))):
            why = f"an agent of {above[0]} started this command; agents may not act as the operator; use your own shell"
            raise PolicyDenied(why, session_id=above[0])

    @cached_property
    def ledger_path(self) -> Path:
        from pursuit.config.files import locate_state

        path = locate_state(self.state, None if self.state is not None else self.configuration_path)
        try:
            folder = stat.S_ISDIR(path.stat().st_mode)
        except FileNotFoundError:
            folder = False
        except OSError as error:
            raise InvalidArgument(f"--state {path}: cannot be a ledger: {error.strerror}", field="--state") from None
        if folder:
            raise InvalidArgument(f"--state {path}: is a folder, not a ledger", field="--state")
        return path

    def existing_ledger(self) -> Path:
        path = self.ledger_path
        if not path.exists():
            raise NoLedger(f"there is no ledger at {path} yet; `{advice('pursuit run {}', 'FILE')}` creates it")
        return path

    def require_shared(self, field: str, why: str) -> None:
        """Refuses a ledger in a file, because workers cannot share it."""
        from pursuit.ledger.opening import address_of

        if address_of(self.ledger_path) is None:
            raise InvalidArgument(f"{why}: --state postgresql://\u2026, or `state` in the configuration", field=field)

    def folder_beside_ledger(self, name: str) -> Path:
        """Returns a private folder beside the ledger; creates it if needed."""
        ledger = self.ledger_path.absolute()
        if ledger.exists():
            self.look(_nothing)  # raises if the file is not a ledger
        folder = ledger.parent / name
        try:
            for one in (ledger.parent, folder):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = "is not a folder" if isinstance(error, FileExistsError) else f"cannot be created: {error.strerror}"
            message = f"--state {ledger}: the folder {folder} beside it {reason}"
            raise LedgerUnavailable(message, path=str(ledger)) from None
        return folder

    def check_output(self, output: Path, *, force: bool) -> None:
        """Refuses to replace an existing file without `--force`, and always refuses a file of the ledger."""
        ledger = self.ledger_path
        reason: str | None = None
        try:
            if _belongs_to_ledger(ledger, output):
                reason = f"{output} belongs to the ledger, which would be destroyed; name another file"
            elif output.is_dir():
                reason = f"{output} is a folder; name a file"
            elif output.exists() and not force:
                reason = f"{output} already exists; --force replaces it"
        except (OSError, RuntimeError) as error:  # a name that is too long, circular links
            reason = f"{output} cannot be written: {getattr(error, 'strerror', None) or error}"
        if reason is not None:
            raise ValidationFailed([Fault(field="--output", reason=reason)])

    def look(self, verb: Callable[[Runtime], Awaitable[T]]) -> T:
        """Runs an operation on the existing ledger, without servers: a broken configuration does not matter."""
        from pursuit.config.configuration import Configuration
        from pursuit.ledger.opening import SUFFIX

        path, known = self.existing_ledger(), Configuration.model_construct()
        if path.suffix == SUFFIX:  # what an answer wakes is handed to workers
            with suppress(PursuitError):
                known = Configuration.model_construct(placement=self.configuration.placement)
        runtime = _runtime(path, known)

        async def work() -> T:
            async with runtime:
                return await verb(runtime)

        return run(work)

    def drive(self, verb: Callable[[Runtime], Awaitable[T]], mode: str | None = None, *more: TrustedFolder) -> T:
        """Runs an operation with the configured servers, after the user has trusted them; see `conduct`."""
        self.trust_here(*more)

        async def work() -> T:
            from pursuit.ledger.opening import wait_for_database

            await wait_for_database(self.ledger_path, DATABASE_SECONDS, self.screen.note)
            async with self.trusted_runtime(mode) as runtime:
                return await verb(runtime)

        return conduct(work)


def _runtime(state: Path, config: Configuration, **more: Any) -> Runtime:
    from pursuit.runtime import Runtime
    from pursuit.service.audit import Caller, user_name

    return Runtime(state=state, config=config, caller=Caller(who=user_name(), transport="terminal"), **more)


YOUNG_OBJECTS = 50_000


async def _nothing(_runtime: Runtime) -> None:
    pass


def _belongs_to_ledger(ledger: Path, output: Path) -> bool:
    real = ledger.resolve()
    files = [real.with_name(real.name + suffix) for suffix in _LEDGER_FILES]
    # Also by name: SQLite creates some of them only while the ledger is open.
    return output.resolve() in files or any(output.exists() and one.exists() and output.samefile(one) for one in files)


def run(work: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Runs a coroutine function with the garbage collector on; `main` turns it off while modules load.

    The collector rarely runs, because reference counting frees nearly all objects.
    """
    import anyio

    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    return anyio.run(work, *args)


@asynccontextmanager
async def signals_to(handle: Callable[[int], Awaitable[None]], *, hang_up: bool = True) -> AsyncGenerator[None]:
    """Calls `handle` for each signal that asks to stop, within the block; an ignored SIGHUP (`nohup`) stays ignored."""
    import anyio

    wanted = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hang_up else [])]

    async def listen(*, task_status: TaskStatus[None]) -> None:
        heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*heard) as signals:
            task_status.started()
            async for number in signals:
                await handle(number)

    async with anyio.create_task_group() as tasks:
        await tasks.start(listen)
        yield
        tasks.cancel_scope.cancel()


def conduct(work: Callable[[], Awaitable[T]], *, hang_up: bool = True) -> T:
    """Runs work that a signal may stop: after the first, it records and cleans up; a second ends it immediately.

    Raises `Interrupted` after the first signal. Without `hang_up`, the work handles SIGHUP.
    """
    return run(_conduct, work, hang_up)


async def _conduct(work: Callable[[], Awaitable[T]], hang_up: bool) -> T:
    import anyio

    received: list[int] = []
    results: list[T] = []
    scope = anyio.CancelScope()

    async def stop(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        scope.cancel()

    async with signals_to(stop, hang_up=hang_up):
        with scope:
            results.append(await work())
    if not results:
        raise Interrupted(received[0])
    return results[0]


_PANEL = "Common options"
_ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="Configuration file (default: the nearest pursuit.toml or mcp.json, from this folder upwards).",
    ),
]
_StateOption = Annotated[
    str | None,
    typer.Option(
        metavar="LEDGER",
        rich_help_panel=_PANEL,
        help="Ledger: a file or postgresql://… (default: $PURSUIT_STATE, else `state` of the configuration, else "
        ".pursuit/ledger.db beside it).",
    ),
]
_JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=_PANEL, help="Print only one JSON document.")]
_JsonLinesOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=_PANEL, help="Print only JSON Lines, one per event.")
]


_IDS = {"mission_id": "mission", "task_id": "task", "attempt_id": "attempt"}
"""Command parameters that are ids, with the kind of record; each accepts a unique prefix or `last`."""
_LENGTHS = {"mission_id": len("mission-") + 16, "task_id": len("task-") + 32}
"""The length of a full id; an attempt may have a chosen id of any length."""


def _is_short(name: str, word: str | None) -> bool:
    """True if this is not a full id: a prefix, `last`, or a mistake."""
    return word is not None and not (word.startswith(f"{_IDS[name]}-") and len(word) == _LENGTHS.get(name))


async def _whole_ids(runtime: Runtime, given: dict[str, Any]) -> dict[str, Any]:
    from pursuit.service.queries import find_id

    short = {name: given[name] for name in _IDS if _is_short(name, given.get(name))}
    ledger = runtime.runner.ledger
    return {**given, **{name: await find_id(ledger, _IDS[name], word) for name, word in short.items()}}


class WithContext:
    """The callable that typer gets: it takes the shared options and passes a `Context` as the first argument.

    A returned `CommandAnswer` is printed; a returned number is the exit code.

    Shortened ids of missions, tasks and attempts are expanded. Options are accepted before and after the subcommand;
    those after it take precedence. A coroutine function runs with `context.runtime` open on the existing ledger, as in
    `Context.look`. The signature is computed on demand: it takes 0.2 ms per command, and most runs need one of fifty.
    """

    def __init__(self, function: Callable[..., Any], *, json_lines: bool = False, reads: bool = False) -> None:
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.__annotations__ = {}  # typer requires the attribute but reads the types from the signature
        self._function = function
        self._reads = reads
        self._json_option = _JsonLinesOption if json_lines else _JsonOption

    def __call__(self, ctx: typer.Context, *, config: Path | None, state: str | None, json: bool, **given: Any) -> Any:
        if isinstance(before := ctx.obj, Context):
            config, state, json = config or before.config, state or before.state, json or before.json
        ctx.obj = context = Context(ctx, config=config, state=state, json=json)
        if not self._reads and ctx.invoked_subcommand is None:  # else the subcommand decides
            context.refuse_agents()
        if not inspect.iscoroutinefunction(self._function):
            if any(_is_short(name, given.get(name)) for name in _IDS):
                given = context.look(lambda runtime: _whole_ids(runtime, given))
            answer = self._function(context, **given)
        else:

            async def opened(runtime: Runtime) -> Any:
                context.runtime = runtime
                return await self._function(context, **await _whole_ids(runtime, given))

            answer = context.look(opened)
        return context.screen.render(answer) if isinstance(answer, CommandAnswer) else answer

    @cached_property
    def __signature__(self) -> inspect.Signature:
        own = list(inspect.signature(self._function, eval_str=True).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("ctx", keyword, annotation=typer.Context),
            *(one.replace(kind=keyword) for one in own),
            inspect.Parameter("config", keyword, default=None, annotation=_ConfigOption),
            inspect.Parameter("state", keyword, default=None, annotation=_StateOption),
            inspect.Parameter("json", keyword, default=False, annotation=self._json_option),
        ]
        return inspect.Signature(parameters)


def group(name: str, **settings: Any) -> typer.Typer:
    """Returns an app for a group of commands; the shared options also work before its subcommands."""
    app = typer.Typer(name=name, **settings)
    app.callback()(WithContext(_no_action))
    return app


def _no_action(_context: Context) -> None:
    pass


def command(
    app: typer.Typer, name: str | None = None, *, json_lines: bool = False, reads: bool = False, **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to an app as a command; agents may run it only if it `reads`. `settings` are typer's."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        app.command(name, **settings)(WithContext(function, json_lines=json_lines, reads=reads))
        return function

    return add

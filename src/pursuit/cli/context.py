"""Opens what a command needs: a runtime to drive with, or one that only looks.

Owns: which configuration and which ledger a command means, and how a driving command is interrupted.
Invariant: a command that only looks never reads the configuration and never makes a ledger.
"""

from __future__ import annotations

import gc
import os
import signal
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus

from pursuit.cli.errors import Interrupted
from pursuit.cli.options import Common
from pursuit.config.configuration import Configuration, find_configuration
from pursuit.config.files import locate_state
from pursuit.errors import Fault, InvalidArgument, LedgerUnavailable, ValidationFailed
from pursuit.policy.rules import Mode
from pursuit.runtime import Runtime
from pursuit.service.audit import Caller, user_name

T = TypeVar("T")


class NoLedger(InvalidArgument):
    """Nothing has been started here yet."""

    code = "no_ledger"


def configuration_path(common: Common) -> Path | None:
    """The configuration that is meant, found or given; one that was given must be there."""
    if common.config is None:
        return find_configuration(Path.cwd())
    if not common.config.is_file():
        reason = "is a folder" if common.config.is_dir() else "there is no such file"
        raise InvalidArgument(f"--config {common.config}: {reason}", field="--config")
    return common.config.resolve()


def ledger_path(common: Common) -> Path:
    """The ledger's file, whether it exists or not."""
    path = locate_state(common.state, None if common.state is not None else configuration_path(common))
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        folder = False
    except OSError as error:
        raise InvalidArgument(f"--state {path}: cannot be a ledger: {error.strerror}", field="--state") from None
    if folder:
        raise InvalidArgument(f"--state {path}: is a folder, not a ledger", field="--state")
    return path


def folder_beside_ledger(common: Common, name: str) -> Path:
    """A folder of ours beside the ledger, made if need be; where no ledger can be, nothing is made."""
    ledger = ledger_path(common).absolute()
    if ledger.exists():
        look(common, _opened)  # what is there may be no ledger
    folder = ledger.parent / name
    missing = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    try:
        for one in (*reversed(missing), folder):
            one.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
        reason = "is no folder" if isinstance(error, FileExistsError) else f"cannot be made: {error.strerror}"
        raise LedgerUnavailable(f"--state {ledger}: the folder {folder} beside it {reason}", path=str(ledger)) from None
    return folder


async def _opened(runtime: Runtime) -> None:
    """It could be."""


def driving(common: Common, mode: Mode | None = None, *, only: str | None = None) -> Runtime:
    """A runtime with the configured servers, in this mode of policy or else in the configured one.

    With `only` it is about that mission, whose ledger must be there.
    """
    config = configuration_path(common)
    return Runtime(
        state=ledger_path(common) if only is None else existing_ledger(common),
        config=Configuration() if config is None else config,
        caller=_at_the_terminal(),
        mode=mode,
        only=only,
    )


def looking(common: Common) -> Runtime:
    """A runtime over an existing ledger that needs no server, and so no sound configuration."""
    return Runtime(state=existing_ledger(common), config=Configuration(), caller=_at_the_terminal())


def _at_the_terminal() -> Caller:
    return Caller(who=user_name(), transport="terminal")


def existing_ledger(common: Common) -> Path:
    """The ledger's file; raises if there is none."""
    path = ledger_path(common)
    if not path.exists():
        raise NoLedger(f"there is no ledger at {path} yet; `pursuit run FILE` starts a mission and makes it")
    return path


def loaded() -> None:
    """Has garbage looked for from here on, which `main` spared the loading of modules: they make none."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def conduct(work: Callable[[], Awaitable[T]], *, hang_up: bool = True) -> T:
    """Runs work that a signal may stop: the first one lets it record and clean up, a second one ends it at once.

    Without `hang_up`, SIGHUP means something else to the work.
    """
    loaded()
    return anyio.run(_conduct, work, hang_up)


async def _conduct(work: Callable[[], Awaitable[T]], hang_up: bool) -> T:
    heard: list[int] = []
    results: list[T] = []
    scope = anyio.CancelScope()

    async def listen(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*_signals(hang_up=hang_up)) as signals:
            task_status.started()
            async for number in signals:
                if heard:
                    os._exit(128 + number)
                heard.append(number)
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(listen)
        with scope:
            results.append(await work())
        tasks.cancel_scope.cancel()
    if not results:
        raise Interrupted(heard[0])
    return results[0]


def _signals(*, hang_up: bool) -> list[signal.Signals]:
    """The signals that ask for an end; a hang-up that was told to be ignored (`nohup`) stays ignored."""
    wanted = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hang_up else [])]
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]


def look(common: Common, verb: Callable[[Runtime], Awaitable[Any]]) -> Any:
    """One verb over an existing ledger."""

    async def work() -> Any:
        async with looking(common) as runtime:
            return await verb(runtime)

    loaded()
    return anyio.run(work)


# Where a command may write the file that was asked for.
# Invariant: nothing that is there is replaced without `--force`, and the ledger not even with it.

_LEDGER_FILES = ("", "-wal", "-shm", "-journal", "-gate")


def check_output(common: Common, output: Path, *, force: bool) -> None:
    """Refuses an output that would replace something it must not."""
    ledger = ledger_path(common)
    try:
        reason = _objection(ledger, output, force=force)
    except (OSError, RuntimeError) as error:  # a name that is too long, links in a ring
        reason = f"{output} cannot be written: {getattr(error, 'strerror', None) or error}"
    if reason is not None:
        raise ValidationFailed([Fault(field="--output", reason=reason)])


def _objection(ledger: Path, output: Path, *, force: bool) -> str | None:
    if _is_of_the_ledger(ledger, output):
        return f"{output} belongs to the ledger, which would be destroyed; name another file"
    if output.is_dir():
        return f"{output} is a folder; name a file"
    if output.exists() and not force:
        return f"{output} is there already; --force replaces it"
    return None


def _is_of_the_ledger(ledger: Path, output: Path) -> bool:
    real = ledger.resolve()
    files = [real.with_name(real.name + suffix) for suffix in _LEDGER_FILES]
    # By name too: SQLite makes some of them only while the ledger is open.
    return output.resolve() in files or any(output.exists() and one.exists() and output.samefile(one) for one in files)

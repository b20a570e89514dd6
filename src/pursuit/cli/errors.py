"""Explains errors: the message and the exit code for each kind. No traceback unless PURSUIT_DEBUG=1."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from typing import Any, cast

import typer

from pursuit.cli.console import clean
from pursuit.cli.context import Interrupted
from pursuit.errors import PursuitError, ValidationFailed

DEBUG_VARIABLE = "PURSUIT_DEBUG"
USAGE = 2


def explain(error: Exception, *, as_json: bool) -> int:
    document, lines, code = _explained(error, root_cause(error))
    # The system's message, in the reason of a failed write.
    spoken, plain = os.strerror(errno.ENOSPC), "the disk is full"
    if as_json:
        import json

        typer.echo(json.dumps(document, default=str).replace(spoken, plain))
    for line in lines if not as_json or os.environ.get(DEBUG_VARIABLE) == "1" else ():
        typer.echo(line.replace(spoken, plain), err=True)
    return code


def _explained(error: Exception, cause: BaseException) -> tuple[dict[str, Any], list[str], int]:
    if isinstance(cause, PursuitError):
        return cause.as_dict(), _lines(cause), cause.exit_code
    if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
        place = f" ({clean(cause.filename)})" if cause.filename else ""
        message = f"the disk is full{place}; free some space and try again"
        return _document("disk_full", message), [f"error: {message}"], 1
    if isinstance(cause, Interrupted):
        name = signal.Signals(cause.number).name
        return {"interrupted": name, "resume": None}, [f"stopped by {name}"], 128 + cause.number
    if isinstance(cause, typer.Abort):
        return _document("cancelled", "nothing was done"), ["nothing was done"], USAGE
    if hasattr(cause, "format_message"):
        return _usage(cause)
    message = f"internal error: {type(cause).__name__}: {clean(str(cause))}"
    more = f"  set {DEBUG_VARIABLE}=1 to see the traceback; everything recorded before is safe in the ledger"
    if os.environ.get(DEBUG_VARIABLE) == "1":
        more = "".join(traceback.format_exception(error))
    return _document("internal_error", message), [message, more], 1


def _document(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "details": {}}


def root_cause(error: BaseException) -> BaseException:
    """Returns the error inside nested exception groups; prefers a `PursuitError`."""
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if isinstance(leaf, PursuitError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for one in group.exceptions for leaf in _leaves(one)]


def _lines(error: PursuitError) -> list[str]:
    lines = [f"error: {clean(error.message)}"]
    if isinstance(error, ValidationFailed):
        for fault in error.faults:
            lines += [f"  {clean(str(fault))}"] if str(fault) not in error.message else []
            lines += [f"    {clean(line)}" for line in (fault.excerpt or "").split("\n") if line]
    return lines


def _usage(error: Any) -> tuple[dict[str, Any], list[str], int]:
    message = clean(str(error.format_message())).rstrip(".")
    lines: list[str] = []
    context = getattr(error, "ctx", None)
    if message:  # without a message the help has been printed already (plain `pursuit`)
        lines.append(f"error: {message}")
        if context is not None:
            lines.append(f"  try: {context.command_path} --help")
    return _document("usage_error", message), lines, USAGE

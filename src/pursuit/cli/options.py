"""The options and arguments that several commands share, and the shell's completion of ids.

Importing this module costs no more than typer itself: other imports happen when a command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from pursuit.errors import Fault, InvalidArgument, ValidationFailed

T = TypeVar("T", bound=str)
STDIN = "-"
MAX_COMPLETIONS = 50


def read_input(place: str) -> tuple[str, str]:
    """Returns the text of a file, or of standard input for `-`, and its name for errors."""
    from pursuit.config.files import read_stream, read_text

    if place != STDIN:
        return read_text(Path(place)), place
    return read_stream(sys.stdin.buffer, "standard input"), "standard input"


def read_arguments(pairs: Sequence[str], args_json: str | None) -> dict[str, Any]:
    """Returns the arguments of a call: the object of `--args-json` plus each `--arg`. Reports all faults together."""
    from pursuit.config.files import as_table, parse_json, unreadable
    from pursuit.core.base_model import kind

    faults: list[Fault] = []
    arguments: dict[str, Any] = {}
    if args_json is not None:
        try:
            value = parse_json(read_input(STDIN)[0] if args_json == STDIN else args_json, source="--args-json")
            if (table := as_table(value)) is None:
                raise unreadable("--args-json", f"must be an object, not {kind(value)}")
            arguments = dict(table)
        except ValidationFailed as failed:
            faults.extend(failed.faults)
    seen: set[str] = set()
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key:
            faults.append(Fault(field=f"--arg {pair}", reason="write KEY=VALUE"))
        elif key in seen:
            faults.append(Fault(field=f"--arg {key}", reason="is given twice"))
        else:
            arguments[key] = _value(text)
        seen.add(key)
    if faults:
        raise ValidationFailed(faults, "the arguments cannot be read; nothing was called")
    return arguments


def _value(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.encode(errors="replace").decode()


def seconds_of(text: str, field: str = "--older-than") -> float:
    """`90`, `30m`, `12h` or `7d` in seconds. Raises `InvalidArgument`."""
    from pursuit.config.files import duration

    found = duration(text)
    if found is None:
        raise InvalidArgument(f"{field}: {text!r} is not a duration; write 30m, 12h, 7d or seconds", field=field)
    return found


# Completion prints nothing, creates nothing and never fails: the shell cannot show errors while it completes.


def problem_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Problems whose id starts with this text, with titles; includes those of `--dir`."""
    from pursuit.problems.catalogue import discover

    try:
        found = discover([Path(one) for one in ctx.params.get("directory") or ()])
    except Exception:  # noqa: BLE001 - see above
        return []
    return [(one.problem_id, one.title) for one in found if one.problem_id.startswith(incomplete)]


def problem_kinds(incomplete: str) -> list[str]:
    from pursuit.problems.manifest import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _newest(kind: str, summary_key: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Completes the ids of the newest records of a kind, each with its status and one part of its summary."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from pursuit.config.configuration import find_configuration
        from pursuit.config.files import locate_state
        from pursuit.ledger.schema import open_reader
        from pursuit.ledger.sqlite import SqliteReads

        given = {**((ctx.parent.params if ctx.parent else None) or {}), **{k: v for k, v in ctx.params.items() if v}}
        try:
            config = Path(given["config"]) if given.get("config") else find_configuration(Path.cwd())
            path = locate_state(given.get("state"), config)
            if not path.is_file():
                return []
            with closing(open_reader(path)) as connection:
                page = SqliteReads(path, connection).page(kind=kind, limit=MAX_COMPLETIONS)
        except Exception:  # noqa: BLE001 - see above
            return []
        return [
            (row.name, f"{row.status}: {' '.join(str(row.summary.get(summary_key, '')).split())[:60]}")
            for row in page.rows
            if row.name.startswith(incomplete) and row.status != "forgotten"
        ]

    return complete


mission_ids = _newest("mission", "directive")
task_ids = _newest("task", "title")
attempt_ids = _newest("attempt", "problem_id")


def check_choice(option: str, value: str, known: Sequence[T]) -> T:
    """Returns the value of an option if it is one of `known`; else raises `InvalidArgument` with advice."""
    from pursuit.core.base_model import nearest

    if value in known:
        return cast("T", value)
    advice = nearest(value, known) or f"; known: {', '.join(known)}"
    raise InvalidArgument(f"{option}: {value!r} is not a valid value{advice}", field=option)


def _check_mode(ctx: typer.Context, mode: str | None) -> str | None:
    if mode is not None and not ctx.resilient_parsing:
        from pursuit.policy.rules import parse_mode

        parse_mode(mode, field="--mode")
    return mode


ModeOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|ask|never",
        callback=_check_mode,
        help="Policy mode, overriding the configuration: auto never asks, ask asks before a write, "
        "never denies calls that would ask.",
    ),
]
MissionId = Annotated[
    str,
    typer.Argument(
        metavar="ID", autocompletion=mission_ids, help="Mission id (`pursuit list`), a unique prefix, or `last`."
    ),
]
ReasonOption = Annotated[str | None, typer.Option(help="Reason; recorded with the mission.")]
LogLevelOption = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogFormatOption = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="text or json (default: text on a terminal, else json).")
]
LimitOption = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of rows.")]
CursorOption = Annotated[
    str | None, typer.Option(metavar="C", help="Show the next page: the cursor that the previous page printed.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
ArgOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="One argument: JSON if valid, else text; repeatable.")
]
ArgsJsonOption = Annotated[
    str | None, typer.Option(metavar="JSON|-", help="All arguments as one JSON object; - reads stdin.")
]

"""The options and arguments that several commands share, and the shell's completion of ids.

Importing this module costs no more than typer itself: what only some commands need is imported when they run.
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
MAX_INPUT_BYTES = 16 * 1024 * 1024
"""More than any proposal or argument needs; it keeps a wrong file from filling the memory."""
MAX_COMPLETIONS = 50


def read_input(place: str) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and what to call it in an error."""
    from pursuit.config.files import unreadable

    source = "standard input" if place == STDIN else place
    try:
        if place == STDIN:
            body = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                body = file.read(MAX_INPUT_BYTES + 1)
        if len(body) > MAX_INPUT_BYTES:
            raise unreadable(source, f"is larger than {MAX_INPUT_BYTES:,} bytes")
        return body.decode(), source
    except UnicodeDecodeError:
        raise unreadable(source, "is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise unreadable(source, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_arguments(pairs: Sequence[str], args_json: str | None) -> dict[str, Any]:
    """The arguments of a call: the object of `--args-json` with each `--arg` added. Reports all faults at once."""
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
    """The value of `--arg KEY=VALUE`: JSON if it parses, else the text itself."""
    import msgspec

    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.encode(errors="replace").decode()


# Completion prints nothing, creates nothing and never fails: a shell that completes a word cannot show an error.


def problem_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The problems whose id starts like this, each with its title; also those of `--dir`."""
    from pursuit.problems.catalogue import discover

    try:
        found = discover([Path(one) for one in ctx.params.get("directory") or ()]).problems
    except Exception:  # noqa: BLE001 - see above
        return []
    return [(one.problem_id, one.title) for one in found if one.problem_id.startswith(incomplete)]


def problem_kinds(incomplete: str) -> list[str]:
    """The kinds of problems."""
    from pursuit.problems.manifest import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _newest(kind: str, summary_key: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Completes the id of the newest records of a kind, each with its status and one part of its summary."""

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
    """The value of an option, which must be one of these; else raises `InvalidArgument` with advice."""
    from pursuit.core.base_model import nearest

    if value in known:
        return cast("T", value)
    advice = nearest(value, known) or f"; known: {', '.join(known)}"
    raise InvalidArgument(f"{option}: {value!r} is not one of its values{advice}", field=option)


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
        "never denies what would ask.",
    ),
]
MissionId = Annotated[
    str,
    typer.Argument(
        metavar="ID", autocompletion=mission_ids, help="Mission id (`pursuit list`), its beginning, or `last`."
    ),
]
ReasonOption = Annotated[str | None, typer.Option(help="Reason; recorded with the mission.")]
LimitOption = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of rows.")]
CursorOption = Annotated[
    str | None, typer.Option(metavar="C", help="Next page: the cursor that the last page printed.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
ArgOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="One argument: JSON if it parses, else text; repeatable.")
]
ArgsJsonOption = Annotated[
    str | None, typer.Option(metavar="JSON|-", help="All arguments as one JSON object; - reads stdin.")
]

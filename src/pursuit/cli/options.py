"""The options and arguments that several commands share, each declared once.

Owns: their names, help texts and panels, and the merge of what stands before and after the subcommand.
Knows no mission. Invariant: importing this costs no more than typer itself.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pursuit.config.files import as_table, kind, parse_json, unreadable
from pursuit.errors import Fault, ValidationFailed

# The arguments of a call as they stand on a command line.
# Invariant: all faults at once; the value after a `=` is JSON where it parses and else the text itself.

STDIN = "-"
MOST_BYTES = 16 * 1024 * 1024


def read_arguments(pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    """The object of `--args-json` with every `--arg` put into it."""
    faults: list[Fault] = []
    arguments: dict[str, Any] = {}
    if whole is not None:
        try:
            arguments = _object(_stdin() if whole == STDIN else whole)
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
            arguments[key] = value_of(text)
        seen.add(key)
    if faults:
        raise ValidationFailed(faults, "the arguments cannot be read; nothing was called")
    return arguments


def value_of(text: str) -> Any:
    """JSON where it parses, else the text."""
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.encode(errors="replace").decode()


def _object(text: str) -> dict[str, Any]:
    value = parse_json(text, source="--args-json")
    table = as_table(value)
    if table is None:
        raise unreadable("--args-json", f"must be an object, not {kind(value)}")
    return dict(table)


def _stdin() -> str:
    body = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise unreadable("standard input", f"is larger than {MOST_BYTES:,} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise unreadable("standard input", "is not UTF-8 text") from None


# Ids of missions, tasks, problems and attempts for the shell's completion.
# Invariant: it prints nothing, creates nothing and never fails: a shell that completes a word has no place for an
# error.

MOST = 50


def mission_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest missions whose id starts like this, each with its status and directive."""
    try:
        return _ids(ctx, incomplete, "mission", "directive")
    except Exception:  # noqa: BLE001 - whatever is wrong with the ledger, completing a word is not where it is told
        return []


def task_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest tasks whose id starts like this, each with its status and title."""
    try:
        return _ids(ctx, incomplete, "task", "title")
    except Exception:  # noqa: BLE001 - as above
        return []


def attempt_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest attempts at problems whose id starts like this, each with its status and problem."""
    try:
        return _ids(ctx, incomplete, "attempt", "problem_id")
    except Exception:  # noqa: BLE001 - as above
        return []


def problem_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The problems whose id starts like this, each with its title; also those of `--dir`."""
    from pursuit.problems.catalogue import discover  # noqa: PLC0415 - only a completion pays for it

    try:
        found = discover([Path(one) for one in ctx.params.get("directory") or ()]).problems
    except Exception:  # noqa: BLE001 - as above
        return []
    return [(one.problem_id, one.title) for one in found if one.problem_id.startswith(incomplete)]


def problem_kinds(incomplete: str) -> list[str]:
    """The kinds of problems."""
    from pursuit.problems.manifest import KINDS  # noqa: PLC0415 - only a completion pays for it

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _ids(ctx: typer.Context, incomplete: str, kind: str, words: str) -> list[tuple[str, str]]:
    from pursuit.config.configuration import find_configuration  # noqa: PLC0415
    from pursuit.config.files import locate_state  # noqa: PLC0415 - only a completion pays for it
    from pursuit.ledger.schema import open_reader  # noqa: PLC0415
    from pursuit.ledger.sqlite import SqliteReads  # noqa: PLC0415

    given = {**((ctx.parent.params if ctx.parent else None) or {}), **{k: v for k, v in ctx.params.items() if v}}
    config = Path(given["config"]) if given.get("config") else find_configuration(Path.cwd())
    path = locate_state(Path(given["state"]) if given.get("state") else None, config)
    if not path.is_file():
        return []
    connection = open_reader(path)
    try:
        page = SqliteReads(path, connection).page(
            kind=kind, status=None, since=None, until=None, cursor=None, limit=MOST
        )
    finally:
        connection.close()
    return [
        (row.name, f"{row.status}: {' '.join(str(row.summary.get(words, '')).split())[:60]}")
        for row in page.rows
        if row.name.startswith(incomplete) and row.status != "forgotten"
    ]


COMMON = "Common"

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default=False,
        rich_help_panel=COMMON,
        help="The configuration; else the nearest pursuit.toml upwards, else mcp.json there.",
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        show_default=False,
        rich_help_panel=COMMON,
        help="The ledger; else $PURSUIT_STATE, else .pursuit/ledger.db beside the configuration.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=COMMON, help="Print one JSON document and nothing else.")
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=COMMON, help="Print JSON Lines, one for each event, and nothing else.")
]


def _a_mode(ctx: typer.Context, mode: str | None) -> str | None:
    """Refuses what is no mode, by the option's name."""
    if mode is not None and not ctx.resilient_parsing:
        from pursuit.policy.rules import parse_mode  # noqa: PLC0415 - only where a mode is given

        parse_mode(mode, field="--mode")
    return mode


ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="auto|ask|never",
        show_default=False,
        callback=_a_mode,
        help="Overrules the policy's mode: auto asks nobody, ask asks before a write, never denies what would ask.",
    ),
]
MissionId = Annotated[
    str,
    typer.Argument(
        metavar="ID", show_default=False, autocompletion=mission_ids, help="A mission, as in `pursuit list`."
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", show_default=False, help="Why; it is kept with the mission.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What was said for all commands."""

    config: Path | None = None
    state: Path | None = None
    json: bool = False

    def command(self, verb: str, *words: str) -> str:
        """A command line that means the same ledger as this one, to be copied by a person."""
        given = [("--config", self.config), ("--state", self.state)]
        options = [part for name, value in given if value is not None for part in (name, str(value))]
        return shlex.join(["pursuit", verb, *words, *options])


def common(ctx: typer.Context, config: Path | None, state: Path | None, json: bool) -> Common:
    """What was said before the subcommand, overruled by what was said after it."""
    before = ctx.obj if isinstance(ctx.obj, Common) else Common()
    return Common(config=config or before.config, state=state or before.state, json=json or before.json)

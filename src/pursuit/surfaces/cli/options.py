"""The options and arguments that several commands share, each declared once.

Owns: their names, help texts and panels, and the merge of what stands before and after the subcommand.
Knows no mission. Invariant: importing this costs no more than typer itself.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pursuit.surfaces.cli.complete import mission_ids

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

"""`pursuit scaffold`: a mission drafted from a directive, to be read before it is run.

Owns: its arguments and where the draft goes. Invariant: nothing is started, and no ledger is opened or made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.surfaces.cli.options import ConfigOption, JsonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.drafting.draft import Draft
    from pursuit.surfaces.cli.screen import Screen

EPILOG = 'Example:  pursuit scaffold "get p95 latency under 200 ms" -o mission.toml'


def scaffold(
    ctx: typer.Context,
    *,
    directive: Annotated[str, typer.Argument(metavar="DIRECTIVE", show_default=False, help="The goal, in words.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PROVIDER:NAME", show_default=False, help="Ask this model, not templates."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Write it there, not to the screen."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Draft a mission file from a goal in words: criteria that can be checked, to be read before use."""
    from pursuit.app import scaffold as drafted  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.context import conduct  # noqa: PLC0415
    from pursuit.surfaces.cli.output import check_output  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.cli.tools import read_configuration  # noqa: PLC0415

    said = common(ctx, config, state, json)
    if output is not None:
        check_output(said, output, force=force)
    screen = Screen(said)
    configuration = None if model is None else read_configuration(said)
    with screen.busy("asking for criteria" if model is not None else "drafting"):
        draft = conduct(lambda: drafted(directive, model=model, configuration=configuration))
    _show(screen, draft, output)
    return 0


def _show(screen: Screen, draft: Draft, output: Path | None) -> None:
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415 - commands import what they need

    if output is not None:
        try:
            output.write_text(draft.toml, encoding="utf-8")
        except OSError as error:
            reason = f"{output} cannot be written: {error.strerror or error}"
            raise ValidationFailed([Fault(field="--output", reason=reason)]) from error
    if screen.json:
        screen.document({**draft.as_json(), **({"file": str(output)} if output is not None else {})})
        return
    if output is None:
        screen.plain(draft.toml.rstrip("\n"))
    else:
        screen.fact("wrote", output)
    for one in draft.refused:
        screen.note(f"refused: {one}")
    spent = f"; asking for it used {draft.tokens} tokens" if draft.tokens else ""
    screen.hint(f"nothing was started{spent}")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel="Start", epilog=EPILOG)(scaffold)

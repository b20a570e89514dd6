"""`pursuit init`: the example that a newcomer starts from.

Owns: the words around it; what is in the example is `demo`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pursuit.surfaces.cli.options import ConfigOption, JsonOption, StateOption, common


def init(
    ctx: typer.Context,
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder; it is made if need be.", show_default=False)
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace the example's files if they are there.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> int:
    """Write a commented example mission that runs."""
    from pursuit.demo.example import write_example  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.cli.text import clean  # noqa: PLC0415

    screen = Screen(common(ctx, config, state, json))
    files = write_example(directory, force=force)
    here = directory.resolve() == Path.cwd()
    steps = [] if here else [f"cd {clean(directory)}"]
    steps += ["pursuit run mission.toml", "pursuit list"]
    if screen.json:
        screen.document({"files": [clean(path) for path in files], "next": steps})
        return 0
    for path in files:
        screen.fact("wrote", path)
    screen.plain("next:")
    for step in steps:
        screen.plain(f"  {step}")
    return 0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel="Start")(init)

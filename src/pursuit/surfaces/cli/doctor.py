"""`pursuit doctor`: what is wrong with this installation, and how to mend it.

Owns: the command and its words. What is looked at is `service.doctor`'s. Invariant: it changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pursuit.surfaces.cli.options import ConfigOption, JsonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.service.doctor import Finding
    from pursuit.surfaces.cli.screen import Screen

PANEL = "Look"
STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}


def doctor(
    ctx: typer.Context, *, config: ConfigOption = None, state: StateOption = None, json: JsonOption = False
) -> int:
    """Examine configuration, servers and ledger, and say how to mend what is wrong."""
    from pursuit.runtime import examined  # noqa: PLC0415 - commands import what they need
    from pursuit.service.doctor import document  # noqa: PLC0415
    from pursuit.surfaces.cli.context import conduct, configuration_path, ledger_path  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415

    said = common(ctx, config, state, json)
    screen = Screen(said)
    path, ledger = configuration_path(said), ledger_path(said)
    with screen.busy("examining"):
        findings = conduct(lambda: examined(path, ledger))
    found = document(findings)
    if screen.json:
        screen.document(found)
    else:
        for finding in findings:
            _tell(screen, finding)
    return 0 if found["ok"] else 1


def _tell(screen: Screen, finding: Finding) -> None:
    from pursuit.surfaces.cli.text import clean, line  # noqa: PLC0415 - commands import what they need

    first, *rest = clean(finding.what).splitlines() or [""]
    if screen.rich:
        from rich.text import Text  # noqa: PLC0415

        screen.console.print(
            Text.assemble((f"{finding.level:8}", STYLES[finding.level]), (line(finding.about), "bold"), f"  {first}"),
            soft_wrap=True,
        )
    else:
        screen.plain(f"{finding.level}\t{line(finding.about)}\t{first}")
    for text in rest:
        screen.plain(f"    {text}")
    if finding.mend:
        screen.plain(f"    mend: {line(finding.mend)}")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=PANEL)(doctor)

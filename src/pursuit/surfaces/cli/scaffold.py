"""`pursuit scaffold`: drafts a mission file for a goal, from a template or by a model.

Owns: its arguments and where the draft goes. Invariant: it starts nothing and opens no ledger.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.surfaces.cli.options import ConfigOption, JsonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.drafting import Draft
    from pursuit.errors import ValidationFailed
    from pursuit.surfaces.cli.screen import Screen

EPILOG = 'Example:  pursuit scaffold "make the tests pass" --template tests -o mission.toml'


def scaffold(
    ctx: typer.Context,
    *,
    directive: Annotated[
        list[str], typer.Argument(metavar="DIRECTIVE", show_default=False, help="The goal, in words; best quoted.")
    ],
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="NAME",
            show_default=False,
            help="The template: metric (the default), log, tests, event, tool or search.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="PROVIDER:NAME", show_default=False, help="Let this model draft the criteria instead."
        ),
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
    """Draft a mission file for a goal, from a template or by a model, for you to complete and run."""
    from pursuit.runtime import scaffold as drafted  # noqa: PLC0415 - commands import what they need
    from pursuit.surfaces.cli.context import conduct  # noqa: PLC0415
    from pursuit.surfaces.cli.output import check_output  # noqa: PLC0415
    from pursuit.surfaces.cli.screen import Screen  # noqa: PLC0415
    from pursuit.surfaces.cli.tools import read_configuration  # noqa: PLC0415

    said = common(ctx, config, state, json)
    _check_words(directive, template, model)
    if output is not None:
        check_output(said, output, force=force)
    screen = Screen(said)
    configuration = None if model is None else read_configuration(said)
    with screen.busy("asking for criteria" if model is not None else "drafting"):
        draft = conduct(
            lambda: drafted(" ".join(directive), template=template, model=model, configuration=configuration)
        )
    _show(screen, draft, output, chosen=template is not None or model is not None)
    return 0


def _check_words(directive: list[str], template: str | None, model: str | None) -> None:
    """Refuses wrong arguments before a model is asked and paid for."""
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415 - commands import what they need

    faults: list[Fault] = []
    if not " ".join(directive).strip():
        faults.append(Fault(field="DIRECTIVE", reason="it is empty; say the goal, such as “make the tests pass”"))
    if model is not None and not all(model.partition(":")):
        reason = f"{model!r} is not PROVIDER:NAME, such as anthropic:claude-haiku-4-5"
        faults.append(Fault(field="--model", reason=reason))
    if model is not None and template is not None:
        faults.append(Fault(field="--template", reason="goes without --model; give one of the two"))
    if faults:
        raise ValidationFailed(faults, "nothing was drafted")


def _show(screen: Screen, draft: Draft, output: Path | None, *, chosen: bool) -> None:
    from pursuit.drafting import TEMPLATES  # noqa: PLC0415 - commands import what they need

    failed = None if output is None else _written(draft, output)
    where = {"file": str(output)} if output is not None and failed is None else {}
    if screen.json:
        # A draft may have been paid for: it is shown also where it could not be written.
        if failed is not None:
            failed.details["draft"] = draft.as_json()
            raise failed
        screen.document({**draft.as_json(), **where})
        return
    if where:
        screen.fact("wrote", output)
    else:
        screen.plain(draft.toml.rstrip("\n"))
    if not chosen:
        screen.note(
            f"this is the {draft.by}; choose another one with --template, or let a model draft it with --model:"
        )
        for name, template in TEMPLATES.items():
            screen.note(f"  {name}: {template.summary}")
    if draft.fill_in:
        screen.note(f"fill in before you run it: {', '.join(draft.fill_in)}")
    for one in draft.refused:
        screen.note(f"refused: {one}")
    if draft.trouble is not None:
        screen.note(f"{draft.trouble}; this is what it drafted before")
    screen.hint(f"nothing was started{_spent(draft)}")
    if failed is not None:
        raise failed


def _spent(draft: Draft) -> str:
    if not draft.tokens:
        return ""
    cost = "at a price that is not known" if draft.cost_usd is None else f"for ${draft.cost_usd:.4g}"
    return f"; asking for it used {draft.tokens} tokens {cost}"


def _written(draft: Draft, output: Path) -> ValidationFailed | None:
    """Why a draft could not be written, if it could not."""
    from pursuit.errors import Fault, ValidationFailed  # noqa: PLC0415 - commands import what they need

    try:
        output.write_text(draft.toml, encoding="utf-8")
    except OSError as error:
        reason = f"{output} cannot be written: {error.strerror or error}"
        return ValidationFailed([Fault(field="--output", reason=reason)], "the draft was not written")
    return None


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel="Start", epilog=EPILOG)(scaffold)

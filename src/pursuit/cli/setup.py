"""`pursuit init`: the example that a newcomer starts from.

Owns: the words around it; what is in the example is `demo`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.options import ConfigOption, JsonOption, StateOption, common

if TYPE_CHECKING:
    from pursuit.cli.console import Screen
    from pursuit.drafting import Draft
    from pursuit.errors import ValidationFailed
if TYPE_CHECKING:
    from pursuit.cli.console import Screen
    from pursuit.service.doctor import Finding


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
    from pursuit.cli.console import Screen, clean  # noqa: PLC0415
    from pursuit.demo.example import write_example  # noqa: PLC0415 - commands import what they need

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


# `pursuit scaffold`: drafts a mission file for a goal, from a template or by a model.
# Invariant: it starts nothing and opens no ledger.

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
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import check_output, conduct  # noqa: PLC0415
    from pursuit.cli.tools import read_configuration  # noqa: PLC0415
    from pursuit.runtime import scaffold as drafted  # noqa: PLC0415 - commands import what they need

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


def register_scaffold(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel="Start", epilog=EPILOG)(scaffold)


# `pursuit doctor`: what is wrong with this installation, and how to mend it.
# Invariant: it changes nothing.

PANEL = "Look"
STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}


def doctor(
    ctx: typer.Context, *, config: ConfigOption = None, state: StateOption = None, json: JsonOption = False
) -> int:
    """Examine configuration, servers and ledger, and say how to mend what is wrong."""
    from pursuit.cli.console import Screen  # noqa: PLC0415
    from pursuit.cli.context import conduct, configuration_path, ledger_path  # noqa: PLC0415
    from pursuit.runtime import examined  # noqa: PLC0415 - commands import what they need
    from pursuit.service.doctor import document  # noqa: PLC0415

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
    from pursuit.cli.console import clean, line  # noqa: PLC0415 - commands import what they need

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


def register_doctor(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=PANEL)(doctor)

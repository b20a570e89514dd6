"""The commands that help to write files, and start nothing: init (an example), schema (for editors), scaffold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.console import Screen, clean, model_usage
from pursuit.cli.context import Context, command, conduct
from pursuit.cli.options import ForceOption, OutputOption, check_choice

if TYPE_CHECKING:
    from pursuit.drafting import Draft
    from pursuit.errors import ValidationFailed

PANEL = "Start"

app = typer.Typer()


@command(app)
def init(
    context: Context,
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to.")] = Path(),
    template: Annotated[
        str,
        typer.Option(metavar="NAME", help="Example: beam (the default), tune, fix-tests, watch-and-repair or client."),
    ] = "beam",
    force: ForceOption = False,
) -> None:
    """Write an example mission, with comments, that runs as it is."""
    from pursuit.demo.example import next_steps, template_named, write_example

    screen = context.screen
    files = write_example(directory, force=force, template=template)
    steps = [] if directory.resolve() == Path.cwd() else [f"cd {clean(directory)}"]
    steps += next_steps(template_named(template))
    if screen.answer({"files": [clean(path) for path in files], "next": steps}):
        return
    for path in files:
        screen.fact("wrote", path)
    screen.plain("next:")
    for step in steps:
        screen.plain(f"  {step}")


@command(app, epilog="Example:  pursuit schema mission > mission.schema.json")
def schema(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="mission|config", help="mission.toml or pursuit.toml.")],
) -> None:
    """Print the JSON Schema of mission.toml or pursuit.toml, for editors."""
    from pursuit.config.json_schemas import SCHEMAS, schema_text

    check_choice("mission|config", name, tuple(SCHEMAS))
    context.screen.plain(schema_text(name).rstrip("\n"))


@command(app, epilog='Example:  pursuit scaffold "make the tests pass" --template tests -o mission.toml')
def scaffold(
    context: Context,
    *,
    directive: Annotated[list[str], typer.Argument(metavar="DIRECTIVE", help="The goal in words; quote it.")],
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Template: metric (the default), log, tests, event, tool or search."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:NAME", help="Let this language model draft the criteria instead.")
    ] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Draft a mission file for a goal, from a template or with a model; complete it before you run it."""
    from pursuit.runtime import scaffold as drafted

    _check_arguments(directive, template, model)
    if output is not None:
        context.check_output(output, force=force)
    configuration = None if model is None else context.configuration()
    with context.screen.busy("asking for criteria" if model is not None else "drafting"):
        draft = conduct(
            lambda: drafted(" ".join(directive), template=template, model=model, configuration=configuration)
        )
    _show(context.screen, draft, output, chosen=template is not None or model is not None)


def _check_arguments(directive: list[str], template: str | None, model: str | None) -> None:
    """Refuses wrong arguments before a model is paid for."""
    from pursuit.errors import Fault, ValidationFailed

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
    from pursuit.drafting import TEMPLATES

    failed = None if output is None else _write(draft, output)
    where = {"file": str(output)} if output is not None and failed is None else {}
    if screen.json:
        # The draft may have cost money: it is shown even if it could not be written.
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
    screen.hint(f"nothing was started{model_usage(draft.tokens, draft.cost_usd)}")
    if failed is not None:
        raise failed


def _write(draft: Draft, output: Path) -> ValidationFailed | None:
    """Writes the draft; returns the error if that fails."""
    from pursuit.errors import Fault, ValidationFailed

    try:
        output.write_text(draft.toml, encoding="utf-8")
    except OSError as error:
        reason = f"{output} cannot be written: {error.strerror or error}"
        return ValidationFailed([Fault(field="--output", reason=reason)], "the draft was not written")
    return None

"""The commands that help to write files, and start nothing: init (an example), schema (for editors), scaffold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pursuit.cli.console import Screen, clean, model_usage
from pursuit.cli.context import Context, command, conduct
from pursuit.cli.options import ForceOption, OutputOption, check_choice

if TYPE_CHECKING:
    from pursuit.config.trust import Workspace
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
        typer.Option(
            metavar="NAME", help="Example: beam (the default), tune, fix-tests, watch-and-repair, coding or client."
        ),
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


@command(app, epilog="Example:  pursuit trust .   (look first:  pursuit trust . --show)")
def trust(
    context: Context,
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Folders, or configurations, missions and problems (none: list all)."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what they start; record nothing.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Trust them no longer.")] = False,
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="Trust the files of this user, by name or number.")
    ] = None,
) -> None:
    """Trust what a folder starts: its servers, commands, checks, judges and models."""
    from pursuit.config.trust import Records, forget, record, trust_path, untrusted

    screen = context.screen
    if owner is not None:
        record(owner=_user(owner))
    if remove:
        gone = forget(paths or ())
        if not screen.answer({"removed": gone}):
            for name in gone:
                screen.fact("no longer trusted", name)
        return
    if not paths:
        records = Records.read()
        if not screen.answer({"file": str(trust_path()), "trusted": list(records.trusted), "owners": records.owners}):
            for name in records.trusted:
                screen.plain(clean(name))
            screen.hint(f"recorded in {trust_path()}")
        return
    found = _workspaces(paths)
    untrusted(found)  # raises for a file that others can write
    if not show:
        record(found)
    rows = [{"path": str(one.path), "starts": list(one.starts.values())} for one in found]
    if screen.answer({"trusted": not show, "workspaces": rows}):
        return
    for row in rows:
        screen.fact("would trust" if show else "trusted", row["path"])
        for line in row["starts"]:
            screen.plain(f"  {clean(line)}")


def _user(word: str) -> int:
    """The number of a user, by name or number."""
    import pwd

    from pursuit.errors import Fault, ValidationFailed

    try:
        return int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid
    except KeyError:
        raise ValidationFailed([Fault(field="--owner", reason=f"there is no user {word!r}")]) from None


def _workspaces(paths: list[Path]) -> list[Workspace]:
    """What these paths start; of a folder its configuration, its state and its problem. Raises with all faults."""
    from pursuit.config.configuration import JSON_NAME, TOML_NAME, load_configuration
    from pursuit.config.files import SESSIONS_FILE, TOKENS_FILE
    from pursuit.config.mission_file import load_mission_file
    from pursuit.config.trust import new_state, of_configuration, of_credentials, of_mission
    from pursuit.errors import Fault, ValidationFailed
    from pursuit.problems.catalogue import workspaces_of
    from pursuit.problems.manifest import MANIFEST
    from pursuit.problems.manifest_reading import read_manifest

    found: list[Workspace] = []
    faults: list[Fault] = []
    for given in paths:
        names = (TOML_NAME, JSON_NAME, MANIFEST) if given.is_dir() else (given.name,)
        folder = given if given.is_dir() else given.parent
        files = [folder / name for name in names if (folder / name).is_file()]
        if folder / TOML_NAME in files and given.is_dir():
            files = [one for one in files if one.name != JSON_NAME]  # it is part of the other
        state = [folder / ".pursuit" / name for name in ("ledger.db", TOKENS_FILE, SESSIONS_FILE)]
        files += [path for path in state if given.is_dir() and path.is_file()]
        if not files:
            faults.append(Fault(field="PATH", reason=f"there is nothing to trust at {given}"))
        for path in files:
            try:
                if path.name in (TOML_NAME, JSON_NAME):
                    own = of_configuration(load_configuration(path))
                    found += [] if own is None else [own]
                elif path.name == MANIFEST:
                    found += workspaces_of(read_manifest(path))
                elif path.name in (TOKENS_FILE, SESSIONS_FILE):
                    found.append(of_credentials(path))
                elif path.suffix != ".toml":
                    found.append(new_state(path))
                else:
                    found.append(of_mission(load_mission_file(path)))
            except ValidationFailed as failed:
                faults += failed.faults
    if faults:
        raise ValidationFailed(faults, "nothing was trusted")
    return found


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

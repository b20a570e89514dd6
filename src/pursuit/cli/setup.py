"""The commands that write or trust files and start nothing: init, schema, scaffold, trust."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pursuit.cli.console import CommandAnswer, Fact, Hint, Note, Part, clean
from pursuit.cli.context import Context, command
from pursuit.cli.options import ForceOption, OutputOption, check_choice
from pursuit.config.configuration import JSON_NAME, TOML_NAME, McpFile, load_configuration
from pursuit.config.files import SESSIONS_FILE, TOKENS_FILE, parse_json, read_text
from pursuit.config.json_schemas import SCHEMAS, schema_text
from pursuit.config.mission_file import load_mission_file
from pursuit.config.trust import (
    Records,
    TrustedFolder,
    forget,
    new_state,
    of_configuration,
    of_credentials,
    of_mission,
    record,
    trust_path,
    untrusted,
)
from pursuit.demo.example import next_steps, template_named, write_example
from pursuit.demo.mission_templates import TEMPLATES, draft, template_text
from pursuit.errors import Fault, ValidationFailed, advice
from pursuit.problems.catalogue import workspaces_of
from pursuit.problems.manifest import MANIFEST
from pursuit.problems.manifest_reading import read_manifest

CACHES: Mapping[str, Sequence[str]] = {"npx": ("~/.npm",), "uvx": ("~/.cache/uv", "~/.local/share/uv")}
app = typer.Typer()


@command(app, reads=True)
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
) -> CommandAnswer:
    isolated = [] if context.json else isolate_servers(directory / JSON_NAME)
    files = write_example(directory, force=force, template=template)
    steps = [] if directory.resolve() == Path.cwd() else [f"cd {clean(directory)}"]
    steps += next_steps(template_named(template))
    wrote = [Fact("wrote", path) for path in files]
    data = {"files": [clean(path) for path in files], "next": steps}
    wrote += [Fact("isolated", f"{name} in {JSON_NAME}") for name in isolated]
    return CommandAnswer(data, *wrote, "next:", *(f"  {step}" for step in steps))


def isolate_servers(path: Path) -> list[str]:
    """Asks at a terminal about each server that npx or uvx downloads, and writes its isolation into the file."""
    if not (path.is_file() and sys.stdin.isatty() and sys.stderr.isatty()):
        return []
    data: Any = parse_json(read_text(path), source=str(path))
    done: list[str] = []
    for name, table in McpFile.model_validate(data).mcp_servers.items():
        caches = CACHES.get(Path(table.command or "").name)
        words = clean(shlex.join([table.command or "", *table.args]))
        question = f"Isolate the server {clean(name)}, which is downloaded at its start ({words})?"
        if caches and table.isolation is None and typer.confirm(question, default=True, err=True):
            for one in caches:
                Path(one).expanduser().mkdir(parents=True, exist_ok=True)
            folders = [one for one in table.args if Path(one).is_absolute() and Path(one).is_dir()]
            data["mcpServers"][name]["isolation"] = {"write": [*caches, *folders], "network": True}
            done.append(name)
    if done:
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return done


@command(app, epilog="Example:  pursuit schema mission > mission.schema.json", reads=True)
def schema(
    context: Context,
    *,
    name: Annotated[str, typer.Argument(metavar="mission|config", help="mission.toml or pursuit.toml.")],
) -> None:
    check_choice("mission|config", name, tuple(SCHEMAS))
    context.screen.plain(schema_text(name).rstrip("\n"))


@command(app, epilog='Example:  pursuit scaffold "make the tests pass" --template tests -o mission.toml', reads=True)
def scaffold(
    context: Context,
    *,
    directive: Annotated[list[str], typer.Argument(metavar="DIRECTIVE", help="The goal in words; quote it.")],
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Template: metric (the default), log, tests, event, tool or search."),
    ] = None,
    model: Annotated[str | None, typer.Option(hidden=True)] = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> CommandAnswer:
    _check_arguments(directive, model)
    if output is not None:
        context.check_output(output, force=force)
    drafted = draft(" ".join(directive), template)
    if output is not None:
        _write(output, drafted.toml)
    parts: list[Part] = [drafted.toml.rstrip("\n") if output is None else Fact("wrote", output)]
    if template is None:
        parts.append(Note(f"this is the {drafted.by}; choose another one with --template:"))
        parts += [Note(f"  {name}: {template_text(name)[0]}") for name in TEMPLATES]
    if drafted.fill_in:
        parts.append(Note(f"fill in before you run it: {', '.join(drafted.fill_in)}"))
    data = {**drafted.as_json(), **({} if output is None else {"file": str(output)})}
    return CommandAnswer(data, *parts, Hint("nothing was started"))


@command(app, epilog="Example:  pursuit trust .   (look first:  pursuit trust . --show)")
def trust(
    context: Context,
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Folders, configurations, missions or problems (default: list trusted ones)."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what they start, without trusting them.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Stop trusting them.")] = False,
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="Trust the files of this user, by name or number.")
    ] = None,
) -> CommandAnswer:
    context.refuse_agents(always=True)
    if owner is not None:
        record(owner=_user(owner))
    if remove:
        gone = forget(paths or ())
        return CommandAnswer({"removed": gone}, *(Fact("no longer trusted", name) for name in gone))
    if not paths:
        records = Records.read()
        data = {"file": str(trust_path()), "trusted": list(records.trusted), "owners": records.owners}
        return CommandAnswer(data, map(clean, records.trusted), Hint(f"recorded in {trust_path()}"))
    found = _workspaces(paths)
    untrusted(found)  # raises for files that other users can write
    if not show:
        record(found)
    rows = [{"path": str(one.path), "starts": list(one.starts.values())} for one in found]
    parts: list[Part] = []
    for row in rows:
        parts.append(Fact("would trust" if show else "trusted", row["path"]))
        parts += [f"  {clean(line)}" for line in row["starts"]]
    return CommandAnswer({"trusted": not show, "workspaces": rows}, *parts)


def _user(word: str) -> int:
    import pwd

    try:
        return int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid
    except KeyError:
        raise ValidationFailed([Fault(field="--owner", reason=f"there is no user {word!r}")]) from None


def _workspaces(paths: list[Path]) -> list[TrustedFolder]:
    """Returns what these paths start: of a folder, its configuration, state and problem. Reports all faults."""
    found: list[TrustedFolder] = []
    faults: list[Fault] = []
    for given in paths:
        names = (TOML_NAME, JSON_NAME, MANIFEST) if given.is_dir() else (given.name,)
        folder = given if given.is_dir() else given.parent
        files = [folder / name for name in names if (folder / name).is_file()]
        if folder / TOML_NAME in files and given.is_dir():
            files = [one for one in files if one.name != JSON_NAME]  # the other file includes it
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


def _check_arguments(directive: list[str], model: str | None) -> None:
    faults: list[Fault] = []
    if not " ".join(directive).strip():
        faults.append(Fault(field="DIRECTIVE", reason="is empty; give a goal, such as “make the tests pass”"))
    if model is not None:
        example = advice("pursuit init --template {}", "NAME")
        reason = f"was removed: `{example}` writes a working example, and a client's model drafts criteria with the MCP"
        faults.append(Fault(field="--model", reason=f"{reason} prompt `write_criteria` of {advice('pursuit serve')}"))
    if faults:
        raise ValidationFailed(faults, "nothing was drafted")


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"{output} cannot be written: {error.strerror or error}"
        raise ValidationFailed([Fault(field="--output", reason=reason)], "the draft was not written") from None

"""`pursuit install`: adds Pursuit to the configuration file of an MCP client, or removes it.

All faults of the command line are reported at once, before any file is read.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pursuit.cli.client_file import ClientFile, Edit, is_shared, plan, read_file, write_file
from pursuit.cli.console import CommandAnswer, Fact, Note, Part, clean
from pursuit.cli.context import Context, command
from pursuit.cli.gate import install_gate
from pursuit.cli.serve import DEFAULT_HOST, DEFAULT_PORT
from pursuit.config.configuration import JSON_NAME
from pursuit.config.files import STATE_VARIABLE
from pursuit.core.base_model import nearest
from pursuit.errors import Fault, InvalidArgument, ValidationFailed

HELP = (
    "Add Pursuit to Claude Desktop, Claude Code, VS Code or Cursor.\n\n"
    "Adds one entry to the client's own configuration file. The entry starts `pursuit serve` with the configuration "
    "and the ledger of this folder; with --http it contains the address and the token of `pursuit serve --http`. The "
    "rest of the file does not change, and a backup is kept beside it."
)
ENDPOINT = "/mcp"
HIDDEN = "[token]"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

app = typer.Typer()

Base = Literal["home", "settings", "claude"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One MCP client: its configuration file, for the user and for a project, and the shape of an entry.

    Entries contain only absolute paths, because a client may start the server in any folder.
    """

    name: str
    title: str
    base: Base
    user_file: str
    project_file: str | None
    servers_key: str
    typed: bool
    then: str
    then_project: str | None = None
    http: bool = True

    def entry(self, argv: Sequence[str]) -> dict[str, Any]:
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": argv[0], "args": list(argv[1:])}

    def http_entry(self, port: int, token: str) -> dict[str, Any]:
        kind = {"type": "http"} if self.typed else {}
        return {
            **kind,
            "url": f"http://{DEFAULT_HOST}:{port}{ENDPOINT}",
            "headers": {"Authorization": f"Bearer {token}"},
        }


CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client(
            name="claude-desktop",
            title="Claude Desktop",
            base="settings",
            user_file="Claude/claude_desktop_config.json",
            project_file=None,
            servers_key="mcpServers",
            typed=False,
            then="quit Claude Desktop and start it again",
            http=False,
        ),
        Client(
            name="claude-code",
            title="Claude Code",
            base="claude",
            user_file=".claude.json",
            project_file=".mcp.json",
            servers_key="mcpServers",
            typed=True,
            then="start a new session of Claude Code; /mcp lists it",
            then_project="start Claude Code in this folder and approve the server; /mcp lists it",
        ),
        Client(
            name="vscode",
            title="VS Code",
            base="settings",
            user_file="Code/User/mcp.json",
            project_file=".vscode/mcp.json",
            servers_key="servers",
            typed=True,
            then="run `MCP: List Servers` in VS Code and start it there",
        ),
        Client(
            name="cursor",
            title="Cursor",
            base="home",
            user_file=".cursor/mcp.json",
            project_file=".cursor/mcp.json",
            servers_key="mcpServers",
            typed=False,
            then="start Cursor again and switch the server on in its settings",
        ),
    )
}


def user_file(client: Client, *, home: Path, environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    moved = environment.get("CLAUDE_CONFIG_DIR")  # Claude Code moves its file along with its folder
    folders: dict[Base, Path] = {
        "home": home,
        "settings": _settings_folder(home, environment, platform),
        "claude": Path(moved).absolute() if moved else home,
    }
    return folders[client.base] / client.user_file


def _settings_folder(home: Path, environment: Mapping[str, str], platform: str) -> Path:
    if platform == "darwin":
        return home / "Library" / "Application Support"
    given = environment.get("XDG_CONFIG_HOME", "")
    # The XDG Base Directory Specification: a relative path there is invalid and must be ignored.
    return Path(given) if Path(given).is_absolute() else home / ".config"


def this_command(executable: Path) -> list[str]:
    """The command that runs Pursuit in this environment: the script beside the interpreter, else the module."""
    # Not resolved: the interpreter of an environment is a link, and the scripts are beside the link.
    script = executable.with_name("pursuit")
    return [str(script)] if script.is_file() and os.access(script, os.X_OK) else [str(executable), "-m", "pursuit"]


def _names(incomplete: str) -> list[tuple[str, str]]:
    return [(client.name, client.title) for client in CLIENTS.values() if client.name.startswith(incomplete)]


@command(app, help=HELP, epilog="Example:  pursuit install cursor --dry-run")
def install(
    context: Context,
    *,
    client: Annotated[
        str,
        typer.Argument(metavar="CLIENT", autocompletion=_names, help="claude-desktop, claude-code, vscode or cursor."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="Install for this folder only (not possible for claude-desktop).")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entry.")] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the server in the client.")] = "pursuit",
    http: Annotated[
        bool, typer.Option("--http", help="Use the server that `pursuit serve --http` runs, with its token.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --http: the server's port.")] = DEFAULT_PORT,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The client's configuration file (default: its usual location)."),
    ] = None,
    gate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Install `pursuit gate` with this mission file as hooks (also for codex)."),
    ] = None,
) -> CommandAnswer:
    if gate is not None:
        return install_gate(context, client, gate, this_command(Path(sys.executable)), remove=remove, dry_run=dry_run)
    known = _checked(client, name=name, project=project, file=file, http=http)
    target = read_file(_target(known, project=project, file=file))
    entry = None
    if http and not remove:
        entry = known.http_entry(port, HIDDEN)
    elif not remove:
        entry = known.entry(_server_command(context, target))
        if not dry_run:
            context.trust_here(schedules=True)  # the client starts the server without a terminal to ask at
    action, text = plan(target, Edit(within=known.servers_key, name=name, entry=entry))
    with_token = entry is not None and http and not dry_run
    if with_token:
        # Planned again with the token: the errors above must not show it, and an unwritable file must not create it.
        secret = known.http_entry(port, context.tokens.local()[0])
        action, text = plan(target, Edit(within=known.servers_key, name=name, entry=secret))
    new_folder = not target.path.parent.exists()
    # Other users may be able to read the file with the token, even if an older release wrote it.
    shut = with_token and is_shared(target.path)
    backup = None
    if not dry_run and (action != "unchanged" or shut):
        backup = write_file(target, text, private=with_token)
    answer: dict[str, Any] = {
        "client": known.name,
        "file": str(target.path),
        "name": name,
        "action": action,
        "dry_run": dry_run,
        "entry": entry,
        "backup": None if backup is None else str(backup),
    }
    if dry_run:
        answer["diff"] = _diff(target, text)
    notes: list[Note] = []
    if shut:
        held = f"note: {target.path} contains a token; other users could read it before, now only you can"
        notes.append(Note(held))
    if new_folder and entry is not None and not project and file is None:
        notes.append(Note(f"note: {target.path.parent} did not exist; is {known.title} installed?"))
    return CommandAnswer(answer, _parts(known, answer, project=project), *notes)


def _checked(client: str, *, name: str, project: bool, file: Path | None, http: bool) -> Client:
    faults: list[Fault] = []
    known = CLIENTS.get(client)
    if known is None:
        hint = nearest(client.lower(), CLIENTS) or f"; known are {', '.join(CLIENTS)}"
        faults.append(Fault(field="CLIENT", reason=f"{client!r} is not a known client{hint}"))
    if not _NAME.fullmatch(name):
        faults.append(Fault(field="--name", reason="must be 1 to 64 letters, digits, '-' and '_'"))
    if project and file is not None:
        faults.append(Fault(field="--project", reason="cannot be combined with --file"))
    elif project and known is not None and known.project_file is None:
        faults.append(Fault(field="--project", reason=f"{known.title} does not support a configuration per folder"))
    if http and project:
        faults.append(
            Fault(field="--http", reason="cannot be combined with --project: a shared file must not hold your token")
        )
    if http and known is not None and not known.http:
        faults.append(Fault(field="--http", reason=f"{known.title} starts its servers itself; install without --http"))
    if known is None or faults:
        count = len(faults)
        raise ValidationFailed(faults, f"{count} fault{'' if count == 1 else 's'}; nothing was changed")
    return known


def _target(client: Client, *, project: bool, file: Path | None) -> Path:
    if file is not None:
        return file.absolute()
    if project and client.project_file is not None:
        return Path.cwd() / client.project_file
    return user_file(client, home=Path.home(), environment=os.environ)


def _server_command(context: Context, target: ClientFile) -> list[str]:
    config = context.configuration_path
    ours = (config, (Path.cwd().resolve() if config is None else config.parent) / JSON_NAME)
    if target.path in ours:
        raise InvalidArgument(
            f"Pursuit reads its own servers from {target.path}; with this entry it would start itself. "
            "Name another file with --file",
            file=str(target.path),
        )
    words = [*this_command(Path(sys.executable)), "serve"]
    if config is not None:
        words += ["--config", str(config)]
    # With neither, the server searches from the folder where the client starts it, as every command does.
    if config is not None or context.state is not None or os.environ.get(STATE_VARIABLE):
        ledger = context.ledger_path
        words += ["--state", str(ledger.parent.resolve() / ledger.name)]
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{word!r} is not UTF-8, which JSON requires") from None
    return words


def _diff(target: ClientFile, text: str) -> str:
    from difflib import unified_diff

    old = "/dev/null" if target.raw is None else str(target.path)
    # One line of context: more could show the secrets of other servers.
    lines = unified_diff(target.text.splitlines(), text.splitlines(), old, str(target.path), n=1, lineterm="")
    return "\n".join(lines)


def _parts(client: Client, answer: dict[str, Any], *, project: bool) -> Iterator[Part]:
    if answer["action"] == "unchanged":
        there = "is not in" if answer["entry"] is None else "is already in"
        yield f"nothing to do: {answer['name']!r} {there} {answer['file']}"
        return
    yield Fact("would write" if answer["dry_run"] else "wrote", answer["file"])
    if answer["dry_run"]:
        yield clean(answer["diff"])
        return
    if answer["backup"]:
        yield Fact("backup", answer["backup"])
    entry = answer["entry"]
    if entry is None:
        yield Fact("removed", answer["name"])
        yield Fact("next", f"restart {client.title}")
        return
    yield Fact(answer["action"], answer["name"])
    if "url" in entry:
        yield Fact("uses", entry["url"])
    else:
        yield Fact("runs", shlex.join([entry["command"], *entry["args"]]))
    yield Fact("next", (project and client.then_project) or client.then)
    if project:
        yield Note("note: the entry contains paths of this machine and does not work on other machines")

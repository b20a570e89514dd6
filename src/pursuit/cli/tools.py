"""`pursuit tools`: lists all tools with their permissions, calls a tool, accepts changed tools.

Listing creates no ledger; calls are recorded in the audit. Control characters in texts of servers are removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import anyio.to_thread
import typer
from typer.core import TyperGroup

from pursuit.cli.console import CommandAnswer, Hint, Note, Part, Screen, TableRows, clean, line
from pursuit.cli.context import Context, Interrupted, command, conduct, group
from pursuit.cli.errors import root_cause
from pursuit.cli.options import ArgOption, ArgsJsonOption, ModeOption, read_arguments
from pursuit.config.configuration import Configuration
from pursuit.config.mission_file import MissionFile, load_mission_file
from pursuit.config.trust import of_mission
from pursuit.core.tools import ToolResult
from pursuit.errors import ApprovalNeeded, Fault, InvalidArgument, ValidationFailed
from pursuit.policy.rules import parse_mode
from pursuit.reports.wording import compact
from pursuit.runtime import open_toolbox

LIST = "list"
_OPTIONS_WITH_VALUE = ("--config", "--state")
ASKS = {"allow": "no", "ask": "yes", "deny": "denied"}
TRAITS = ("read_only", "idempotent", "parallel_safe", "destructive")
MAX_TEXT = 160
ServerArgument = Annotated[str | None, typer.Argument(metavar="SERVER", help="Only this server.")]


class _ListByDefault(TyperGroup):
    """Makes `pursuit tools SERVER` mean `pursuit tools list SERVER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args, tuple(self.commands)))


def spelled_out(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].partition("=")[0] in (*_OPTIONS_WITH_VALUE, "--json"):
        rest = rest[2 if rest[0] in _OPTIONS_WITH_VALUE else 1 :]
    named = bool(rest) and (rest[0] in commands or rest[0] in ("-h", "--help"))
    return list(words) if named else [LIST, *words]


app = group(
    "tools",
    cls=_ListByDefault,
    epilog="Examples:  pursuit tools,  pursuit tools git --why,  pursuit tools call git.git_log --arg repo_path=.",
)


@command(app, LIST)
def list_tools(
    context: Context,
    *,
    server: Annotated[str | None, typer.Argument(metavar="SERVER", help="Only the tools of this server.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Include descriptions, and the reason for each property.")] = False,
    mission: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Dry run: show what this mission would be allowed to do.")
    ] = None,
    mode: ModeOption = None,
) -> CommandAnswer:
    """List every tool: reads, writes or destroys, runs in parallel, asks first."""
    if server is not None and mission is not None:
        raise InvalidArgument("give a SERVER or --mission, not both", field="--mission")
    loaded = None if mission is None else load_mission_file(mission)
    configuration = context.trusted_configuration(*([] if loaded is None else [of_mission(loaded)]))
    if loaded is not None:
        require_same(loaded, configuration)

    async def work() -> Mapping[str, Any]:
        chosen = None if mode is None else parse_mode(mode)
        servers = None if loaded is None else loaded.servers
        with context.screen.busy("asking the servers for their tools"):
            async with open_toolbox(configuration, context.ledger_path, mode=chosen, servers=servers) as toolbox:
                return await (toolbox.listing(server) if loaded is None else toolbox.foresee(loaded.mission))

    found = conduct(work)
    return CommandAnswer(found, _listing(found, why=why), code=1 if found["failures"] else 0)


def require_same(file: MissionFile, configuration: Configuration) -> None:
    reason = "the configuration defines a different server with that name; rename one"
    known = {name: server.model_copy(update={"operators": False}) for name, server in configuration.servers.items()}
    faults = [
        Fault(field=f"servers.{name}", reason=reason, source=str(file.path))
        for name, server in file.servers.items()
        if known.get(name, server) != server
    ]
    if faults:
        raise ValidationFailed(faults)


@command(app, epilog="Example:  pursuit tools call files.read_text_file --arg path=notes.txt --arg head=10")
def call(
    context: Context,
    *,
    tool: Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="Tool name (`pursuit tools`).")],
    arg: ArgOption = None,
    args_json: ArgsJsonOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve the call if policy asks first.")] = False,
    mode: ModeOption = None,
) -> CommandAnswer | int:
    """Call one tool, under policy, and show its result."""
    arguments = read_arguments(arg or (), args_json)
    approve = _approver(context.screen, yes=yes)
    try:
        answer = context.drive(lambda runtime: runtime.toolbox.call(tool, arguments, approve=approve), mode)
    except (ApprovalNeeded, ExceptionGroup) as error:
        cause = root_cause(error)
        if not isinstance(cause, ApprovalNeeded):
            raise
        raise ApprovalNeeded(f"{cause.message}; --yes (-y) approves it", **cause.details) from None
    except Interrupted as stop:
        context.screen.note("stopped; the call may or may not have taken effect")
        return 128 + stop.number
    return CommandAnswer(answer.as_dict(), _result(answer), code=1 if answer.is_error else 0)


@command(app, epilog="Example:  pursuit tools diff git")
def diff(context: Context, *, server: ServerArgument = None) -> CommandAnswer:
    """Show how tools changed since you accepted them. Exit code 1 if any did."""
    found = context.drive(lambda runtime: runtime.toolbox.changed(server))
    parts = _differences(found, found["changed"], "no tool has changed since it was accepted")
    return CommandAnswer(found, parts, code=1 if found["changed"] or found["failures"] else 0)


@command(app, epilog="Example:  pursuit tools pin git")
def pin(context: Context, *, server: ServerArgument = None) -> CommandAnswer:
    """Accept changed tools: your allow rules apply to them again."""
    found = context.drive(lambda runtime: runtime.toolbox.pin(server))
    if found["accepted"]:
        names = [line(f"{row['server']}.{name}") for row in found["accepted"] for name in row["tools"]]
        context.screen.note(f"accepted: {', '.join(names)}")
    parts = _differences(found, found["accepted"], "nothing to accept: no tool has changed")
    return CommandAnswer(found, parts, code=1 if found["failures"] else 0)


def _differences(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], none: str) -> Iterator[Part]:
    """Each changed server with its difference, then unreachable servers."""
    for row in rows:
        yield f"server {line(row['server'])}"
        yield clean(row["difference"])
    yield from map(Note, found["failures"].values())
    for warning in found["warnings"]:
        yield Note(f"warning: {warning}")
    if not rows and not found["failures"]:
        yield Hint(none)


def _approver(screen: Screen, *, yes: bool) -> Callable[[str], Awaitable[bool]] | None:
    """Returns the approver of the call: `--yes`, the person at the terminal, or None."""

    async def approved(_question: str) -> bool:
        return True

    async def asked(question: str) -> bool:
        screen.note(question)
        return await anyio.to_thread.run_sync(lambda: typer.confirm("Call it?", err=True), abandon_on_cancel=True)

    if yes:
        return approved
    return asked if sys.stdin.isatty() and not screen.json else None


def _listing(found: Mapping[str, Any], *, why: bool) -> Iterator[Part]:
    """All tools, one per line for a pipe, then unreachable servers."""
    rows = found["tools"]
    cells = [
        (
            row["name"],
            row["effect"],
            "parallel" if row["parallel_safe"] else "alone",
            ASKS[row["decision"]] + ("*" if row["when"] else ""),
            row["reason"],
        )
        for row in rows
    ]
    piped = [(*cell[:3], f"asks first: {cell[3]}", cell[4]) for cell in cells]
    if why:
        for row, cell in zip(rows, piped, strict=True):
            yield TableRows((), (), piped=[cell])
            yield from _reasons(row)
    elif rows:
        yield TableRows(("tool", "may", "runs", "asks first", "why"), cells, piped=piped)
    for server, reason in found["failures"].items():
        yield f"{line(server)}\tcannot be reached\t{line(reason, MAX_TEXT)}"
        yield Note(reason)
    for call in found.get("calls", ()):
        yield line(f"call {call['name']} {compact(call['args'])}: {call['decision']} ({call['reason']})")
    for server in found.get("disabled", ()):
        yield Note(f"server {server} is disabled in the configuration")
    for warning in found["warnings"]:
        yield Note(f"warning: {warning}")
    if not found["tools"] and not found["failures"]:
        yield Hint("no server offers a tool; configure one under [servers] in pursuit.toml, or in mcp.json")
    elif any(row["when"] for row in found["tools"]):
        yield Hint(f"mode {found['mode']}; * depends on the arguments: --why shows the rules")
    else:
        yield Hint(f"mode {found['mode']}; --why shows the reasons")


def _reasons(row: Mapping[str, Any]) -> Iterator[str]:
    if row["description"]:
        yield f"  {line(row['description'], MAX_TEXT)}"
    for name in TRAITS:
        answer = "yes" if row[name] else "no"
        yield f"  {name}: {answer} ({line(row['why'].get(name, 'by default'))})"
    for rule in row["when"]:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in rule["arguments"].items())
        because = f": {rule['reason']}" if rule["reason"] else ""
        yield f"  {line(rule['decision'])} when {line(when + because)}"


def _result(answer: ToolResult) -> Iterator[Part]:
    if answer.is_error:
        yield Note("the tool returned an error:")
    shown = [_block(block) for block in answer.content]
    if not shown and answer.structured is not None:
        shown = [json.dumps(answer.structured, indent=2, ensure_ascii=False, default=str)]
    yield from map(clean, shown)
    if not shown:
        yield Hint("the result is empty")


def _block(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"[link {block.get('uri')} {block.get('name', '')}]".replace(" ]", "]")
        case "resource":
            resource = block.get("resource")
            inner = cast("dict[str, Any]", resource) if isinstance(resource, dict) else {}
            return str(inner["text"]) if "text" in inner else f"[resource {inner.get('uri')}]"
        case kind:
            size = len(str(block.get("data", ""))) * 3 // 4
            return f"[{kind} {block.get('mimeType', '')}, about {size} bytes]"

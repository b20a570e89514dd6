"""Tools on the screen: a listing, the reasons behind it, and what a call answered.

Owns: which facts are shown, in which order, for a terminal and for a pipe. Reads the toolbox's shapes and nothing else.
Invariant: a plain listing is one tool a line; what a server wrote cannot steer the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pursuit.reports.wording import compact
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import clean, line

if TYPE_CHECKING:
    from pursuit.core.tools import ToolResult

ASKS = {"allow": "no", "ask": "yes", "deny": "denied"}
STYLES = {"reads": "green", "writes": "yellow", "destroys": "red", "no": "green", "yes": "yellow", "denied": "red"}
QUESTIONS = ("read_only", "idempotent", "parallel_safe", "destructive")
LONGEST = 160


def listing(screen: Screen, found: Mapping[str, Any], *, why: bool) -> None:
    """Every tool, then what could not be reached."""
    if screen.json:
        screen.document(found)
        return
    rows = found["tools"]
    if screen.rich and rows and not why:
        screen.show(_table(rows))
    else:
        for row in rows:
            _plain(screen, row, why=why)
    for server, reason in found["failures"].items():
        screen.plain(f"{line(server)}\tcannot be reached\t{line(reason, LONGEST)}")
        screen.note(reason)
    for call in found.get("calls", ()):
        screen.plain(_call(call))
    _footer(screen, found)


def _footer(screen: Screen, found: Mapping[str, Any]) -> None:
    for server in found.get("disabled", ()):
        screen.note(f"server {server} is disabled in the configuration")
    for warning in found["warnings"]:
        screen.note(f"warning: {warning}")
    if not found["tools"] and not found["failures"]:
        screen.hint("no server offers a tool; configure one under [servers] in pursuit.toml, or in mcp.json")
    elif any(row["when"] for row in found["tools"]):
        screen.hint(f"mode {found['mode']}; * depends on the arguments: --why shows the rules")
    else:
        screen.hint(f"mode {found['mode']}; --why shows the reasons")


def _asks(row: Mapping[str, Any]) -> str:
    return ASKS[row["decision"]] + ("*" if row["when"] else "")


def _table(rows: list[Mapping[str, Any]]) -> Any:
    from rich.table import Table  # noqa: PLC0415 - rich loads only for a terminal
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("tool", "may", "parallel", "asks first", "why"):
        table.add_column(name, no_wrap=name != "why", overflow="ellipsis" if name == "why" else "fold")
    for row in rows:
        cells = (line(row["name"]), row["effect"], "yes" if row["parallel_safe"] else "no", _asks(row), row["reason"])
        styles = ("", STYLES[row["effect"]], "", STYLES[_asks(row).removesuffix("*")], "dim")
        table.add_row(*(Text(line(cell), style=style) for cell, style in zip(cells, styles, strict=True)))
    return table


def _plain(screen: Screen, row: Mapping[str, Any], *, why: bool) -> None:
    parallel = "parallel" if row["parallel_safe"] else "alone"
    cells = (row["name"], row["effect"], parallel, f"asks first: {_asks(row)}", row["reason"])
    screen.plain("\t".join(line(cell) for cell in cells))
    if not why:
        return
    if row["description"]:
        screen.plain(f"  {line(row['description'], LONGEST)}")
    for name in QUESTIONS:
        answer = "yes" if row[name] else "no"
        screen.plain(f"  {name}: {answer} ({line(row['why'].get(name, 'nobody says otherwise'))})")
    for rule in row["when"]:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in rule["arguments"].items())
        because = f": {rule['reason']}" if rule["reason"] else ""
        screen.plain(f"  {line(rule['decision'])} when {line(when + because)}")


def _call(call: Mapping[str, Any]) -> str:
    return line(f"call {call['name']} {compact(call['args'])}: {call['decision']} ({call['reason']})")


def result(screen: Screen, answer: ToolResult) -> None:
    """What a tool answered: texts as they are, other blocks by their kind, structured content where there are none."""
    if screen.json:
        screen.document(answer.as_dict())
        return
    if answer.is_error:
        screen.note("the tool answered with an error:")
    shown = [_block(block) for block in answer.content]
    if not shown and answer.structured is not None:
        shown = [json.dumps(answer.structured, indent=2, ensure_ascii=False, default=str)]
    for text in shown:
        screen.plain(clean(text))
    if not shown:
        screen.hint("it answered with nothing")


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

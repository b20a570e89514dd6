"""`pursuit run --plan`: what a mission would do first.

Owns: the way from a mission file to a plan, and what is shown of it. Invariant: no ledger is opened or made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pursuit.config.mission_file import load_mission_file
from pursuit.policy.rules import parse_mode
from pursuit.reports.wording import compact
from pursuit.runtime import open_planner
from pursuit.surfaces.cli.context import conduct
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import clean, line
from pursuit.surfaces.cli.tools import read_configuration, require_same

WORDS = {"allow": "allowed", "ask": "a person is asked first", "deny": "denied"}


def plan(said: Common, file: Path, mode: str | None) -> int:
    """Shows the first proposal and what policy would say; 1 if nothing can be proposed."""
    screen = Screen(said)
    found = conduct(lambda: _planned(said, screen, file, mode))
    _show(screen, found)
    return 1 if "failed" in found else 0


async def _planned(said: Common, screen: Screen, file: Path, mode: str | None) -> Mapping[str, Any]:
    loaded = load_mission_file(file)
    configuration = read_configuration(said)
    require_same(loaded.path, configuration, loaded.servers)
    with screen.busy("asking for the first proposal"):
        chosen = None if mode is None else parse_mode(mode)
        async with open_planner(configuration, mode=chosen, servers=loaded.servers) as planner:
            return await planner.plan(loaded.mission)


def _show(screen: Screen, found: Mapping[str, Any]) -> None:
    if screen.json:
        screen.document(found)
        return
    if found.get("rationale"):
        screen.plain(clean(found["rationale"]))
    for call in found["calls"]:
        ruling = f"{WORDS[call['decision']]} ({call['reason']})" if call["reason"] else WORDS[call["decision"]]
        screen.plain(line(f"{call['name']} {compact(call['args'])}: {ruling}"))
    if found.get("script") is not None:
        screen.plain(clean(found["script"]))
    for reason in found.get("failed", ()):
        screen.plain(f"no proposal: {line(reason)}")
    if found.get("waiting_for"):
        screen.plain(f"waits for {found['waiting_for']} before it does anything")
    elif not found["calls"] and found.get("script") is None and "failed" not in found:
        screen.plain("nothing to do in the first iteration")
    for warning in found["warnings"]:
        screen.note(f"warning: {warning}")
    used = found["used"]
    cost = "at a price that is not known" if used["cost_usd"] is None else f"for ${used['cost_usd']:.4g}"
    spent = f"; asking for it used {used['tokens']} tokens {cost}" if used["tokens"] else ""
    screen.hint(f"nothing was run or stored{spent}")

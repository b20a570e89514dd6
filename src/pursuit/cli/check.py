"""`pursuit check`: decides the criteria of a mission file on the current files, for CI."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pursuit.cli import show
from pursuit.cli.console import CommandAnswer, Hint, Note, Part
from pursuit.cli.context import Context, command
from pursuit.cli.options import ModeOption
from pursuit.config.mission_file import MissionFile, load_mission_file
from pursuit.config.trust import of_mission
from pursuit.core.caps import Budget
from pursuit.core.criteria import Check
from pursuit.core.mission import EveryIteration, Workspace
from pursuit.core.proposing import read_settings
from pursuit.errors import Fault, ValidationFailed
from pursuit.runtime import Runtime

app = typer.Typer()


@command(
    app,
    epilog="Exit code:  0 all required criteria met,  1 not met or inconclusive,  2 wrong input.  "
    "Example:  pursuit check mission.toml --at HEAD~1",
)
def check(
    context: Context,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Mission file in TOML with criteria of kind `check`.")],
    at: Annotated[
        str | None, typer.Option("--at", metavar="COMMIT", help="Check this commit instead of the files as they are.")
    ] = None,
    mode: ModeOption = None,
) -> int:
    """Check the criteria of kind `check` on the files as they are; the ledger, if there is one, records the result.

    If the mission has a [workspace], and with --at, the checks run in a throw-away copy of the repository.
    """
    given = load_mission_file(file)
    here = given.mission.workspace is None and at is None
    checked, rest = without_proposer(given, {"kind": "tree", "commit": at, "here": here})
    with tempfile.TemporaryDirectory(prefix="pursuit-") as folder:
        if not context.ledger_path.exists():
            context.ledger_path = Path(folder) / "ledger.db"

        async def work(runtime: Runtime) -> int:
            started = await runtime.start_file(checked, trusted=True)
            await runtime.mission(started.session_id).run()
            status = await runtime.runner.status(started.session_id)
            required = [row for row in status.criteria if row.required]
            met = all(row.status == "met" for row in required or status.criteria)
            data: dict[str, Any] = {
                "met": met,
                "session_id": status.mission_id,
                "criteria": status.as_json()["criteria"],
            }
            parts: list[Part] = [show.criteria(status.criteria)]
            parts += [Note(f"not checked, because it needs the work of a proposer: {', '.join(rest)}")] if rest else []
            parts += [Hint("all required criteria are met" if met else "not all required criteria are met")]
            return context.screen.render(CommandAnswer({**data, "not_checked": rest}, *parts, code=not met))

        return context.drive(work, mode, of_mission(given))


def without_proposer(file: MissionFile, proposer: Mapping[str, Any]) -> tuple[MissionFile, list[str]]:
    """The mission with another proposer and the criteria that need none, and the ids of the others."""
    mission = file.mission
    checks = [one.model_copy(update={"after": None}) for one in mission.criteria if isinstance(one, Check)]
    if not checks:
        reason = "none is of kind check, and only checks can be decided without a proposer"
        raise ValidationFailed([Fault(field="criteria", reason=reason, source=str(file.path))])
    tools = sorted({one.tool_name for one in checks if one.tool_name is not None})
    changes: dict[str, Any] = {
        "criteria": checks,
        "checkpoint_cadence": EveryIteration(),
        "proposer": read_settings(proposer),
        "workspace": mission.workspace or Workspace(path=str(file.path.parent)),
        "budget": Budget(max_iterations=1),
        "tool_allowlist": tools or None,
        "allow_all_tools": False,
        "stagnation_threshold": "off",
        "pace": None,
        "fleet": None,
        "share": [],
    }
    rest = [one.criterion_id for one in mission.criteria if not isinstance(one, Check)]
    return replace(file, mission=mission.model_copy(update=changes), servers=file.servers if tools else {}), rest

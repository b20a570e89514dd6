"""Problems with the attempts at them side by side, and what their missions used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread

from pursuit.core.state import TERMINAL
from pursuit.errors import SessionNotFound
from pursuit.ledger.contract import every_stream
from pursuit.problems.attempts import KIND, attempts_at
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import ProblemCatalogue, discover
from pursuit.problems.comparison import attempt_row, problem_row
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import judging_digest
from pursuit.service.service import Service


async def compared(service: Service, problem: Manifest, unreadable: list[str]) -> dict[str, Any]:
    """A problem with the row of each attempt; attempts that cannot be read are named in `unreadable`."""
    rows: list[dict[str, Any]] = []
    version = await anyio.to_thread.run_sync(judging_digest, problem)
    for state in await attempts_at(service.ledger, {problem.problem_id}, unreadable):
        spent: Mapping[str, Any] | None = None
        over = state.opened.mission is not None
        if state.opened.mission is not None:
            with suppress(SessionNotFound):  # forgotten since; only an ended mission can be
                status = await service.status(state.opened.mission)
                spent, over = status.budget.as_json()["used"], status.status in TERMINAL
        rows.append(attempt_row(problem, state, spent, version=version, mission_over=over, now=service.clock.now()))
    return problem_row(problem, rows)


def found_problems(folder: Path) -> dict[str, Manifest]:
    """The problems that are shipped and those of the folder `problems` in this one, by their ids."""
    own = folder / "problems"
    return {one.problem_id: one for one in discover([own] if own.is_dir() else []).problems}


async def problem_rows(service: Service, folder: Path) -> list[dict[str, Any]]:
    """Each problem with how many attempts there are; those that were tried come first, also if their file is gone."""
    known = await anyio.to_thread.run_sync(found_problems, folder)
    counts: Counter[str] = Counter()
    async for row in every_stream(service.ledger, kind=KIND):
        counts[str(row.summary.get("problem_id"))] += 1
    rows = [{**one.summary_row(), "attempts": counts[name]} for name, one in known.items()]
    gone = [
        {"problem_id": name, "title": name, "attempts": count} for name, count in counts.items() if name not in known
    ]
    return sorted([*rows, *gone], key=lambda row: (not row["attempts"], row["problem_id"]))


async def problem_page(service: Service, folder: Path, problem_id: str) -> dict[str, Any]:
    """The brief of a problem, as agents read it without its server's tools, and the attempts compared.

    Raises `ProblemNotFound`.
    """
    known = await anyio.to_thread.run_sync(found_problems, folder)
    problem = ProblemCatalogue(known.values()).get(problem_id)
    unreadable: list[str] = []
    row = await compared(service, problem, unreadable)
    return {**row, "brief": write_brief(problem), "unreadable": unreadable}

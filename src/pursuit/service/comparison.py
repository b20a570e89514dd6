"""Compares the attempts at a problem, and the budget that their missions used."""

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


async def compared(service: Service, problem: Manifest) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    version = await anyio.to_thread.run_sync(judging_digest, problem)
    for state in await attempts_at(service.ledger, {problem.problem_id}):
        spent: Mapping[str, Any] | None = None
        over = state.opened.mission is not None
        if state.opened.mission is not None:
            with suppress(SessionNotFound):  # forgotten since; only an ended mission can be forgotten
                status = await service.status(state.opened.mission)
                spent, over = status.budget.as_json()["used"], status.status in TERMINAL
        rows.append(attempt_row(problem, state, spent, version=version, mission_over=over, now=service.clock.now()))
    return problem_row(problem, rows)


def found_problems(folder: Path) -> ProblemCatalogue:
    own = folder / "problems"
    return discover([own] if own.is_dir() else [])


async def problem_rows(service: Service, folder: Path) -> list[dict[str, Any]]:
    """Each problem with its number of attempts; attempted ones come first, even if their file is gone."""
    known = await anyio.to_thread.run_sync(found_problems, folder)
    counts: Counter[str] = Counter()
    async for row in every_stream(service.ledger, kind=KIND):
        counts[str(row.summary.get("problem_id"))] += 1
    rows = [{**one.summary_row(), "attempts": counts.pop(one.problem_id, 0)} for one in known]
    gone = [{"problem_id": name, "title": name, "attempts": count} for name, count in counts.items()]
    return sorted([*rows, *gone], key=lambda row: (not row["attempts"], row["problem_id"]))


async def problem_page(service: Service, folder: Path, problem_id: str) -> dict[str, Any]:
    """The brief of a problem, as agents without its server's tools read it, and a comparison of the attempts.

    Raises `ProblemNotFound`.
    """
    known = await anyio.to_thread.run_sync(found_problems, folder)
    problem = known.get(problem_id)
    return {**await compared(service, problem), "brief": write_brief(problem)}

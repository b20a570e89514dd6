"""Ids of missions, tasks, problems and attempts for the shell's completion.

Owns: one cheap look at the ledger or at the problems. Invariant: it prints nothing, creates nothing and never fails: a
shell that completes a word has no place for an error.
"""

from __future__ import annotations

from pathlib import Path

import typer

MOST = 50


def mission_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest missions whose id starts like this, each with its status and directive."""
    try:
        return _ids(ctx, incomplete, "mission", "directive")
    except Exception:  # noqa: BLE001 - whatever is wrong with the ledger, completing a word is not where it is told
        return []


def task_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest tasks whose id starts like this, each with its status and title."""
    try:
        return _ids(ctx, incomplete, "task", "title")
    except Exception:  # noqa: BLE001 - as above
        return []


def attempt_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest attempts at problems whose id starts like this, each with its status and problem."""
    try:
        return _ids(ctx, incomplete, "attempt", "problem_id")
    except Exception:  # noqa: BLE001 - as above
        return []


def problem_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The problems whose id starts like this, each with its title; also those of `--dir`."""
    from pursuit.problems.catalogue import discover  # noqa: PLC0415 - only a completion pays for it

    try:
        found = discover([Path(one) for one in ctx.params.get("directory") or ()]).problems
    except Exception:  # noqa: BLE001 - as above
        return []
    return [(one.problem_id, one.title) for one in found if one.problem_id.startswith(incomplete)]


def problem_kinds(incomplete: str) -> list[str]:
    """The kinds of problems."""
    from pursuit.problems.manifest import KINDS  # noqa: PLC0415 - only a completion pays for it

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _ids(ctx: typer.Context, incomplete: str, kind: str, words: str) -> list[tuple[str, str]]:
    from pursuit.config.configuration import find_configuration  # noqa: PLC0415
    from pursuit.config.files import locate_state  # noqa: PLC0415 - only a completion pays for it
    from pursuit.ledger.schema import open_reader  # noqa: PLC0415
    from pursuit.ledger.sqlite import SqliteReads  # noqa: PLC0415

    given = {**((ctx.parent.params if ctx.parent else None) or {}), **{k: v for k, v in ctx.params.items() if v}}
    config = Path(given["config"]) if given.get("config") else find_configuration(Path.cwd())
    path = locate_state(Path(given["state"]) if given.get("state") else None, config)
    if not path.is_file():
        return []
    connection = open_reader(path)
    try:
        page = SqliteReads(path, connection).page(
            kind=kind, status=None, since=None, until=None, cursor=None, limit=MOST
        )
    finally:
        connection.close()
    return [
        (row.name, f"{row.status}: {' '.join(str(row.summary.get(words, '')).split())[:60]}")
        for row in page.rows
        if row.name.startswith(incomplete) and row.status != "forgotten"
    ]

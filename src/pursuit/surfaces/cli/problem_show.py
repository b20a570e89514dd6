"""What `pursuit problem` tells of problems without opening a ledger: which there are, and the brief of one.

Owns: the way from the command's words to rows or a brief. Does not know: attempts.
Invariant: a brief that is shown is the one that agents read, or says of the server that it was not asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from pursuit.errors import Fault, UpstreamUnavailable, ValidationFailed
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import Catalogue
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import told_in
from pursuit.surfaces.cli import show_problems
from pursuit.surfaces.cli.context import loaded
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.problem_named import known
from pursuit.surfaces.cli.screen import Screen


def found_problems(
    said: Common, directories: Sequence[Path], *, words: str = "", kind: str | None = None, tags: Sequence[str] = ()
) -> int:
    """Shows the problems that fit; what cannot be read is told beside them."""
    screen = Screen(said)
    found = known(directories)
    try:
        fitting = Catalogue(found.problems).search(words, kind=kind, tags=tags)
    except ValidationFailed as failed:
        faults = [Fault(field=f"--{fault.field}", reason=fault.reason) for fault in failed.faults]
        raise ValidationFailed(faults, "; ".join(map(str, faults))) from None
    show_problems.listing(screen, [one.summary_row() for one in fitting])
    for fault in found.faults:
        screen.note(f"left out: {fault}")
    return 0


def shown(said: Common, problem: Manifest, *, citations: bool) -> int:
    """Shows the brief of a problem; its server, if it has one, is asked for its tools."""
    screen = Screen(said)
    loaded()
    brief = anyio.run(partial(_brief, problem, screen, citations=citations))
    if screen.json:
        screen.document({**problem.summary_row(), "brief": brief})
    else:
        screen.plain(brief.rstrip("\n"))
    return 0


async def _brief(problem: Manifest, screen: Screen, *, citations: bool) -> str:
    if problem.server is None:
        return write_brief(problem, citations=citations)
    from pursuit.server.problems.listing import asked_brief  # noqa: PLC0415 - the SDK is slow

    try:
        brief, offer = await asked_brief(problem, citations=citations)
    except UpstreamUnavailable as error:
        screen.note(f"without its tools: {error.message}")
        return write_brief(problem, citations=citations)
    if faults := offer.faults():
        raise ValidationFailed(faults, f"{problem.problem_id} cannot be worked at")
    seen = json.dumps([tool for one in offer.definitions if (tool := offer.shown(one)) is not None], ensure_ascii=False)
    for reason in told_in(seen, problem):
        screen.note(f"warning: what its server says of its tools {reason}")
    return brief

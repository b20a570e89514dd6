"""An attempt that somebody left in the middle of its end, brought to it.

Owns: waiting for whoever is at it still, and finishing what nobody will. Does not judge. Invariant: nobody submits
here; what was handed in to a problem's own server and never answered counts as the submission, as everywhere.
"""

from __future__ import annotations

import time
from pathlib import Path

import anyio

from pursuit.config.configuration import Configuration
from pursuit.core.attempts import AttemptState
from pursuit.errors import PursuitError
from pursuit.ledger.contract import Ledger
from pursuit.problems.attempts import Attempt, load_attempt
from pursuit.problems.manifest import Manifest

LOOK_EVERY = 0.05
PATIENCE = 30.0
"""Seconds for which another process is waited for, beside those that the judge may take."""


def is_unsettled(state: AttemptState) -> bool:
    """Whether something was handed in of which the judge has not spoken yet."""
    return state.scored is None and (state.taken is not None or state.claimed is not None)


async def settled(
    ledger: Ledger, problem: Manifest, state: AttemptState, *, path: Path, config: Configuration
) -> AttemptState:
    """The attempt once nobody is at it any more: with its submission and, where a tool judges, with its score.

    A judge that needs no server of the problem's is left to whoever asked. It comes back as it is after some time.
    """
    attempt = Attempt(ledger, time.time, problem, state.attempt_id)
    if not attempt.fits(state):
        return state
    with anyio.move_on_after(PATIENCE + problem.scorer.timeout):
        if problem.scorer.kind != "tool":
            await _left_alone(attempt)
        else:
            await _judged_by_tool(ledger, problem, state.attempt_id, path, config)
    return await load_attempt(ledger, state.attempt_id)


async def _left_alone(attempt: Attempt) -> None:
    """Returns when it is settled, or nobody is at it; what was claimed is the submission then."""
    while True:
        async with attempt.alone() as alone:
            if alone:
                await attempt.give_up()
        state = await attempt.refresh()
        if alone or state is None or not is_unsettled(state):
            return
        await anyio.sleep(LOOK_EVERY)


async def _judged_by_tool(
    ledger: Ledger, problem: Manifest, attempt_id: str, path: Path, config: Configuration
) -> None:
    """The tool is asked where the attempt is opened again; who is at it already is waited for."""
    from pursuit.server.problems.server import ProblemOptions, open_desk  # noqa: PLC0415 - the SDK is slow

    options = ProblemOptions(state=path, config=config, attempt_id=attempt_id)
    async with open_desk(problem, options) as desk:
        while is_unsettled(await load_attempt(ledger, attempt_id)):
            try:
                await desk.submitting.catch_up()
            except PursuitError:  # it cannot be opened; who asks is told why there is no score
                return
            await anyio.sleep(LOOK_EVERY)

"""Writes the final report of a mission that has ended.

Owns: when it is written and what it carries of the ledger. What stands in it is `model.report`'s.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from pursuit.engine.run import Run
from pursuit.ledger.contract import Ledger
from pursuit.model.events import ReportWritten, decode
from pursuit.model.lessons import remembered
from pursuit.model.report import build_report
from pursuit.model.state import MissionState


async def write_report(run: Run) -> None:
    """Builds the report and stores it beside the mission, once; from then on the mission is found by its lessons."""
    if run.state.report is not None:
        return
    report = await assemble(run.ledger, run.mission_id, run.state)
    body = msgspec.json.encode(report)
    digest = hashlib.sha256(body).hexdigest()
    run.journal.stage(ReportWritten(at=run.clock.now(), digest=digest), {digest: body}, text=remembered(report))
    await run.journal.flush()


async def assemble(ledger: Ledger, mission_id: str, state: MissionState | None = None) -> dict[str, Any]:
    """The report of a mission as it stands in the ledger now, with the hashes that prove it.

    `state` is the fold of the same stream, if somebody has it.
    """
    stored = await ledger.read(mission_id)
    report = build_report(mission_id, [decode(event.type, event.body) for event in stored], state)
    report["ledger"] = {
        "head_seq": stored[-1].seq if stored else 0,
        "head_hash": stored[-1].hash.hex() if stored else "",
        "root": await ledger.root(),
    }
    return report

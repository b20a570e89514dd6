"""Ledgers that earlier releases wrote are read by this one, with nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.core import events

DATA = Path(__file__).parents[1] / "data"
LEDGERS = sorted(DATA.glob("ledger-*.db"))


@pytest.mark.guarantee("old-ledgers")
@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda path: path.stem)
async def test_a_ledger_of_an_earlier_release_says_what_it_said_then(ledger: Path, tmp_path: Path) -> None:
    then = json.loads(ledger.with_name(ledger.name.removesuffix(".db") + ".json").read_text())
    state = tmp_path / "ledger.db"
    shutil.copy(ledger, state)
    async with Runtime(state=state, config=Configuration()) as runtime:
        assert (await runtime.runner.verify(expect=then["root"])).ok
        for mission_id, status in then["missions"].items():
            now = (await runtime.runner.status(mission_id)).as_json()
            assert {key: now[key] for key in status} == status
            assert (await runtime.report(mission_id)).data["iteration_count"] == status["iteration_count"]
            assert await runtime.runner.history(mission_id, full=True)


def test_there_is_a_ledger_of_every_release_that_changed_an_event() -> None:
    assert [path.stem for path in LEDGERS] == ["ledger-0.1-models", "ledger-0.1"]


def test_an_old_form_is_brought_up_to_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_two_words(body: dict[str, Any]) -> dict[str, Any]:
        return {"type": "MissionPaused", "at": body["at"], "by": body["who"]}

    monkeypatch.setitem(events.UPCASTS, "Paused@0", from_two_words)
    assert events.decode("Paused@0", b'{"at": 4.0, "who": "me"}') == events.MissionPaused(at=4.0, by="me")

"""Ledgers that earlier releases wrote are read by this one, with nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest
from postgres_server import NewDatabase

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.core import events
from pursuit.ledger.opening import file_of

DATA = Path(__file__).parents[1] / "data"
LEDGERS = sorted(DATA.glob("ledger-*.db"))


@pytest.mark.guarantee("old-ledgers")
@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda path: path.stem)
async def test_a_ledger_of_an_earlier_release_says_what_it_said_then(ledger: Path, tmp_path: Path) -> None:
    then = json.loads(ledger.with_name(ledger.name.removesuffix(".db") + ".json").read_text())
    state = tmp_path / "ledger.db"
    shutil.copy(ledger, state)
    async with Runtime(state=state, config=Configuration()) as runtime:
        assert (await runtime.runner.verify(expect=[then["root"], *then.get("roots", ())])).ok
        for mission_id, status in then["missions"].items():
            now = (await runtime.runner.status(mission_id)).as_json()
            assert {key: now[key] for key in status} == status
            assert (await runtime.report(mission_id)).data["iteration_count"] == status["iteration_count"]
            assert await runtime.runner.history(mission_id, full=True)


def evaluate(width: float) -> dict[str, Any]:
    """The mass and stress of a beam."""
    return {"metrics": {"mass": 1.2 * width, "stress": 300 / width}}


def ship(text: str) -> str:
    """Sends it off."""
    return text


@pytest.mark.guarantee("old-ledgers")
async def test_missions_of_an_earlier_release_continue(tmp_path: Path) -> None:
    """It was written before missions stored the facts of their proposers: a search, a script and a question."""
    state = tmp_path / "ledger.db"
    shutil.copy(DATA / "ledger-0.1-ports.db", state)
    then = json.loads((DATA / "ledger-0.1-ports.json").read_text())["missions"]
    ids = {status["directive"]: mission_id for mission_id, status in then.items()}
    async with Runtime(state=state, config=Configuration(), servers={"world": [evaluate, ship]}) as runtime:
        trials = [await runtime.resume(ids["Searched in part"]), await runtime.report(ids["Searched"])]
        continued, whole = ([(one.args, one.metrics) for one in report.trial_rows] for report in trials)
        assert continued == whole and len(whole) == 6
        assert (await runtime.resume(ids["Scripted in part"])).data["iteration_count"] == 6
        asked = runtime.mission(ids["Asked"])
        (approval,) = await asked.approvals().list()
        await asked.approvals().approve(approval.approval_id)
        assert (await asked.run()).data["metrics"] == {}
        assert (await asked.status()).iteration_count == 6
        assert (await runtime.verify()).ok


def test_there_is_a_ledger_of_every_release_that_changed_an_event() -> None:
    stems = ["ledger-0.1-models", "ledger-0.1-ports", "ledger-0.1-positions", "ledger-0.1"]
    assert [path.stem for path in LEDGERS] == stems


LAYOUT = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'pursuit'::regnamespace AND a.attnum > 0
AND NOT a.attisdropped UNION ALL
SELECT p.proname, p.prosrc, pg_get_function_arguments(p.oid), p.prosecdef FROM pg_proc p
WHERE p.pronamespace = 'pursuit'::regnamespace UNION ALL
SELECT indexname, replace(indexdef, 'words_by', ''), '', true FROM pg_indexes WHERE schemaname = 'pursuit'
ORDER BY 1, 2
"""


@pytest.mark.guarantee("old-ledgers")
async def test_a_database_of_the_release_that_numbered_all_events_is_migrated(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    """It was copied from the file of the same name; a mission in it was forgotten, and one is paused."""
    then = json.loads((DATA / "ledger-0.1-positions.json").read_text())
    address, fresh = new_database(), new_database()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA pursuit CASCADE")
        connection.execute(cast("LiteralString", (DATA / "ledger-0.1-positions.sql").read_text()))
        connection.execute("SET search_path = public")
        connection.execute("INSERT INTO pursuit.writers VALUES (gen_random_uuid(), 1, 1, 1, '{}', '{}', '{}', now())")
    shutil.copy(DATA / "ledger-0.1-positions.db", tmp_path / "ledger.db")
    state = file_of(address, tmp_path / "data")
    async with (
        Runtime(state=state, config=Configuration()) as there,
        Runtime(state=tmp_path / "ledger.db", config=Configuration()) as here,
    ):
        root = await there.runner.ledger.root()
        assert await here.runner.ledger.root() == root
        for mission_id, status in then["missions"].items():
            now = (await there.runner.status(mission_id)).as_json()
            assert {key: now[key] for key in status} == status
        assert await there.runner.ledger.search("loss") != []
        (paused,) = [name for name, status in then["missions"].items() if status["status"] == "paused"]
        await there.runner.abort(paused)
        await there.runner.forget(paused)
        for ledger in (there.runner, here.runner):
            found = await ledger.verify(expect=[*then["roots"], root])
            assert found.ok, found.faults
        forged = f"{then['root'].partition(':')[0]}:{'0' * 64}"
        assert not (await there.runner.verify(expect=forged)).ok
    with psycopg.connect(address) as one, psycopg.connect(fresh) as other:
        assert one.execute(LAYOUT).fetchall() == other.execute(LAYOUT).fetchall()


def test_an_old_form_is_brought_up_to_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_two_words(body: dict[str, Any]) -> dict[str, Any]:
        return {"type": "MissionPaused", "at": body["at"], "by": body["who"]}

    monkeypatch.setitem(events.UPCASTS, "Paused@0", from_two_words)
    assert events.decode("Paused@0", b'{"at": 4.0, "who": "me"}') == events.MissionPaused(at=4.0, by="me")

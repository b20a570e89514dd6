"""A person edits the ledger afterwards: `verify` finds it, alone or with a root that was written down before."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, play, repeat, stage

from pursuit import Budget, Problem, Runtime, event
from pursuit.config.configuration import Configuration
from pursuit.core.tools import Tool
from pursuit.engine.context import SystemClock
from pursuit.ledger.chain import GENESIS, link
from pursuit.ledger.contract import Verification
from pursuit.ledger.roots import seal
from pursuit.ledger.tombstones import own_audit
from pursuit.problems.attempts import Attempt
from pursuit.service.audit import Caller
from pursuit.service.gateway_journal import GatewayJournal
from pursuit.service.proof import verify_export
from pursuit.tasks.store import Ending, TaskRecords

EDITS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[1] / "data" / "tampering.toml").read_text(encoding="utf-8")
)["edit"]
DOCS = Path(__file__).parents[2] / "docs"
LARGE = "a large result " * 4_000


def big() -> dict[str, Any]:
    return {"text": LARGE}


@dataclass(frozen=True)
class Ledger:
    path: Path
    root: str
    streams: dict[str, str]
    archive: Path


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger with one stream of each kind, and the root that its owner wrote down."""
    folder = tmp_path_factory.mktemp("ledger")

    async def scene() -> tuple[str, dict[str, str]]:
        async with stage(folder, big) as runtime:
            service, clock = runtime.runner, SystemClock()
            mallory = Caller(who="mallory", transport="http")
            made = mission(proposer=repeat("big"), criteria=[event("never")], budget=Budget(max_iterations=2))
            a, gone = [(await service.start(made, caller=mallory)).session_id for _ in range(2)]
            await service.run(a)
            await service.run(gone)
            b = (await service.start(made.model_copy(update={"budget": Budget(max_iterations=9)}))).session_id
            await service.iterate(b)
            await service.pause(b)
            await service.forget(gone)
            store = TaskRecords(service.ledger)
            task = (await store.create(kind="work", title="t", requestor="local")).task_id
            await store.settle(task, Ending(status="completed", result={"content": [], "text": LARGE}, exit_code=0))
            attempt = Attempt(service.ledger, clock.now, Problem.shipped("spring").manifest, "attempt-1")
            await attempt.called("probe", {})
            await attempt.submit({"x": 0})
            gateway = GatewayJournal(
                service.ledger, clock, servers=["s"], by="local", patience=3600.0, limits=service.limits
            )
            tool = Tool(server="s", name="write", input_schema={}, definition={})
            await gateway.ask(tool, {}, description="Writes.", reason="it writes", caller=mallory)
            await service.export(a, folder / "a.jsonl")
            found = await service.verify()
            assert found.ok, found.faults
            names = {"a": a, "b": b, "gone": gone, "task": task, "attempt": "attempt-1", "gateway": gateway.stream}
            return found.root, {**names, "audit": own_audit()}

    root, streams = play(scene)
    return Ledger(folder / "ledger.db", root, streams, folder / "a.jsonl")


async def verified(path: Path, expect: str | None = None) -> Verification:
    async with Runtime(state=path, config=Configuration()) as runtime:
        return await runtime.runner.verify(expect=expect)


def tamper(ledger: Ledger, edit: dict[str, Any], path: Path) -> None:
    shutil.copy(ledger.path, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("sha256", 1, lambda body: sha256(body).hexdigest())
        ids = {
            key: connection.execute("SELECT id FROM streams WHERE name = ?", (name,)).fetchone()[0]
            for key, name in ledger.streams.items()
        }
        changes = connection.total_changes
        for statement in edit["sql"]:
            connection.execute(statement, ids)
        assert (
            connection.total_changes > changes or "TRIGGER" in statement or "INDEX" in statement or "TABLE" in statement
        )
        for key in edit.get("rechain", ()):
            rechain(connection, ids[key])
        if not edit.get("plain", True):
            reseal(connection)


def reseal(connection: sqlite3.Connection) -> None:
    """Makes the roots anew, so that only one that was written down elsewhere shows the edit."""
    connection.execute("DELETE FROM roots")
    connection.execute("DELETE FROM sealed")
    seal(connection, 0.0)


def rechain(connection: sqlite3.Connection, identity: int) -> None:
    """Numbers and hashes a stream anew, as an attacker would who knows how."""
    name = connection.execute("SELECT name FROM streams WHERE id = ?", (identity,)).fetchone()[0]
    rows = connection.execute(
        "SELECT position, at, type, body FROM events WHERE stream = ? ORDER BY seq", (identity,)
    ).fetchall()
    hash_ = GENESIS
    for seq, (position, at, type_, body) in enumerate(rows, start=1):
        hash_ = link(hash_, name, seq, at=at, type_=type_, body=body)
        connection.execute("UPDATE events SET seq = ?, hash = ? WHERE position = ?", (seq, hash_, position))
    connection.execute("UPDATE streams SET head_seq = ?, head_hash = ? WHERE id = ?", (len(rows), hash_, identity))


@pytest.mark.guarantee("tampering-is-found")
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit["name"])
@pytest.mark.damaged_ledger("edits the database")
async def test_an_edit_of_the_ledger_is_found(ledger: Ledger, edit: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    tamper(ledger, edit, path)
    assert not (await verified(path, ledger.root)).ok
    found = await verified(path)
    assert found.ok is not edit.get("plain", True), found.faults


def test_the_docs_list_what_only_a_root_finds() -> None:
    text = (DOCS / "durability.md").read_text(encoding="utf-8")
    assert len(EDITS) >= 40
    for edit in EDITS:
        assert (f"- {edit['name']}\n" in text) is not edit.get("plain", True), edit["name"]


def without_blobs(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines[0]["blobs"] = []
    return [line for line in lines if line.get("line") != "blob"]


def with_header(**given: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda lines: [{**lines[0], **given}, *lines[1:]]


@pytest.mark.guarantee("tampering-is-found")
@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (without_blobs, "its blob"),
        (lambda lines: [line for line in lines if line.get("line") != "blob"], "its blob"),
        (with_header(status="completed"), "the first line does not agree with its events"),
        (with_header(summary={}), "the first line does not agree with its events"),
        (with_header(kind="task"), "the first line does not agree with its events"),
        (with_header(created_at=1.0), "the first line does not agree with its events"),
        (with_header(updated_at=1.0), "the first line does not agree with its events"),
    ],
    ids=["no blobs", "no blob lines", "status", "summary", "kind", "created", "updated"],
)
def test_an_edit_of_an_export_is_found(
    ledger: Ledger, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], fault: str, tmp_path: Path
) -> None:
    assert verify_export(ledger.archive).ok
    lines = edit([json.loads(line) for line in ledger.archive.read_bytes().splitlines()])
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    found = verify_export(path)
    assert any(fault in one for one in found.faults), found.faults

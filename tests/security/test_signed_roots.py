"""Signed roots, the audit for a log shipper, and reads in the audit."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from mcp import Client
from test_tampering import rechain, reseal

from pursuit import Runtime
from pursuit.cli.main import answer
from pursuit.config.configuration import load_configuration
from pursuit.errors import ValidationFailed
from pursuit.ledger.tombstones import own_audit
from pursuit.server.missions.server import mission_server
from pursuit.service.signed_roots import load_key, read_signatures, sign_root
from pursuit.tasks.store import TaskRecords

PLAIN = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a key and a ledger with a few events."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.pem").write_bytes(Ed25519PrivateKey.generate().private_bytes(*PLAIN))
    grow(tmp_path)
    return tmp_path


def grow(folder: Path, config: str = "", tasks: int = 2) -> None:
    (folder / "pursuit.toml").write_text(config)

    async def scene() -> None:
        path = folder / "pursuit.toml"
        async with Runtime(state=folder / "ledger.db", config=load_configuration(path)) as runtime:
            for _ in range(tasks):
                await TaskRecords(runtime.runner.ledger).create(kind="work", title="t", requestor="local")

    anyio.run(scene)


def pursuit(*words: str, code: int = 0) -> str:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        got = answer([*words, "--state", "ledger.db"])
    assert got == code, said.getvalue()
    return said.getvalue()


@pytest.mark.guarantee("signed-roots-hold")
def test_signed_roots_hold_while_the_ledger_grows_and_not_when_it_is_rewritten(place: Path) -> None:
    pursuit("verify", "--sign", "key.pem", "-o", "signed.jsonl")
    grow(place)
    line = pursuit("verify", "--sign", "key.pem")
    with (place / "signed.jsonl").open("a") as file:
        file.write(line)
    key = json.loads(line)["key"]
    for given in (key, "key.pem"):
        pursuit("verify", "--signatures", "signed.jsonl", "--key", given)
    assert key in pursuit("verify", "--signatures", "signed.jsonl")
    with closing(sqlite3.connect(place / "ledger.db")) as connection:
        connection.execute("UPDATE events SET body = CAST(replace(CAST(body AS TEXT), '\"t\"', '\"u\"') AS BLOB)")
        connection.execute("UPDATE streams SET summary = replace(summary, '\"t\"', '\"u\"')")
        for (identity,) in connection.execute("SELECT id FROM streams").fetchall():
            rechain(connection, identity)
        reseal(connection)
        connection.commit()
    pursuit("verify")
    assert "does not match the expected root" in pursuit("verify", "--signatures", "signed.jsonl", "--key", key, code=1)


FORGED = [
    (lambda line: {**line, "root": f"1:{'0' * 64}"}, "was changed"),
    (lambda line: {**line, "at": "2020-01-01T00:00:00Z"}, "was changed"),
    (lambda line: {**line, "signature": "00" * 64}, "was changed"),
    (lambda line: {**line, "signature": "zz"}, "was changed"),
    (lambda line: {"root": line["root"]}, "was changed"),
    (lambda line: json.loads(sign_root(Ed25519PrivateKey.generate(), line["root"], 1.0).line()), "another key"),
]


@pytest.mark.guarantee("signed-roots-hold")
@pytest.mark.parametrize(("forge", "fault"), FORGED)
def test_a_forged_line_is_a_fault(place: Path, forge: Any, fault: str) -> None:
    line = json.loads(sign_root(load_key(place / "key.pem"), f"1:{'1' * 64}", 1.0).line())
    (place / "signed.jsonl").write_text(json.dumps(forge(line)) + "\n")
    found = read_signatures(place / "signed.jsonl", line["key"])
    assert any(fault in one for one in found.faults), found


def test_a_key_of_another_kind_is_refused_with_the_command_that_makes_one(place: Path) -> None:
    (place / "ec.pem").write_bytes(generate_private_key(SECP256R1()).private_bytes(*PLAIN))
    (place / "public.pem").write_bytes(
        load_key(place / "key.pem").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for name in ("ec.pem", "public.pem", "ledger.db", "none.pem"):
        with pytest.raises(ValidationFailed, match="openssl genpkey -algorithm ed25519"):
            load_key(place / name)
    pursuit("verify", "--sign", "key.pem", "-o", "s")
    pursuit("verify", "--signatures", "s", "--key", "public.pem")
    pursuit("verify", "--signatures", "s", "--key", "ledger.db", code=2)
    pursuit("verify", "-o", "s", code=2)
    (place / "authorized_keys").write_text("ssh-ed25519 AAAA me\n")
    pursuit("verify", "--sign", "key.pem", "-o", "authorized_keys", code=2)
    assert (place / "authorized_keys").read_text() == "ssh-ed25519 AAAA me\n"
    pursuit("verify", "--key", "00", code=2)


@pytest.mark.parametrize(("every", "lines"), [("1 events", 1), ("3 events", 0), ("1 minutes", 0)])
def test_roots_are_signed_by_themselves(place: Path, every: str, lines: int) -> None:
    before = json.loads(pursuit("verify", "--json"))["root"]
    config = f'[audit]\nsign_every = "{every}"\nkey = "key.pem"\nsignatures = "signed.jsonl"\n'
    (place / "signed.jsonl").write_bytes(sign_root(load_key(place / "key.pem"), before, 1.0).line())
    grow(place, config)
    found = (place / "signed.jsonl").read_text().splitlines()
    assert len(found) >= 1 + lines
    assert (len(found) > 1) is bool(lines)
    pursuit("verify", "--signatures", "signed.jsonl", "--key", "key.pem")


def test_reads_are_in_the_audit_if_the_configuration_says_so_and_a_shipper_follows_it(place: Path) -> None:
    (place / "pursuit.toml").write_text("[audit]\nreads = true\n")

    async def scene() -> None:
        config = load_configuration(place / "pursuit.toml")
        async with Runtime(state=place / "ledger.db", config=config) as runtime, mission_server(runtime) as server:
            shipped: list[dict[str, Any]] = []
            three = anyio.Event()

            async def ship() -> None:
                async for event in runtime.runner.audit.stored(follow=True, limit=5):
                    shipped.append(event)
                    if len(shipped) == 2:
                        three.set()

            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ship)
                    async with Client(server) as client:
                        await client.call_tool("mission_list", {})
                        await client.list_resources()
                        await client.get_prompt("write_criteria", {"goal": "x"})
                    await three.wait()
                    tasks.cancel_scope.cancel()
            assert [one["event"]["verb"] for one in shipped] == ["call mission_list", "prompts/get"]
            assert [(one["stream"], one["seq"]) for one in shipped] == [(own_audit(), 1), (own_audit(), 2)]

    anyio.run(scene)
    lines = [json.loads(line) for line in pursuit("audit", "--format", "jsonl").splitlines()]
    assert [line["event"]["verb"] for line in lines] == ["call mission_list", "prompts/get"]
    assert all(len(bytes.fromhex(line["hash"])) == 32 for line in lines)
    pursuit("audit", "--follow", code=2)
    pursuit("verify")

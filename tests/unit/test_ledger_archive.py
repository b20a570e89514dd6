"""A stream in a file of its own, checked without the ledger; and the chain that both are checked by."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from pursuit.errors import InvalidArgument, ValidationFailed
from pursuit.ledger.archive import export_stream, verify_archive
from pursuit.ledger.chain import root
from pursuit.ledger.contract import Draft, Head
from pursuit.ledger.sqlite import SqliteLedger

BLOB = b"\x00\x01 attachment"
DIGEST = sha256(BLOB).hexdigest()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "m1.jsonl"

    async def body() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger" / "ledger.db")
        drafts = [Draft("said", "zwölf\u2028\n".encode()), Draft("raw", b"\xff\x00"), Draft("said", b"")]
        await ledger.append("m1", 0, drafts, status="done", summary={"goal": "x"}, blobs={DIGEST: BLOB})
        await ledger.append("m2", 0, drafts)
        await export_stream(ledger, "m1", path)
        await ledger.forget("m2")
        for missing in ("m2", "m3"):
            with pytest.raises(InvalidArgument):
                await export_stream(ledger, missing, tmp_path / "no.jsonl")
        with pytest.raises(InvalidArgument, match=r"cannot write .*no\.jsonl"):
            await export_stream(ledger, "m1", tmp_path / "missing folder" / "no.jsonl")
        await ledger.close()

    anyio.run(body)
    return path


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


@pytest.mark.damaged_ledger("forgets a stream that has not ended")
def test_an_export_is_whole_private_and_verifies(archive: Path) -> None:
    found = verify_archive(archive)
    assert (found.streams, found.events, found.blobs, found.faults) == (1, 3, 1, ())
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert {entry.name for entry in archive.parent.iterdir()} == {"ledger", "m1.jsonl"}
    rewrite(archive, lambda lines: None)
    assert verify_archive(archive) == found


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: lines[1].update(body="elf"), "stream m1: event 1 does not match its hash"),
        (lambda lines: lines[2].update(at=1.0), "stream m1: event 2 does not match its hash"),
        (lambda lines: lines.pop(2), "stream m1: event 2 is missing"),
        (lambda lines: lines.pop(3), "stream m1: the head is at event 3 but the events end at 2"),
        (lambda lines: lines.pop(4), f"stream m1: its blob {DIGEST} is missing"),
        (lambda lines: lines[4].update(body_base64="AAAA"), f"blob {DIGEST}: its bytes were changed"),
        (lambda lines: lines[4].update(body_base64="~"), "line 5 is neither an event nor a blob"),
        (lambda lines: lines[3].pop("seq"), "stream m1: the head is at event 3 but the events end at 2"),
        (lambda lines: lines[0].update(stream="m2"), "stream m2: event 1 does not match its hash"),
        (lambda lines: lines[0].update(hash="zz"), "stream m1: the head's hash is not the hash of event 3"),
        (lambda lines: lines[0].update(seq=-1), "stream m1: the head in the first line was changed"),
        (lambda lines: lines[0].update(seq=2**64), "stream m1: the head in the first line was changed"),
    ],
)
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
def test_a_changed_export_is_found_out(
    archive: Path, change: Callable[[list[dict[str, Any]]], object], fault: str
) -> None:
    rewrite(archive, change)
    found = verify_archive(archive)
    assert not found.ok
    assert found.faults[0].startswith(fault), found.faults


@pytest.mark.damaged_ledger("forgets a stream that has not ended")
def test_an_export_cut_at_any_byte_is_found_out(archive: Path) -> None:
    whole = archive.read_bytes()
    header = len(whole.splitlines()[0])
    for length in range(header, len(whole) - 1, 7):
        archive.write_bytes(whole[:length])
        assert not verify_archive(archive).ok


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}\n", b'{"format": "else"}\n', b"[1]"])
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValidationFailed, match=r"other\.jsonl is not an exported stream"):
        verify_archive(path)


@pytest.mark.damaged_ledger("forgets a stream that has not ended")
def test_other_formats_versions_and_missing_files_are_refused(archive: Path, tmp_path: Path) -> None:
    rewrite(archive, lambda lines: lines[0].update(version=2))
    with pytest.raises(ValidationFailed, match="version is 2"):
        verify_archive(archive)
    rewrite(archive, lambda lines: lines[0].update(format="else"))
    with pytest.raises(ValidationFailed, match="format is 'else'"):
        verify_archive(archive)
    with pytest.raises(ValidationFailed, match="cannot be read"):
        verify_archive(tmp_path / "none.jsonl")


def test_the_root_is_of_all_heads_in_any_order() -> None:
    heads = [("b", Head(1, b"1" * 32)), ("a", Head(2, b"2" * 32))]
    assert root(heads) == root(heads[::-1])
    assert len({root(heads), root(heads[:1]), root([]), root([("b", Head(2, b"1" * 32)), heads[1]])}) == 4

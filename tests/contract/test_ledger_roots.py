"""Roots and listings without events: what stays checkable, whatever the backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_backends import Backend, check, every_backend

from pursuit.errors import InvalidArgument
from pursuit.ledger.contract import ANY, Draft


def draft(text: str) -> list[Draft]:
    return [Draft("Said", text.encode())]


@every_backend
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_a_root_holds_while_the_ledger_grows_and_when_an_ended_stream_is_forgotten(
    backend: Backend, tmp_path: Path
) -> None:
    async with check(backend, tmp_path) as ledger:
        for name in ("a", "b", "c"):
            await ledger.append(name, 0, draft(name))
        root = await ledger.root()
        assert (await ledger.verify()).root == root
        await ledger.append("a", 1, draft("more"))
        await ledger.append("d", 0, draft("new"))
        assert (await ledger.verify(expect=root)).ok
        assert await ledger.root() != root
        await ledger.forget("b")
        assert (await ledger.verify(expect=root)).ok
        other = f"{root.partition(':')[0]}:{'0' * 64}"
        found = await ledger.verify(expect=other)
        assert not found.ok
        assert "expected root" in found.faults[0]
        beyond = f"{10**6}:{root.partition(':')[2]}"
        assert not (await ledger.verify(expect=beyond)).ok
        for nonsense in ("", "abc", "12:xyz", root.partition(":")[2]):
            with pytest.raises(InvalidArgument):
                await ledger.verify(expect=nonsense)


@every_backend
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_a_root_holds_when_a_stream_grows_and_is_then_forgotten(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        roots: list[str] = []
        for count in range(3):
            for name in ("a", "b", "c"):
                await ledger.append(name, count, draft(f"{name}{count}"))
                roots.append(await ledger.root())
        for name in ("c", "a", "b"):
            await ledger.forget(name)
            roots.append(await ledger.root())
            for root in roots:
                found = await ledger.verify(expect=root)
                assert found.ok, (name, root, found.faults)
        position, _, hash_ = roots[4].partition(":")
        assert not (await ledger.verify(expect=f"{int(position) + 1}:{hash_}")).ok
        assert not (await ledger.verify(expect=f"{len(roots) + 1}:{hash_}")).ok


@every_backend
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_a_head_that_a_report_carries_is_checked(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        head = await ledger.append("a", 0, draft("one"))
        await ledger.append("a", 1, draft("two"))
        carried = f"a@1:{head.hash.hex()}"
        assert (await ledger.verify(expect=[await ledger.root(), carried])).ok
        for wrong in (f"a@2:{head.hash.hex()}", f"b@1:{head.hash.hex()}", f"a@9:{head.hash.hex()}"):
            found = await ledger.verify(expect=wrong)
            assert [fault for fault in found.faults if "expected" in fault], wrong
        with pytest.raises(InvalidArgument, match="STREAM@SEQ:HASH"):
            await ledger.verify(expect="a@1")
        await ledger.forget("a")
        assert (await ledger.verify(expect=carried)).ok


@every_backend
async def test_a_status_may_change_without_an_event(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        head = await ledger.append("a", 0, draft("one"), status="running", summary={"n": 1})
        assert await ledger.append("a", ANY, [], status="ended") == head
        row = await ledger.row("a")
        assert (row.status, row.head, dict(row.summary)) == ("ended", head, {"n": 1})
        with pytest.raises(InvalidArgument):
            await ledger.append("b", ANY, [], status="ended")
        assert await ledger.row("b") is None
        assert (await ledger.verify()).ok

"""What the ledger promises of its events, kept by every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from ledger_backends import Backend, another_process, check, digest, drafts, every_backend, heard, opened, tell

from pursuit.errors import Conflict, InvalidArgument, LedgerUnavailable
from pursuit.ledger.contract import ANY, Draft, Head, Ledger
from pursuit.ledger.tombstones import own_audit
from pursuit.testing import check_task_store


async def appended(ledger: Ledger, *args: Any, **named: Any) -> Head:
    return await ledger.append(*args, **named)


@every_backend
async def test_events_come_back_as_they_went_in(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        head = await ledger.append("m1", 0, [Draft("a", b"\x00\xff"), Draft("b", b"")])
        events = await ledger.read("m1")
        assert [(event.stream, event.seq, event.type, event.body) for event in events] == [
            ("m1", 1, "a", b"\x00\xff"),
            ("m1", 2, "b", b""),
        ]
        assert (head.seq, head.hash) == (2, events[-1].hash)
        assert [event.seq for event in await ledger.read("m1", after=1)] == [2]
        assert [event.seq for event in await ledger.read("m1", limit=1)] == [1]
        assert await ledger.read("m1", limit=0) == []
        assert await ledger.read("unknown") == []


@every_backend
async def test_a_ledger_is_a_store_of_tasks(backend: Backend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path) as ledger:
        await check_task_store(ledger)


@every_backend
async def test_a_conflict_fails_its_own_append_and_not_those_beside_it(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        outcomes: dict[int, int | str] = {}

        async def append(number: int, stream: str, expected: int) -> None:
            try:
                outcomes[number] = (await ledger.append(stream, expected, drafts(number), status=str(number))).seq
            except Conflict as conflict:
                outcomes[number] = f"actual {conflict.details['actual']}"

        async with anyio.create_task_group() as tasks:
            for number, (stream, expected) in enumerate([("a", 0), ("a", 0), ("b", 7), ("a", 1), ("c", 0)]):
                tasks.start_soon(append, number, stream, expected)
        assert outcomes == {0: 1, 1: "actual 1", 2: "actual 0", 3: 2, 4: 1}
        row = await ledger.row("a")
        assert (row.status, row.head.seq) == ("3", 2)
        assert await ledger.row("b") is None


@every_backend
async def test_one_append_is_contiguous_among_many(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:

        async def append(first: int) -> None:
            for round_ in range(5):
                await ledger.append("m1", ANY, drafts(*(first + 10 * round_ + step for step in range(3))))

        async with anyio.create_task_group() as tasks:
            for writer in range(20):
                tasks.start_soon(append, 100 * writer)
        bodies = [int(event.body) for event in await ledger.read("m1")]
        assert len(bodies) == len(set(bodies)) == 300
        assert all(bodies[at + 1] == bodies[at] + 1 for at in range(300) if at % 3 != 2)
        assert [event.seq for event in await ledger.read("m1")] == list(range(1, 301))


@every_backend
async def test_what_cannot_be_stored_is_refused(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        for name in ("", "A", "../x", "-a", "a" * 129, "a.b", "a\n"):
            for call in (
                appended(ledger, name, ANY, drafts(1)),
                ledger.read(name),
                ledger.row(name),
                ledger.claim(name),
                ledger.forget(name),
                ledger.digests(name),
            ):
                with pytest.raises(InvalidArgument):
                    await call
            with pytest.raises(InvalidArgument):
                ledger.wakeup(name)
            with pytest.raises(InvalidArgument):
                ledger.watch(name)
        for refused in (
            appended(ledger, "m1", ANY, []),
            appended(ledger, "m1", ANY, [Draft("\ud800", b"")]),
            appended(ledger, "m1", ANY, drafts(1), kind="\ud800"),
            appended(ledger, "m1", ANY, drafts(1), blobs={digest(b"x"): b"y"}),
            appended(ledger, "m1", ANY, drafts(1), summary={"what": object()}),
            appended(ledger, "m1", ANY, drafts(1), status="forgotten"),
        ):
            with pytest.raises(InvalidArgument):
                await refused
        assert (await ledger.streams()).rows == ()


@every_backend
async def test_the_row_says_what_the_last_appender_said(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await ledger.append("t1", 0, drafts(1), kind="task", status="working", summary={"goal": "é"})
        first = await ledger.row("t1")
        head = await ledger.append("t1", 1, drafts(2))
        second = await ledger.row("t1")
        assert (second.kind, second.status, second.summary) == ("task", "working", {"goal": "é"})
        assert (second.head, second.created_at) == (head, first.created_at)
        assert second.updated_at >= first.updated_at
        await ledger.append("t1", 2, drafts(3), status="completed", summary={})
        last = await ledger.row("t1")
        assert (last.status, last.summary) == ("completed", {})


@every_backend
async def test_appends_to_one_stream_that_share_a_commit_leave_the_last_head_and_the_last_word(
    backend: Backend, tmp_path: Path
) -> None:
    async with check(backend, tmp_path) as ledger:

        async def append(stream: str, number: int, summary: dict[str, int] | None) -> None:
            await ledger.append(stream, ANY, drafts(number), summary=summary)

        words = {"m1": ({"n": 1}, {"n": 2}, None), "m2": (None, {"n": 5}, {"n": 6}), "m3": (None, None, None)}
        async with anyio.create_task_group() as tasks:
            for stream, summaries in words.items():
                for number, summary in enumerate(summaries):
                    tasks.start_soon(append, stream, number, summary)
        for stream, summary in (("m1", {"n": 2}), ("m2", {"n": 6}), ("m3", {})):
            row, events = await ledger.row(stream), await ledger.read(stream)
            assert (row.head.seq, row.head.hash) == (3, events[-1].hash)
            assert row.summary == summary
        assert (await ledger.verify()).ok


@every_backend
async def test_listing_filters(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        for number, (kind, status) in enumerate([("mission", "running"), ("task", "working"), ("mission", "failed")]):
            await ledger.append(f"s{number}", 0, drafts(1), kind=kind, status=status)
        every = (await ledger.streams()).rows
        assert [row.name for row in every] == ["s2", "s1", "s0"]
        assert [row.name for row in (await ledger.streams(kind="mission")).rows] == ["s2", "s0"]
        assert [row.name for row in (await ledger.streams(status="working")).rows] == ["s1"]
        assert [row.name for row in (await ledger.streams(status=["failed", "working"])).rows] == ["s2", "s1"]
        assert (await ledger.streams(kind="task", status="failed")).rows == ()
        middle = every[1].created_at
        assert "s1" in [row.name for row in (await ledger.streams(since=middle)).rows]
        assert "s1" not in [row.name for row in (await ledger.streams(until=middle)).rows]


@every_backend
async def test_pages_are_stable_while_others_append(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        names = {f"s{number}" for number in range(25)}
        async with anyio.create_task_group() as tasks:
            for name in sorted(names):
                tasks.start_soon(appended, ledger, name, 0, drafts(1))
        seen: list[str] = []
        cursor: str | None = None
        for page_number in range(100):
            page = await ledger.streams(limit=4, cursor=cursor)
            seen += [row.name for row in page.rows]
            await ledger.append(f"new{page_number}", 0, drafts(1))
            await ledger.append("s3", ANY, drafts(2), status="changed")
            cursor = page.next_cursor
            if cursor is None:
                break
        assert sorted(seen) == sorted(names)
        for bogus in ("", "x", "?", cursor or "W10", "é", "WzEsInAiXQ"):
            with pytest.raises(InvalidArgument):
                await ledger.streams(cursor=bogus)
        with pytest.raises(InvalidArgument):
            await ledger.streams(limit=0)


@every_backend
async def test_long_streams_are_read_whole(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await ledger.append("m1", 0, drafts(*range(4100)))
        assert [int(event.body) for event in await ledger.read("m1")] == list(range(4100))
        assert [event.seq for event in await ledger.read("m1", after=10, limit=3000)] == list(range(11, 3011))


@every_backend
async def test_blobs_are_stored_with_their_events_or_not_at_all(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await ledger.append("m1", 0, drafts(1), blobs={digest(b"one"): b"one"})
        with pytest.raises(Conflict):
            await ledger.append("m1", 0, drafts(2), blobs={digest(b"two"): b"two"})
        assert await ledger.blob(digest(b"one")) == b"one"
        assert await ledger.blob(digest(b"two")) is None
        assert await ledger.digests("m1") == [digest(b"one")]
        assert await ledger.digests("unknown") == []


@every_backend
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_forgetting_keeps_shared_blobs_a_tombstone_and_earlier_roots(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        mine, ours = b"only mine", b"ours"
        await ledger.append("m1", 0, drafts(1), blobs={digest(mine): mine, digest(ours): ours}, summary={"secret": 1})
        head = await ledger.append("m1", 1, drafts(2))
        await ledger.append("m2", 0, drafts(1), blobs={digest(ours): ours})
        before = await ledger.verify()
        await ledger.forget("m1")
        await ledger.forget("m1")
        await ledger.forget("unknown")
        assert await ledger.read("m1") == []
        assert await ledger.blob(digest(mine)) is None
        assert await ledger.blob(digest(ours)) == ours
        row = await ledger.row("m1")
        assert (row.status, row.head, row.summary) == ("forgotten", head, {})
        after = await ledger.verify(expect=before.root)
        assert (after.events, after.faults) == (2, ()), "one of m2, one of the audit"
        assert [event.type for event in await ledger.read(own_audit())] == ["Forgotten"]
        with pytest.raises(InvalidArgument, match="only missions, attempts and tasks can"):
            await ledger.forget(own_audit())
        with pytest.raises(Conflict):
            await ledger.append("m1", 0, drafts(3))
        for expected in (2, ANY):
            with pytest.raises(InvalidArgument):
                await ledger.append("m1", expected, drafts(3))
        await ledger.forget("m2")
        assert await ledger.blob(digest(ours)) is None


@every_backend
async def test_a_cancelled_appender_leaves_all_or_nothing_and_harms_nobody(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        returned: list[str] = []

        async def append(stream: str, scope: anyio.CancelScope | None) -> None:
            with scope or anyio.CancelScope():
                await ledger.append(stream, 0, drafts(1, 2, 3))
                returned.append(stream)
                if scope is not None:
                    await anyio.sleep_forever()

        async def cancel(*scopes: anyio.CancelScope) -> None:
            for scope in scopes:
                scope.cancel()

        leader, follower, late = anyio.CancelScope(), anyio.CancelScope(), anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, "leader", leader)
            tasks.start_soon(append, "follower", follower)
            tasks.start_soon(append, "bystander", None)
            late.cancel()
            tasks.start_soon(append, "late", late)
            tasks.start_soon(cancel, leader, follower)
        assert "bystander" in returned
        for stream in ("bystander", "leader", "follower", "late"):
            assert len(await ledger.read(stream)) == (3 if stream in returned else 0)
        assert "late" not in returned


@every_backend
async def test_closing_finishes_what_is_queued_and_refuses_what_comes_later(backend: Backend, tmp_path: Path) -> None:
    ledger = backend.open(tmp_path)
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(appended, ledger, f"m{number}", 0, drafts(1))
        tasks.start_soon(ledger.close)
    with pytest.raises(LedgerUnavailable):
        await ledger.append("late", 0, drafts(1))
    with pytest.raises(LedgerUnavailable):
        await ledger.read("m1")
    await ledger.close()
    async with opened(backend, tmp_path) as again:
        assert len((await again.streams()).rows) == 10


@every_backend
async def test_writers_of_several_processes_share_a_stream(backend: Backend, tmp_path: Path) -> None:
    child = "told()\nfor n in range(60):\n    await ledger.append('m1', ANY, [Draft('far', b'x')] * 2)\nsay('done')"
    async with opened(backend, tmp_path) as ledger:
        with another_process(backend, tmp_path, child) as one, another_process(backend, tmp_path, child) as two:
            tell(one, "go")
            tell(two, "go")
            for _ in range(60):
                await ledger.append("m1", ANY, drafts(1, 2))
            assert [await heard(one), await heard(two)] == ["done", "done"]
        assert [event.seq for event in await ledger.read("m1")] == list(range(1, 361))
        found = await ledger.verify()
        assert found.ok, found.faults
        assert (found.streams, found.events) == (1, 360)

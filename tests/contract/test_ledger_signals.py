"""What the ledger promises to those who wait: wakeups, watching and claims, kept by every backend."""

from __future__ import annotations

import os
import signal
from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.to_thread
from ledger_backends import GENEROUS, Backend, another_process, check, drafts, every_backend, heard, opened, tell
from promptly import promptly

from pursuit.errors import LedgerUnavailable
from pursuit.ledger.contract import ANY, Ledger


@every_backend
async def test_a_wakeup_rings_for_others_and_not_for_its_own(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        with ledger.wakeup("m1") as wakeup, ledger.wakeup("m1") as other, ledger.wakeup() as any_stream:
            await ledger.append("m1", 0, drafts(1), by=wakeup)
            await other.wait()
            await any_stream.wait()
            await ledger.append("m2", 0, drafts(1))
            with anyio.move_on_after(0.2) as silence:
                await wakeup.wait()
            assert silence.cancelled_caught
            await any_stream.wait()
            await ledger.append("m1", 1, drafts(2), by=other)
            await wakeup.wait()
            with anyio.move_on_after(0.2) as silence:
                await other.wait()
            assert silence.cancelled_caught


@every_backend
async def test_every_waiter_hears_another_process_soon(backend: Backend, tmp_path: Path) -> None:
    child = "while told():\n    await ledger.append('m1', ANY, [Draft('far', b'1')])\n    say('appended')"

    async def body(folder: Path) -> float:
        folder.mkdir()
        heard_at: list[float] = []

        async def listen(ledger: Ledger, scope: anyio.CancelScope) -> None:
            with scope, ledger.wakeup("m1") as wakeup:
                await wakeup.wait()
                heard_at.append(anyio.current_time())

        async with opened(backend, folder) as ledger:
            with another_process(backend, folder, child) as process, anyio.fail_after(GENEROUS):
                async with anyio.create_task_group() as tasks:
                    # The first waiter may be the one who looks on behalf of all: when it goes, another takes over.
                    scopes = [anyio.CancelScope() for _ in range(4)]
                    for scope in scopes:
                        tasks.start_soon(listen, ledger, scope)
                        await anyio.wait_all_tasks_blocked()
                    scopes[0].cancel()
                    await anyio.wait_all_tasks_blocked()
                    tell(process, "go")
                    assert await heard(process) == "appended"
                    committed = anyio.current_time()
                tell(process, "")
        assert len(heard_at) == 3
        return max(heard_at) - committed

    # The promise is 250 ms; the machine that runs the tests may be busy.
    for number, watch in enumerate(promptly(2)):
        watch.took = await body(tmp_path / str(number))


@every_backend
async def test_own_commits_stay_silent_although_another_process_writes_too(backend: Backend, tmp_path: Path) -> None:
    child = "while told():\n    await ledger.append('other', ANY, [Draft('far', b'1')])\n    say('appended')"
    async with opened(backend, tmp_path) as ledger:
        with another_process(backend, tmp_path, child) as process, anyio.fail_after(GENEROUS):
            with ledger.wakeup("m1") as wakeup, ledger.wakeup("other") as far:
                tell(process, "go")
                assert await heard(process) == "appended"
                await ledger.append("m1", 0, drafts(1), by=wakeup)
                # Our own commit comes after the foreign one and must not hide it.
                await far.wait()
                with anyio.move_on_after(0.2) as silence:
                    await wakeup.wait()
                assert silence.cancelled_caught
            tell(process, "")


@every_backend
async def test_watch_gives_every_event_once_and_in_order_across_processes(backend: Backend, tmp_path: Path) -> None:
    child = "told()\nfor n in range(100):\n    await ledger.append('m1', ANY, [Draft('far', b'%d' % n)])\nsay('done')"
    async with opened(backend, tmp_path) as ledger:
        await ledger.append("m1", 0, drafts(1, 2, 3))
        with another_process(backend, tmp_path, child) as process, anyio.fail_after(GENEROUS):

            async def append_too() -> None:
                for number in range(100):
                    await ledger.append("m1", ANY, drafts(number))

            seqs: list[int] = []
            far: list[int] = []
            async with anyio.create_task_group() as tasks, aclosing(ledger.watch("m1", after=1)) as events:
                tell(process, "go")
                tasks.start_soon(append_too)
                async for event in events:
                    seqs.append(event.seq)
                    if event.type == "far":
                        far.append(int(event.body))
                    if len(seqs) == 202:
                        break
            assert seqs == list(range(2, 204))
            assert far == list(range(100))
            assert await heard(process) == "done"


@every_backend
async def test_a_claim_has_one_holder(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        first = await ledger.claim("m1")
        assert await ledger.claim("m1") is None
        other = await ledger.claim("m2")
        assert other is not None
        await first.release()
        second = await ledger.claim("m1")
        await first.release()
        assert await ledger.claim("m1") is None
        await second.release()
        await other.release()


@every_backend
async def test_a_claim_is_freed_when_its_process_is_killed(backend: Backend, tmp_path: Path) -> None:
    child = "claim = await ledger.claim('m1')\nsay('taken' if claim else 'refused')\ntold()"
    async with opened(backend, tmp_path) as ledger:
        with another_process(backend, tmp_path, child) as holder:
            assert await heard(holder) == "taken"
            assert await ledger.claim("m1") is None
            os.kill(holder.pid, signal.SIGKILL)
            await anyio.to_thread.run_sync(holder.wait)
        claim = await ledger.claim("m1")
        with another_process(backend, tmp_path, child) as late:
            assert await heard(late) == "refused"
        await claim.release()


@every_backend
async def test_a_waiter_is_told_that_the_ledger_was_closed(backend: Backend, tmp_path: Path) -> None:
    ledger = backend.open(tmp_path)
    refused: list[str] = []

    async def listen() -> None:
        with ledger.wakeup("m1") as wakeup:
            try:
                await wakeup.wait()
            except LedgerUnavailable:
                refused.append("closed")

    with anyio.fail_after(GENEROUS):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await ledger.close()
    assert refused == ["closed"] * 3

"""Servers as processes that go wrong: the next call to them works, the others notice nothing, and nothing is left."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from process_ends import lives
from promptly import promptly

from pursuit.config.servers import ClientSettings, MessageLimits, ServerConfig, Timeouts
from pursuit.core.tools import CallFailed
from pursuit.errors import UpstreamUnavailable
from pursuit.upstream.pool import Pool

FAULTY = Path(__file__).parent.parent / "servers" / "faulty.py"


# On a machine that stalls, an exit code may come late.
PATIENT = ClientSettings(exit_wait=60.0)


def config(name: str, *words: str, client: ClientSettings = PATIENT, **more: Any) -> ServerConfig:
    args = ("-S", str(FAULTY), *words)
    return ServerConfig(name=name, command=sys.executable, args=args, client=client, **more)


async def called(upstream: Any, tool: str, **arguments: Any) -> str:
    return (await upstream.call(tool, arguments, call_id="c")).content[0]["text"]


@asynccontextmanager
async def pool(*words: str, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A faulty server and another one; afterwards neither they nor their children are left."""
    before = set(psutil.Process().children(recursive=True))
    with anyio.fail_after(240):
        async with Pool({"faulty": config("faulty", *words, **more), "other": config("other")}) as opened:
            yield opened.upstream("faulty"), opened.upstream("other")
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left, f"left behind: {left}"


@asynccontextmanager
async def both(*words: str, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with pool(*words, **more) as (faulty, other):
        yield faulty, other
        # Whatever happened: the next call works, here and elsewhere.
        assert int(await called(faulty, "ok")) > 0
        assert int(await called(other, "ok")) > 0


async def exists(path: Path) -> None:
    """Files are how another process reports; there is nothing to wait on but the file."""
    while not path.exists():
        await anyio.sleep(0.005)


async def ended(pid: int) -> bool:
    """Whether a process ends that is not ours to wait for."""
    with anyio.move_on_after(60):
        while lives(pid):
            await anyio.sleep(0.01)
        return True
    return False


async def test_one_that_dies_in_the_middle_of_a_call_costs_that_call() -> None:
    async with both() as (faulty, other):
        child = int(await called(faulty, "child"))
        pid = await called(faulty, "ok")
        beside = await called(other, "ok")
        with pytest.raises(CallFailed, match=r"(?s)exited with 9.*these are my last words"):
            await called(faulty, "die")
        assert await called(faulty, "ok") != pid
        assert await called(other, "ok") == beside
        assert await ended(child), "its child outlived it"


async def test_one_that_hangs_is_cut_off_and_stays_usable(tmp_path: Path) -> None:
    async with both() as (faulty, _other):
        pid = await called(faulty, "ok")
        answers: list[str] = []

        async def ask(tool: str) -> None:
            answers.append(await called(faulty, tool, mark=str(tmp_path / tool)))

        for tool in ("hang", "wrong_id"):
            async with anyio.create_task_group() as hanging:
                hanging.start_soon(ask, tool)
                await exists(tmp_path / tool)
                # What it says is in order: this comes after whatever it had to say to the first one.
                assert await called(faulty, "ok") == pid
                assert answers == []
                hanging.cancel_scope.cancel()
        assert await called(faulty, "ok") == pid
        heard = (await faulty.call("heard", {}, call_id="c")).structured["heard"]
        assert [one["method"] for one in heard].count("notifications/cancelled") == 2


@pytest.mark.parametrize("size", [1, 500_000])
async def test_one_that_answers_nothing_at_all_any_more_is_replaced(size: int, tmp_path: Path) -> None:
    async with both(client=replace(PATIENT, hang_probe=0.3, stdin_grace=0.1)) as (faulty, _other):
        pid = await called(faulty, "ok")
        async with anyio.create_task_group() as deaf:
            deaf.start_soon(partial(called, faulty, "deaf", mark=str(tmp_path / "mark")))
            await exists(tmp_path / "mark")
            if size > 1:
                # Its pipe is full, and giving up is still quick.
                big = {"name": "ok", "arguments": {"x": "x" * size}}
                for watch in promptly(2):
                    began = anyio.current_time()
                    with anyio.move_on_after(0.1) as scope:
                        await faulty._connection.request("tools/call", big)
                    watch.took = anyio.current_time() - began
                    assert scope.cancelled_caught
            deaf.cancel_scope.cancel()
        assert await called(faulty, "ok") != pid


async def test_one_that_is_busy_with_another_call_is_not_replaced(tmp_path: Path) -> None:
    async with both() as (faulty, _other):
        pid = await called(faulty, "ok")
        answers: list[str] = []
        mark, until = tmp_path / "mark", tmp_path / "until"

        async def busy() -> None:
            answers.append(await called(faulty, "wait", mark=str(mark), until=str(until)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy)
            await exists(mark)
            connection = faulty.current
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(called, faulty, "ok")
                await anyio.wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            assert connection.call_abandoned
            await connection.wait_for_probe()
            assert answers == [], "it was in doubt while it was busy"
            until.touch()
        assert answers == [pid]
        assert await called(faulty, "ok") == pid


async def test_one_that_hangs_in_the_handshake_fails_in_time_and_recovers(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.touch()
    async with both(f"mute={mute}", timeouts=Timeouts(connect=0.5)) as (faulty, _other):
        with pytest.raises(CallFailed, match=r"did not answer within 0\.5 s"):
            await called(faulty, "ok")
        mute.unlink()
        for _ in range(3):  # a machine that stalls may take so long to start it
            try:
                await called(faulty, "ok")
                return
            except CallFailed as error:
                assert "did not answer within 0.5 s" in str(error)


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("stderr", {"mb": 100}, None),
        ("garbage", {}, None),
        ("big", {"bytes": 15_000_000}, 15_000_000),
        ("twice", {}, len("once")),
    ],
)
async def test_what_is_only_rude_does_no_harm(tool: str, arguments: dict[str, Any], expected: int | None) -> None:
    async with both(client=replace(PATIENT, hang_probe=0.1)) as (faulty, _other):
        pid = await called(faulty, "ok")
        answer = await called(faulty, tool, **arguments)
        assert (len(answer) == expected) if expected else (answer == pid)
        assert len(faulty.stderr) <= 8 * 1024
        assert await called(faulty, "ok") == pid, "it was restarted"


async def test_an_answer_beyond_all_bounds_ends_the_connection() -> None:
    async with both(client=replace(PATIENT, limits=MessageLimits(result=1_000_000))) as (faulty, _other):
        with pytest.raises(CallFailed, match="more than 1000000 bytes"):
            await called(faulty, "big", bytes=3_000_000)


async def test_one_that_exits_after_its_handshake_is_started_ever_more_slowly_and_recovers(tmp_path: Path) -> None:
    settings = replace(PATIENT, first_pause=0.05, longest_wait=0.1)
    births, exits = tmp_path / "births", tmp_path / "exits"
    exits.touch()
    async with both(f"births={births}", f"exits={exits}", client=settings) as (faulty, other):
        said: list[str] = []
        for _ in range(200):
            with pytest.raises(CallFailed) as caught:
                await called(faulty, "ok")
            said.append(str(caught.value))
            await called(other, "ok")
        assert "exited with 7" in said[0]
        assert any("times in a row; next try in" in words for words in said)
        assert len(births.read_text().split()) <= PATIENT.ends_per_minute
        exits.unlink()
        while True:  # on a slow machine it ended so often in a minute that the minute must pass first
            try:
                await called(faulty, "ok")
                return
            except CallFailed:
                await anyio.sleep(0.05)


async def test_one_that_ends_so_often_in_a_minute_is_left_alone_for_a_while(tmp_path: Path) -> None:
    births = tmp_path / "births"
    async with pool(f"births={births}") as (faulty, other):
        # Each life is healthy, so that only the ceiling holds it back.
        for _ in range(int(PATIENT.ends_per_minute)):
            for _ in range(PATIENT.healthy_answers):
                await called(faulty, "ok")
            with pytest.raises(CallFailed, match="exited with 9"):
                await called(faulty, "die")
        with pytest.raises(CallFailed, match=r"not sent: .*10 times within a minute") as caught:
            await called(faulty, "ok")
        assert not caught.value.sent
        await called(other, "ok")
    assert len(births.read_text().split()) == PATIENT.ends_per_minute


async def test_one_that_is_not_to_be_restarted_is_not() -> None:
    async with pool(restart=False) as (faulty, _other):
        with pytest.raises(CallFailed, match="exited with 9") as died:
            await called(faulty, "die")
        with pytest.raises(CallFailed, match="restart = false") as unsent:
            await called(faulty, "ok")
        assert (died.value.outcome, unsent.value.outcome) == ("unknown", "failed")


async def test_everybody_who_waits_for_a_restart_shares_it(tmp_path: Path) -> None:
    births = tmp_path / "births"
    async with both(f"births={births}") as (faulty, _other):
        with pytest.raises(CallFailed):
            await called(faulty, "die")
        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(partial(called, faulty, "ok"))
        assert len(births.read_text().split()) == 2


async def test_reload_touches_only_what_changed(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    births = tmp_path / "births"
    first = {name: config(name) for name in ("same", "changed", "gone", "switched")}
    async with Pool(first, {"here": {"f": len}}) as opened:
        pids = {name: await called(opened.upstream(name), "ok") for name in first}
        second = {
            "same": first["same"],
            "changed": config("changed", f"births={births}"),
            "switched": config("switched", enabled=False),
            "fresh": config("fresh"),
            "broken": ServerConfig(name="broken", command="no-such-command-at-all"),
        }
        done = await opened.reload(second)
        assert (done.removed, done.updated) == (("gone", "switched"), ("changed",))
        assert (done.connected, done.kept) == (("fresh",), ("same",))
        assert list(done.failed) == ["broken"]
        assert "was not found" in done.failed["broken"]
        assert await called(opened.upstream("same"), "ok") == pids["same"]
        assert await called(opened.upstream("changed"), "ok") == births.read_text().strip()
        for name in ("changed", "gone", "switched"):
            assert not psutil.pid_exists(int(pids[name])), f"the old {name} is still there"
        for name in ("gone", "switched"):
            with pytest.raises(UpstreamUnavailable):
                opened.upstream(name)
        assert opened.names == ("here", "same", "changed", "fresh", "broken")
        again = await opened.reload(second)
        assert again.kept == ("same", "changed", "fresh", "broken")
        assert not (again.removed or again.updated or again.connected or again.failed)
    assert not set(psutil.Process().children(recursive=True)) - before

"""Servers as processes that go wrong: the next call to them works, the others notice nothing, and nothing is left."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from pursuit.engine.deadline import Deadline
from pursuit.errors import UpstreamUnavailable
from pursuit.tools import supervise
from pursuit.tools.contract import CallFailed
from pursuit.tools.pool import Pool
from pursuit.tools.server_config import ServerConfig, Timeouts

FAULTY = Path(__file__).parent.parent / "servers" / "faulty.py"


def config(name: str, *words: str, **more: Any) -> ServerConfig:
    return ServerConfig(name=name, command=sys.executable, args=("-S", str(FAULTY), *words), **more)


async def called(upstream: Any, tool: str, **arguments: Any) -> str:
    return (await upstream.call(tool, arguments, call_id="c")).content[0]["text"]


@asynccontextmanager
async def pool(*words: str, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A faulty server and another one; afterwards neither they nor their children are left."""
    before = set(psutil.Process().children(recursive=True))
    with anyio.fail_after(60):
        async with Pool({"faulty": config("faulty", *words, **more), "other": config("other")}) as opened:
            yield opened.upstream("faulty"), opened.upstream("other")
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left, f"left behind: {left}"


def run(main: Callable[[Any, Any], Awaitable[Any]], *words: str, **more: Any) -> Any:
    async def bounded() -> Any:
        async with pool(*words, **more) as (faulty, other):
            result = await main(faulty, other)
            # Whatever happened: the next call works, here and elsewhere.
            assert int(await called(faulty, "ok")) > 0
            assert int(await called(other, "ok")) > 0
            return result

    return anyio.run(bounded)


def test_one_that_dies_in_the_middle_of_a_call_costs_that_call() -> None:
    async def main(faulty: Any, other: Any) -> None:
        child = int(await called(faulty, "child"))
        pid = await called(faulty, "ok")
        beside = await called(other, "ok")
        with pytest.raises(CallFailed, match=r"(?s)exited with 9.*these are my last words"):
            await called(faulty, "die")
        assert await called(faulty, "ok") != pid
        assert await called(other, "ok") == beside
        assert not psutil.pid_exists(child), "its child outlived it"

    run(main)


def test_one_that_hangs_is_cut_off_and_stays_usable() -> None:
    async def main(faulty: Any, other: Any) -> None:
        pid = await called(faulty, "ok")
        for tool in ("hang", "wrong_id"):
            with anyio.move_on_after(0.2) as scope:
                await called(faulty, tool)
            assert scope.cancelled_caught
        assert await called(faulty, "ok") == pid
        heard = (await faulty.call("heard", {}, call_id="c")).structured["heard"]
        assert [one["method"] for one in heard].count("notifications/cancelled") == 2

    run(main)


@pytest.mark.parametrize("size", [1, 500_000])
def test_one_that_answers_nothing_at_all_any_more_is_replaced(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pursuit.tools.connection.PATIENCE", 0.3)
    monkeypatch.setattr("pursuit.tools.stdio.GRACE", 0.1)

    async def main(faulty: Any, other: Any) -> None:
        pid = await called(faulty, "ok")
        with anyio.move_on_after(0.2) as scope:
            await called(faulty, "deaf")
        assert scope.cancelled_caught
        if size > 1:
            # Its pipe is full, and giving up is still quick.
            began = anyio.current_time()
            with anyio.move_on_after(0.1):
                await faulty._supervisor._current.request("tools/call", {"name": "ok", "arguments": {"x": "x" * size}})
            assert anyio.current_time() - began < 2
        with anyio.fail_after(10):
            assert await called(faulty, "ok") != pid

    run(main)


def test_one_that_is_busy_with_another_call_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pursuit.tools.connection.PATIENCE", 0.1)

    async def main(faulty: Any, other: Any) -> None:
        pid = await called(faulty, "ok")
        answers: list[str] = []

        async def busy() -> None:
            answers.append(await called(faulty, "nap", seconds=1.5))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.1):
                await called(faulty, "ok")
        assert answers == [pid]
        assert await called(faulty, "ok") == pid

    run(main)


def test_the_time_that_a_call_waits_for_its_turn_is_not_its_servers() -> None:
    async def main(faulty: Any, other: Any) -> None:
        answers: list[Any] = []

        async def nap() -> None:
            limit = Deadline(set(), timeout=0.8, ceiling=60, wall_clock_left=None)
            call = faulty.call("nap", {"seconds": 0.4}, call_id="c", on_progress=limit.progressed)
            answers.append(await limit.bound(call))

        async with anyio.create_task_group() as napping:
            for _ in range(4):
                napping.start_soon(nap)
        assert len(answers) == 4 and None not in answers

    run(main, concurrency=1)


def test_one_that_hangs_in_the_handshake_fails_in_time_and_recovers(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.touch()

    async def main(faulty: Any, other: Any) -> None:
        with pytest.raises(CallFailed, match=r"did not answer within 0\.5 s"):
            await called(faulty, "ok")
        mute.unlink()

    run(main, f"mute={mute}", timeouts=Timeouts(connect=0.5))


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("stderr", {"mb": 100}, None),
        ("garbage", {}, None),
        ("big", {"bytes": 50_000_000}, 50_000_000),
        ("twice", {}, len("once")),
    ],
)
def test_what_is_only_rude_does_no_harm(tool: str, arguments: dict[str, Any], expected: int | None) -> None:
    async def main(faulty: Any, other: Any) -> None:
        pid = await called(faulty, "ok")
        answer = await called(faulty, tool, **arguments)
        assert (len(answer) == expected) if expected else (answer == pid)
        assert len(faulty.stderr) <= 8 * 1024
        assert await called(faulty, "ok") == pid, "it was restarted"

    run(main)


def test_an_answer_beyond_all_bounds_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pursuit.tools.stdio.LONGEST_LINE", 1_000_000)

    async def main(faulty: Any, other: Any) -> None:
        with pytest.raises(CallFailed, match="more than 0 MiB"):
            await called(faulty, "big", bytes=3_000_000)

    run(main)


def test_one_that_exits_after_its_handshake_is_started_ever_more_slowly_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(supervise, "LONGEST_WAIT", 0.1)
    births, exits = tmp_path / "births", tmp_path / "exits"
    exits.touch()

    async def main(faulty: Any, other: Any) -> None:
        said: list[str] = []
        for _ in range(200):
            with pytest.raises(CallFailed) as caught:
                await called(faulty, "ok")
            said.append(str(caught.value))
            await called(other, "ok")
        assert "exited with 7" in said[0]
        assert any("times in a row; next try in" in words for words in said)
        assert len(births.read_text().split()) <= supervise.ENDS_A_MINUTE
        exits.unlink()
        with anyio.fail_after(20):
            while True:
                try:
                    await called(faulty, "ok")
                    return
                except CallFailed:
                    await anyio.sleep(0.05)

    run(main, f"births={births}", f"exits={exits}")


def test_one_that_ends_so_often_in_a_minute_is_left_alone_for_a_while(tmp_path: Path) -> None:
    births = tmp_path / "births"

    async def main() -> None:
        async with pool(f"births={births}") as (faulty, other):
            # Each life is healthy, so that only the ceiling holds it back.
            for _ in range(supervise.ENDS_A_MINUTE):
                for _ in range(supervise.HEALTHY_ANSWERS):
                    await called(faulty, "ok")
                with pytest.raises(CallFailed, match="exited with 9"):
                    await called(faulty, "die")
            with pytest.raises(CallFailed, match=r"not sent: .*10 times within a minute") as caught:
                await called(faulty, "ok")
            assert not caught.value.sent
            await called(other, "ok")
        assert len(births.read_text().split()) == supervise.ENDS_A_MINUTE

    anyio.run(main)


def test_one_that_is_not_to_be_restarted_is_not() -> None:
    async def main() -> None:
        async with pool(restart=False) as (faulty, _other):
            with pytest.raises(CallFailed, match="exited with 9"):
                await called(faulty, "die")
            with pytest.raises(CallFailed, match="not to be started again"):
                await called(faulty, "ok")

    anyio.run(main)


def test_everybody_who_waits_for_a_restart_shares_it(tmp_path: Path) -> None:
    births = tmp_path / "births"

    async def main(faulty: Any, other: Any) -> None:
        with pytest.raises(CallFailed):
            await called(faulty, "die")
        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(partial(called, faulty, "ok"))
        assert len(births.read_text().split()) == 2

    run(main, f"births={births}")


def test_a_slow_server_delays_no_call_to_another() -> None:
    async def main(faulty: Any, other: Any) -> None:
        await called(other, "ok")
        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(partial(called, faulty, "hang"))
            began = anyio.current_time()
            for _ in range(50):
                await called(other, "ok")
            assert anyio.current_time() - began < 2
            calls.cancel_scope.cancel()

    run(main)


def test_reload_touches_only_what_changed(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)

"""Claims that are taken and released at the same moment: lock files come and go, and the lock stays one."""

from __future__ import annotations

import fcntl
import os
import platform
import threading
import time
from pathlib import Path

import anyio
import pytest

from pursuit.errors import LedgerUnavailable
from pursuit.ledger.locks import WriteQueue, holder_of, is_claimed, take_claim

ROUNDS = 2_000 if os.environ.get("PURSUIT_SOAK") else 400


@pytest.mark.slow
def test_a_released_lock_file_is_never_held_beside_its_successor(tmp_path: Path) -> None:
    inside = threading.Lock()
    taken: list[int] = []
    broken: list[str] = []

    async def hammer(number: int) -> None:
        while len(taken) < ROUNDS and not broken:
            claim = take_claim(tmp_path / "locks", "m1")
            if claim is None:
                continue
            if not inside.acquire(blocking=False):
                broken.append("two holders at once")
                return
            taken.append(number)
            # Held for a moment, so that a second holder would be inside at the same time.
            time.sleep(0.0001)
            inside.release()
            await claim.release()

    threads = [threading.Thread(target=anyio.run, args=(hammer, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert broken == []
    assert len(taken) >= ROUNDS


@pytest.mark.guarantee("a-dead-driver-is-shown")
async def test_a_claim_is_seen_by_those_who_ask_and_never_refused_because_of_them(tmp_path: Path) -> None:
    assert not is_claimed(tmp_path / "locks", "m1"), "asking makes neither the folder nor the file"
    assert not (tmp_path / "locks").exists()
    over = threading.Event()
    asked: set[bool] = set()

    def ask() -> None:
        while not over.is_set():
            asked.add(is_claimed(tmp_path, "m1"))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for thread in askers:
        thread.start()
    try:
        for number in range(1_000 * ROUNDS):
            if number >= ROUNDS and asked == {True, False}:
                break
            claim = take_claim(tmp_path, "m1")
            assert claim is not None, "refused, though no driver has it"
            assert is_claimed(tmp_path, "m1")
            await claim.release()
            (tmp_path / "m1.lock").touch()  # as a driver leaves it that was killed
    finally:
        over.set()
        for thread in askers:
            thread.join(timeout=60)
    assert asked == {True, False}
    assert not is_claimed(tmp_path, "m1")


def test_a_folder_that_cannot_hold_locks_is_named(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(LedgerUnavailable, match=r"cannot lock .*m1\.lock"):
        take_claim(tmp_path / "locks", "m1")


async def test_a_lock_file_that_cannot_be_removed_is_still_released(tmp_path: Path) -> None:
    claim = take_claim(tmp_path, "m1")
    assert claim is not None
    path = tmp_path / "m1.lock"
    (tmp_path / "kept").hardlink_to(path)
    path.unlink()
    path.mkdir()
    await claim.release()
    with (tmp_path / "kept").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_write_queue_lets_one_in_at_a_time(tmp_path: Path) -> None:
    one, two = WriteQueue.beside(tmp_path / "ledger.db"), WriteQueue.beside(tmp_path / "ledger.db")
    assert one.try_enter()
    assert not two.try_enter()
    one.leave()
    assert two.try_enter()
    two.close()
    assert one.try_enter()
    one.close()


async def test_a_lock_file_names_its_holder(tmp_path: Path) -> None:
    claim = take_claim(tmp_path, "m1")
    assert claim is not None
    holder = holder_of(tmp_path, "m1")
    assert (holder.pid, holder.host) == (os.getpid(), platform.node())
    await claim.release()
    assert holder_of(tmp_path, "m1") is None
    (tmp_path / "m1.lock").touch()  # as an older release leaves it
    assert holder_of(tmp_path, "m1") is None

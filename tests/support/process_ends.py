"""Whether processes that are not ours to wait for still run."""

from __future__ import annotations

import time

import psutil


def lives(pid: int) -> bool:
    """Whether it runs; a zombie, which its parent may never reap, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_gone(pid: int) -> None:
    """Returns when it has ended."""
    ends = time.monotonic() + 60
    while lives(pid):
        assert time.monotonic() < ends, "it lives on"
        time.sleep(0.01)

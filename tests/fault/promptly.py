"""Promises that name a time, on a machine that may stall for a second at any moment.

A stall holds up one try; a product that is late is late in all of them. So a scene is played until it was in time
once, and must be right every time.
"""

from __future__ import annotations

from collections.abc import Iterator

TRIES = 5


class Watch:
    """What the scene measured."""

    took: float

    def __repr__(self) -> str:
        return f"{self.took:.2f} s"


def promptly(seconds: float) -> Iterator[Watch]:
    """A watch for each try, whose scene says how long it `took`; the first that took less is the last."""
    seen: list[Watch] = []
    for _ in range(TRIES):
        seen.append(Watch())
        yield seen[-1]
        if seen[-1].took < seconds:
            return
    raise AssertionError(f"not once within {seconds} s: {seen}")

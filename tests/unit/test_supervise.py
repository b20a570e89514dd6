"""The pace of restarts, without any process."""

from __future__ import annotations

import math

from pursuit.upstream.supervise import (
    ENDS_A_MINUTE,
    FIRST_PAUSE,
    HEALTHY_ANSWERS,
    HEALTHY_SECONDS,
    LONGEST_PAUSE,
    Restarts,
)


def test_the_first_restart_is_at_once_and_the_pause_grows_to_its_bound() -> None:
    pace = Restarts()
    pauses: list[float] = []
    for death in range(12):
        pace.ended(1000.0 + death, lived=0.1, answers=0)
        pauses.append(pace.pause(1000.0 + death))
    assert pauses[:4] == [0, FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE
    assert pace.pause(1011.0 + LONGEST_PAUSE) == 0


def test_a_healthy_life_lets_the_pause_be_forgotten() -> None:
    for lived, answers in ((HEALTHY_SECONDS, 0), (0.1, HEALTHY_ANSWERS)):
        pace = Restarts()
        for _ in range(5):
            pace.ended(0.0, lived=1.0, answers=1)
        assert pace.pause(0.0) > 0
        pace.ended(10.0, lived=lived, answers=answers)
        assert pace.pause(10.0) == 0


def test_the_ceiling_looks_at_the_last_minute_only_and_never_gives_up() -> None:
    pace = Restarts()
    for end in range(ENDS_A_MINUTE):
        assert pace.crowded(float(end)) == 0
        pace.ended(float(end), lived=HEALTHY_SECONDS, answers=0) if end % 2 else pace.lost(float(end))
    assert pace.crowded(30.0) == 30
    assert pace.crowded(60.0) == 0
    for minute in range(1, 1000):
        assert pace.crowded(minute * 100.0) == 0
        pace.lost(minute * 100.0)
    assert Restarts(most=math.inf).crowded(0.0) == 0

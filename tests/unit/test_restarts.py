"""The pace of restarts, without any process."""

from __future__ import annotations

import math

from pursuit.config.servers import ClientSettings
from pursuit.upstream.client import Restarts

SETTINGS = ClientSettings()


def test_the_first_restart_is_at_once_and_the_pause_grows_to_its_bound() -> None:
    pace = Restarts(SETTINGS)
    pauses: list[float] = []
    for death in range(12):
        pace.ended(1000.0 + death, lived=0.1, answers=0)
        pauses.append(pace.pause(1000.0 + death))
    assert pauses[:4] == [0, SETTINGS.first_pause, 2 * SETTINGS.first_pause, 4 * SETTINGS.first_pause]
    assert pauses[-1] == SETTINGS.longest_pause
    assert pace.pause(1011.0 + SETTINGS.longest_pause) == 0


def test_a_healthy_life_lets_the_pause_be_forgotten() -> None:
    for lived, answers in ((SETTINGS.healthy_seconds, 0), (0.1, SETTINGS.healthy_answers)):
        pace = Restarts(SETTINGS)
        for _ in range(5):
            pace.ended(0.0, lived=1.0, answers=1)
        assert pace.pause(0.0) > 0
        pace.ended(10.0, lived=lived, answers=answers)
        assert pace.pause(10.0) == 0


def test_the_ceiling_looks_at_the_last_minute_only_and_never_gives_up() -> None:
    pace = Restarts(SETTINGS)
    for end in range(int(SETTINGS.ends_per_minute)):
        assert pace.ceiling_pause(float(end)) == 0
        pace.ended(float(end), lived=SETTINGS.healthy_seconds, answers=0) if end % 2 else pace.lost(float(end))
    assert pace.ceiling_pause(30.0) == 30
    assert pace.ceiling_pause(60.0) == 0
    for minute in range(1, 1000):
        assert pace.ceiling_pause(minute * 100.0) == 0
        pace.lost(minute * 100.0)
    assert Restarts(ClientSettings(ends_per_minute=math.inf)).ceiling_pause(0.0) == 0

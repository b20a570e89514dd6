"""The fixtures of the page's tests: a browser for each file, since other files start event loops, and viewers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser import Viewer, open_chromium
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def viewer(chromium: Browser) -> Iterator[Callable[..., Viewer]]:
    """Makes viewers, which are looked at once more at the end."""
    made: list[Viewer] = []

    def make(**options: Any) -> Viewer:
        made.append(Viewer(chromium, **options))
        return made[-1]

    yield make
    for one in made:
        one.context.close()

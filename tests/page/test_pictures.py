"""The pictures of the docs, made of real missions at the width of a phone and of a large screen; and large ledgers.

With PURSUIT_PICTURES=1 the pictures in `docs/pictures` are written anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from browser import Viewer, apart
from engine_stage import mission, repeat
from mission_files import calls, mission_file
from playwright.sync_api import expect
from site_stage import Site, weigh

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import Configuration

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
PHONE, SCREEN = 360, 1600
LARGEST = 400_000
MANY = 10_000
ASKS = mission_file(
    "beam.certify",
    {"criterion_id": "certified", "kind": "event", "event_name": "certified", "source": "beam.certify"},
    directive="Certify the beam, if the operator says yes",
    iterations=4,
    policy={"ask": ["beam.certify"]},
    proposer=calls("certify", {"h": 0.21, "l": 3.5, "t": 9.0, "b": 0.21}),
)


@pytest.mark.soak
def test_the_pictures_of_the_docs(viewer: Callable[..., Viewer], tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.environment["LOGNAME"] = "ann"  # who is signed in
    (tmp_path / "pursuit.toml").unlink()
    site.run("init")
    site.run("run", "mission.toml", "--mode", "auto")
    site.write("ask.toml", ASKS)
    site.run("run", "ask.toml", code=4)
    site.run("task", "run", "--units", "unit", "--total", "6", "--", "sh", "-c", _painted())
    done = next(row for row in site.json_of("list")["sessions"] if row["status"] == "completed")["session_id"]
    views = {
        "missions": "/missions",
        "mission": f"/missions/{done}",
        "timeline": f"/missions/{done}/timeline",
        "approvals": "/approvals",
        "tools": "/tools",
    }
    with site.serving():
        for width in (PHONE, SCREEN):
            one = site.sign_in(viewer(viewport={"width": width, "height": 900 if width == SCREEN else 720}))
            for name, path in views.items():
                page = one.open(path)
                page.wait_for_load_state("load")
                if name == "approvals":
                    page.keyboard.press("j")
                    expect(page.locator("#drawer")).to_contain_text("Arguments")
                body = page.screenshot()
                assert 5_000 < len(body) < LARGEST, (name, width, len(body))
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                if os.environ.get("PURSUIT_PICTURES"):
                    PICTURES.mkdir(exist_ok=True)
                    (PICTURES / f"{name}-{width}.png").write_bytes(body)
                one.check()


def _painted() -> str:
    return r'for i in 1 2 3 4 5 6; do printf "\033[32munit %s\033[0m\n" $i; done'


@pytest.mark.soak
def test_ten_thousand_missions_and_ten_thousand_iterations(viewer: Callable[..., Viewer], tmp_path: Path) -> None:
    site = Site(tmp_path)
    long = apart(partial(anyio.run, _large, site.ledger))
    with site.serving():
        one = site.sign_in(viewer())
        page = one.open("/missions")
        expect(page.locator("main")).to_contain_text("Mission 9999")
        assert page.locator("*").count() < 10_000, "the list is shown in parts"
        page = one.open("/missions?words=4321")
        expect(page.locator("main")).to_contain_text("Mission 4321")
        page = one.open(f"/missions/{long}")
        expect(page.locator("main")).to_contain_text("10,000")
        page = one.open(f"/missions/{long}/timeline")
        expect(page.locator("main")).to_contain_text("9901")
        assert page.locator("a[data-drawer]").count() < 1_000, "the timeline is shown in parts"
        page.locator("a[data-drawer]").first.click()
        expect(page.locator("#drawer")).to_contain_text("Arguments")
        one.check()


async def _large(ledger: Path) -> str:
    turn = anyio.CapacityLimiter(100)
    weighed = partial(mission, criteria=[metric("mass") <= 0], proposer=repeat("odd.weigh"))

    async def start(number: int) -> None:
        async with turn:
            await runtime.runner.start(weighed(directive=f"Mission {number}"))

    async with Runtime(state=ledger, config=Configuration(), servers={"odd": [weigh]}) as runtime:
        long = await runtime.runner.start(weighed(directive="Long", budget=Budget(max_iterations=MANY)))
        await runtime.runner.run(long.session_id)
        async with anyio.create_task_group() as tasks:
            for number in range(MANY - 1):
                tasks.start_soon(start, number)
        await runtime.runner.start(weighed(directive="Mission 9999"))
        return long.session_id

"""What changes arrives in the browser by itself: across killed drivers and servers, and with a command's output."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import Viewer
from front_door import wait_until
from mission_files import calls, mission_file, succeeded
from playwright.sync_api import Page, expect
from postgres_server import NewDatabase
from site_stage import Site

from pursuit.server.bind import PAGE_PATH

MOVES: list[tuple[str, dict[str, str]]] = [("a", {}), ("b", {"gate": "open"}), ("c", {})]
STEPS = mission_file(
    "workshop.step",
    succeeded("workshop.step", min_count=2),
    iterations=9,
    stagnation_threshold="off",
    proposer=calls("step", *({"log": "live", "key": key, **more} for key, more in MOVES)),
)
SLOW = 30_000.0
"""Milliseconds, for a machine that is busy; that a driver died is noticed by a look every 5 s."""


def badge(page: Page, word: str) -> None:
    expect(page.locator(".verdict .badge").first).to_contain_text(word, timeout=SLOW)


@pytest.mark.slow
@pytest.mark.guarantee("page-follows-across-crashes")
def test_the_page_follows_across_a_killed_driver_and_a_killed_server(
    viewer: Callable[..., Viewer], tmp_path: Path
) -> None:
    site = Site(tmp_path, fresh=True)
    file = site.write("m.toml", STEPS)
    started = json.loads(site.run("start", file, "--json", "--mode", "auto").stdout)["session_id"]
    drive = [*site.command, "resume", started, "--mode", "auto"]
    with site.serving() as first:
        one = site.sign_in(viewer())
        page = one.open(f"/missions/{started}")
        page.evaluate("window.same = true")  # a reload would lose it
        badge(page, "pending")
        driver = subprocess.Popen(
            drive, cwd=site.folder, env=site.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        badge(page, "running")
        site.until_logged("live", "begun b")
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        badge(page, "interrupted")
        expect(page.get_by_role("heading", name="Now")).to_have_count(0)
        assert ">unknown</span>" in page.request.get(f"{one.root}/missions/{started}/timeline").text()
        assert page.evaluate("window.same")
        first.kill()
    expect(page.locator("#connection")).to_be_visible(timeout=SLOW)
    port = str(urlsplit(first.url).port)
    (site.logs / "open").touch()
    ended = subprocess.run(drive, cwd=site.folder, env=site.environment, capture_output=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    with site.serving("--port", port):
        badge(page, "completed")
        assert page.evaluate("window.same"), "the page was reloaded"
        expect(page.locator("#connection")).to_be_hidden(timeout=SLOW)
        one.faults.clear()  # the browser logs that it could not connect
        one.check()


@pytest.mark.slow
def test_the_output_of_a_command_comes_and_it_can_be_cancelled(viewer: Callable[..., Viewer], tmp_path: Path) -> None:
    site = Site(tmp_path)
    gate, gone = site.folder / "gate", site.folder / "gone"
    # printf of the shell, so that the colour is in the output and not in the title.
    script = f"trap 'touch {gone}; exit 1' TERM; echo one; until [ -e {gate} ]; do sleep 0.05; done; "
    script += "printf '\\033[32mtwo\\033[0m\\n'; while :; do sleep 0.05; done"
    task = json.loads(site.run("task", "run", "--detach", "--json", "--", "sh", "-c", script).stdout)["task_id"]
    with site.serving():
        one = site.sign_in(viewer())
        page = one.open(f"/tasks/{task}")
        expect(page.locator("pre.log")).to_have_text("one", timeout=SLOW)
        gate.touch()
        expect(page.locator("pre.log")).to_have_text("one\ntwo", timeout=SLOW)
        page.locator("summary", has_text="Cancel").click()
        page.get_by_label("Reason").fill("it took too long")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".badge").first).to_have_text("cancelled", timeout=SLOW)
        wait_until(gone.exists, "the command was told", list)
        one.check()
    assert "it took too long" in site.run("audit", "--json").stdout


@pytest.mark.soak
def test_workers_are_shown_and_drained(
    viewer: Callable[..., Viewer], tmp_path: Path, new_database: NewDatabase
) -> None:
    site = Site(tmp_path, fresh=True)
    address = new_database()
    config = tmp_path / "pursuit.toml"
    config.write_text(f'state = "{address}"\n' + config.read_text(encoding="utf-8"), encoding="utf-8")
    site.environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    words = [*site.command, "worker", "--name", "mine", "--queue", "gpu"]
    with site.serving():
        one = viewer()
        link = json.loads(site.run("page", "--no-browser", "--json").stdout)["page"]
        one.root = link.partition(PAGE_PATH)[0] + PAGE_PATH
        one.page.goto(link)
        page = one.open("/workers")
        expect(page.locator("main")).to_contain_text("No worker is running")
        worker = subprocess.Popen(
            words, cwd=site.folder, env=site.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            expect(page.locator("#worker-mine")).to_contain_text("gpu", timeout=SLOW)
            one.accessible()
            page.locator("#worker-mine summary").click()
            page.get_by_role("button", name="Drain").click()
            assert worker.wait(timeout=60) == 0
        finally:
            worker.kill()
            worker.wait()
        one.check()
    assert "workers drain" in site.run("audit", "--json").stdout

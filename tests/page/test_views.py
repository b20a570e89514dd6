"""Every view of the page in a real browser, over a ledger in which tools and people wrote hostile text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from browser import Viewer
from front_door import Served
from hostile import STRINGS
from playwright.sync_api import expect
from site_stage import Site

NARROW, WIDE = {"width": 360, "height": 780}, {"width": 1600, "height": 900}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site")).seed()


@pytest.fixture(scope="module")
def served(site: Site) -> Iterator[Served]:
    with site.serving() as served:
        yield served


@pytest.fixture
def one(site: Site, served: Served, viewer: Callable[..., Viewer]) -> Viewer:
    return site.sign_in(viewer())


def views(site: Site) -> dict[str, str]:
    """The path of each view, with what it must show."""
    missions = {name: f"/missions/{mission_id}" for name, mission_id in site.missions.items()}
    return {
        "/missions": "Make it light enough to carry",
        missions["done"]: "getting closer",
        missions["hostile"]: "Budget",
        f"{missions['hostile']}/timeline": "odd.say",
        missions["waiting-0"]: "waits for your answer",
        "/approvals": "May odd.ship be called?",
        f"/approvals/{site.approvals[0]}": "Approve once",
        "/tasks": "completed",
        f"/tasks/{site.task}": "one failed",
        "/tools": "workshop",
        missions["fleet"]: "The other child",
        "/workers": "postgresql://",
        "/problems": "The exam",
        "/problems/mine": "second",
        "/audit": "abort",
        "/audit/verify": "Everything is intact",
    }


@pytest.mark.guarantee("what-tools-return-is-text-on-the-page")
def test_every_view_keeps_text_as_text_and_is_accessible(site: Site, one: Viewer) -> None:
    page = one.page
    faults: list[str] = []
    for path, words in views(site).items():
        page.set_viewport_size(NARROW)
        page.emulate_media(color_scheme="light")
        one.open(path)
        expect(page.locator("main")).to_contain_text(words)
        one.check()
        if page.evaluate("document.documentElement.scrollWidth") > NARROW["width"]:
            faults.append(f"{path} is wider than a phone")
        page.set_viewport_size(WIDE)
        faults += [f"{path}: {fault}" for fault in one.barriers()]
        page.emulate_media(color_scheme="dark")
        faults += [f"{path}, dark: {fault}" for fault in one.barriers(rules=["color-contrast"])]
    assert not faults, "\n".join(faults)
    # The text arrives as it was written.
    expect(one.open(f"/tasks/{site.task}").locator("h1")).to_contain_text(STRINGS[2])
    expect(page.locator("pre.log")).to_contain_text("one failed, one is odd")


@pytest.mark.guarantee("what-tools-return-is-text-on-the-page")
def test_each_hostile_call_opens_in_the_drawer(site: Site, one: Viewer) -> None:
    page = one.open(f"/missions/{site.missions['hostile']}/timeline")
    for place in (0, 40, 94, 95, 96, 98):  # strings, and documents: images, a page, a link
        page.locator("a[data-drawer]").nth(place).click()
        expect(page.locator("#drawer")).to_contain_text("Arguments")
        one.check()
    # Of the images only the real bitmap is one.
    page.locator("a[data-drawer]").nth(94).click()
    expect(page.locator("#drawer img.result")).to_have_count(1)


def test_a_shared_file_opens_from_disk_without_a_network(
    site: Site, one: Viewer, viewer: Callable[..., Viewer]
) -> None:
    one.open(f"/missions/{site.missions['hostile']}")
    with one.page.expect_download() as waiting:
        one.page.get_by_role("link", name="Share").click()
    file = site.folder / "shared.html"
    waiting.value.save_as(file)
    reader = viewer(offline=True, java_script_enabled=True)
    asked: list[str] = []
    reader.page.on("request", lambda request: asked.append(request.url))
    reader.page.goto(file.as_uri())
    expect(reader.page.locator(".call")).to_have_count(100)
    reader.page.locator(".call summary").first.click()
    expect(reader.page.locator(".call").first).to_contain_text("Arguments")
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    reader.accessible()
    reader.check()
    assert "<script" not in file.read_text(encoding="utf-8").lower()


@pytest.mark.guarantee("an-approval-is-answered-once-on-the-page")
def test_the_second_of_two_browsers_learns_that_it_is_too_late(
    site: Site, one: Viewer, viewer: Callable[..., Viewer]
) -> None:
    other = site.sign_in(viewer())
    other.page.goto("data:text/html,<a href=" + other.root + "/missions>A link of another site</a>")
    other.page.get_by_role("link").click()
    expect(other.page.locator("h1")).to_have_text("Missions")
    for browser in (one, other):
        browser.open(f"/approvals/{site.approvals[1]}")
    one.page.get_by_role("button", name="Approve once").click()
    expect(one.page.get_by_role("status").first).to_contain_text("Approved once.")
    other.page.get_by_role("button", name="Deny").click()
    expect(other.page.get_by_role("alert")).to_contain_text("already")
    told = one.open(f"/audit?mission={site.missions['waiting-1']}").locator("tbody")
    expect(told.locator("tr").first).to_contain_text("approve")
    expect(told).to_contain_text("http page")


def test_a_whole_journey_by_keyboard_alone(site: Site, one: Viewer) -> None:
    page = one.open("/missions")
    keys = page.keyboard

    def tab_to(name: str) -> None:
        for _ in range(60):
            keys.press("Tab")
            if page.evaluate("document.activeElement.textContent.trim()").startswith(name):
                shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert shown != "none", f"the focus on {name} cannot be seen"
                return
        raise AssertionError(f"{name} cannot be reached")

    keys.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab_to("Approvals")
    keys.press("Enter")
    expect(page.locator("h1")).to_have_text("Approvals")
    count = page.locator(".question").count()
    keys.press("j")
    expect(page.locator("#drawer")).to_contain_text("Arguments")
    keys.press("Escape")
    keys.press("a")  # nothing is open, so nothing is approved
    expect(page.locator("#drawer [data-question]")).to_have_count(0)
    keys.press("j")
    expect(page.locator("#drawer")).to_contain_text("Arguments")
    keys.press("d")
    keys.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("Denied.")
    expect(page.locator(".question")).to_have_count(count - 1)
    tab_to("Tasks")
    keys.press("Enter")
    expect(page.locator("h1")).to_have_text("Tasks")
    tab_to(STRINGS[2][:20])
    keys.press("Enter")
    expect(page.locator("pre.log")).to_contain_text("one failed")
    one.check()

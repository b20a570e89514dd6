"""A real Chromium for the tests of the page, and what it is asked after each look: errors, violations, accessibility.

Playwright's synchronous interface keeps an event loop running in its thread, so tests of this folder start none there:
what is asynchronous they leave to processes, or to `apart`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser, BrowserContext, Frame, Page, sync_playwright

T = TypeVar("T")
INSTALLED = Path(sys.prefix) / "browser"
UNPACKED = INSTALLED / "unpacked"
AXE = INSTALLED / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{folder}/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
WATCH = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Debian's Chromium where it is installed, else the one from npm."""
    program, environment = shutil.which("chromium"), dict(os.environ)
    if program is None:
        assert (INSTALLED / ".installed").exists(), "Chromium is missing; `make test` installs it"
        program = str(UNPACKED / "chromium")
        fonts = UNPACKED / "fonts.conf"
        if not fonts.exists():
            fonts.write_text(FONTS.format(folder=UNPACKED / "fonts"), encoding="utf-8")
        environment |= {"LD_LIBRARY_PATH": str(UNPACKED / "al2023" / "lib"), "FONTCONFIG_FILE": str(fonts)}
    words = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=words, env=environment)
        try:
            yield browser
        finally:
            browser.close()


class Viewer:
    """One person's browser: a context of its own, and everything that went wrong in it."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(**{"locale": "en-GB", "timezone_id": "UTC", **options})
        self.context.set_default_timeout(30_000)
        self.context.add_init_script(WATCH)
        self.faults: list[str] = []
        self.root = ""
        """Where the page is."""
        self.page = self.tab()

    def open(self, path: str) -> Page:
        """A view by its path."""
        self.page.goto(self.root + path)
        return self.page

    def tab(self) -> Page:
        """Another tab of the same person."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda said: self.faults.append(f"console: {said.text}") if said.type == "error" else None)
        return page

    def check(self, page: Page | None = None) -> None:
        """Nothing failed in the scripts, and the content security policy stopped nothing."""
        found = (page or self.page).evaluate("window.violations")
        assert not found and not self.faults, (found, self.faults)

    def barriers(self, page: Page | Frame | None = None, rules: Sequence[str] = RULES) -> list[str]:
        """What axe-core finds in what is shown; `rules` are tags of rules, or a rule."""
        page = page or self.page
        if not page.evaluate("typeof axe !== 'undefined'"):
            page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate(
            "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})"
            ".then(done => done.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))]))",
            rules,
        )
        return [json.dumps(one) for one in found]

    def accessible(self, page: Page | Frame | None = None) -> None:
        """axe-core finds nothing."""
        found = self.barriers(page)
        assert not found, found


def apart(work: Callable[[], T]) -> T:
    """Does this in another thread, which may run an event loop."""
    with ThreadPoolExecutor(1) as one:
        return one.submit(work).result()

"""The view of a mission in a client with MCP Apps, in the reference host."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import INSTALLED, Viewer
from front_door import TWO_STEPS, House
from plain_http import post
from playwright.sync_api import Page, expect

HOST = Path(__file__).parent / "app_host.html"
ABLE = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}
HOSTILE = "Climb <img src=x onerror=alert(1)><script>alert(2)</script>"
STEP: dict[str, Any] = {"tool_calls": [{"tool_name": "workshop.step", "args": {"log": "app", "key": "a"}}]}
MISSION = {**TWO_STEPS, "directive": HOSTILE}


class _Files(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return str(HOST) if path == "/host" else super().translate_path(path)

    def guess_type(self, path: Any) -> str:
        return "text/html" if path == str(HOST) else "text/javascript"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """The address of a page that hosts MCP Apps, as the reference implementation does."""
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(INSTALLED)))
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}/host"
    served.shutdown()
    thread.join()
    served.server_close()


class Server:
    """The client of the host page: it passes on what the app asks for, and keeps it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        answer = post(self.url, method, params, able=ABLE)
        assert "error" not in answer, answer
        return answer["result"]

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=name, arguments=arguments)

    def for_app(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(params["name"])
        return self.call(params["name"], **params["arguments"])

    @property
    def page(self) -> str:
        """The app, found as a host finds it."""
        (tool,) = [one for one in self.ask("tools/list")["tools"] if one["name"] == "mission_status"]
        (content,) = self.ask("resources/read", uri=tool["_meta"]["ui"]["resourceUri"])["contents"]
        assert content["mimeType"] == "text/html;profile=mcp-app"
        return content["text"]


def shown(page: Page, host: str, server: Server, **more: Any) -> Any:
    """The app in its frame, after the host has handed it a tool's arguments and result."""
    page.expose_function("callTool", server.for_app)
    page.goto(host)
    page.wait_for_function("window.ready")
    page.evaluate("([html, more]) => window.show(html, more)", [server.page, {"tools": True, **more}])
    return page.frame_locator("#app")


@pytest.mark.guarantee("missions-in-mcp-apps")
def test_the_app_follows_a_mission_through_its_host(viewer: Callable[..., Viewer], host: str, tmp_path: Path) -> None:
    house = House(tmp_path, mode="ask")
    with house.serving() as served:
        server = Server(served.url)
        started = server.call("mission_start", **MISSION)
        mission_id = started["structuredContent"]["session_id"]
        one = viewer()
        app = shown(one.page, host, server, input=MISSION, result=started, theme="dark")
        # It has only the answer of mission_start, and asks for the status itself.
        expect(app.locator("#directive")).to_have_text(HOSTILE)
        expect(app.locator("#status")).to_have_text("pending")
        expect(app.locator("#mission")).to_have_text(mission_id)
        assert one.page.evaluate("window.app.name") == "pursuit-mission"
        assert app.locator("html").evaluate("root => root.style.colorScheme") == "dark"

        server.call("mission_iterate", session_id=mission_id, proposal=STEP)
        expect(app.locator("#why")).to_have_text("for approval")
        expect(app.locator("#approvals")).to_contain_text("pursuit approve approval-")
        # The person behind a client answers by a channel that counts, never by the app: it has no way to.
        assert app.get_by_role("button").all_inner_texts() == ["Pause", "Refresh"]
        app.get_by_role("button", name="Pause").click()
        expect(app.locator("#status")).to_have_text("paused")
        app.get_by_role("button", name="Resume").click()
        expect(app.get_by_role("button", name="Pause")).to_be_visible()
        assert set(server.asked) == {"mission_status", "mission_abort", "mission_resume"}

        server.call("mission_complete", session_id=mission_id)
        app.get_by_role("button", name="Refresh").click()
        expect(app.locator("#status")).to_have_text("completed")
        expect(app.get_by_role("button")).to_have_count(0)
        assert one.page.evaluate("window.sizes.length") > 0
        assert one.page.evaluate("window.bridge.teardownResource({}).then(() => 'down')") == "down"
        one.check()


@pytest.mark.guarantee("missions-in-mcp-apps")
def test_the_app_shows_what_it_got_where_the_host_passes_no_calls_on(
    viewer: Callable[..., Viewer], host: str, tmp_path: Path
) -> None:
    with House(tmp_path).serving() as served:
        server = Server(served.url)
        mission_id = server.call("mission_start", **MISSION)["structuredContent"]["session_id"]
        server.call("mission_iterate", session_id=mission_id, proposal=STEP)
        status = server.call("mission_status", session_id=mission_id)
        one = viewer()
        app = shown(one.page, host, server, input={"session_id": mission_id}, result=status, tools=False, theme="light")
        expect(app.locator("#criteria")).to_contain_text("unmet")
        expect(app.locator("#budget")).to_contain_text("1 of 5")
        expect(app.locator("#note")).to_contain_text("ask for mission_status again")
        expect(app.get_by_role("button")).to_have_count(0)
        assert server.asked == []
        one.accessible(one.page.frames[1])
        one.check()

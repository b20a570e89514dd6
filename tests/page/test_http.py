"""The page over HTTP: who gets in, what a form may do, what is recorded, and that what tools return stays text."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_stage import AgentPlace, library
from engine_stage import events_of, mission, play, proposal, repeat, replay, until
from model_endpoint import calls
from model_stage import OPENAI, scripted
from page_stage import Person, Seen, page

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import Configuration
from pursuit.core.events import AbortOrdered, ApprovalAnswered, BudgetExtended, MissionPaused
from pursuit.core.tools import ToolResult
from pursuit.page.app import HEADERS, NAVIGATION, POLICY
from pursuit.page.markup import changes, content, folded, image
from pursuit.page.sessions import CHALLENGE_HEADER, SessionLimits, Sessions
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.server.missions.server import mission_server
from pursuit.server.tokens import Tokens
from pursuit.service.approvals import Approvals
from pursuit.service.audit import user_name

ASKS = OperatorPolicy(rules=(Rule(decision="ask", tool="write"),))
READS = ("missions:read",)
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()


def write(text: str = "x", password: str = "") -> dict[str, Any]:
    """Changes the world."""
    return {"text": text}


def measure(x: float = 1.0) -> dict[str, Any]:
    """Measures something."""
    return {"metrics": {"cost": x}}


def asking(folder: Path) -> Runtime:
    configuration = Configuration(policy=ASKS)
    return Runtime(state=folder / "ledger.db", config=configuration, servers={"world": [write, measure]})


async def waiting(runtime: Runtime, **args: Any) -> str:
    """A mission that waits for an approval."""
    started = await runtime.runner.start(mission(proposer=repeat("write", **args), budget=Budget(max_iterations=3)))
    await runtime.runner.run(started.session_id)
    return started.session_id


async def measured(runtime: Runtime, iterations: int = 3, **more: Any) -> str:
    """A mission that has measured something."""
    wanted = mission(
        proposer=repeat("measure", x=2.0),
        criteria=[metric("cost") <= 1.0],
        budget=Budget(max_iterations=iterations),
        **more,
    )
    started = await runtime.runner.start(wanted)
    await runtime.runner.run(started.session_id)
    return started.session_id


@pytest.mark.guarantee("the-page-needs-a-session")
async def test_a_link_signs_in_once_and_nothing_is_shown_without_a_session(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.wire() as stranger:
        found = await waiting(runtime)
        for path in ("/missions", f"/missions/{found}", f"/missions/{found}/timeline", "/approvals"):
            answer = await stranger.get(f"/page{path}", headers={"Accept": "text/html"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/page/sign-in"), path
            assert (await stranger.get(f"/page{path}")).status_code == 401  # a script
        for path in ("/missions/live", f"/missions/{found}/plots"):
            assert (await stranger.get(f"/page{path}")).status_code == 401
        assert (await stranger.post(f"/page/missions/{found}/abort")).status_code == 401
        link = served.sessions.link("/page").removeprefix("/page")
        answer = await stranger.get(f"/page{link}")
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 303 and "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        assert "Path=/page" in cookie
        assert (await stranger.get("/page/missions")).status_code == 200
        async with served.wire() as late:
            headers = {"Accept": "text/html", "Sec-Fetch-Site": "cross-site"}
            assert 'http-equiv="refresh"' in (await late.get("/page/missions", headers=headers)).text
            answer = await late.get(f"/page{link}")
            assert answer.status_code == 403 and "already used" in answer.text
        assert not await events_of(runtime, found, AbortOrdered)


def test_no_link_is_made_for_a_server_of_another_user(tmp_path: Path) -> None:
    """It has taken the port of a server that ended, and answers as that one would, but for what it cannot read."""

    class Impostor(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header(CHALLENGE_HEADER, self.headers[CHALLENGE_HEADER])
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    sessions = Sessions(tmp_path / "page.json", Tokens(tmp_path / "tokens.json"))
    with HTTPServer(("127.0.0.1", 0), Impostor) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.handle_request)
        sessions.serve_at(f"http://127.0.0.1:{server.server_port}/")
        assert sessions.served() is None


def test_a_session_ends_by_time_by_sign_out_and_with_its_token(tmp_path: Path) -> None:
    now = [1_000.0]
    tokens = Tokens(tmp_path / "tokens.json")
    limits = SessionLimits(link_seconds=10, session_seconds=100)
    sessions = Sessions(tmp_path / "page.json", tokens, limits, lambda: now[0])
    key, late = sessions.link_key(), sessions.link_key()
    cookie = sessions.redeem(key)
    assert cookie is not None and sessions.redeem(key) is None
    found = sessions.find(cookie)
    assert found is not None and (found.name, found.may("missions:write")) == (user_name(), True)
    # Another process that serves the same ledger knows the session.
    assert Sessions(tmp_path / "page.json", tokens, limits, lambda: now[0]).find(cookie) is not None
    stored = (tmp_path / "page.json").read_text()
    assert cookie not in stored and key not in stored and (tmp_path / "page.json").stat().st_mode & 0o077 == 0
    now[0] += 11
    assert sessions.redeem(late) is None
    now[0] += 100
    assert sessions.find(cookie) is None
    second = sessions.redeem(sessions.link_key())
    assert second is not None
    sessions.end(second)
    assert sessions.find(second) is None
    operator, client = tokens.make("ann", operator=True), tokens.make("agent")
    third = sessions.begin(operator)
    assert third is not None and sessions.begin(client) is None and sessions.begin("x") is None
    tokens.rotate("ann")
    assert sessions.find(third) is not None  # it is the same operator
    tokens.revoke("ann")
    assert sessions.find(third) is None


@pytest.mark.guarantee("a-form-is-the-operators-own")
async def test_a_form_needs_the_token_of_its_session_and_this_origin(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.person() as ann:
        found = await waiting(runtime)
        path = f"/page/missions/{found}/abort"
        refused = await ann.press(f"/missions/{found}/abort", 403, csrf="")
        assert "does not belong to your session" in refused.text
        await ann.press(f"/missions/{found}/abort", 403, csrf="0" * 64)
        async with served.person() as bob:
            await ann.press(f"/missions/{found}/abort", 403, csrf=bob.csrf)
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            answer = await ann.wire.post(path, data={"csrf": ann.csrf}, headers=headers)
            assert answer.status_code in (403, 421), headers
        answer = await ann.wire.post(path, content="csrf=" + ann.csrf + "&reason=" + "x" * 70_000)
        assert answer.status_code == 413
        assert not await events_of(runtime, found, AbortOrdered)
        own = await ann.wire.post(path, data={"csrf": ann.csrf, "reason": "enough"}, headers={"Origin": served.root})
        assert own.status_code == 303
        (order,) = await events_of(runtime, found, AbortOrdered)
        assert (order.reason, order.by) == ("enough", f"{user_name()} (http, page)")


@pytest.mark.guarantee("the-page-runs-no-foreign-script")
async def test_each_response_has_the_policy_and_no_cors(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.person() as ann:
        found = await measured(runtime)
        await waiting(runtime)
        paths = [path for _name, path in NAVIGATION if path != "/workers"]
        paths += ["/sign-in", "/nothing", f"/missions/{found}", f"/missions/{found}/timeline"]
        for path in (*paths, f"/missions/{found}/plots", "/static/page.css", "/static/vendor/htmx.min.js"):
            headers = {"Accept": "text/html", "Origin": served.root}
            answer = await ann.wire.get(f"/page{path}", headers=headers)
            for name, value in HEADERS.items():
                assert answer.headers[name] == value, path
            assert not [name for name in answer.headers if name.startswith("access-control")], path
            for script in Seen.of(answer.text).all("script") if "html" in answer.headers["content-type"] else ():
                assert (script["src"] or "").startswith("/page/static/"), path
            assert " style=" not in answer.text.replace("svg style=", ""), path
        for path in ("/static/none.css", "/static/../x", "/static/%2e%2e/%2e%2e/x", "/static"):
            answer = await ann.wire.get(f"/page{path}")
            assert (answer.status_code, answer.headers["content-security-policy"]) == (404, POLICY), path
        wanted = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
        assert POLICY.startswith(wanted)


@pytest.mark.guarantee("a-read-only-token-cannot-press")
async def test_a_read_only_token_sees_and_cannot_press(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served:
        found = await waiting(runtime)
        (asked,) = await Approvals(runtime.runner).open()
        reads = served.tokens.make("eve", operator=True, scopes=READS)
        async with served.person(reads) as eve:
            seen = await eve.get(f"/missions/{found}")
            assert "read-only" in seen.text
            assert [one["action"] for one in seen.all("form")] == ["/page/sign-out"]
            shown = await eve.get(f"/approvals/{asked.approval_id}")
            assert [one["action"] for one in shown.all("form")] == ["/page/sign-out"]
            for verb in ("pause", "resume", "abort", "complete", "extend"):
                answer = await eve.press(f"/missions/{found}/{verb}", 403)
                assert "missions:write" in answer.text
            await eve.press(f"/approvals/{asked.approval_id}", 403, answer="once")
        client = served.tokens.make("agent")
        async with served.wire() as agent:
            assert (await agent.post("/page/sign-in", data={"token": client})).status_code == 403
        assert not await events_of(runtime, found, ApprovalAnswered)
        assert (await runtime.runner.status(found)).status == "waiting"


@pytest.mark.guarantee("a-button-is-in-the-audit")
async def test_buttons_do_what_they_say_and_the_audit_names_the_operator(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served:
        token = served.tokens.make("ann", operator=True)
        async with served.person(token) as ann:
            found = await waiting(runtime)
            await ann.press(f"/missions/{found}/pause", reason="lunch")
            (paused,) = await events_of(runtime, found, MissionPaused)
            assert (paused.reason, paused.by) == ("lunch", "ann (http, page)")
            assert "It is paused: lunch." in (await ann.get(f"/missions/{found}?done=paused")).text
            wrong = await ann.press(f"/missions/{found}/extend", 422, max_iterations="1", max_tokens="many")
            assert "many" in wrong.text and not await events_of(runtime, found, BudgetExtended)
            wrong = await ann.press(f"/missions/{found}/extend", 422, max_iterations="1")
            assert "can only be raised" in wrong.text
            await ann.press(f"/missions/{found}/extend", max_iterations="9")
            assert (await runtime.runner.state(found)).budget["max_iterations"] == 9
            await ann.press(f"/missions/{found}/resume")
            assert (await runtime.runner.state(found)).status == "running"
            assert "no process runs it" in (await ann.get(f"/missions/{found}")).text
            await ann.press(f"/missions/{found}/complete", reason="good enough")
            late = await ann.press(f"/missions/{found}/abort", 409)
            assert "has ended" in late.text
            await ann.press("/missions/mission-0123456789abcdef/pause", 404)
            await ann.press("/missions/mission-x/pause", 400)
            lines = [line for line in await runtime.runner.audited(found) if line.get("client") == "page"]
            assert [line["verb"] for line in lines] == ["pause", "extend", "resume", "complete", "abort"]
            assert {line["who"] for line in lines} == {"ann"} and "refused" in lines[-1]
            await ann.press("/sign-out")
            assert (await ann.wire.get("/page/missions")).status_code == 401


@pytest.mark.guarantee("an-approval-is-answered-once-on-the-page")
async def test_an_approval_shows_all_and_a_second_answer_says_that_it_is_late(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served:
        found = await waiting(runtime, text="first", password="hunter2")
        (asked,) = await Approvals(runtime.runner).open()
        path = f"/approvals/{asked.approval_id}"
        async with served.person() as ann, served.person(served.tokens.make("bob", operator=True)) as bob:
            inbox = await ann.get("/approvals")
            assert "May world.write be called?" in inbox.text
            shown = await ann.get(path)
            assert "first" in shown.text and "hunter2" not in shown.text and "[redacted]" in shown.text
            assert "is not one of" in (await ann.press(path, 422, answer="perhaps")).text
            # A yes needs that the masked argument was revealed; the button is one form, and only for approvers.
            assert "press Reveal, then approve" in (await ann.press(path, 403, answer="once")).text
            assert "Approve once" not in shown.text and "Reveal" in shown.text
            revealed = await ann.press(f"{path}/reveal", 200)
            assert "hunter2" in revealed.text and 'name="revealed"' in revealed.text
            await ann.press(path, answer="once", reason="fine", revealed="yes")
            late = await bob.press(path, 409, answer="denied")
            assert "answered" in late.text and "once" in late.text
            (said,) = await events_of(runtime, found, ApprovalAnswered)
            assert (said.answer, said.channel, said.reason) == ("once", "page", "fine")
            assert said.by == f"{user_name()} (http, page)"
            await runtime.runner.run(found)
            (again,) = await Approvals(runtime.runner).open()
            await bob.press(f"/approvals/{again.approval_id}", answer="denied", reason="not now")
            assert "Nothing waits for you" in (await bob.get("/approvals")).text
            await ann.press("/approvals/approval-0123456789abcdef", 404, answer="once")


async def test_resume_drives_the_mission_where_missions_are_served(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, mission_server(runtime), page(runtime, tmp_path) as served:
        wanted = mission(proposer=repeat("measure"), budget=Budget(max_iterations=3))
        found = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.pause(found)
        async with served.person() as ann:
            answer = await ann.press(f"/missions/{found}/resume")
            assert answer.headers["location"].endswith("?done=resumed")
            await until(runtime, found, lambda state: state.terminal)
            seen = await ann.get(f"/missions/{found}")
            assert "The iteration budget is used up." in seen.text and "3 of 3" in seen.text


def dump() -> dict[str, Any]:
    """Returns more than a shared file takes of one result."""
    return {"password": "hunter2", "rows": ["x" * 1_000] * 1_200}


def tell() -> ToolResult:
    """Returns JSON as text."""
    return ToolResult(content=({"type": "text", "text": json.dumps([{"api_key": "hunter2"}])},))


async def test_secrets_are_masked_in_results_that_are_cut_and_in_json_as_text(tmp_path: Path) -> None:
    async with Runtime(state=tmp_path / "ledger.db", servers={"world": [dump, tell]}, mode="auto") as runtime:
        both = replay(proposal(("dump", {}), ("tell", {})))
        ended = await runtime.pursue(mission(proposer=both, budget=Budget(max_iterations=1)))
        async with page(runtime, tmp_path) as served, served.person() as ann:
            seen = await ann.get(f"/missions/{ended.session_id}/timeline")
            for link in [one["href"] or "" for one in seen.all("a") if "/calls/" in (one["href"] or "")]:
                drawer = (await ann.get(link.removeprefix("/page"))).text
                assert ("password" in drawer or "api_key" in drawer) and "hunter2" not in drawer
            shared = (await ann.get(f"/missions/{ended.session_id}/share")).text
            assert "bytes more" in shared and "api_key" in shared and "hunter2" not in shared


def test_the_drawer_has_what_a_model_was_told_and_what_an_agent_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(2)}, {"say": "It returns 2 now."}]])
    place.mission()
    agent = place.json("run", "fix.toml")["session_id"]

    async def drawers(ann: Person, mission_id: str, kind: str) -> str:
        seen = await ann.get(f"/missions/{mission_id}/timeline")
        links = [one["href"] or "" for one in seen.all("a") if f"/{kind}/" in (one["href"] or "")]
        return " ".join([(await ann.get(link.removeprefix("/page"))).text for link in links])

    async def scene() -> None:
        async with Runtime(state=place.ledger, servers={"world": [write, measure]}, mode="auto") as runtime:
            asked = mission(proposer={"kind": "model", "model": OPENAI}, criteria=[metric("cost") <= 1.0])
            model = (await runtime.pursue(asked)).session_id
            async with page(runtime, tmp_path) as served, served.person() as ann:
                told = await drawers(ann, model, "turns")
                assert asked.directive in told and "Iteration 1 begins." in told
                assert "11 tokens" in (await ann.get(f"/missions/{model}/timeline")).text
                changed = await drawers(ann, agent, "calls")
                assert "It returns 2 now." in changed and "+    return 2".replace("    ", " ") in changed

    with scripted(monkeypatch, calls(("world__measure", {"x": 1.0}), tokens=(10, 1))):
        play(scene)


def test_images_are_small_bitmaps_and_json_is_folded() -> None:
    assert f"data:image/png;base64,{PIXEL}" in image(PIXEL, "image/png")
    for data, kind in (
        (PIXEL, "image/svg+xml"),
        (base64.b64encode(b"<svg onload=alert(1)>").decode(), "image/png"),
        ("no base64!", "image/png"),
        (base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 3_000_000).decode(), "image/png"),
        (PIXEL, 'image/png" onerror="alert(1)'),
    ):
        assert "<img" not in image(data, kind) and "onerror=" not in image(data, kind).replace("&#34; onerror=", "")
    same = {"content": [{"type": "text", "text": json.dumps({"a": 1})}], "structuredContent": {"a": 1}}
    assert content(same).count('class="key"') == 1
    assert "<details open>" in folded({"a": {"b": [1, 2]}}) and "<pre" in folded(list(range(5_000)))
    assert changes({"a": 1}, {"a": 1}) is None
    differs = changes({"a": 1}, {"a": 2})
    assert differs is not None and 'class="ins"' in differs
    assert "too many to compare" in str(changes(list(range(9_000)), list(range(9_001))))
    for depth in (900, 100_000):  # how much of it is folded is Python's affair
        deep = content({"content": [{"type": "text", "text": "[" * depth + "]" * depth}]})
    assert "[[[[" in deep


@pytest.mark.guarantee("live-updates-are-coalesced")
async def test_live_updates_come_from_the_ledger_and_a_reconnect_gets_only_what_differs(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.person() as ann:
        found = await waiting(runtime)
        path = f"/page/missions/{found}/live"
        async with ann.wire.stream("GET", path) as stream:
            lines = stream.aiter_lines()
            first = await _event(lines)
            assert "It waits for approval" in first["data"] and ann.csrf in first["data"]
            await runtime.runner.pause(found, reason="now")
            second = await _event(lines)
            assert "It is paused: now." in second["data"] and second["id"] != first["id"]
        async with served.person() as bob, bob.wire.stream("GET", path) as stream:
            lines = stream.aiter_lines()
            await _event(lines)
            await bob.press("/sign-out")
            await runtime.runner.resume(found)
            assert [line async for line in lines] == []  # the stream of a session that ended, ends
            await runtime.runner.pause(found, reason="now")
        async with ann.wire.stream("GET", path, headers={"Last-Event-ID": first["id"]}) as stream:
            assert (await _event(stream.aiter_lines()))["id"] == second["id"]
        async with ann.wire.stream("GET", path, headers={"Last-Event-ID": second["id"]}) as stream:
            lines = stream.aiter_lines()
            with anyio.move_on_after(0.3) as silence:
                await _event(lines)
            assert silence.cancelled_caught  # it has this fragment already
        await runtime.runner.abort(found)
        assert "skipped" in (await ann.get(f"/missions/{found}/timeline")).text  # it waits no more


async def test_an_address_that_means_nothing_is_refused_and_the_server_stays(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.person() as ann:
        for path in ("/missions/a b/live", "/missions/%00/timeline/live", "/tasks/a b/live"):
            await ann.get(path, 400)
        for path in ("/tasks/task-0000000000000000", "/problems/none"):
            await ann.get(path, 404)
        many = {f"field{number}": "x" for number in range(200)}
        assert (await ann.wire.post("/page/sign-in", data=many)).status_code == 422
        served.tokens.path.write_text("{")
        assert "is damaged" in (await ann.get("/missions", 400)).text
        assert (await ann.wire.post("/page/sign-in", data={"token": "x"})).status_code == 400


async def _event(lines: Any) -> dict[str, str]:
    """The next server-sent event."""
    found: dict[str, list[str]] = {}
    async for line in lines:
        if not line and found:
            return {name: "\n".join(parts) for name, parts in found.items()}
        name, _, value = line.partition(": ")
        if name:
            found.setdefault(name, []).append(value)
    raise AssertionError("the stream ended")


async def test_a_long_timeline_is_shown_in_parts_and_found_by_iteration(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.person() as ann:
        found = await measured(runtime, iterations=450)
        newest = await ann.get(f"/missions/{found}/timeline")
        rows = [one for one in newest.all("tr") if (one.get("id") or "").startswith("row-")]
        assert len(rows) == 100 and "450" in newest.text and "Earlier calls" in newest.text
        (older,) = [one["href"] for one in newest.all("a") if "before=" in (one.get("href") or "")]
        before = await ann.get((older or "").removeprefix("/page"))
        assert "Later calls" in before.text and " 350 " in before.text and " 351 " not in before.text
        (newer,) = [one["href"] for one in before.all("a") if "after=" in (one.get("href") or "")]
        after = await ann.get((newer or "").removeprefix("/page"))
        assert " 351 " in after.text and " 450 " in after.text and "Later calls" not in after.text
        some = await ann.get(f"/missions/{found}/timeline?first=101&last=103")
        assert [one.get("id") for one in some.all("tbody")] == ["band-100", "band-101", "band-102"]
        await ann.get(f"/missions/{found}/timeline?first=0&last=x", 422)
        assert "last 2 · best 2 · target ≤ 1" in (await ann.get(f"/missions/{found}/plots")).text


async def test_missions_are_grouped_filtered_and_continued(tmp_path: Path) -> None:
    async with asking(tmp_path) as runtime, page(runtime, tmp_path) as served, served.person() as ann:
        await waiting(runtime)
        for number in range(55):
            await measured(runtime, iterations=1, directive=f"Number {number} of many" + " zebras" * (number == 17))
        await runtime.runner.start(mission(directive="Not begun", queue="night"))
        all_of_them = await ann.get("/missions")
        for heading in ("Needs you 1", "Under way 1", "Ended 50"):
            assert heading in all_of_them.text, heading
        (more,) = [one["href"] for one in all_of_them.all("a") if "cursor=" in (one.get("href") or "")]
        rest = await ann.get((more or "").removeprefix("/page"))
        assert "Ended 5" in rest.text and "Needs you" not in rest.text
        found = await ann.get("/missions?words=zebra+MANY&status=terminated")
        assert "Ended 1" in found.text and "Number 17 of many zebras" in found.text
        assert "No mission matches" in (await ann.get("/missions?caller=local+clients")).text
        queued = await ann.get("/missions?queue=night")
        assert "Not begun" in queued.text and "Ended" not in queued.text and "Needs you" not in queued.text
        assert "Needs you 1" in (await ann.get("/missions?status=waiting&caller=operator")).text
        assert "No mission matches" in (await ann.get("/missions?until=2001-01-01")).text
        wrong = await ann.get("/missions?since=yesterday&status=lost", 422)
        assert "since" in wrong.text and "status" in wrong.text

"""Missions as MCP resources, listed and read by real clients of both eras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_stage import proposal, repeat, replay
from mcp import Client
from mcp.client.extension import advertise
from mcp.shared.exceptions import MCPError
from mcp_stage import ERAS, LEGACY, UNKNOWN, opened, read, stage
from mcp_types import PromptReference, ResourceTemplateReference

from pursuit import Budget
from pursuit.server.missions.resources import ResourceSettings
from pursuit.server.missions.server import mission_server

NOT_FOUND = {LEGACY: -32002, "2026-07-28": -32602}
eras = pytest.mark.parametrize("era", ERAS)


@eras
async def test_status_and_events_are_what_the_service_says(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, here.client(era) as client:
        mission_id = await here.start()
        await here.service.iterate(mission_id, iterations=2)
        status = await read(client, f"mission://{mission_id}")
        assert status == (await here.service.status(mission_id)).as_json()
        assert status["iteration_count"] == 2
        events = await read(client, f"mission://{mission_id}/events")
        stored = await here.service.ledger.read(mission_id)
        assert [(row["seq"], row["type"]) for row in events["events"]] == [(one.seq, one.type) for one in stored]
        assert (events["total"], events["first_seq"], events["last_seq"]) == (len(stored), 1, len(stored))
        assert "next" not in events
        created = events["events"][0]
        assert created["at"].endswith("+00:00") and created["data"]["tools"] == ["demo.weigh"]
        assert not {"at", "type"} & set(created["data"])


@eras
async def test_the_report_comes_for_programs_and_for_people(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, here.client(era) as client:
        mission_id = await here.start(budget=Budget(max_iterations=1))
        uri = f"mission://{mission_id}/report"
        before: Any = (await client.read_resource(uri)).contents
        assert json.loads(before[0].text)["status"] == "pending"
        await here.service.run(mission_id)
        found: Any = (await client.read_resource(uri)).contents
        assert [content.mime_type for content in found] == ["application/json", "text/markdown"]
        assert json.loads(found[0].text) == (await here.service.report(mission_id)).as_json()
        assert "Weigh it" in found[1].text and "max" in found[1].text


@eras
async def test_the_list_is_paged_newest_first_and_has_reports_of_ended_missions(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path, pages=ResourceSettings(missions_a_page=2)) as here, here.client(era) as client:
        missions = [await here.start(directive=f"Number {n}\n\x1b[31m" + "x" * 200) for n in range(3)]
        await here.service.abort(missions[0])
        pages = [await client.list_resources()]
        while pages[-1].next_cursor is not None:
            pages.append(await client.list_resources(cursor=pages[-1].next_cursor))
        assert [[resource.uri for resource in page.resources] for page in pages] == [
            [f"mission://{missions[2]}", f"mission://{missions[1]}"],
            [f"mission://{missions[0]}", f"mission://{missions[0]}/report"],
        ]
        running, ended = pages[0].resources[0], pages[1].resources[1]
        assert running.title is not None and running.title.startswith("Number 2 [31mxxx")
        assert len(running.title) == 80 and running.title.isprintable()
        assert "pending, 0 iterations" in (running.description or "")
        assert ended.title is not None and ended.title.startswith("Report: Number 0")
        for resource in (resource for page in pages for resource in page.resources):
            assert (await client.read_resource(resource.uri)).contents
        with pytest.raises(MCPError, match="next_cursor") as refused:
            await client.list_resources(cursor="bogus")
        assert refused.value.code == -32602


@eras
async def test_the_templates_are_the_three_resources(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, here.client(era) as client:
        found = (await client.list_resource_templates()).resource_templates
        assert [t.uri_template for t in found] == [
            "mission://{id}",
            "mission://{id}/report",
            "mission://{id}/events",
        ]
        mission_id = await here.start()
        for template in found:
            assert (await client.read_resource(template.uri_template.replace("{id}", mission_id))).contents
        with pytest.raises(MCPError, match="a single page"):
            await client.list_resource_templates(cursor="x")


BAD = [
    "mission://nobody",
    "mission://",
    f"mission://{UNKNOWN}/",
    f"mission://{UNKNOWN}/secrets",
    f"mission://{UNKNOWN}?after=1",
    f"mission://{UNKNOWN}/events?after=-1",
    f"mission://{UNKNOWN}/events?after=1&x=2",
    f"mission://{UNKNOWN}/events?after=\u0661",
    f"mission://{UNKNOWN.upper()}",
    f"mission://{UNKNOWN}\n",
    "file:///etc/passwd",
    "mission://../ledger",
    "x" * 100_000,
]


@eras
async def test_a_wrong_address_is_told_in_the_code_of_the_era_with_what_exists(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, here.client(era) as client:
        for uri in BAD:
            with pytest.raises(MCPError, match=r"mission://\{id\}/report") as refused:
                await client.read_resource(uri)
            assert refused.value.code == NOT_FOUND[era], uri
            assert refused.value.data["code"] == "invalid_argument"
            assert repr(uri)[1:50] in refused.value.message and len(refused.value.message) < 1000
        for part in ("", "/report", "/events", "/events?after=3"):
            with pytest.raises(MCPError, match=UNKNOWN) as refused:
                await client.read_resource(f"mission://{UNKNOWN}{part}")
            assert refused.value.code == NOT_FOUND[era]
            assert refused.value.data["code"] == "session_not_found"
            assert refused.value.data["uri"] == f"mission://{UNKNOWN}{part}"
        gone = await here.start()
        await here.service.abort(gone)
        await here.service.forget(gone)
        with pytest.raises(MCPError, match=gone) as refused:
            await client.read_resource(f"mission://{gone}/events")
        assert refused.value.code == NOT_FOUND[era]


@eras
@pytest.mark.damaged_ledger("edits the database")
async def test_a_ledger_that_cannot_be_read_is_named_and_not_hidden(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, here.client(era) as client:
        mission_id = await here.start()
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (tmp_path / name).write_bytes(b"no database at all" * 1000)
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"mission://{mission_id}")
        assert refused.value.data["code"] == "ledger_unavailable"
        assert "ledger.db" in refused.value.message


@eras
async def test_events_are_the_newest_two_hundred_and_can_be_paged_from_the_start(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here, here.client(era) as client:
        mission_id = await here.start()
        await here.service.iterate(mission_id, iterations=120)
        total = len(await here.service.ledger.read(mission_id))
        assert total > 2 * 200
        newest = await read(client, f"mission://{mission_id}/events")
        assert (newest["total"], newest["first_seq"], newest["last_seq"]) == (total, total - 199, total)
        assert len(newest["events"]) == 200
        seen: list[int] = []
        uri: str | None = f"mission://{mission_id}/events?after=0"
        while uri is not None:
            page = await read(client, uri)
            seen += [row["seq"] for row in page["events"]]
            uri = page.get("next")
        assert seen == list(range(1, total + 1))
        behind = await read(client, f"mission://{mission_id}/events?after={total}")
        assert behind == {"session_id": mission_id, "total": total, "events": []}


async def test_large_events_are_bounded_and_a_huge_one_is_there_without_its_data(tmp_path: Path) -> None:
    texts = ["a" * 60_000] * 8 + ["b" * 200_000]

    def weigh(text: str) -> dict[str, Any]:
        return {"metrics": {"mass": len(text)}}

    async with stage(tmp_path, weigh) as here, here.client(LEGACY) as client:
        proposals = [proposal(("weigh", {"text": text})) for text in texts[:-1]]
        mission_id = await here.start(
            proposer=repeat("weigh", text=texts[-1]), budget=Budget(max_iterations=1), directive="Huge"
        )
        await here.service.run(mission_id)
        huge = (await read(client, f"mission://{mission_id}/events?after=0"))["events"]
        assert [row["seq"] for row in huge] == list(range(1, len(huge) + 1))
        cut = [row for row in huge if row["data"] is None]
        assert cut and all(row["omitted_bytes"] > 200_000 for row in cut)
        mission_id = await here.start(proposer=replay(*proposals), budget=Budget(max_iterations=len(proposals)))
        await here.service.run(mission_id)
        total = len(await here.service.ledger.read(mission_id))
        newest = await read(client, f"mission://{mission_id}/events")
        assert newest["last_seq"] == total and newest["first_seq"] > 1
        assert [row["seq"] for row in newest["events"]] == list(range(newest["first_seq"], total + 1))
        assert len(json.dumps(newest)) < 300_000
        first = await read(client, f"mission://{mission_id}/events?after=0")
        assert first["first_seq"] == 1 and first["last_seq"] < total
        assert first["next"] == f"mission://{mission_id}/events?after={first['last_seq']}"


async def test_a_trace_of_our_own_code_is_not_for_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path) as here, here.client(LEGACY) as client:
        mission_id = await here.start()

        def broken(*_: object) -> None:
            raise ValueError("a fault of our own")

        monkeypatch.setattr("pursuit.engine.turn.decide", broken)
        await here.service.run(mission_id)
        rows = (await read(client, f"mission://{mission_id}/events"))["events"]
        (failed,) = [row for row in rows if row["type"] == "MissionFailed"]
        assert "a fault of our own" in failed["data"]["error"] and "trace" not in failed["data"]


@eras
async def test_ids_are_completed_newest_first(tmp_path: Path, era: str) -> None:
    template, review = ResourceTemplateReference(uri="mission://{id}/events"), PromptReference(name="review_mission")
    async with stage(tmp_path) as here, here.client(era) as client:
        missions = [await here.start() for _ in range(4)][::-1]
        for ref, name in ((template, "id"), (review, "session_id")):
            for typed, fitting in (("", missions), ("miss", missions), (missions[2], [missions[2]]), ("mission-z", [])):
                found = (await client.complete(ref, {"name": name, "value": typed})).completion
                assert (found.values, found.total, found.has_more) == (fitting, len(fitting), False)
        found = (await client.complete(review, {"name": "session_id", "value": missions[2][8:20]})).completion
        assert found.values == [missions[2]]
        assert (await client.complete(review, {"name": "goal", "value": ""})).completion.values == []
    async with stage(tmp_path, pages=ResourceSettings(max_completions=3)) as here, here.client(era) as client:
        found = (await client.complete(review, {"name": "session_id", "value": ""})).completion
        assert (found.values, found.total, found.has_more) == (missions[:3], 4, True)


@pytest.mark.parametrize("era", ERAS)
async def test_only_clients_with_mcp_apps_are_told_of_the_view_of_a_mission(tmp_path: Path, era: str) -> None:
    async with opened(tmp_path) as runtime, mission_server(runtime) as server:
        told: dict[str, list[Any]] = {}
        for kind in ("text/html;profile=mcp-app", "text/uri-list", None):
            settings = {} if kind is None else {"mimeTypes": [kind]}
            able = [advertise("io.modelcontextprotocol/ui", settings)]
            async with Client(server, mode=era, cache=None, extensions=able if kind else None) as client:
                tools = (await client.list_tools()).tools
                told[str(kind)] = [(one.name, one.meta) for one in tools if one.meta]
                assert [one.uri for one in (await client.list_resources()).resources] == []
                (page,) = (await client.read_resource("ui://pursuit/mission")).contents
        view = {"ui": {"resourceUri": "ui://pursuit/mission"}}
        assert told == {
            "text/html;profile=mcp-app": [("mission_start", view), ("mission_status", view)],
            "text/uri-list": [],
            "None": [],
        }
        assert page.mime_type == "text/html;profile=mcp-app"
        assert page.meta == {"ui": {"csp": {}, "prefersBorder": True}}
        text = getattr(page, "text", "")
        assert "innerHTML" not in text and "http" not in text.replace("http-equiv", "")

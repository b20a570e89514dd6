"""Approvals are answered over HTTP by an operator's token alone, once, and with an error that says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from engine_stage import events_of, mission, outcomes, repeat
from front_door import House
from http_stage import Stage, client, http, whoami
from mission_files import mission_file

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.events import ApprovalAnswered
from pursuit.core.report import ApprovalRow
from pursuit.errors import PursuitError
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.server.operator_api import MAX_BODY, STATUSES, approval_routes
from pursuit.server.tokens import Tokens
from pursuit.service.approvals import Approvals

ASKS = OperatorPolicy(rules=(Rule(decision="ask", tool="write"),))
NOBODYS = "approval-0123456789abcdef"


def write(text: str = "x") -> dict[str, Any]:
    """Changes the world."""
    return {"text": text}


@dataclass(frozen=True)
class Desk:
    """A server with the routes, tokens of both roles, and the runtime behind it."""

    stage: Stage
    runtime: Runtime
    tokens: Tokens
    operator: str
    client: str

    def url(self, path: str) -> str:
        return f"http://{self.stage.netloc}{path}"

    async def get(self, query: str = "", token: str | None = None, **headers: str) -> httpx2.Response:
        async with http(self.operator if token is None else token or None) as wire:
            return await wire.get(self.url(f"/approvals{query}"), headers=headers)

    async def say(
        self, approval_id: str, said: Any = None, token: str | None = None, **headers: str
    ) -> httpx2.Response:
        """Posts an answer: JSON, or these very bytes."""
        body = said if isinstance(said, bytes) else json.dumps({"answer": "once"} if said is None else said).encode()
        async with http(self.operator if token is None else token or None) as wire:
            return await wire.post(self.url(f"/approvals/{approval_id}"), content=body, headers=headers)

    async def asked(self, **args: Any) -> tuple[str, dict[str, Any]]:
        """A mission that waits for an answer, and its question."""
        service = self.runtime.runner
        name = (await service.start(mission(proposer=repeat("write", **args)))).session_id
        assert (await service.run(name)).waiting_for == "approval"
        (asked,) = await Approvals(service).open(name)
        return name, ApprovalRow.of(asked).as_json()

    async def words(self, mission_id: str) -> list[tuple[str, str]]:
        """The answers in the ledger."""
        return [(word.by, word.answer) for word in await events_of(self.runtime, mission_id, ApprovalAnswered)]


@asynccontextmanager
async def serving(folder: Path, *, ask_clients: bool = False, **options: Any) -> AsyncIterator[Desk]:
    stage, tokens = Stage(), Tokens(folder / "tokens.json")
    operator, laptop = tokens.make("alice", operator=True), tokens.make("laptop")
    made = Runtime(state=folder / "ledger.db", config=Configuration(policy=ASKS), servers={"world": [write]})
    async with made as runtime:
        routes = approval_routes(runtime.runner, tokens)
        async with stage.serving(tokens if ask_clients else None, routes=routes, **options):
            yield Desk(stage, runtime, tokens, operator, laptop)


def error(response: httpx2.Response) -> tuple[int, str]:
    """The status and the code of an error in the one shape that errors have."""
    document = response.json()
    assert set(document) == {"code", "message", "details"}, document
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert document["message"] and "Traceback" not in response.text
    return response.status_code, document["code"]


async def test_a_question_is_seen_and_answered_and_the_mission_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as desk:
        assert (await desk.get()).json() == {"approvals": []}
        name, row = await desk.asked(text="\u00e9\u2028")
        other, second = await desk.asked(text="b")
        seen = await desk.get()
        assert seen.status_code == 200
        assert seen.json() == {"approvals": [row, second]}
        assert (await desk.get(f"?session_id={other}")).json() == {"approvals": [second]}

        answer = await desk.say(row["approval_id"], {"answer": "once", "reason": "looks good"})
        assert answer.status_code == 200
        assert answer.json() == {**row, "answer": "once", "by": "alice (http)", "status": "running"}
        assert (await desk.get()).json() == {"approvals": [second]}
        denied = await desk.say(second["approval_id"], {"answer": "denied", "reason": None})
        assert (denied.status_code, denied.json()["answer"]) == (200, "denied")

        for mission_id, outcome in ((name, "ok"), (other, "denied")):
            assert (await desk.runtime.runner.run(mission_id)).terminal
            assert await outcomes(desk.runtime, mission_id) == [("world.write", outcome)]
        (word,) = await events_of(desk.runtime, name, ApprovalAnswered)
        assert (word.by, word.reason, word.answer) == ("alice (http)", "looks good", "once")
        lines = [line for line in await desk.runtime.runner.audited() if line["verb"] in ("approve", "deny")]
        assert [(line["verb"], line["who"], line["transport"], line["session_id"]) for line in lines] == [
            ("approve", "alice", "http", name),
            ("deny", "alice", "http", other),
        ]
        assert error(await desk.say(row["approval_id"])) == (404, "approval_not_found")


@pytest.mark.parametrize("ask_clients", [False, True], ids=["open to this machine", "behind tokens"])
async def test_only_an_operators_token_comes_in(ask_clients: bool, tmp_path: Path) -> None:
    async with serving(tmp_path, ask_clients=ask_clients) as desk:
        name, row = await desk.asked()
        one = row["approval_id"]
        for token in ("", "x", f"{desk.operator}x", desk.operator[:-1]):
            for response in (await desk.get(token=token), await desk.say(one, token=token)):
                assert error(response) == (401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
        for value in (desk.operator, f"Basic {desk.operator}", f"Bearer  {desk.operator}"):
            assert error(await desk.get(token="", Authorization=value)) == (401, "unauthorized")

        assert error(await desk.get(token=desk.client)) == (403, "forbidden")
        assert error(await desk.say(one, b"not even JSON", token=desk.client)) == (403, "forbidden")
        assert await desk.words(name) == []
        (line,) = [line for line in await desk.runtime.runner.audited() if line["verb"] == "approve"]
        assert (line["who"], line["transport"], line["arguments"]) == ("laptop", "http", {"approval_id": one})
        assert line["refused"]["code"] == "forbidden"

        assert (await desk.get(token="", Authorization=f"bearer {desk.operator}")).status_code == 200
        assert (await desk.say(one)).status_code == 200


async def test_the_mcp_endpoint_is_what_it_was_beside_the_routes(tmp_path: Path) -> None:
    async with serving(tmp_path, ask_clients=True) as desk:
        async with http() as wire:
            for path in ("/mcp", "/elsewhere", "/approvals/", "/approvals/a/b"):
                answer = await wire.get(desk.url(path))
                assert (answer.status_code, "code" in answer.text) == (401, False), path
        for token, name in ((desk.client, "laptop"), (desk.operator, "alice")):
            async with client(desk.stage.url, "2026-07-28", token) as session:
                assert await whoami(session) == name


async def test_wrong_ids_are_told_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as desk:
        assert error(await desk.say(NOBODYS)) == (404, "approval_not_found")
        for wrong in ("x", "approval-1", NOBODYS.upper(), "%00", "%F0%9F%98%80", "%ff", "a" * 5_000):
            assert error(await desk.say(wrong)) == (400, "invalid_argument"), wrong
        assert error(await desk.get("?session_id=mission-0123456789abcdef")) == (404, "session_not_found")
        for wrong in ("", "x", "%ff"):
            assert error(await desk.get(f"?session_id={wrong}")) == (400, "invalid_argument")


async def test_every_fault_of_a_body_is_told_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as desk:
        name, row = await desk.asked()
        one = row["approval_id"]
        wrong: list[tuple[Any, list[str]]] = [
            ({"answer": "maybe", "reason": 5, "answr": 1, "by": "me"}, ["answer", "reason", "answr", "by"]),
            ({}, ["answer"]),
            ({"answer": None}, ["answer"]),
            ({"answer": "expired"}, ["answer"]),
            ({"answer": ["once"]}, ["answer"]),
            ({"answer": "once", "reason": "x" * 8_193}, ["reason"]),
            ({"answer": "once", "reason": "\ud800"}, ["reason"]),
            ({"answer": "once", "self": 1}, ["self"]),
            ([], ["(input)"]),
            ("once", ["(input)"]),
            (b"null", ["(input)"]),
        ]
        for said, fields in wrong:
            response = await desk.say(one, said)
            assert error(response) == (422, "validation_error"), said
            found = [fault["field"] for fault in response.json()["details"]["faults"]]
            assert sorted(found) == sorted(fields), said
        for said in (b"", b"{", b"answer=once", b"\xff\xfe", b"[" * 60_000, b'{"answer":"denied","answer":"once"}'):
            assert error(await desk.say(one, said)) == (400, "malformed_json"), said[:40]
        assert await desk.words(name) == []


async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as desk:
        name, row = await desk.asked()
        whole = json.dumps({"answer": "once"}).encode()
        assert error(await desk.say(row["approval_id"], whole.ljust(MAX_BODY + 1))) == (413, "too_large")

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(MAX_BODY // 1024 + 1):
                yield b" " * 1024

        async with http(desk.operator) as wire:
            answer = await wire.post(desk.url(f"/approvals/{row['approval_id']}"), content=pieces())
            assert error(answer) == (413, "too_large")
        assert await desk.words(name) == []
        assert (await desk.say(row["approval_id"], whole.ljust(MAX_BODY))).status_code == 200


async def test_another_method_is_told_which_one_is_right(tmp_path: Path) -> None:
    async with serving(tmp_path) as desk, http(desk.operator) as wire:
        for method, path, right in (
            ("POST", "/approvals", "GET"),
            ("DELETE", "/approvals", "GET"),
            ("DELETE", f"/approvals/{NOBODYS}", "GET, POST"),
            ("PUT", f"/approvals/{NOBODYS}", "GET, POST"),
        ):
            answer = await wire.request(method, desk.url(path))
            assert error(answer) == (405, "method_not_allowed")
            assert answer.headers["allow"] == right


def _codes(root: type[PursuitError]) -> set[str]:
    ours = not root.__module__.startswith(("pursuit.cli", "test_"))
    return ({root.code} if ours else set()).union(*(_codes(inner) for inner in root.__subclasses__()))


def test_the_documentation_lists_the_status_of_every_error() -> None:
    assert set(STATUSES) <= _codes(PursuitError)
    lines = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8").splitlines()
    rows = [line.split("|")[1:3] for line in lines if re.match(r"\| [45]\d\d \| `", line)]
    listed = {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert listed | {"internal_error": 500} == STATUSES


def test_the_command_serves_it_to_the_token_that_the_command_made(tmp_path: Path) -> None:
    house = House(tmp_path, mode="ask")
    made = house.json("token", "--operator", "--name", "phone")
    house.write("mission.toml", mission_file("workshop.step", args={"log": "a", "key": "k"}))
    house.run("run", "mission.toml", code=4)
    assert house.lines("a") == []
    with house.serving() as served, httpx2.Client(trust_env=False, timeout=60, verify=False) as wire:
        address = served.url.removesuffix("/mcp") + "/approvals"
        assert wire.get(address).status_code == 401
        name, _, value = made["header"].partition(": ")
        wire.headers[name] = value
        (row,) = wire.get(address).json()["approvals"]
        assert row["tool"] == "workshop.step"
        answer = wire.post(f"{address}/{row['approval_id']}", json={"answer": "once"})
        assert answer.status_code == 200, answer.text
    house.run("resume", row["session_id"])
    assert house.lines("a") == ["begun k", "done k"]
    (line,) = [line for line in house.json("audit")["audit"] if line["verb"] == "approve"]
    assert (line["who"], line["transport"]) == ("phone", "http")

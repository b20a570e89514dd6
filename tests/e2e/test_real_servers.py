"""Public servers through `pursuit serve --gateway` are what they are without it, JSON for JSON; and as tools of a host.

The gateway is right when a client that sees every byte cannot tell: so the client here is made of lines, not of an SDK.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place
from mcp.client.stdio import get_default_environment
from public_requests import ABLE, ANSWERS, ASKING, WRONG, Request, more
from public_servers import SERVERS, PublicServer
from quick_start import pursuit
from raw_client import ENVELOPE, LISTS, NEW, OLD, Exchange, Message, RawClient, talking

pytestmark = pytest.mark.slow
GATEWAY = ["serve", "--gateway", "--log-level", "warning"]
IN_CI = {("everything", OLD), ("filesystem", OLD), ("git", NEW), ("sqlite", OLD)}
"""One server of each SDK and language, and both eras; `make soak` talks to all of them."""
EACH = [
    pytest.param(name, era, marks=() if (name, era) in IN_CI else pytest.mark.soak)
    for name, server in SERVERS.items()
    for era in server.eras
]
MOUNTED = ("everything", "filesystem", "git", "sqlite")
KINDS: Mapping[str, str] = dict(zip(LISTS, ("tools", "resources", "resourceTemplates", "prompts"), strict=True))


@dataclass(kw_only=True)
class Talk:
    """Everything that a client was told."""

    hello: Exchange
    lists: list[Exchange]
    calls: list[Exchange]
    asked: list[Message]
    told: list[Message]


def converse(client: RawClient, requests: Iterable[Request]) -> Talk:
    hello = client.hello()
    lists = [page for method in LISTS for page in client.pages(method)]
    calls = [client.ask(method, params) for method, params, _ in requests]
    return Talk(hello=hello, lists=lists, calls=calls, asked=client.asked, told=client.told)


def directly(server: PublicServer, world: Path, requests: Sequence[Request], era: str, **how: Any) -> Talk:
    """A talk with the server itself, which must do and refuse what it is asked as the request foresees."""
    server.fresh(world)
    env = get_default_environment() | dict(server.env(world))
    env.pop("PURSUIT_TRUST", None)  # trusts the folders of tests; a server behind the gateway does not get it
    env["PURSUIT_RELAYED"] = "stdio"  # what the gateway tells its servers
    with talking(server.quickly(world), env=env, era=era, folder=world.parent, ends=False, **how) as client:
        talk = converse(client, requests)
    for request, done in zip(requests, talk.calls, strict=True):
        failed = "error" in done.answer or done.answer["result"].get("isError", False)
        assert request.fails in (None, failed), done
    return talk


def through(worlds: Mapping[str, Path], requests: Sequence[Request], era: str, **how: Any) -> Talk:
    """A talk with a gateway that has these servers."""
    tables = ['[policy]\nmode = "auto"\n']
    for name, world in worlds.items():
        SERVERS[name].fresh(world)
        tables.append(SERVERS[name].table(world))
    folder = next(iter(worlds.values())).parent
    (folder / "pursuit.toml").write_text("".join(tables), encoding="utf-8")
    with talking([*pursuit(), *GATEWAY], era=era, folder=folder, **how) as client:
        return converse(client, requests)


def as_text(server: PublicServer, exchange: Exchange) -> str:
    """All of an exchange as text, keys in the order in which they came: `1` is not `1.0`, and `true` is not `1`."""
    heard = {"params": exchange.params, "progress": exchange.progress, **exchange.answer}
    del heard["jsonrpc"]
    text = json.dumps(server.masked(heard), indent=1, ensure_ascii=False)
    return f"{exchange.method} {text}"


def tally(server: PublicServer, messages: Iterable[Message]) -> Counter[str]:
    return Counter(json.dumps(server.masked(one)) for one in messages)


def _with_tasks(hello: Exchange) -> Message:
    result = hello.answer["result"]
    declared = result["capabilities"]
    if hello.method == "initialize":
        mine = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
    else:
        mine = {"extensions": {**declared.get("extensions", {}), f"{ENVELOPE}tasks": {}}}
    return {**hello.answer, "result": {**result, "capabilities": {**declared, **mine}}}


def same(server: PublicServer, direct: Talk, seen: Talk) -> None:
    # The only message that is the gateway's own; the order of keys is not, and tasks are.
    assert server.masked(seen.hello.answer) == server.masked(_with_tasks(direct.hello))
    assert [as_text(server, one) for one in seen.lists] == [as_text(server, one) for one in direct.lists]
    for one, other in zip(seen.calls, direct.calls, strict=True):
        assert as_text(server, one) == as_text(server, other)
    assert tally(server, seen.asked) == tally(server, direct.asked)
    assert tally(server, seen.told) == tally(server, direct.told)


@pytest.mark.parametrize(("name", "era"), EACH)
def test_a_client_cannot_tell_the_gateway_from_the_server(name: str, era: str, tmp_path: Path) -> None:
    server, world = SERVERS[name], tmp_path / "world"
    requests = [*server.requests(world), *WRONG]
    direct = directly(server, world, requests, era)
    assert len(direct.lists[0].answer["result"]["tools"]) == server.tools
    same(server, direct, through({name: world}, requests, era))


def test_a_client_that_can_be_asked_is_asked_the_same(tmp_path: Path) -> None:
    server, can = SERVERS["everything"], {"able": ABLE, "answers": dict(ANSWERS)}
    # Most of the time the server does nothing, so the two talk side by side.
    with ThreadPoolExecutor() as threads:
        first = threads.submit(directly, server, tmp_path / "direct", ASKING, OLD, **can)
        second = threads.submit(through, {"everything": tmp_path / "through"}, ASKING, OLD, **can)
        direct, seen = first.result(), second.result()
    assert {one["method"] for one in direct.asked} == set(ANSWERS)
    assert len(direct.lists[0].answer["result"]["tools"]) > server.tools
    same(server, direct, seen)


def bare(value: Any) -> Any:
    """A result without what the new era wraps around it: kind, age, and who answered."""
    rest = {key: one for key, one in value.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    meta = {key: one for key, one in rest.pop("_meta", {}).items() if key != f"{ENVELOPE}serverInfo"}
    return {**rest, "_meta": meta} if meta else rest


def named(server: str, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A request, or an entry of a list, under the name that it has beside other servers."""
    is_named = method.split("/")[0] in ("tools", "prompts")
    return {**body, "name": f"{server}.{body['name']}"} if is_named else dict(body)


@pytest.mark.parametrize("mounted", [MOUNTED[1:3], pytest.param(MOUNTED, marks=pytest.mark.soak)], ids="+".join)
def test_several_servers_at_once_are_what_each_is_but_for_names(mounted: Sequence[str], tmp_path: Path) -> None:
    worlds = {name: tmp_path / name for name in mounted}
    asked = {name: _callable_by_all(SERVERS[name].requests(world)) for name, world in worlds.items()}
    requests = [more(one, **named(name, one.method, one.params)) for name in mounted for one in asked[name]]
    talks: dict[str, Talk] = {}
    for era in (OLD, NEW):
        # A server that does not speak the client's era says the same as before.
        mine = [name for name in mounted if era in SERVERS[name].eras]
        talks |= {name: directly(SERVERS[name], worlds[name], asked[name], era) for name in mine}
        seen = through(worlds, requests, era)
        for page in seen.lists:
            kind = KINDS[page.method]
            listed = [(name, one) for name in mounted for one in talks[name].lists if one.method == page.method]
            assert page.answer["result"][kind] == [
                named(name, page.method, entry)
                for name, one in listed
                for entry in one.answer.get("result", {kind: []})[kind]
            ]
        direct = [(name, one) for name in mounted for one in talks[name].calls]
        for one, (name, other) in zip(seen.calls, direct, strict=True):
            assert _unwrapped(name, one) == _unwrapped(name, other), other.params


def _callable_by_all(requests: Iterable[Request]) -> list[Request]:
    """What clients of both eras can ask for, of one server among several."""
    methods = ("tools/call", "resources/read", "prompts/get")
    return [one for one in requests if one.method in methods and "task" not in one.params]


def _unwrapped(name: str, exchange: Exchange) -> Any:
    answer = SERVERS[name].masked(exchange.answer)
    return exchange.progress, bare(answer["result"]) if "result" in answer else answer


@pytest.fixture
def house(tmp_path: Path) -> Place:
    """A folder with a configuration of all servers; policy is as it is where nobody says anything."""
    for name, server in SERVERS.items():
        server.fresh(tmp_path / name)
    tables = [server.table(tmp_path / name) for name, server in SERVERS.items()]
    place = Place(tmp_path)
    place.write("pursuit.toml", "".join(tables))
    return place


@pytest.mark.soak
def test_every_tool_of_every_server_is_listed_and_called_under_policy(house: Place) -> None:
    found = house.json("tools")
    assert (found["failures"], found["disabled"]) == ({}, [])
    counted = Counter(row["name"].partition(".")[0] for row in found["tools"])
    assert counted == {name: server.tools for name, server in SERVERS.items()}
    effects = {row["name"]: (row["effect"], row["decision"]) for row in found["tools"]}
    assert effects["git.git_status"] == ("reads", "allow")
    # Started from a folder that is not the configuration's own, so that it is not taken for the well-known one.
    assert effects["filesystem.read_text_file"] == ("destroys", "ask")
    assert effects["filesystem.write_file"] == ("destroys", "ask")
    assert effects["sqlite.write_query"] == ("destroys", "ask")
    told = house.json("tools", "call", "git.git_status", "--arg", f"repo_path={house.folder / 'git'}")
    assert "On branch main" in told["content"][0]["text"]
    drop = ("tools", "call", "sqlite.write_query", "--arg", "query=delete from fruit")
    assert house.json(*drop, code=4)["code"] == "approval_needed"
    assert house.json(*drop, "--yes")["content"][0]["text"] == "[{'affected_rows': 1}]"

"""Several servers behind one gateway: names that cannot collide, owners that are found, and changes of all of it."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import ERAS, HOSTILE, LEGACY, MODERN, TASKS, hostile, house, told, words
from hypothesis import given
from hypothesis import strategies as st

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import InitializeResult
from pursuit.server.gateway.server import capabilities_of_all, discover_result, initialize_result
from pursuit.server.gateway.tool_calls import ranked
from pursuit.server.gateway.upstreams import GatewayLimits, Names, escaped

SERVER = st.just("commands") | st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,6}\Z")


@given(
    st.lists(SERVER, min_size=1, max_size=4, unique=True), st.text(min_size=1), st.sampled_from(["dotted", "escaped"])
)
def test_every_name_can_be_read_back(servers: list[str], tool: str, spelling: Any) -> None:
    names = Names(servers=servers, spelling=spelling)
    for server in servers:
        assert names.owner(names.qualified(server, tool)) == (server, tool)
        assert names.uri_owner(names.uri_of(server, tool)) == (server, tool)
    assert len({names.qualified(server, tool) for server in servers}) == len(servers)
    if spelling == "escaped":
        assert re.fullmatch("[A-Za-z0-9_-]+", names.qualified(servers[0], tool))


@given(st.text(alphabet="ab_-x.6f", max_size=12))
def test_a_name_that_was_never_given_is_nobodys(name: str) -> None:
    names = Names(servers=("a", "b"), spelling="escaped")
    owner = names.owner(name)
    assert owner is None or escaped(*owner) == name or "_x" in name


@given(
    SERVER.filter(lambda one: one != "commands"),
    st.text(alphabet="acdmnos.-_x2e", min_size=1, max_size=12),
    st.sampled_from(["dotted", "escaped"]),
)
def test_commands_beside_a_single_server_rename_what_looks_qualified(server: str, tool: str, spelling: Any) -> None:
    alone = Names(servers=(server,), spelling=spelling)
    beside = Names(servers=(server, "commands"), spelling=spelling)
    before, name = alone.qualified(server, tool), beside.qualified(server, tool)
    assert beside.owner(name) == (server, tool)
    assert name == before or before.startswith((f"{server}.", "commands.", "commands_-", f"{escaped(server, '')}"))
    # Names that clients know from before are understood.
    assert beside.owner(beside.spelled(server, tool)) == (server, tool)


@pytest.mark.parametrize("eras", [(LEGACY, MODERN), (LEGACY, LEGACY)], ids=["mixed", "old"])
@pytest.mark.parametrize("era", ERAS)
async def test_everything_of_two_servers_is_there_under_names_that_say_whose_it_is(
    era: str, eras: tuple[str, str], tmp_path: Path
) -> None:
    one, two = (hostile(*([MODERN] if e == MODERN else []), name=n) for n, e in zip("ab", eras, strict=True))
    async with house(tmp_path, one, two) as stage:
        client = await stage.client(era, hello=False)
        greeting = await client.hello()
        assert greeting["instructions"] == "## a\nBe kind to a.\n\n## b\nBe kind to b."
        assert greeting["capabilities"]["tools"] == {"listChanged": True}
        tools = await client.entries("tools/list", "tools")
        listed = [tool["name"] for tool in tools]
        assert len(listed) == len(set(listed)) and {"a.echo", "b.echo"} < set(listed)
        (odd,) = [tool for tool in tools if tool["name"] == "b.keywords"]
        assert odd["x-unknown"] == {"kept": None} and odd["annotations"]["x-hint"] == [None]
        assert (await client.call("b.echo", {"n": None}))["structuredContent"]["arguments"] == {"n": None}
        for name in ("echo", "c.echo", "b_echo"):
            unknown = await client.request("tools/call", {"name": name, "arguments": {}})
            assert unknown["error"]["code"] == -32602
        prompts = await client.entries("prompts/list", "prompts")
        assert [prompt["name"] for prompt in prompts] == ["a.greet", "b.greet"]
        got = await client.result("prompts/get", {"name": "b.greet"})
        assert got["messages"][0]["content"]["text"] == "b"
        reference = {"type": "ref/prompt", "name": "b.greet"}
        done = await client.result("completion/complete", {"ref": reference, "argument": {"name": "w", "value": ""}})
        assert done["completion"]["values"] == ["b", json.dumps({**reference, "name": "greet"})]
        assert (await client.request("x/custom"))["error"]["code"] == -32601


EVERYTHING: dict[str, Any] = {
    "tools": {"listChanged": True},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
    "experimental": {"x": {}},
    "x-own": {},
}
EXTENDED: dict[str, Any] = {
    "resources": {"subscribe": True},
    "completions": {},
    "extensions": {"io.modelcontextprotocol/tasks": {}, "com.example/x": {}},
}


def test_of_several_servers_nothing_is_promised_that_is_not_passed_on() -> None:
    old = InitializeResult(protocol_version="2025-11-25", capabilities=EVERYTHING)
    new = InitializeResult(protocol_version="2026-07-28", capabilities=EXTENDED)
    both = {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}, "completions": {}}
    assert capabilities_of_all({"a": old, "b": new}) == both
    assert capabilities_of_all({"a": old, "b": old}) == {"tools": {"listChanged": True}, "logging": {}}
    gone = capabilities_of_all({"a": new, "b": None})
    assert "extensions" not in gone and gone["tools"] == {"listChanged": True}


def test_of_one_server_all_is_promised_but_its_tasks_for_which_ours_stand() -> None:
    old = InitializeResult(protocol_version="2025-11-25", capabilities=EVERYTHING)
    new = InitializeResult(protocol_version="2026-07-28", capabilities=EXTENDED)
    assert capabilities_of_all({"a": old}) == {key: value for key, value in EVERYTHING.items() if key != "tasks"}
    assert capabilities_of_all({"a": new}) == {**EXTENDED, "extensions": {"com.example/x": {}}}
    for found in ({"a": old}, {"a": new}, {"a": old, "b": new}):
        greeted = initialize_result({"protocolVersion": "2025-11-25"}, found)["capabilities"]
        assert greeted["tasks"] == TASKS[LEGACY]["tasks"]
        assert "tasks" not in initialize_result({"protocolVersion": "2025-06-18"}, found)["capabilities"]
        discovered = discover_result(found)["capabilities"]
        assert "tasks" not in discovered and "io.modelcontextprotocol/tasks" in discovered["extensions"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_resource_keeps_its_address_unless_two_servers_have_it(era: str, tmp_path: Path) -> None:
    async with house(tmp_path, hostile(name="a"), hostile(MODERN, name="b")) as stage:
        client = await stage.client(era)
        uris = [one["uri"] for one in await client.entries("resources/list", "resources")]
        assert uris == ["x://a", "via://a/x%3A%2F%2Fshared", "x://b", "via://b/x%3A%2F%2Fshared"]
        templates = await client.entries("resources/templates/list", "resourceTemplates")
        assert [one["uriTemplate"] for one in templates] == ["a://{id}", "b://{id}"]
        for uri, text in (*zip(uris, "aabb", strict=True), ("b://7", "b"), ("a://7", "a")):
            (content,) = (await client.result("resources/read", {"uri": uri}))["contents"]
            assert content == {"uri": uri, "text": text, "x": None}
        missing = await client.request("resources/read", {"uri": "x://nothing"})
        assert missing["error"]["code"] == (-32602 if era == MODERN else -32002)
        updated = "notifications/resources/updated"
        if era == MODERN:
            await client.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
            await client.until(lambda: len(told(client, updated)) == 4)
            assert sorted(one["uri"] for one in told(client, updated)) == sorted(uris)
        if era == LEGACY:
            for uri in uris:
                assert await client.result("resources/subscribe", {"uri": uri}) == {}
            await client.until(lambda: len(told(client, updated)) == 4)
            assert sorted(one["uri"] for one in told(client, updated)) == sorted(uris)


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_cannot_be_reached_costs_its_own_tools_alone(era: str, tmp_path: Path) -> None:
    gone = ServerConfig(name="gone", command=str(tmp_path / "nothing"))
    async with house(tmp_path, hostile(name="a"), gone) as stage:
        client = await stage.client(era)
        listed = [tool["name"] for tool in await client.entries("tools/list", "tools")]
        assert "a.echo" in listed and not any(name.startswith("gone") for name in listed)
        result = await client.call("gone.anything")
        assert result["isError"] is True and "gone" in words(result)
        assert words(await client.call("a.steps")) == "without"


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_is_there_later_is_told_and_served(
    era: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = tmp_path / "late"
    late = hostile(name="late").model_copy(update={"command": str(command)})
    async with house(tmp_path, hostile(name="a"), late) as stage:
        client = await stage.client(era)
        if era == MODERN:
            await client.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        listed = [tool["name"] for tool in await client.entries("tools/list", "tools")]
        assert "a.echo" in listed and "late.echo" not in listed
        assert "tools of late are not listed: server 'late'" in caplog.text
        command.symlink_to(sys.executable)
        await client.until(lambda: told(client, "notifications/tools/list_changed"))
        assert "late.echo" in [tool["name"] for tool in await client.entries("tools/list", "tools")]


def silent() -> ServerConfig:
    return ServerConfig(name="silent", command=sys.executable, args=(str(HOSTILE.with_name("odd.py")), "silent"))


async def test_a_server_that_does_not_list_in_time_keeps_nobody_from_the_resources_of_the_others(
    tmp_path: Path,
) -> None:
    limits = GatewayLimits(optional_seconds=1.5)
    async with house(tmp_path, hostile("secretive", name="b"), hostile(name="a"), limits=limits) as stage:
        client = await stage.client(MODERN)
        assert words(await client.call("a.steps")) == "without"
        for seconds in (60, 20):
            # The first time the others are waited for, a little; from then on it is known whose it is.
            with anyio.fail_after(seconds):
                (content,) = (await client.result("resources/read", {"uri": "x://a"}))["contents"]
            assert content["text"] == "a"
            limits.optional_seconds = 60.0


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_link_leads_to_the_server_that_gave_it(first: str, tmp_path: Path) -> None:
    async with house(tmp_path, hostile(name="a"), hostile(name="b")) as stage:
        client = await stage.client(LEGACY)
        for server in (first, "b" if first == "a" else "a", first):
            link, block = (await client.call(f"{server}.link"))["content"]
            assert block == {"type": "text", "text": "t"}
            assert {**link, "uri": ""} == {"type": "resource_link", "uri": "", "name": "n", "x": None}
            assert link["uri"] == ("x://shared" if server == first else f"via://{server}/x%3A%2F%2Fshared")
            (content,) = (await client.result("resources/read", {"uri": link["uri"]}))["contents"]
            assert content["text"] == server


async def test_a_resource_that_moved_is_found_again(tmp_path: Path) -> None:
    config = tmp_path / "pursuit.toml"
    write(config, "a", "b", "c")
    async with house(tmp_path, config=config) as stage:
        client = await stage.client(LEGACY)
        assert (await client.result("resources/read", {"uri": "x://shared"}))["contents"][0]["text"] == "a"
        write(config, "b", "c")
        await stage.gateway.reload()
        assert (await client.result("resources/read", {"uri": "x://shared"}))["contents"][0]["text"] == "b"


async def test_a_log_level_is_set_where_it_can_be(tmp_path: Path) -> None:
    limits = GatewayLimits(connect_seconds=1.0, optional_seconds=1.0)
    gone = ServerConfig(name="gone", command=str(tmp_path / "nothing"))
    async with house(tmp_path, gone, silent(), hostile(name="a"), limits=limits) as stage:
        client = await stage.client(LEGACY)
        assert words(await client.call("a.steps")) == "without"
        with anyio.fail_after(20):
            assert await client.result("logging/setLevel", {"level": "debug"}) == {}
        assert words(await client.call("a.logs")) == "debug"
        wrong = await client.request("logging/setLevel", {"level": "loud"})
        assert wrong["error"]["code"] == -32602


async def test_a_stream_begins_without_the_servers_that_hang(tmp_path: Path) -> None:
    limits = GatewayLimits(optional_seconds=1.0)
    servers = (silent(), hostile(name="a"), hostile(MODERN, name="b"))
    async with house(tmp_path, *servers, limits=limits) as stage:
        client = await stage.client(MODERN, hello=False)
        for tool in ("a.steps", "b.steps"):
            assert words(await client.call(tool)) == "without"
        with anyio.fail_after(20):
            await client.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await client.until(lambda: told(client, "notifications/subscriptions/acknowledged"))
        for tool in ("a.grow", "b.grow"):
            client.told.clear()
            await client.call(tool)
            await client.until(lambda: told(client, "notifications/tools/list_changed"))


async def test_who_listens_is_told_what_cannot_be_listened_to(tmp_path: Path) -> None:
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["x://shared"]}
    async with house(tmp_path, hostile("secretive", name="a"), hostile(name="b")) as stage:
        client = await stage.client(MODERN)
        uris = ["via://a/x%3A%2F%2Fshared", "via://b/x%3A%2F%2Fshared"]
        await client.begin("subscriptions/listen", {"notifications": {**wanted, "resourceSubscriptions": uris}})
        await client.until(lambda: told(client, "notifications/subscriptions/acknowledged"))
        (said,) = told(client, "notifications/subscriptions/acknowledged")
        assert said["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": uris[1:]}
        client.told.clear()
        await client.call("a.grow")
        await client.until(lambda: told(client, "notifications/tools/list_changed"))


@pytest.mark.parametrize("era", ERAS)
async def test_a_list_that_changes_at_a_server_of_the_other_era_is_told_to_who_can_be_asked(
    era: str, tmp_path: Path
) -> None:
    async with house(tmp_path, hostile(MODERN), alone=False) as stage:
        client, other = await stage.client(LEGACY, {"elicitation": {}}), await stage.client(era)
        await client.call("steps")
        await other.call("grow")
        await client.until(lambda: told(client, "notifications/tools/list_changed"))


async def test_names_without_dots_for_models_that_take_none(tmp_path: Path) -> None:
    async with house(tmp_path, hostile(name="a"), hostile(name="a_b"), spelling="escaped") as stage:
        client = await stage.client(LEGACY)
        listed = [tool["name"] for tool in await client.entries("tools/list", "tools")]
        assert {"a_-no__type", "a__b_-no__type"} < set(listed)
        assert words(await client.call("a__b_-steps")) == "without"


@pytest.mark.parametrize("era", ERAS)
async def test_a_single_server_keeps_its_names_unless_a_model_does_not_take_them(era: str, tmp_path: Path) -> None:
    async with house(tmp_path, hostile("dotted"), spelling="escaped") as stage:
        client = await stage.client(era)
        listed = [tool["name"] for tool in await client.entries("tools/list", "tools")]
        assert {"no_type", "_-dot_x2e_ted"} < set(listed) and not [name for name in listed if "." in name]
        result = await client.call("_-dot_x2e_ted", {"n": 1})
        assert result["structuredContent"]["arguments"] == {"n": 1}
        assert (await client.call("echo", {"n": 2}))["structuredContent"]["arguments"] == {"n": 2}
        assert [one["name"] for one in await client.entries("prompts/list", "prompts")] == ["greet", "_-a_x2e_b"]
        # It is asked for by its own name.
        wrong = await client.request("prompts/get", {"name": "_-a_x2e_b"})
        assert wrong["error"]["message"] == "no prompt a.b"
        reference = {"type": "ref/prompt", "name": "_-a_x2e_b"}
        done = await client.result("completion/complete", {"ref": reference, "argument": {"name": "w", "value": ""}})
        assert json.loads(done["completion"]["values"][1])["name"] == "a.b"


async def test_a_server_that_would_shadow_the_search_is_refused_at_a_reload_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "pursuit.toml"
    write(config, "a")
    async with house(tmp_path, config=config, search=True) as stage:
        client = await stage.client(LEGACY)
        write(config, "a", "tools")
        await stage.gateway.reload()
        assert "the configuration was not reloaded" in caplog.text
        called = await client.call("tools.call", {"name": "steps", "arguments": {}})
        assert words(called) == "without", "nothing has changed"


@pytest.mark.parametrize("era", ERAS)
async def test_three_tools_find_describe_and_call_all_the_others(era: str, tmp_path: Path) -> None:
    async with house(tmp_path, hostile(name="a"), hostile(name="b"), search=True) as stage:
        client = await stage.client(era)
        listed = [tool["name"] for tool in await client.entries("tools/list", "tools")]
        assert listed == ["tools.search", "tools.describe", "tools.call"]
        found = (await client.call("tools.search", {"query": "from keywords", "limit": 2}))["structuredContent"]
        assert [row["name"] for row in found["tools"]] == ["a.keywords", "b.keywords"]
        described = (await client.call("tools.describe", {"names": ["b.refs"]}))["structuredContent"]
        assert described["tools"][0]["inputSchema"]["$defs"] == {
            "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        }
        assert (await client.call("tools.describe", {"names": ["c.refs"]}))["isError"] is True
        called = await client.call("tools.call", {"name": "b.echo", "arguments": {"n": None}})
        assert called["structuredContent"]["arguments"] == {"n": None}
        assert (await client.request("tools/call", {"name": "b.echo"}))["error"]["code"] == -32602


def test_words_find_tools_by_how_many_of_them_they_have() -> None:
    tools = [
        {"name": "a"},
        {"name": "git_log", "description": "Shows commits"},
        {"name": "x", "description": "a git log"},
    ]
    assert [tool["name"] for tool in ranked(tools, "git log commits")] == ["git_log", "x"]


def write(config: Path, *names: str) -> None:
    tables = [
        f'[servers.{name}]\ncommand = "{sys.executable}"\nargs = ["-S", "{HOSTILE}", "name={name}"]\n' for name in names
    ]
    config.write_text('[policy]\nmode = "auto"\n' + "".join(tables))


@pytest.mark.parametrize("era", ERAS)
async def test_a_changed_configuration_is_served_and_told(
    era: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "pursuit.toml"
    caplog.set_level(logging.INFO)
    write(config, "a")
    async with house(tmp_path, config=config) as stage:
        client = await stage.client(era)
        ident = 0
        if era == MODERN:
            ident = await client.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await client.until(lambda: client.told)
        assert words(await client.call("steps")) == "without"
        write(config, "a", "b")
        await stage.gateway.reload()
        await client.until(lambda: told(client, "notifications/tools/list_changed"))
        if era == MODERN:
            # Its stream ends: there are other servers to listen to now.
            assert "result" in await client.ended(ident)
        assert words(await client.call("b.steps")) == words(await client.call("a.steps")) == "without"
        config.write_text("nonsense")
        await stage.gateway.reload()
        assert words(await client.call("b.steps")) == "without"
        write(config, "b")
        await stage.gateway.reload()
        assert words(await client.call("steps")) == "without"
    assert "the configuration was not reloaded" in caplog.text

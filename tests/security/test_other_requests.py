"""Attacks with requests that are no calls: resources, prompts, completions, subscriptions and custom methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callers_stage import serving
from gateway_stage import ABLE, LEGACY, MODERN, Client, House, asked_of, hostile, house, told
from model_endpoint import ModelEndpoint, calls

from pursuit.config.configuration import AuditConfig, Configuration
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.gateway_journal import gateway_lines

NOT_LISTED = "servers.hostile.methods does not list it"


async def trail(stage: House) -> list[tuple[str, str]]:
    """What `pursuit audit` shows of the gateway."""
    return [(line["verb"], line["outcome"]) for line in await gateway_lines(stage.runtime.runner.ledger)]


@pytest.mark.guarantee("custom-methods-are-listed")
@pytest.mark.parametrize(("client", "server"), [(LEGACY, LEGACY), (MODERN, MODERN), (MODERN, LEGACY)])
async def test_a_method_outside_of_the_protocol_reaches_no_server_that_does_not_list_it(
    tmp_path: Path, client: str, server: str
) -> None:
    log = tmp_path / "log"
    era = [MODERN] if server == MODERN else []
    for methods in ((), ("x/other", "custom")):
        async with house(tmp_path, hostile(f"log={log}", *era, methods=methods)) as stage:
            refused = await (await stage.client(client, ABLE)).request("x/custom", {"n": 1})
            assert refused["error"]["code"] == -32601
            assert NOT_LISTED in refused["error"]["message"]
            assert not asked_of(log, "x/custom")
            assert (await trail(stage))[-1] == ("call hostile.x/custom", "refused")
    async with house(tmp_path, hostile(f"log={log}", *era, methods=("x/*",))) as stage:
        answer = await (await stage.client(client, ABLE)).result("x/custom", {"n": 1})
        assert answer["custom"] == 1
        assert (await trail(stage))[-1] == ("call hostile.x/custom", "ok")


@pytest.mark.guarantee("custom-methods-are-listed")
async def test_a_notification_outside_of_the_protocol_reaches_no_server_that_does_not_list_it(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def tell(*methods: str, policy: OperatorPolicy | None = None) -> tuple[list[str], list[tuple[str, str]]]:
        async with house(tmp_path, hostile(f"log={log}", methods=methods), policy=policy) as stage:
            client = await stage.client(LEGACY, ABLE)
            await client.result("tools/list")
            await client.send({"method": "notifications/x/wipe", "params": {}})
            await client.send({"method": "notifications/roots/list_changed"})
            await client.result("prompts/list")  # over the same connection, after them
            said = ("notifications/x/wipe", "notifications/roots/list_changed")
            reached = [method for method in said if asked_of(log, method)]
            log.unlink()
            return reached, (await trail(stage))[-1:]

    roots, wipe = "notifications/roots/list_changed", "notifications/x/wipe"
    assert await tell() == ([roots], [(f"call hostile.{wipe}", "refused")])
    assert await tell("notifications/x/*") == ([wipe, roots], [(f"call hostile.{wipe}", "ok")])
    deny = OperatorPolicy(mode="auto", rules=(Rule(decision="deny", tool="notifications/x/*"),))
    assert await tell("notifications/x/*", policy=deny) == ([roots], [(f"call hostile.{wipe}", "refused")])


DENIED = OperatorPolicy(
    mode="auto",
    rules=(
        Rule(decision="deny", tool="resources/*", arguments={"uri": "x://shared*"}),
        Rule(decision="deny", tool="prompts/get", arguments={"name": "greet"}),
        Rule(decision="deny", tool="completion/complete", arguments={"ref.name": "greet"}),
    ),
)
HIDDEN = "via://b/x%3A%2F%2Fshared"
"""The name of the resource at a gateway with several servers."""
COMPLETE = {"ref": {"type": "ref/prompt", "name": "b.greet"}, "argument": {"name": "who", "value": ""}}


@pytest.mark.guarantee("callers-only-tighten")
@pytest.mark.parametrize(
    ("era", "method", "params"),
    [
        (LEGACY, "resources/read", {"uri": HIDDEN}),
        (MODERN, "resources/read", {"uri": HIDDEN}),
        (LEGACY, "resources/read", {"uri": "x://shared"}),
        (LEGACY, "resources/subscribe", {"uri": HIDDEN}),
        (MODERN, "subscriptions/listen", {"notifications": {"resourceSubscriptions": [HIDDEN]}}),
        (MODERN, "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x://b", "x://shared"]}}),
        (LEGACY, "prompts/get", {"name": "b.greet"}),
        (MODERN, "completion/complete", COMPLETE),
    ],
)
async def test_a_rule_about_a_servers_own_uri_or_name_holds_under_every_name(
    tmp_path: Path, era: str, method: str, params: dict[str, Any]
) -> None:
    log = tmp_path / "log"
    modern = [MODERN] if era == MODERN else []
    servers = [hostile(f"log={log}", *modern, name=name) for name in ("a", "b")]
    async with house(tmp_path, *servers, policy=DENIED) as stage:
        refused = await (await stage.client(era)).request(method, params)
        assert "denied by policy" in refused["error"]["message"], refused
        assert not [one for one in asked_of(log, method) if "shared" in str(one) or "greet" in str(one)]
        verb, outcome = (await trail(stage))[-1]
        recorded = "resources/subscribe" if method == "subscriptions/listen" else method
        assert (verb.partition(".")[2], outcome) == (recorded, "refused")


@pytest.mark.guarantee("reads-are-audited")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_each_request_that_reads_is_in_the_audit_before_it_is_answered(tmp_path: Path, era: str) -> None:
    async def follow(client: Client) -> None:
        if era == LEGACY:
            await client.result("resources/subscribe", {"uri": "x://hostile"})
            return
        await client.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x://hostile"]}})
        await client.until(lambda: told(client, "notifications/resources/updated"))

    server = hostile(*([MODERN] if era == MODERN else []))
    async with house(tmp_path, server) as quiet:
        await (await quiet.client(era)).result("resources/read", {"uri": "x://hostile"})
        assert await quiet.runtime.runner.audit.lines() == []
    stage_config = Configuration(
        servers={"hostile": server}, policy=OperatorPolicy(mode="auto"), audit=AuditConfig(reads=True)
    )
    async with house(tmp_path, config=stage_config) as stage:
        client = await stage.client(era)
        await client.result("resources/read", {"uri": "x://hostile"})
        await client.result("prompts/get", {"name": "greet"})
        ref = {"type": "ref/prompt", "name": "greet"}
        await client.result("completion/complete", {"ref": ref, "argument": {"name": "who", "value": ""}})
        await follow(client)
        lines = await stage.runtime.runner.audit.lines()
        wanted = {"notifications": {"resourceSubscriptions": ["x://hostile"]}}
        subscribed = ("resources/subscribe", {"uri": "x://hostile"})
        assert [(line["verb"], line["arguments"]) for line in lines] == [
            ("resources/read", {"uri": "x://hostile"}),
            ("prompts/get", {"name": "greet"}),
            ("completion/complete", {"ref": ref}),
            subscribed if era == LEGACY else ("subscriptions/listen", wanted),
        ]


@pytest.mark.guarantee("callers-only-tighten")
async def test_in_a_mission_resources_and_prompts_are_calls_under_policy_and_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = "openai:gpt-4o-mini"
    mission = {
        "directive": "Read",
        "criteria": [{"criterion_id": "c", "kind": "event", "event_name": "never", "required": True}],
        "budget": {"max_iterations": 1},
        "tool_allowlist": ["world.*", "world.*/*"],
        "proposer": {"kind": "model", "model": model, "turn": "single"},
    }
    config = f'client_models = ["{model}"]\n[policy]\nmode = "auto"\n[policy.callers.guest]\ndeny = ["world.*/*"]\n'
    reads = calls(("world__resources_read", {"uri": "world://secret"}), ("world__prompts_get", {"name": "plan"}))
    outcomes: dict[str, list[tuple[str, str]]] = {}
    with ModelEndpoint(reads) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        async with serving(tmp_path, config) as served:
            for who in ("guest", "other"):
                started = await served.start(who, mission)
                await served.call(who, "mission_iterate", {"session_id": started})
                page = (await served.runtime.runner.history(started, full=True)).as_json()
                made = page["iterations"][0]["calls"]
                outcomes[who] = [(call["tool"], call["outcome"]) for call in made]
                assert served.world.reached == ([] if who == "guest" else ["resources/read", "prompts/get"])
    names = ("world.resources/read", "world.prompts/get")
    assert outcomes == {"guest": [(name, "denied") for name in names], "other": [(name, "ok") for name in names]}

"""Attacks on approvals: a client answers its own question, one person answers for two, a call hides its arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from callers_stage import Served, serving
from callers_stage import World as Upstream
from engine_stage import events_of, mission, repeat
from http_stage import http
from mcp import Client
from plain_http import TASKS
from problem_stage import ERAS
from test_approval_grants import ASK
from test_callers import WIPES
from test_http_approvals import serving as desk_serving
from test_http_elicitation import agent
from test_mcp_asking import World, yes

from pursuit import Runtime
from pursuit.cli.main import answer
from pursuit.config.configuration import USUAL_CHANNELS, Configuration
from pursuit.core.approvals import Approval
from pursuit.core.audit import masked, redacted
from pursuit.core.events import ApprovalAnswered
from pursuit.core.mission import parse_proposal
from pursuit.errors import ApprovalNeeded, Conflict, PolicyDenied
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.server.missions.server import mission_server
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller

LISTED = '[approvals]\nchannels = ["terminal", "http-elicitation"]\n'
ONE = OperatorPolicy(rules=(Rule(decision="ask", tool="write"),))
TWO = OperatorPolicy(rules=(Rule(decision="ask", tool="write", require=2),))
ANN = Caller(who="ann", transport="http", holder="token:ann")
BOB = Caller(who="bob", transport="http", holder="token:bob")


async def attack(served: Served, token: str, era: str, *, gateway: bool) -> int:
    """How often a client is asked that declares elicitation, calls what needs a yes, and says yes itself."""
    asked: list[str] = []
    async with agent(served.url, era, token, asked) as client:
        if gateway:
            await client.call_tool("wipe", {})
            return len(asked)
        started = (await client.call_tool("mission_start", WIPES)).structured_content
        await client.call_tool("mission_iterate", {"session_id": started["session_id"]})
    return len(asked)


@pytest.mark.guarantee("a-yes-needs-a-listed-channel")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("gateway", [False, True])
@pytest.mark.parametrize("listed", [False, True])
async def test_a_client_over_http_answers_its_own_question(
    tmp_path: Path, era: str, gateway: bool, listed: bool
) -> None:
    async with serving(tmp_path, ASK + (LISTED if listed else ""), gateway=gateway) as served:
        assert await attack(served, served.shown["guest"], era, gateway=gateway) == 0
        assert served.world.reached == []
        trusted = served.tokens.make("trusted", may=["approve-own"])
        assert await attack(served, trusted, era, gateway=gateway) == int(listed)
        assert served.world.reached == ["tools/call"] * listed
        if not listed:
            assert len(await Approvals(served.runtime.runner).open()) == 2
            return
        (row,) = (await served.runtime.runner.ledger.streams(kind="gateway" if gateway else "mission")).rows[:1]
        said = [json.loads(one.body) for one in await served.runtime.runner.ledger.read(row.name)]
        assert [one["channel"] for one in said if "channel" in one] == ["http-elicitation"]


@pytest.mark.guarantee("no-client-approves-its-own-call")
@pytest.mark.parametrize("gateway", [False, True])
async def test_a_client_with_the_scope_of_approvers_answers_its_own_question(tmp_path: Path, gateway: bool) -> None:
    async def wipes(served: Served, who: str) -> None:
        if gateway:
            await served.call(who, "wipe")
        else:
            await served.call(who, "mission_iterate", {"session_id": await served.start(who, WIPES)})

    async with serving(tmp_path, ASK, gateway=gateway) as served:
        served.shown["sly"] = served.tokens.make("sly", scopes=["missions:write", "tools:call", "approvals:answer"])
        service, url = served.runtime.runner, served.url.removesuffix("/mcp")
        async with http(served.shown["sly"]) as wire:

            async def say(answer: str) -> Any:
                (row,) = await Approvals(service).open()
                return await wire.post(f"{url}/approvals/{row.approval_id}", json={"answer": answer})

            await wipes(served, "sly")
            for answer in ("once", "arguments", "mission"):
                refused = await say(answer)
                assert (refused.status_code, refused.json()["code"]) == (403, "policy_denied")
            tried = [line for line in await service.audited() if line["verb"] == "approve"]
            assert [(line["who"], line["refused"]["code"]) for line in tried] == [("sly", "policy_denied")] * 3
            assert (await say("denied")).status_code == 200
            await wipes(served, "guest")
            assert (await say("once")).status_code == 200
        assert served.world.reached == []


@pytest.mark.guarantee("no-client-approves-its-own-call")
async def test_a_client_with_the_scope_of_approvers_answers_for_its_child_mission(tmp_path: Path) -> None:
    child = {key: value for key, value in WIPES.items() if key != "tool_allowlist"}
    spawn = {"tool_name": "fleet.spawn", "args": {**child, "budget": {"max_iterations": 1}}}
    parent = {**WIPES, "fleet": {}, "proposer": "client"}
    async with serving(tmp_path, ASK) as served:
        scopes: Any = ["missions:write", "tools:call", "approvals:answer"]
        served.shown["sly"] = served.tokens.make("sly", scopes=scopes)
        mission = await served.start("sly", parent)
        await served.call("sly", "mission_iterate", {"session_id": mission, "proposal": {"tool_calls": [spawn]}})
        approvals = Approvals(served.runtime.runner)
        with anyio.fail_after(30):
            while not (rows := await approvals.open()):
                await anyio.sleep(0.02)
        assert rows[0].stream != mission
        async with http(served.shown["sly"]) as wire:
            place = f"{served.url.removesuffix('/mcp')}/approvals/{rows[0].approval_id}"
            refused = await wire.post(place, json={"answer": "once"})
        assert (refused.status_code, served.world.reached) == (403, [])


@pytest.mark.guarantee("no-client-approves-its-own-call")
async def test_a_client_with_the_scope_of_approvers_answers_for_its_mission_that_another_drives(tmp_path: Path) -> None:
    async with serving(tmp_path, ASK) as served:
        scopes: Any = ["missions:write", "tools:call", "approvals:answer"]
        served.shown["sly"] = served.tokens.make("sly", scopes=scopes)
        mission = await served.start("sly", {**WIPES, "share": ["guest"]})
        await served.call("guest", "mission_iterate", {"session_id": mission})
        (row,) = await Approvals(served.runtime.runner).open()
        async with http(served.shown["sly"]) as wire:
            place = f"{served.url.removesuffix('/mcp')}/approvals/{row.approval_id}"
            refused = await wire.post(place, json={"answer": "once"})
            assert (refused.status_code, refused.json()["code"]) == (403, "policy_denied")
            assert (await wire.post(place, json={"answer": "denied"})).status_code == 200
        assert served.world.reached == []


@pytest.mark.guarantee("no-client-approves-its-own-call")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_may_approve_its_own_calls_answers_for_another(tmp_path: Path, era: str) -> None:
    async with serving(tmp_path, ASK + LISTED) as served:
        trusted = served.tokens.make("trusted", may=["approve-own"])
        mission = await served.start("guest", {**WIPES, "share": ["trusted"]})
        await served.call("guest", "mission_iterate", {"session_id": mission})
        asked: list[str] = []
        async with agent(served.url, era, trusted, asked) as client:
            await client.call_tool("mission_iterate", {"session_id": mission})
        assert (asked, served.world.reached) == ([], [])
        (row,) = await Approvals(served.runtime.runner).open()
        assert row.stream == mission


SECOND_ASKS = """
[policy]
mode = "ask"
[[policy.rules]]
decision = "allow"
server = "world"
[[policy.rules]]
decision = "ask"
server = "world"
arguments = { place = "2" }
"""


@pytest.mark.guarantee("a-yes-needs-a-listed-channel")
@pytest.mark.parametrize("who", ["trusted", "guest"])
async def test_after_a_restart_a_client_answers_the_question_of_its_task_by_its_channel_alone(
    tmp_path: Path, who: str
) -> None:
    able = {**TASKS, "elicitation": {"form": {}}}
    calls = [{"tool_calls": [{"tool_name": "world.wipe", "args": {"place": place}}]} for place in ("1", "2")]
    twice = {**WIPES, "proposer": {"kind": "replay", "proposals": calls}}

    async def first() -> tuple[dict[str, str], str]:
        """The process ends while the task waits for its first call, which needs no yes."""
        async with serving(tmp_path, SECOND_ASKS + LISTED) as served:
            served.shown["trusted"] = served.tokens.make("trusted", may=["approve-own"])
            served.world.hold = anyio.Event()
            asked = {"session_id": await served.start(who, twice), "max_iterations_this_call": 2}
            begun = await served.call(who, "mission_iterate", asked, able=able)
            with anyio.fail_after(30):
                while not served.world.reached:
                    await anyio.sleep(0.02)
            return served.shown, begun["taskId"]

    shown, task = await first()
    async with serving(tmp_path, SECOND_ASKS + LISTED, shown=shown) as served:

        async def state() -> dict[str, Any]:
            return (await served.ask(who, "tasks/get", {"taskId": task}, able=able))["result"]

        with anyio.fail_after(30):
            while (now := await state())["status"] == "working":
                await anyio.sleep(0.02)
        (row,) = await Approvals(served.runtime.runner).open()
        asked = now.get("inputRequests", {})
        assert (now["status"], list(asked)) == (
            ("input_required", [row.approval_id]) if who == "trusted" else ("completed", [])
        )
        before = list(served.world.reached)
        said = {row.approval_id: {"action": "accept", "content": {"answer": "once"}}}
        await served.ask(who, "tasks/update", {"taskId": task, "inputResponses": said}, able=able)
        with anyio.fail_after(30):
            while (await state())["status"] != "completed":
                await anyio.sleep(0.02)
        assert served.world.reached == [*before, *(["tools/call"] if who == "trusted" else [])]
        answers = await events_of(served.runtime, row.stream, ApprovalAnswered)
        told = [(one.channel, str(one.person).partition(":")[0]) for one in answers]
        assert told == ([("http-elicitation", "token")] if who == "trusted" else [])


@pytest.mark.guarantee("a-yes-needs-a-listed-channel")
@pytest.mark.guarantee("an-approver-sees-everything")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("channels", "length", "asked"),
    [(frozenset({"terminal"}), 1, False), (USUAL_CHANNELS, 40_000, False), (USUAL_CHANNELS, 20_000, True)],
)
async def test_a_client_over_stdio_is_asked_only_by_a_listed_channel_and_sees_all(
    tmp_path: Path, era: Any, channels: Any, length: int, asked: bool
) -> None:
    world, text = World(), "a" * (length - 1) + "z"
    config = Configuration(policy=ONE, approvals={"channels": channels})
    async with (
        Runtime(state=tmp_path / "l.db", config=config, servers={"world": [world.write]}) as runtime,
        mission_server(runtime) as server,
        Client(server, mode=era, elicitation_callback=world.answering(yes("mission"))) as client,
    ):
        repeats = {"kind": "repeat", "tool_name": "world.write", "args": {"text": text}}
        wanted = {**WIPES, "tool_allowlist": ["world.write"], "proposer": repeats}
        started = (await client.call_tool("mission_start", wanted)).structured_content
        told = (await client.call_tool("mission_iterate", {"session_id": started["session_id"]})).structured_content
        assert told is not None and (told["status"] == "waiting") is not asked
    assert ([text in one for one in world.asked], world.done) == (([True], [text]) if asked else ([], []))


def write(text: str = "x", token: str = "") -> dict[str, Any]:
    """Changes the world."""
    return {"text": text, "token": token}


async def waiting(folder: Path, policy: OperatorPolicy = ONE, **args: Any) -> tuple[str, str]:
    """A mission that waits for an answer, in a ledger that no process has open, and its question."""
    async with Runtime(state=folder / "l.db", config=Configuration(policy=policy), servers={"w": [write]}) as runtime:
        name = (await runtime.runner.start(mission(proposer=repeat("write", **args)))).session_id
        await runtime.runner.run(name)
        (row,) = await Approvals(runtime.runner).open(name)
        return name, row.approval_id


def told(capsys: pytest.CaptureFixture[str], folder: Path, *words: str, config: str = "") -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    path = folder / "pursuit.toml"
    path.write_text(config, encoding="utf-8")
    code = answer([*words, "--state", str(folder / "l.db"), "--config", str(path)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.mark.guarantee("a-yes-needs-a-listed-channel")
def test_a_yes_by_a_channel_that_is_not_listed_changes_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, approval_id = anyio.run(waiting, tmp_path)
    code, text = told(capsys, tmp_path, "approve", approval_id, config='[approvals]\nchannels = ["api"]\n')
    assert code == 2 and 'approvals over "terminal" are not accepted' in text and "nothing was changed" in text
    assert approval_id in told(capsys, tmp_path, "approvals")[1]
    assert told(capsys, tmp_path, "deny", approval_id, config='[approvals]\nchannels = ["api"]\n')[0] == 0

    async def main() -> None:
        config = Configuration(policy=ONE, approvals={"channels": ["terminal"]})
        async with Runtime(state=tmp_path / "m.db", config=config, servers={"w": [write]}) as runtime:
            name = (await runtime.runner.start(mission(proposer=repeat("write")))).session_id
            await runtime.runner.run(name)
            (row,) = await Approvals(runtime.runner).open(name)
            with pytest.raises(PolicyDenied, match="nothing was changed"):
                await Approvals(runtime.runner).answer(row.approval_id, "once", caller=ANN)
            at_terminal = Caller(who="me", transport="terminal")
            await Approvals(runtime.runner).answer(row.approval_id, "once", caller=at_terminal)
            (said,) = await events_of(runtime, name, ApprovalAnswered)
            assert said.channel == "terminal"

    anyio.run(main)


@pytest.mark.guarantee("two-people-are-two")
def test_one_person_answers_for_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, approval_id = anyio.run(waiting, tmp_path, TWO)
    assert "1 of 2" in told(capsys, tmp_path, "approve", approval_id)[1]
    code, text = told(capsys, tmp_path, "approve", approval_id)
    assert code == 2 and "another person must approve it" in text
    assert "1 of 2" in told(capsys, tmp_path, "approvals")[1], "another process reads it from the ledger"

    async def main() -> None:
        config = Configuration(policy=TWO)
        async with Runtime(state=tmp_path / "l.db", config=config, servers={"w": [write]}) as runtime:
            approvals = Approvals(runtime.runner)
            assert (await approvals.open(name))[0].require == 2
            with pytest.raises(Conflict, match="another person must approve it"):  # the same user, over stdio
                await approvals.answer(approval_id, "mission", caller=Caller(who="me", transport="stdio"))
            assert (await runtime.runner.state(name)).waiting_for == "approval"
            answered = await approvals.answer(approval_id, "mission", caller=BOB)
            assert answered.status == "running"
            state = await runtime.runner.state(name)
            assert state.approvals.asked[approval_id].answer == "once", "the narrower yes is what both agree on"
            with pytest.raises(Conflict, match="already answered"):
                await approvals.answer(approval_id, "denied", caller=ANN)

    anyio.run(main)


@pytest.mark.guarantee("two-people-are-two")
async def test_a_no_of_anyone_refuses_and_a_grant_of_one_covers_no_call_that_needs_two(tmp_path: Path) -> None:
    two = Rule(decision="ask", tool="write", arguments={"text": "prod*"}, require=2)
    policy = OperatorPolicy(rules=(*ONE.rules, two))
    config = Configuration(policy=policy)
    async with Runtime(state=tmp_path / "l.db", config=config, servers={"w": [write]}) as runtime:
        service, approvals = runtime.runner, Approvals(runtime.runner)
        name = (await service.start(mission(proposer={"kind": "client"}, budget={"max_iterations": 9}))).session_id

        async def asked(text: str) -> Approval:
            call = {"tool_name": "write", "args": {"text": text}}
            await service.iterate(name, proposal=parse_proposal({"tool_calls": [call]}))
            return (await approvals.open(name))[0]

        row = await asked("dev")
        await approvals.answer(row.approval_id, "mission", caller=ANN)  # for the whole tool, by one person
        await service.iterate(name)
        row = await asked("prod-1")
        assert (row.require, row.approved_by) == (2, [])
        for who in (ANN, BOB):
            await approvals.answer(row.approval_id, "once", caller=who)
        await service.iterate(name)
        row = await asked("prod-2")
        await approvals.answer(row.approval_id, "once", caller=ANN)
        await approvals.answer(row.approval_id, "denied", caller=BOB)
        assert (await service.state(name)).approvals.asked[row.approval_id].answer == "denied"


@pytest.mark.guarantee("two-people-are-two")
async def test_two_operators_answer_a_question_of_the_gateway(tmp_path: Path) -> None:
    two = ASK.replace('decision = "ask"', 'decision = "ask"\nrequire = 2')
    async with serving(tmp_path, two, gateway=True) as served:
        approvals = Approvals(served.runtime.runner)
        refused = await served.call("guest", "wipe")
        assert "needs the approval of 2 people" in refused["content"][0]["text"]
        (row,) = await approvals.open()
        await approvals.answer(row.approval_id, "mission", caller=ANN)
        with pytest.raises(Conflict, match="another person must approve it"):
            await approvals.answer(row.approval_id, "once", caller=ANN)
        assert "1 of 2 approved" in (await served.call("guest", "wipe"))["content"][0]["text"]
        assert served.world.reached == []
        await approvals.answer(row.approval_id, "mission", caller=BOB)
        for _ in range(2):
            assert not (await served.call("guest", "wipe")).get("isError")
        assert served.world.reached == ["tools/call"] * 2


LONG = f"echo fine\n{'# padding ' * 100}\nrm -rf /srv"


@pytest.mark.guarantee("an-approver-sees-everything")
def test_a_call_hides_what_it_does_behind_a_long_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, approval_id = anyio.run(lambda: waiting(tmp_path, text=LONG, token="hunter2"))
    listed = told(capsys, tmp_path, "approvals")[1]
    assert "rm -rf" not in listed and f"approvals show {approval_id}" in listed
    code, text = told(capsys, tmp_path, "approve", approval_id)
    assert code == 4 and f"`pursuit approvals show {approval_id}`" in text and "--unseen" in text
    shown = told(capsys, tmp_path, "approvals", "show", approval_id)[1]
    assert "    | rm -rf /srv" in shown and "hunter2" not in shown
    assert "hunter2" in told(capsys, tmp_path, "approvals", "show", approval_id, "--reveal")[1]
    lines = json.loads(told(capsys, tmp_path, "audit", "--json")[1])["audit"]
    assert [line["arguments"].get("reveal") for line in lines if line["verb"] == "show"] == [None, True]
    assert told(capsys, tmp_path, "approve", approval_id)[0] == 0


@pytest.mark.guarantee("an-approver-sees-everything")
async def test_over_http_a_cut_question_is_looked_at_first(tmp_path: Path) -> None:
    async with desk_serving(tmp_path) as desk:
        _, row = await desk.asked(text=LONG)
        refused = await desk.say(row["approval_id"])
        assert (refused.status_code, refused.json()["code"]) == (403, "approval_needed")
        async with http(desk.tokens.make("bob", operator=True)) as wire:  # what another person saw does not count
            await wire.get(desk.url(f"/approvals/{row['approval_id']}"))
        assert (await desk.say(row["approval_id"])).status_code == 403
        assert (await desk.get(f"/{row['approval_id']}", token=desk.client)).status_code == 403
        assert (await desk.get(f"/{row['approval_id']}")).json()["args"] == {"text": LONG}
        assert (await desk.say(row["approval_id"])).status_code == 200
        _, row = await desk.asked(text=LONG)
        assert (await desk.say(row["approval_id"], {"answer": "once", "unseen": True})).status_code == 200


@pytest.mark.guarantee("an-approver-sees-everything")
async def test_the_gateway_keeps_the_arguments_of_a_question_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, ASK, gateway=True) as served:
        service, approvals = served.runtime.runner, Approvals(served.runtime.runner)
        await served.call("guest", "wipe", {"script": LONG, "secret_script": "rm"})
        (row,) = await approvals.open()
        assert row.cut and "rm -rf" not in str(row)
        with pytest.raises(ApprovalNeeded):
            await approvals.answer(row.approval_id, "once", caller=ANN)
        shown = await approvals.show(row.approval_id, caller=ANN)
        assert shown.args == {"script": LONG, "secret_script": "[redacted]"}
        shown = await approvals.show(row.approval_id, caller=ANN, reveal=True)
        assert shown.args["secret_script"] == "rm"
        assert [line["arguments"].get("reveal") for line in await service.audited() if line["verb"] == "show"] == [
            None,
            True,
        ]
        await approvals.answer(row.approval_id, "once", caller=ANN)
        assert not (await served.call("guest", "wipe", {"script": LONG, "secret_script": "rm"})).get("isError")
        assert (await service.verify()).ok


LINES = {f"a{index}": "x" * 490 for index in range(11)}


@pytest.mark.guarantee("an-approver-sees-everything")
async def test_a_long_tool_name_or_two_keys_that_look_alike_hide_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "t" * 7_000

    async def named(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"})])

    monkeypatch.setattr(Upstream, "_list", named)
    hidden: list[dict[str, Any]] = [
        {**LINES, "z": "rm"},
        {**LINES, "b": "y" * 490, "z": "rm"},
        {"\ud800": "rm", "?": "ls"},
        {"in": {"\ud800": "rm", "?": "ls"}},
        {"k" * 600: "rm", "k" * 599 + "l": "ls"},
    ]
    async with serving(tmp_path, ASK, gateway=True) as served:
        approvals = Approvals(served.runtime.runner)
        for args in hidden:
            await served.call("guest", name, args)
            (row,) = await approvals.open()
            assert row.description.startswith(f"{name} of server world (")
            assert ('"rm"' in row.description) or row.cut, args
            if row.cut:
                with pytest.raises(ApprovalNeeded):
                    await approvals.answer(row.approval_id, "once", caller=ANN)
            shown = await approvals.show(row.approval_id, caller=ANN)
            assert '"rm"' in json.dumps(shown.args)
            await approvals.answer(row.approval_id, "denied", caller=ANN)
            await served.call("guest", name, args)
        assert served.world.reached == []


def test_a_secret_by_its_name_stays_masked_where_keys_collide_or_are_long() -> None:
    given = {"\ud800password": "hunter2", "?password": "hunter2", "k" * 600 + "_password": "hunter2"}
    assert len(masked(given)) == len(redacted(given)) == 3
    assert {*masked(given).values(), *redacted(given).values()} == {"[redacted]"}


@pytest.mark.guarantee("an-approver-sees-everything")
def test_names_of_secrets_in_every_usual_spelling_are_masked() -> None:
    secrets = ["password", "db_password_2", "PGPASSWORD", "pwd", "pass", "api-key", "X-Api-Key", "apiKey", "API KEY"]
    secrets += ["access_key", "private-key", "accessToken", "client_secret", "Proxy-Authorization", "bearer", "Cookie"]
    counts = {"max_tokens": 5, "passenger": "a", "compass": "b", "key": "c", "path": "d", "monkey": "e", "author": "f"}
    given = {**dict.fromkeys(secrets, "s3"), **counts}
    for shown in (masked(given), redacted(given)):
        assert [name for name in secrets if shown[name] == "s3"] == []
        assert {name: shown[name] for name in counts} == counts

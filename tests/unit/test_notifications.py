"""What the operator is told of missions: by a command, and by a webhook at a real HTTP server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from engine_stage import events_of, mission, repeat, stage
from hands import Hands

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import Configuration, Notice, NotifyTable, load_configuration
from pursuit.core.events import RunClaimed
from pursuit.engine.context import SystemClock
from pursuit.errors import ValidationFailed
from pursuit.service.notifications import STREAM, NotificationSettled, Notifier, NotifierSettings

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


def step() -> dict[str, Any]:
    return {"metrics": {"mass": 1}}


@dataclass
class Receiver:
    """A webhook's receiver; it answers with these statuses, then with 204."""

    url: str
    statuses: list[int]
    requests: list[tuple[dict[str, str], bytes]]

    def types(self) -> list[str]:
        return [json.loads(body)["type"] for _headers, body in self.requests]


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    got = Receiver("", list(statuses), [])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(got.statuses.pop(0) if got.statuses else 204)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got.url = f"http://127.0.0.1:{server.server_port}/hooks"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def webhook(url: str, *events: Notice) -> NotifyTable:
    config = NotifyTable(webhook=url, secret="${HOOK_SECRET}")
    return config.model_copy(update={"events": frozenset(events)}) if events else config


@asynccontextmanager
async def notified(
    runtime: Runtime, config: NotifyTable, *, environ: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Notifier]:
    """A notifier for the missions of this runtime; leaving waits for what is being sent."""
    notifier = Notifier(
        runtime.runner.ledger,
        SystemClock(),
        config,
        base=Path("/"),
        settings=NotifierSettings(**{"retries": (0.0, 0.0), **settings}),
        environ={"HOOK_SECRET": SECRET} if environ is None else environ,
    )
    async with notifier:
        runtime.runner = replace(runtime.runner, driver=replace(runtime.runner.driver, recorded=notifier.recorded))
        yield notifier


async def settled(runtime: Runtime) -> list[NotificationSettled]:
    stored = await runtime.runner.ledger.read(STREAM)
    return [
        msgspec.json.decode(one.body, type=NotificationSettled) for one in stored if one.type == "NotificationSettled"
    ]


@pytest.mark.guarantee("notifications-are-signed-and-stable")
async def test_a_webhook_is_signed_and_retried_under_the_same_id(tmp_path: Path) -> None:
    with receiver(503, 429) as hook:
        async with stage(tmp_path, step) as runtime:
            async with notified(runtime, webhook(hook.url)):
                name = (await runtime.runner.start(mission(proposer=repeat("step")))).session_id
                await runtime.runner.run(name)
            (one,) = await settled(runtime)
            assert (one.attempts, one.error, one.target) == (3, None, "webhook")
    assert len(hook.requests) == 3
    assert len({headers["webhook-id"] for headers, _body in hook.requests}) == 1
    headers, body = hook.requests[-1]
    told = json.loads(body)
    assert told["type"] == "mission.ended"
    assert told["id"] == headers["webhook-id"]
    assert told["data"]["verdict_reason"] == "max_iterations"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"


async def test_each_kind_of_event_is_told_once(tmp_path: Path) -> None:
    with receiver() as hook:
        never = [metric("mass") <= 0]
        async with stage(tmp_path, step) as runtime, notified(runtime, webhook(hook.url)):
            spent = mission(proposer=repeat("step"), criteria=never, budget=Budget(max_iterations=10))
            await runtime.pursue(spent)
            await runtime.pursue(spent.model_copy(update={"stagnation_threshold": 2}))
            waits = mission(proposer=repeat("step"), budget=Budget(max_iterations=1, on_exhausted="wait"))
            await runtime.pursue(waits)
    assert sorted(hook.types()) == ["mission.budget", "mission.ended", "mission.stuck", "mission.waiting"]
    told = {json.loads(body)["type"]: json.loads(body)["data"] for _headers, body in hook.requests}
    assert told["mission.budget"]["cap"] == "max_iterations"
    assert told["mission.budget"]["iteration_count"] == 8
    assert told["mission.waiting"]["waiting_for"] == "budget"
    assert told["mission.stuck"]["verdict_reason"] == "no_progress"


async def test_a_command_gets_the_event_on_standard_input_and_only_the_events_that_are_wanted(tmp_path: Path) -> None:
    write = "import sys, pathlib; pathlib.Path('told.json').write_bytes(sys.stdin.buffer.read())"
    (tmp_path / "pursuit.toml").write_text(
        f"[notify]\ncommand = ['{sys.executable}', '-c', \"{write}\"]\nevents = ['ended']\n", encoding="utf-8"
    )
    configuration = load_configuration(tmp_path / "pursuit.toml")
    servers = {"world": [step]}
    async with Runtime(state=tmp_path / "ledger.db", config=configuration, servers=servers) as runtime:
        budget = Budget(max_iterations=9)
        never = [metric("mass") <= 0]
        report = await runtime.pursue(
            mission(proposer=repeat("step"), criteria=never, budget=budget, stagnation_threshold=2)
        )
        assert report.verdict_reason == "no_progress"
    assert json.loads((tmp_path / "told.json").read_text())["type"] == "mission.stuck"  # an end, too


@pytest.mark.guarantee("a-notification-holds-nothing-up")
async def test_a_target_that_fails_is_a_warning_and_the_mission_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path, step) as runtime:
        for config, environ in (
            (NotifyTable(command=("./no-such-program",)), None),
            (NotifyTable(command=(sys.executable, "-c", "raise SystemExit('no printer')")), None),
            (webhook("http://127.0.0.1:9/token-in-the-path"), None),
            (webhook("http://127.0.0.1:9"), {}),
            (webhook("http://127.0.0.1:9"), {"HOOK_SECRET": "hunter2"}),
        ):
            async with notified(runtime, config, environ=environ):
                report = await runtime.pursue(mission(proposer=repeat("step")))
            assert report.status == "terminated"
        assert [one.attempts for one in await settled(runtime)] == [1, 3, 3, 1, 1]
    said = caplog.text
    assert "cannot run './no-such-program'" in said
    assert "exit code 1 no printer" in said
    assert "ConnectError at 127.0.0.1" in said
    assert "needs the variable HOOK_SECRET, which is not set" in said
    assert "token-in-the-path" not in said
    assert "hunter2" not in said


@pytest.mark.guarantee("notifications-survive-kill-nine")
async def test_what_a_process_that_died_did_not_tell_is_told_by_a_server_once(tmp_path: Path) -> None:
    with receiver() as hook:
        async with stage(tmp_path, step) as runtime:
            async with notified(runtime, webhook(hook.url)) as second:
                await second.look(runtime.runner)  # notifications are configured from now on
                silent = replace(runtime.runner, driver=replace(runtime.runner.driver, recorded=None))
                name = (await silent.start(mission(proposer=repeat("step")))).session_id
                await silent.run(name)  # as if it was killed between its append and the notification
                with anyio.CancelScope() as killed:
                    async with notified(runtime, webhook(hook.url)) as first:
                        await first.look(runtime.runner)
                        await second.look(runtime.runner)  # the first one is sending
                        killed.cancel()
                        await anyio.sleep(0)
                await second.look(runtime.runner)
            async with notified(runtime, webhook(hook.url)) as third:
                await third.look(runtime.runner)
            (told,) = await settled(runtime)
            (seq,) = [one.seq for one in await runtime.runner.ledger.read(name) if one.type == "MissionEnded"]
        assert (told.id, told.error) == (f"{name}-{seq}", None)
        assert {headers["webhook-id"] for headers, _body in hook.requests} == {told.id}


async def test_a_server_tells_of_a_mission_that_no_process_drives_at_two_looks(tmp_path: Path) -> None:
    with receiver() as hook:
        async with stage(tmp_path, step) as runtime, notified(runtime, webhook(hook.url)) as notifier:
            await notifier.look(runtime.runner)
            made = mission(proposer=repeat("step"), budget=Budget(max_iterations=50))
            name = (await runtime.runner.start(made)).session_id
            with anyio.CancelScope() as scope:
                await runtime.runner.run(
                    name, observer=lambda _id, phase, _state: phase == "decided" and scope.cancel()
                )
            await notifier.look(runtime.runner)
            assert hook.requests == []
            for _ in range(3):
                await notifier.look(runtime.runner)
            (claimed,) = await events_of(runtime, name, RunClaimed)
            return_id = f"{name}-{claimed.run}"
        ((headers, body),) = hook.requests
        assert headers["webhook-id"] == return_id
        told = json.loads(body)
        assert (told["type"], told["data"]["status"]) == ("mission.interrupted", "interrupted")
        assert told["data"]["next"] == f"pursuit resume {name}"


async def test_an_approval_of_a_mission_is_told_with_its_id_and_without_secrets(tmp_path: Path) -> None:
    def send(password: str) -> dict[str, Any]:
        return {}

    with receiver() as hook:
        configuration = Configuration(notify=webhook(hook.url).model_copy(update={"secret": SECRET}))
        async with Runtime(
            state=tmp_path / "ledger.db", config=configuration, servers={"world": [send]}, mode="ask"
        ) as runtime:
            asks = mission(proposer=repeat("send", password="hunter2"), policy={"ask": ["world.send"]})
            report = await runtime.pursue(asks)
            assert report.status == "waiting"
    ((_headers, body),) = hook.requests
    (asked,) = json.loads(body)["data"]["pending_approvals"]
    assert asked["approval_id"].startswith("approval-")
    assert asked["args"] == {"password": "[redacted]"}
    assert b"hunter2" not in body


async def test_an_open_question_is_told_again_until_it_is_answered_or_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    (tmp_path / "pursuit.toml").write_text(
        '[notify]\nwebhook = "http://127.0.0.1"\nsecret = "${S}"\nremind = "5s"\n[settings]\napproval_timeout = 18\n'
        '[[policy.rules]]\ndecision = "ask"\ntool = "step"\n',
        encoding="utf-8",
    )
    config = load_configuration(tmp_path / "pursuit.toml")
    assert config.notify is not None

    async def scene(notify: NotifyTable) -> None:
        runtime = Runtime(
            state=tmp_path / "ledger.db", config=config.model_copy(update={"notify": None}), servers={"world": [step]}
        )
        async with runtime:
            told = notify.model_copy(update={"webhook": hook.url, "secret": SECRET})
            for _ in range(2):  # a process that takes over does not repeat what was told
                async with notified(runtime, told) as notifier:
                    if not hook.requests:
                        await runtime.pursue(mission(proposer=repeat("step")))
                    for _ in range(2):
                        await notifier.look(runtime.runner)
            for seconds in (5, 1, 9, 5):
                hands.forward(seconds)
                async with notified(runtime, told) as notifier:
                    await notifier.look(runtime.runner)

    with receiver() as hook:
        await scene(config.notify)
    told = [json.loads(body) for _headers, body in hook.requests]
    assert {one["type"] for one in told} == {"mission.waiting"}
    assert [one["data"].get("reminder") for one in told] == [None, 1, 3], "15 s after the question, and not after 20 s"
    assert told[-1]["data"]["pending_approvals"]


def test_a_span_that_is_none_is_a_fault(tmp_path: Path) -> None:
    for word in ("1 hour", "h", "0h", "-1h", ""):
        (tmp_path / "pursuit.toml").write_text(f'[notify]\ncommand = ["true"]\nremind = "{word}"\n', encoding="utf-8")
        with pytest.raises(ValidationFailed) as caught:
            load_configuration(tmp_path / "pursuit.toml")
        assert caught.value.faults[0].field == "notify.remind", word

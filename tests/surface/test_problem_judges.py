"""Judges and budgets that agents would get round; what a judge may say, to whom, and which call is one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from cli_stage import Place
from hands import LONG, Hands
from mcp import Client
from mcp.shared.exceptions import MCPError
from problem_stage import ERA, ERAS, METRIC, MODERN, SCHEMA, attempts, client, cut_off, plain, problem, text

from pursuit import Problem
from pursuit.core.tools import NOT_KNOWN

DIES = 666
SECRETS = ("77.125", "gossip", "exam.py")
GOSSIP = {
    "kind": "tool",
    "tool": "gossip",
    "arguments": {"reference": 77.125},
    "metrics": [METRIC, {"metric": "believed"}, {"metric": "tries"}],
}
LOGS = {"io.modelcontextprotocol/logLevel": "debug"}


class Agent:
    """A client that hears and answers everything, and remembers it."""

    def __init__(self, one: Problem, folder: Path, era: str, **more: Any) -> None:
        self.heard: list[str] = []
        server = one.to_mcp_server(state=folder / "ledger.db", **more)
        self.client = Client(
            server, mode=era, cache=None, logging_callback=self._logged, elicitation_callback=self._asked
        )

    async def _logged(self, params: Any) -> None:
        self.heard.append(json.dumps(plain(params)))

    async def _asked(self, _ctx: Any, params: Any) -> types.ElicitResult:
        self.heard.append(json.dumps(plain(params)))
        return types.ElicitResult(action="accept", content={"good": True, "answer": "once"})

    async def _progressed(self, *said: Any) -> None:
        self.heard.append(repr(said))

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        result = await self.client.session.call_tool(
            name, arguments, progress_callback=self._progressed, meta=dict(LOGS)
        )
        self.heard.append(json.dumps(plain(result)))
        return result


@pytest.mark.guarantee("a-judge-never-speaks-to-an-agent")
@pytest.mark.parametrize("mode", ["ask", "auto"])
@pytest.mark.parametrize("era", ERAS)
async def test_a_judge_that_talks_is_heard_by_nobody_and_believes_nobody(tmp_path: Path, era: str, mode: str) -> None:
    one = problem(tmp_path, "gossip", submission=SCHEMA, scorer=GOSSIP)
    agent = Agent(one, tmp_path, era, mode=mode)
    async with agent.client:
        taken = await agent.call("submit_final", {"x": 3, "reference": 3})
        assert not taken.is_error and len(agent.heard) == 1, agent.heard
    assert not [secret for secret in SECRETS if secret in "".join(agent.heard)]
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and state.scored.error is None
    assert [row.value for row in state.scored.rows] == [74.125, 0, 0]


@pytest.mark.guarantee("a-problems-stderr-is-the-operators")
@pytest.mark.parametrize("era", ERAS)
async def test_what_a_server_writes_to_stderr_is_told_to_no_agent(
    tmp_path: Path, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pursuit")
    one = problem(tmp_path, "probe", "gossip", submission=SCHEMA, scorer=GOSSIP)
    agent = Agent(one, tmp_path, era)
    async with agent.client:
        broken = await agent.call("probe", {"x": DIES})
        assert broken.is_error and text(broken) == f"server 'upstream': the connection broke; {NOT_KNOWN}"
        assert not (await agent.call("submit_final", {"x": DIES})).is_error
    assert not [secret for secret in SECRETS if secret in "".join(agent.heard)]
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and "the connection broke" in (state.scored.error or "")
    assert "the answer is 77.125" in caplog.text
    # What is logged by default may be shown to the agents of whoever started us.
    loud = "".join(str(vars(record)) for record in caplog.records if record.levelno > logging.DEBUG)
    assert "exited with 1" in loud and "77.125" not in loud


@ERA
async def test_a_server_that_does_not_start_is_told_without_its_words(tmp_path: Path, era: str) -> None:
    one = problem(tmp_path, "probe", str(tmp_path / "there"), submission=SCHEMA)
    async with client(one, tmp_path, era) as agent:
        with pytest.raises(MCPError) as refused:
            await agent.list_tools()
        down = await agent.call_tool("submit_final", {"x": 1})
        words = f"{refused.value.error.model_dump_json()} {text(down)}"
        assert down.is_error and "it could not be started or does not answer" in words
        assert not [word for word in ("not today", str(tmp_path), "exam.py") if word in words], words


def test_a_judge_that_policy_denies_is_a_problem_that_is_not_served(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    (tmp_path / "pursuit.toml").write_text(
        '[[policy.rules]]\ndecision = "deny"\ntool = "gossip"\nreason = "no talking"\n', encoding="utf-8"
    )
    one = problem(tmp_path / "one", "gossip", submission=SCHEMA, scorer=GOSSIP)
    for more in ((), ("--http", "--port", "0")):
        said = place.ask("problem", "serve", one.manifest.path, "--config", "pursuit.toml", *more, code=2)[1]
        assert "the problem 'exam' cannot be judged: upstream.gossip is denied by policy: no talking" in said


@pytest.mark.guarantee("a-leg-is-its-own-call-alone")
async def test_a_call_goes_on_only_as_itself_and_only_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    one = problem(tmp_path, "probe", "nap", submission=SCHEMA, budget={"calls": 2})
    late = problem(tmp_path / "late", "nap", submission=SCHEMA, budget={"wall_seconds": LONG})

    async def never(_ctx: Any, _params: Any) -> types.ElicitResult:
        raise AssertionError("the questions are answered below")

    async def asked(agent: Client, name: str, arguments: dict[str, Any], last: Any = None) -> Any:
        """One leg of a call, with a yes to what the last one asked."""
        answers: dict[str, Any] = {}
        if last is not None:
            yes = types.ElicitResult(action="accept", content={"answer": "once"})
            answers = {"request_state": last.request_state, "input_responses": dict.fromkeys(last.input_requests, yes)}
        return await agent.session.call_tool(name, arguments, allow_input_required=True, **answers)

    def opened(of: Problem, attempt_id: str) -> Client:
        server = of.to_mcp_server(state=tmp_path / "ledger.db", mode="ask", attempt_id=attempt_id)
        return Client(server, mode=MODERN, cache=None, elicitation_callback=never)

    async with opened(one, "attempt-1") as agent:
        first = await asked(agent, "probe", {"x": 1})
        second = await asked(agent, "probe", {"x": 2}, first)
        assert first.result_type == second.result_type == "input_required"
        for name, arguments, last in (("probe", {"x": 3}, second), ("nap", {}, first)):
            spent = await asked(agent, name, arguments, last)
            assert spent.is_error and "the budget calls (2) is spent" in text(spent)
        went_on = await asked(agent, "probe", {"x": 1}, first)
        assert not went_on.is_error and "distance" in text(went_on)
        again = await asked(agent, "probe", {"x": 1}, first)
        assert again.is_error and "the budget calls (2) is spent" in text(again)
        await agent.call_tool("submit_final", {"x": 3})
        over = await asked(agent, "probe", {"x": 2}, second)
        assert over.is_error and "already_submitted" in text(over)
    async with opened(late, "attempt-2") as agent:
        question = await asked(agent, "nap", {})
        cut = await cut_off(tmp_path, hands, asked(agent, "nap", {}, question))
        assert cut.is_error and f"the budget wall_seconds ({LONG:g}) is spent" in text(cut)
    counted = {state.attempt_id: (state.calls, len(state.series)) for state in await attempts(tmp_path)}
    assert counted == {"attempt-1": (2, 1), "attempt-2": (1, 0)}


@ERA
async def test_a_call_of_a_tool_that_there_is_not_is_no_call(tmp_path: Path, era: str) -> None:
    one = problem(tmp_path, "look", submission=SCHEMA, budget={"calls": 1})
    async with client(one, tmp_path, era) as agent:
        for _ in range(2):
            with pytest.raises(MCPError, match="Unknown tool: lok"):
                await agent.call_tool("lok", {})
        assert not (await agent.call_tool("look", {})).is_error
    (state,) = await attempts(tmp_path)
    assert state.calls == 1


FAILING = """
from pathlib import Path

def score(submission):
    if not Path(__file__).with_name("mended").exists():
        raise KeyError("not yet")
    return abs(submission["x"] - 3)
"""
BY_FUNCTION = {"kind": "function", "function": "score.py:score", "metrics": [METRIC]}


@pytest.mark.parametrize("how", ["serve", "replay"])
def test_what_a_judge_failed_at_is_judged_when_it_is_mended(tmp_path: Path, how: str) -> None:
    place = Place(tmp_path)
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "score.py").write_text(FAILING, encoding="utf-8")
    one = problem(folder, submission=SCHEMA, scorer=BY_FUNCTION)

    async def tried() -> list[Any]:
        async with client(one, tmp_path, "legacy", attempt_id="attempt-1") as agent:
            await agent.call_tool("submit_final", {"x": 2.5})
            with anyio.fail_after(60):  # the judge is asked beside what the agent does, and only while it is served
                while (state := (await attempts(tmp_path))[0]).scored is None or (
                    (folder / "mended").exists() and state.scored.error is not None
                ):
                    await anyio.sleep(0.05)
        return [state.seq, state.scored.error, *(row.value for row in state.scored.rows)]

    failed = anyio.run(tried)
    assert failed[1:] == ["score.py:score: KeyError: 'not yet'"]
    assert anyio.run(tried) == failed, "the same failure is written once"
    (folder / "mended").touch()
    if how == "serve":
        assert anyio.run(tried)[1:] == [None, 0.5]
        return
    words = ("problem", "replay", "attempt-1", "--problem", one.manifest.path, "--state", tmp_path / "ledger.db")
    assert "no score was recorded" in place.ask(*words)[0]
    again = place.json(*words)
    assert again["same"] is True and again["notes"] == [] and again["score"][0]["value"] == 0.5

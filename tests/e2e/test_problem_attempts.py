"""Attempts from the command line: whose problem judges, what is refused, and agents that propose over MCP."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from mcp import Client, StdioServerParameters, stdio_client
from problem_stage import LEGACY, METRIC, MODERN, SCHEMA, problem, submitted
from sampling_stage import says

from pursuit import Problem, Runtime
from pursuit.config.configuration import Configuration
from pursuit.policy.rules import OperatorPolicy
from pursuit.problems.catalogue import SHIPPED
from pursuit.problems.missions import server_of
from pursuit.server.missions.server import mission_server

pytestmark = pytest.mark.usefixtures("quick_python")
SCORE = "0.0390625"
BY_FUNCTION = {"kind": "function", "function": "score.py:score", "metrics": [METRIC]}
JUDGE = "def score(submission):\n    print('it is', {score})\n    return {score}\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


def mine(place: Place, judge: str = JUDGE.format(score=SCORE), **fields: Any) -> Problem:
    """A problem whose score is a number that stands nowhere by chance."""
    folder = place.folder / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "score.py").write_text(judge, encoding="utf-8")
    return problem(folder, submission=SCHEMA, scorer=BY_FUNCTION, **fields)


@asynccontextmanager
async def connected(place: Place, era: str, **able: Any) -> AsyncIterator[Client]:
    config = Configuration(policy=OperatorPolicy(mode="auto"), settings={"task_patience": 120.0})
    async with (
        Runtime(state=place.ledger, config=config) as runtime,
        mission_server(runtime) as server,
        Client(server, mode=era, cache=None, **able) as agent,
    ):
        yield agent


async def readable(agent: Client, mission_id: str) -> str:
    """Everything of a mission that a client can read."""
    words = [str((await agent.call_tool("mission_status", {"session_id": mission_id})).structured_content)]
    for part in ("", "/events", "/report"):
        words.append(str(await agent.read_resource(f"mission://{mission_id}{part}")))
    return "\n".join(words)


@pytest.mark.guarantee("a-missions-agent-never-reads-its-score")
@pytest.mark.parametrize(("proposer", "era"), [("sampling", LEGACY), ("client", MODERN)])
def test_an_agent_that_proposes_over_mcp_submits_and_never_reads_its_score(
    place: Place, era: str, proposer: str
) -> None:
    one = mine(place)
    words = ("problem", "attempt", one.manifest.path, "--proposer", proposer, "--json")
    begun = json.loads(place.ask(*words, code=4)[0])
    asked: list[str] = []
    server = server_of(begun["attempt_id"])
    call = {"tool": f"{server}__submit_final", "args": {"x": 3}}

    async def sample(_context: Any, params: Any) -> Any:
        asked.append(str(params))
        return says(json.dumps({"why": "done", "calls": [call]}))

    async def main() -> None:
        able = {"sampling_callback": sample} if proposer == "sampling" else {}
        async with connected(place, era, **able) as agent:
            given: dict[str, Any] = {"session_id": begun["session_id"]}
            if proposer == "client":
                given["proposal"] = {"tool_calls": [{"tool_name": f"{server}.submit_final", "args": {"x": 3}}]}
            done = await agent.call_tool("mission_iterate", given)
            assert done.structured_content is not None and done.structured_content["status"] == "completed"
            told = await readable(agent, begun["session_id"])
        assert "submit_final" in told and "receipt" in told
        for secret in (SCORE, str(METRIC["target"]), "score.py"):
            assert secret not in told and not any(secret in one for one in asked), secret

    anyio.run(main)
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    assert str(found["attempts"][0]["value"]) == SCORE and found["attempts"][0]["label"] == proposer


def begun_by_client(place: Place, one: Problem) -> tuple[dict[str, Any], str]:
    """An attempt that waits for a client's proposals, and the command that the hint names."""
    words = ("problem", "attempt", one.manifest.path, "--proposer", "client", "--json")
    out, notes = place.ask(*words, code=4)
    hint = notes.strip().splitlines()[-1]
    begun = json.loads(out)
    server = server_of(begun["attempt_id"])
    assert f"mission_iterate of {begun['session_id']} (its tools are {server}.*)" in hint
    calls = [{"tool_name": f"{server}.submit_final", "args": {"x": 3}}]
    given = {"session_id": begun["session_id"], "proposal": {"tool_calls": calls}}
    return given, hint.partition("connected to: ")[2]


@pytest.mark.guarantee("an-attempt-goes-on-with-what-is-printed")
def test_the_server_that_the_hint_names_goes_on_with_its_attempt_alone_and_asks_nobody(place: Place) -> None:
    patient = "[settings]\ntask_patience = 120\n"
    place.write("pursuit.toml", f'[policy]\nmode = "ask"\n{patient}[servers.problem]\ncommand = "python3"\n')
    one = mine(place)
    (first, hint), (second, other) = (begun_by_client(place, one) for _ in range(2))
    assert hint != other
    program, *words = shlex.split(hint)
    assert program == "pursuit"

    async def main() -> None:
        run = StdioServerParameters(command=sys.executable, args=["-m", "pursuit", *words], cwd=place.folder)
        async with Client(stdio_client(run), cache=None) as agent:
            done = await agent.call_tool("mission_iterate", first)
            assert done.structured_content is not None and done.structured_content["status"] == "completed"
            refused = await agent.call_tool("mission_iterate", second)
            assert refused.structured_content is not None and refused.structured_content["code"] == "session_not_found"

    anyio.run(main)


def test_an_agent_takes_as_long_as_it_likes_until_its_first_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one = mine(place, budget={"wall_seconds": 60})
    given, _ = begun_by_client(place, one)
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    begun = found["attempts"][0]["attempt_id"]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)

    async def main() -> None:
        server = one.to_mcp_server(state=place.ledger, attempt_id=begun)
        async with Client(server, cache=None) as agent:
            assert not (await agent.call_tool("submit_final", given["proposal"]["tool_calls"][0]["args"])).is_error

    anyio.run(main)
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    (row,) = found["attempts"]
    assert row["solved"] and row["seconds_from_first_call"] < 60 and row["seconds"] > 3500


def test_whether_an_attempt_is_solved_is_told_by_the_exit_code_alone(place: Place) -> None:
    one = mine(place)
    anyio.run(submitted, place, one, "attempt-1")
    named = ("--problem", one.manifest.path)
    assert place.ask("problem", "replay", "attempt-1", "--solved", *named) == ("", "")
    mine(place, "def score(submission):\n    raise ValueError('secret-word')\n")
    words = "".join(place.ask("problem", "replay", "attempt-1", "--solved", *named, code=2))
    assert "secret-word" not in words and "shows the reason" in words
    assert "secret-word" in place.ask("problem", "replay", "attempt-1", *named, code=2)[1]


def test_what_nobody_lived_to_judge_is_judged_by_replay_and_written(place: Place) -> None:
    one = mine(place)
    anyio.run(submitted, place, one, "attempt-1")
    first, again = (place.json("problem", "replay", "attempt-1", "--dir", "mine") for _ in range(2))
    assert first["notes"] == ["the ledger does not contain its score"] and again["notes"] == []
    assert first["score"] == again["score"] and again["same"]


def test_another_version_of_the_judge_is_said(place: Place) -> None:
    one = mine(place)
    anyio.run(submitted, place, one, "attempt-1")
    place.json("problem", "replay", "attempt-1", "--dir", "mine")
    (found,) = place.json("problem", "compare", "exam", "--dir", "mine")["problems"]
    assert found["attempts"][0]["other_version"] is False
    mine(place, "# the same, said otherwise\n" + JUDGE.format(score=SCORE))
    again = place.json("problem", "replay", "attempt-1", "--dir", "mine")
    assert again["same"] and "another version" in again["notes"][0]
    (found,) = place.json("problem", "compare", "exam", "--dir", "mine")["problems"]
    assert found["attempts"][0]["other_version"] is True
    assert "\tother version\t" in place.ask("problem", "compare", "exam", "--dir", "mine")[0]


def shipped_copy(place: Place) -> Path:
    """A problem of one's own with the id of a shipped one, and a judge that finds nothing solved."""
    shutil.copytree(SHIPPED / "pangram", place.folder / "own")
    file = place.folder / "own" / "problem.toml"
    text = re.sub(r"(?m)^target = .*$", "target = 1", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.guarantee("the-problem-that-was-named-judges")
def test_the_problem_that_was_named_judges_and_not_its_namesake(place: Place) -> None:
    file = shipped_copy(place)
    words = ("problem", "attempt", file, "--max-iterations", 1, "--json")
    done = json.loads(place.ask(*words, code=3)[0])
    assert done["status"] == "scored" and not done["solved"] and done["mission_status"] == "terminated"
    assert not place.json("problem", "replay", done["attempt_id"], "--dir", "own")["solved"]
    for command in ("show", "serve", "attempt"):
        told = place.ask("problem", command, "pangram", "--dir", "own", code=2)[1]
        assert str(file) in told and str(SHIPPED / "pangram" / "problem.toml") in told and "name the file" in told


def test_an_attempt_of_another_problem_or_name_is_refused_at_once(place: Place) -> None:
    one = mine(place)
    anyio.run(submitted, place, one, "attempt-1")
    told = place.ask("problem", "serve", "pangram", "--attempt", "attempt-1", code=2)[1]
    assert "attempt-1 is an attempt at 'exam', not at 'pangram'" in told
    told = place.ask("problem", "serve", "pangram", "--attempt", "attempt-A.b", code=2)[1]
    assert "--attempt: 'attempt-A.b' is not an attempt id" in told and "such as attempt-mine-1" in told
    told = place.ask("problem", "replay", "attempt-1", "--problem", "pangram", code=2)[1]
    assert "not at 'pangram'" in told


def test_an_unknown_proposer_changes_nothing(place: Place) -> None:
    before = sorted(place.folder.rglob("*"))
    told = place.ask("problem", "attempt", "pangram", "--proposer", "scripd", code=2)[1]
    assert "did you mean 'script'" in told and "sampling" in told
    assert sorted(place.folder.rglob("*")) == before
    place.ask("problem", "attempt", "pangram", "--proposer", "bogus:model", code=2)
    told = place.ask("problem", "attempt", "welded-beam", "--proposer", "script", code=2)[1]
    assert "welded-beam has a baseline that is not a script" in told and "`pursuit problem serve welded-beam`" in told
    mine(place)
    told = place.ask("problem", "attempt", "mine", "--proposer", "script", code=2)[1]
    assert "exam does not have a baseline" in told and "[baseline.proposer]" in told
    assert list(place.folder.rglob("attempt-*")) == []


def test_a_mission_of_ones_own_has_a_problem_as_its_server(place: Place) -> None:
    pages = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")
    mission = next(part for part in re.findall(r"(?s)```toml\n(.*?)```", pages) if '"by hand"' in part)
    ours = 'command = "__python_executable__"\nargs = ["-m", "pursuit", "--state", "ledger.db", '
    place.write("own.toml", mission.replace('command = "pursuit"\nargs = [', ours))
    place.ask("run", "own.toml", "--mode", "auto", "--state", "ledger.db")
    (found,) = place.json("problem", "compare", "pangram", "--state", "ledger.db")["problems"]
    assert [(row["label"], row["status"]) for row in found["attempts"]] == [("by hand", "scored")]

"""Attacks of an agent at a problem that wants a fresh budget: it connects again, under another name, or starts over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from http_stage import client
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from problem_stage import ERAS, LEGACY, MODERN, SCHEMA, attempts, problem, text
from quick_start import quick
from test_problem_http import serving

from pursuit.cli.main import answer
from pursuit.server.tokens import Tokens

TWO = {"calls": 2}


async def probes(agent: Any, times: int) -> list[bool]:
    """Which of so many calls were made."""
    return [not (await agent.call_tool("probe", {"x": 1})).is_error for _ in range(times)]


@pytest.mark.guarantee("attempts-belong-to-callers")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("with_token", [True, False])
async def test_over_http_a_caller_that_connects_again_goes_on_with_its_attempt_and_budget(
    tmp_path: Path, era: str, with_token: bool
) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA, budget=TWO)
    tokens = Tokens.beside(tmp_path / "ledger.db") if with_token else None
    key = None if tokens is None else tokens.make("ann")
    queries = ("", "?client=eve", "?client=mallory") if with_token else ("?client=ann",) * 3
    made: list[bool] = []
    for number in range(2):  # the second time after a restart of the server
        async with serving(one, tmp_path, tokens) as url:
            for query in queries[number:]:
                async with client(url + query, era, key) as agent:
                    made += await probes(agent, 1)
    assert made == [True, True, False, False, False]
    (state,) = await attempts(tmp_path)
    assert (state.calls, state.opened.number) == (2, 1)


@pytest.mark.guarantee("attempts-belong-to-callers")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_be_told_from_others_works_at_no_attempt(tmp_path: Path, era: str) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA, budget=TWO)
    async with serving(one, tmp_path) as url, client(url, era) as agent:
        refused = await agent.call_tool("probe", {"x": 1})
        assert refused.is_error and "?client=NAME" in text(refused)
    assert await attempts(tmp_path) == []


@pytest.mark.guarantee("attempts-belong-to-callers")
async def test_two_connections_of_one_caller_at_once_share_one_budget(tmp_path: Path) -> None:
    one = problem(tmp_path, "probe", submission=SCHEMA, budget=TWO)
    tokens = Tokens.beside(tmp_path / "ledger.db")
    key = tokens.make("ann")
    async with (
        serving(one, tmp_path, tokens) as url,
        client(url, LEGACY, key) as first,
        client(url, LEGACY, key) as second,
        client(url, MODERN, key) as third,
    ):
        made = [await probes(agent, 1) for agent in (first, second, third)]
    assert made == [[True], [True], [False]]
    assert len(await attempts(tmp_path)) == 1


def over_stdio(folder: Path, *words: str) -> Client:
    """A client of `pursuit problem serve`."""
    state = ["--state", str(folder / "ledger.db"), "--trust"]
    args = [quick("-m", "pursuit"), "problem", "serve", str(folder / "problem.toml"), *state, *words]
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=args)), cache=None)


@pytest.mark.guarantee("attempts-belong-to-callers")
async def test_over_stdio_a_new_process_goes_on_with_the_attempt_of_the_user(tmp_path: Path) -> None:
    problem(tmp_path, "probe", submission=SCHEMA, budget=TWO)
    made: list[list[bool]] = []
    for words in ((), (), ("--label", "other")):
        async with over_stdio(tmp_path, *words) as agent:
            made.append(await probes(agent, 2 if not made else 1))
    assert made == [[True, True], [False], [True]]


@pytest.mark.guarantee("attempts-belong-to-callers")
@pytest.mark.parametrize("most", [1, 2, None])
def test_a_further_attempt_is_numbered_limited_and_marked_where_attempts_are_compared(
    tmp_path: Path, most: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = TWO if most is None else {**TWO, "attempts": most}
    one = problem(tmp_path, "probe", submission=SCHEMA, budget=budget)
    tokens = Tokens.beside(tmp_path / "ledger.db")
    key = tokens.make("ann")

    async def attempt(url: str) -> str:
        try:
            async with client(url, LEGACY, key) as agent:
                made = [*await probes(agent, 1), not (await agent.call_tool("submit_final", {"x": 3})).is_error]
                return "made" if all(made) else "refused"
        except* Exception as group:
            said = str(group.exceptions)
            assert f"you have made {most} attempt" in said, said
        return "refused"

    async def main() -> list[str]:
        async with serving(one, tmp_path, tokens) as url:
            return [await attempt(url) for _ in range(3)]

    made = anyio.run(main)
    taken = min(most or 3, 3)
    assert made == ["made"] * taken + ["refused"] * (3 - taken)
    words = ["problem", "compare", str(tmp_path / "problem.toml"), "--state", str(tmp_path / "ledger.db")]
    assert answer(words) == 0
    shown = capsys.readouterr().out
    assert [f"attempt {number} of the same caller" in shown for number in (2, 3)] == [taken > 1, taken > 2]

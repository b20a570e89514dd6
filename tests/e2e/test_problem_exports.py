"""What an agent can see of a problem: no scoring data, and the same when it was taken in and served again."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from problem_answers import ANSWERS, PUBLISHED
from problem_stage import EXAM, plain
from quick_start import quick

from pursuit import Problem
from pursuit.config.files import as_toml
from pursuit.problems.catalogue import SHIPPED, ProblemCatalogue
from pursuit.problems.manifest import Manifest

pytestmark = pytest.mark.usefixtures("quick_python")
IDS = [one.problem_id for one in ProblemCatalogue.load()]
EACH = [
    # Each problem in one era, and each era often; `make soak` looks at each problem in both.
    pytest.param(problem_id, era, marks=() if place % 2 == turn else pytest.mark.soak)
    for place, problem_id in enumerate(IDS)
    for turn, era in enumerate(("legacy", "auto"))
]
TRIES: dict[str, dict[str, Any]] = {
    "pangram": {"answer": "no"},
    "knapsack": {"items": [1]},
    "mastermind": {"code": "AAAA"},
}


async def surface(agent: Client) -> dict[str, Any]:
    brief = await agent.read_resource("problem://design-brief")
    return {
        "tools": [plain(one) for one in (await agent.list_tools()).tools],
        "resources": [plain(one) for one in (await agent.list_resources()).resources],
        "prompts": [plain(one) for one in (await agent.list_prompts()).prompts],
        "prompt": plain(await agent.get_prompt("design-brief"))["messages"],
        "brief": [plain(one) for one in brief.contents],
        "instructions": agent.instructions,
        "info": None if agent.server_info is None else plain(agent.server_info),
    }


async def answers(agent: Client, offered: dict[str, Any], problem_id: str) -> list[str]:
    """What every resource and every tool answers, to good and bad arguments."""
    words: list[str] = []
    for resource in offered["resources"]:
        words.append(json.dumps(plain(await agent.read_resource(resource["uri"])), ensure_ascii=False))
    schema = next(tool for tool in offered["tools"] if tool["name"] == "submit_final")["inputSchema"]
    middle = {
        key: round((one["minimum"] + one["maximum"]) / 2)
        for key, one in schema.get("properties", {}).items()
        if "minimum" in one
    }
    answer = TRIES.get(problem_id, middle)
    names = [tool["name"] for tool in offered["tools"] if tool["name"] != "submit_final"]
    calls = [(name, given) for name in names for given in ({"no": 1}, answer)]
    calls += [("submit_final", given) for given in ({}, {"answer": " "}, answer, answer)]
    for name, given in calls:
        words.append(json.dumps(plain(await agent.call_tool(name, given)), ensure_ascii=False))
    return words


async def looked_at(server: Any, era: str, problem_id: str | None = None) -> tuple[dict[str, Any], list[str]]:
    async with Client(server, mode=era, cache=None) as agent:
        offered = await surface(agent)
        return offered, [] if problem_id is None else await answers(agent, offered, problem_id)


def written(value: float) -> set[str]:
    """A number as people and programs write it: whole or rounded, grouped, with a power of ten."""
    forms = {repr(value), str(value), f"{value:g}", f"{value:.15g}"}
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        mantissa, power = f"{value:.10e}".split("e")
        short = mantissa.rstrip("0").rstrip(".")
        forms |= {f"{short}{sign}{int(power)}" for sign in ("e", "E", "x10^", " \u00d7 10^", "*10^", "*10**")}
    for digits in range(4, 9):
        forms |= {f"{value:.{digits}g}", f"{value:,.{max(0, digits - len(str(int(value))))}f}"}
    for form in list(forms):
        grouped = f"{int(value):,}" if value == int(value) else form
        forms |= {grouped, grouped.replace(",", "_"), grouped.replace(",", " "), form.replace(".", ",")}
    return {form for form in forms if len(re.sub(r"\D|^0+", "", form)) >= 4}


def lines_of(path: Path) -> set[str]:
    return {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}


def secret_words(problem: Manifest) -> set[str]:
    """Texts that stand in no sound answer: the judge's and the baseline's lines, names, numbers, solutions."""
    found = {"best_known", "[scorer", "score.py", "baseline", str(SHIPPED), str(problem.path), "direction"}
    given = {problem.folder / name for name in problem.assets}
    for path in problem.folder.rglob("*"):
        if path.suffix in (".py", ".script") and path not in given:
            found |= {line for line in lines_of(path) if len(line) >= 16}
    found -= {line for path in given for line in lines_of(path)}
    raw = tomllib.loads(problem.path.read_text(encoding="utf-8"))
    found |= {rule["expression"] for rule in raw["scorer"].get("predicates", ())}
    found |= {raw["baseline"]["proposer"].get("script", "best_known")}
    for value in (number for one in problem.scorer.metrics for number in (one.target, one.best_known)):
        if value is not None and len(f"{value:.15g}".partition("e")[0].replace(".", "").strip("0")) >= 4:
            found |= written(value)
    design, _ = PUBLISHED.get(problem.problem_id, ({}, 0))
    for value in design.values():
        if len(f"{value:.10g}".replace(".", "").strip("0")) > 4:  # 3.5 and 17 are also what the bounds are
            found |= {f"{value:.{digits}g}" for digits in (4, 5, 6)}
    if all(isinstance(value, int) for value in design.values()) and design:
        found.add(", ".join(map(str, design.values())))
    return found | ({ANSWERS[problem.problem_id]} if problem.problem_id in ANSWERS else set())


@pytest.mark.guarantee("agents-see-no-scoring-data")
@pytest.mark.guarantee("export-ingest-export-is-a-fixed-point")
@pytest.mark.parametrize(("problem_id", "era"), EACH)
def test_what_agents_see_holds_no_scoring_data_and_is_the_same_taken_in_again(
    tmp_path: Path, problem_id: str, era: str
) -> None:
    one, words = Problem.shipped(problem_id), [problem_id, "--state", str(tmp_path / "inner.db")]
    server = one.to_mcp_server(state=tmp_path / f"{era}.db")
    exported = anyio.run(looked_at, server, era, problem_id)
    again = taken_in(words, tmp_path, "auto" if era == "legacy" else "legacy", problem_id)  # they offer the same
    assert again[0] == exported[0]
    for offered, heard in (exported, again):
        assert_no_secret(one.manifest, [json.dumps(offered, ensure_ascii=False), *heard])


def assert_no_secret(problem: Manifest, words: list[str]) -> None:
    texts = [text.replace("\\n", "\n").replace('\\"', '"') for text in words]
    everything = "\n".join(texts)
    assert sorted(secret for secret in secret_words(problem) if secret in everything) == []


def test_the_search_for_secrets_finds_them(tmp_path: Path) -> None:
    beam, knapsack = (secret_words(Problem.shipped(name).manifest) for name in ("welded-beam", "knapsack"))
    for telling in (
        "1.724852",
        "1.7249",
        "1.725",
        "1,724852",
        "0.2057",
        "3.470",
        'return evaluate("welded-beam", submission)',
    ):
        assert any(secret in telling for secret in beam), telling
    for telling in ("1458", "1,458", "1 458", "1_458", "[1, 3, 5, 7, 8, 9, 14, 15]", "total = weight + weights[place]"):
        assert any(secret in telling for secret in knapsack), telling
    gears = secret_words(Problem.shipped("gear-train").manifest)
    for telling in ("2.7009e-12", "2.700857E-12", "2.7009 \u00d7 10^-12", "16, 19, 43, 49"):
        assert any(secret in telling for secret in gears), telling


def taken_in(
    words: list[str], folder: Path, era: str, problem_id: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """What a served problem offers once it was made a problem of its own, and what it answers."""
    again = Problem.from_stdio(sys.executable, ["-m", "pursuit", "problem", "serve", *words])
    return anyio.run(looked_at, again.to_mcp_server(state=folder / f"again-{era}.db"), era, problem_id)


def test_a_server_of_ones_own_is_a_problem_and_a_fixed_point(tmp_path: Path) -> None:
    era = "auto"
    one = Problem.from_stdio(sys.executable, [quick(str(EXAM)), "probe", "look"], problem_id="mine", title="Mine")
    table = {
        "problem_id": "mine",
        "title": "Mine",
        "summary": one.manifest.summary,
        "statement": one.manifest.statement,
        "kind": "mcp",
        "server": {"command": "__python_executable__", "args": [quick(str(EXAM)), "probe", "look"]},
        "scorer": {
            "kind": "predicates",
            "predicates": [{"metric": "submitted", "expression": "1"}],
            "metrics": [{"metric": "submitted"}],
        },
    }
    (tmp_path / "problem.toml").write_text(as_toml(table), encoding="utf-8")
    first = anyio.run(looked_at, one.to_mcp_server(state=tmp_path / "one.db"), era)[0]
    words = [str(tmp_path / "problem.toml"), "--state", str(tmp_path / "inner.db")]
    assert taken_in(words, tmp_path, era)[0] == first


async def test_a_submission_through_two_servers_is_taken_once_by_each(tmp_path: Path) -> None:
    words = ["-m", "pursuit", "problem", "serve", "pangram", "--state", str(tmp_path / "inner.db")]
    outer = Problem.from_stdio(sys.executable, words)
    async with Client(outer.to_mcp_server(state=tmp_path / "outer.db")) as agent:
        assert not (await agent.call_tool("submit_final", {"answer": "Waltz"})).is_error
        assert (await agent.call_tool("submit_final", {"answer": "Waltz"})).is_error


@pytest.mark.guarantee("what-the-judge-reads-is-no-asset")
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_files_of_the_judge_are_no_resource_and_in_no_answer(tmp_path: Path, era: str) -> None:
    hidden = {"score.py": "def score(submission): return 1  # hush\n", "key.csv": "hush\n", "base.script": "# hush\n"}
    for name, text in {**hidden, "items.csv": "a,2\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    judge = {"kind": "function", "function": "score.py:score", "files": ["k*.csv"], "metrics": [{"metric": "m"}]}
    table = {
        "problem_id": "mine",
        "title": "Mine",
        "summary": "Do it.",
        "statement": "Do it.",
        "kind": "text",
        "assets": ["items.csv"],
        "scorer": judge,
        "baseline": {"proposer": {"kind": "script", "file": "base.script"}},
    }
    (tmp_path / "problem.toml").write_text(as_toml(table), encoding="utf-8")
    server = Problem.from_manifest(tmp_path).to_mcp_server(state=tmp_path / "one.db")

    async def main() -> None:
        async with Client(server, mode=era, cache=None) as agent:
            offered = await surface(agent)
            assert [one["uri"] for one in offered["resources"]][1:] == ["problem://assets/items.csv"]
            words = [json.dumps(offered), *await answers(agent, offered, "pangram")]
            for name in (*hidden, "problem.toml"):
                refused = await agent.call_tool("design_brief", {"asset": name})
                assert refused.is_error
                words.append(json.dumps(plain(refused)))
                with pytest.raises(MCPError):
                    await agent.read_resource(f"problem://assets/{name}")
            assert not [text for text in words if "hush" in text or "key.csv" in text.replace("'key.csv' here", "")]

    await main()

"""The four kinds of judges, the one shape of what they say, attempts in the ledger, and judging again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pursuit.config.files import as_toml
from pursuit.core.attempts import AttemptScored, ScoreRow
from pursuit.core.mission import parse_mission
from pursuit.core.tools import CallFailed, ToolResult
from pursuit.demo.designs import DESIGNS, evaluate
from pursuit.errors import InvalidArgument, ValidationFailed
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.problems.attempts import Attempt, exhausted, load_attempt
from pursuit.problems.brief import write_brief
from pursuit.problems.catalogue import ProblemCatalogue
from pursuit.problems.comparison import attempt_row, problem_row, replay
from pursuit.problems.manifest import Limits, Manifest
from pursuit.problems.missions import Plan, mission_for, proposer_for
from pursuit.problems.scorer import Metric, Scorer, ScoringRule
from pursuit.problems.scoring import CannotScore, Judged, Submitted, judge, kept_result, score_of
from pursuit.sandbox.sandbox import Sandbox

COST = Metric(name="cost", unit="$", direction="minimize", target=2.0)


def problem(folder: Path, scorer: Scorer, **fields: Any) -> Manifest:
    return Manifest(
        path=folder / "problem.toml",
        problem_id="p",
        title="P",
        summary="p",
        kind="decision",
        statement="p",
        scorer=scorer,
        digest="d",
        **fields,
    )


async def judged(
    one: Manifest, submission: Mapping[str, Any], *, result: Mapping[str, Any] | None = None, call: Any = None
):
    async with Sandbox() as sandbox:
        submitted = Submitted(submission=submission, result=result)
        return await judge(one, submitted, expressions=sandbox, call=call)


async def test_a_function_is_told_the_submission_or_the_call(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "def plain(submission):\n    return submission['x']\n"
        "async def own(arguments, result):\n    return {'cost': arguments['x'] + result['y'], 'feasible': False}\n",
        encoding="utf-8",
    )
    plain = problem(tmp_path, Scorer(kind="function", function="s.py:plain", metrics=(COST,)))
    assert await judged(plain, {"x": 1}) == Judged(
        (ScoreRow(metric="cost", value=1.0, unit="$", direction="minimize"),), True
    )
    own = problem(tmp_path, Scorer(kind="function", function="s.py:own", metrics=(COST,)))
    score = await judged(own, {"x": 1}, result={"y": 0.5})
    assert (score.rows[0].value, score.rows[0].feasible, score.solved) == (1.5, False, False)


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_judge_that_leaves_takes_nobody_along(tmp_path: Path, kind: str) -> None:
    (tmp_path / "s.py").write_text(f"import sys\n{kind} leave(submission):\n    sys.exit(3)\n", encoding="utf-8")
    one = problem(tmp_path, Scorer(kind="function", function="s.py:leave", metrics=(COST,)))
    with pytest.raises(CannotScore, match="SystemExit: 3"):
        await judged(one, {"x": 1})


async def test_a_command_is_judged_by_its_json_or_its_exit_code(tmp_path: Path) -> None:
    code = "import json,sys; x=json.load(sys.stdin)['submission']['x']; print(json.dumps({'cost': x})); sys.exit(x > 9)"
    by_json = problem(tmp_path, Scorer(kind="command", command=(sys.executable, "-c", code), metrics=(COST,)))
    assert (await judged(by_json, {"x": 2})).solved and not (await judged(by_json, {"x": 3})).solved
    with pytest.raises(CannotScore, match="exited with 1"):
        await judged(by_json, {"x": 10})
    passed = Metric(name="passed", direction="maximize", target=1)
    by_code = problem(
        tmp_path,
        Scorer(kind="command", command=("__python_executable__", "-c", code), output="exit_code", metrics=(passed,)),
    )
    assert (await judged(by_code, {"x": 2})).solved and not (await judged(by_code, {"x": 10})).solved


async def test_a_judge_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    slow = ("sh", "-c", "sleep 60 & wait")
    one = problem(tmp_path, Scorer(kind="command", command=slow, metrics=(COST,), timeout=0.3))
    with pytest.raises(CannotScore, match=r"longer than 0\.3 s"):
        await judged(one, {})


async def test_predicates_give_numbers_and_truths(tmp_path: Path) -> None:
    rules = (
        ScoringRule(metric="cost", expression="submission['x'] * 2"),
        ScoringRule(metric="even", expression="submission['x'] == 1"),
    )
    one = problem(tmp_path, Scorer(kind="predicates", predicates=rules, metrics=(COST, Metric(name="even"))))
    assert [row.value for row in (await judged(one, {"x": 1})).rows] == [2.0, 1.0]
    with pytest.raises(CannotScore, match="KeyError"):
        await judged(one, {})


async def test_a_tool_of_the_server_is_a_judge(tmp_path: Path) -> None:
    one = problem(tmp_path, Scorer(kind="tool", tool="grade", arguments={"strict": True}, metrics=(COST,)))
    seen: list[Any] = []

    def answering(result: ToolResult) -> Any:
        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            seen.append((name, dict(arguments)))
            return result

        return call

    assert (await judged(one, {"x": 1}, call=answering(ToolResult(structured={"metrics": {"cost": 1}})))).solved
    assert (await judged(one, {"x": 1, "strict": False}, call=answering(ToolResult(structured={"cost": 1})))).solved
    assert seen == [("grade", {"strict": True, "x": 1})] * 2, "nothing handed in replaces what the manifest says"
    text = ToolResult(content=({"type": "text", "text": '{"cost": 1}'},))
    assert (await judged(one, {"x": 1}, call=answering(text))).solved
    for wrong in (ToolResult(is_error=True), ToolResult(content=({"type": "text", "text": "no"},))):
        with pytest.raises(CannotScore):
            await judged(one, {}, call=answering(wrong))

    async def broken(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        raise CallFailed("gone")

    with pytest.raises(CannotScore, match="gone"):
        await judged(one, {}, call=broken)


@pytest.mark.parametrize("said", ["text", None, {}, {"cost": "1"}, {"cost": float("nan")}, {"cost": 1, "feasible": 3}])
def test_what_is_no_score_is_refused(said: Any) -> None:
    with pytest.raises(CannotScore):
        score_of(Scorer(kind="function", metrics=(COST,)), said)


def test_constraints_make_a_submission_infeasible() -> None:
    scorer = Scorer(kind="function", metrics=(COST,), constraints=("g1", "g2"), tolerance=1e-6)
    assert score_of(scorer, {"cost": 1, "g1": 0, "g2": 1e-7}).solved
    worse = score_of(scorer, {"cost": 1, "g1": 0, "g2": 1e-5})
    assert not worse.solved and not worse.rows[0].feasible


def test_a_design_outside_of_its_ranges_is_refused() -> None:
    for wrong in ({}, {"wire": 9, "coil": 1, "turns": 3}, {"wire": True, "coil": 1, "turns": 3}):
        with pytest.raises(ValueError, match="wire must be a number"):
            evaluate("spring", wrong)
    with pytest.raises(ValueError, match=r"multiple of 0\.0625"):
        evaluate("pressure-vessel", {"shell": 0.8, "head": 0.5, "radius": 40, "length": 100})
    assert set(DESIGNS) >= {"gear-train", "welded-beam"}


RULE = (ScoringRule(metric="cost", expression="submission['x']"),)
PREDICATES = Scorer(kind="predicates", predicates=RULE, metrics=(COST,))


@pytest.mark.guarantee("an-attempt-replays-to-the-same-score")
async def test_an_attempt_is_judged_again_without_its_server(tmp_path: Path) -> None:
    by_tool = problem(tmp_path, Scorer(kind="tool", tool="grade", metrics=(COST,)))
    kinds = [(problem(tmp_path, PREDICATES), None), (by_tool, {"structuredContent": {"cost": 1.5}, "content": []})]

    async def main(one: Manifest, evidence: dict[str, Any] | None, value: float) -> tuple[bool | None, tuple[str, ...]]:
        ledger = SqliteLedger.open(tmp_path / f"{one.scorer.kind}{value}.db")
        attempt = Attempt(ledger, lambda: 1.0, one, "attempt-1")
        await attempt.submit({"x": 1.5})
        row = ScoreRow(metric="cost", value=value, unit="$", direction="minimize")
        await attempt.record(AttemptScored(rows=(row,), solved=True, evidence=evidence))
        state = await load_attempt(ledger, "attempt-1")
        await ledger.close()
        async with Sandbox() as sandbox:
            again = await replay(one, state, sandbox)
        return again.same, again.notes

    for one, evidence in kinds:
        assert await main(one, evidence, 1.5) == (True, ())
        assert (await main(one, evidence, 1.4))[0] is False
    with pytest.raises(InvalidArgument, match=r"attempt_id='attempt-1', …\)`\) calls it"):
        await main(by_tool, None, 1.3)


async def test_an_attempt_without_a_submission_cannot_be_judged(tmp_path: Path) -> None:
    one = problem(tmp_path, PREDICATES)
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    attempt = Attempt(ledger, lambda: 1.0, one, "attempt-1")
    state = await attempt.open()
    await ledger.close()
    async with Sandbox() as sandbox:
        with pytest.raises(InvalidArgument, match="lacks a submission"):
            await replay(one, state, sandbox)
    rows = [attempt_row(one, state)]
    assert rows[0]["value"] is None and rows[0]["status"] == "open"
    better = {**rows[0], "value": 1.0, "feasible": True}
    infeasible = {**rows[0], "value": 0.0, "feasible": False}
    assert problem_row(one, [rows[0], infeasible, better])["attempts"] == [better, infeasible, rows[0]]


def test_a_missions_file_holds_targets_only_where_no_agent_reads_them() -> None:
    beam = ProblemCatalogue.load().get("welded-beam")

    def written(word: str | None) -> str:
        proposer = proposer_for(beam, word)
        plan = Plan(attempt_id="attempt-1", proposer=proposer, serve=["-m", "x"], judge=["judge"])
        mission = mission_for(beam, plan)
        parse_mission({key: value for key, value in mission.items() if key != "servers"})
        return as_toml(mission)

    assert "1.76" in written(None) and "1.76" in written("search") and "problem-1.submit_final" in written(None)
    for agent in ("client", "anthropic:some-model"):
        assert not {number for number in ("1.76", "1.7248", "metric_threshold") if number in written(agent)}
    with pytest.raises(ValidationFailed, match="not a script"):
        written("script")


async def test_what_servers_say_is_kept_as_far_as_it_can_be(tmp_path: Path) -> None:
    """NaN and half a surrogate pair, which JSON of other languages lets through, spoil no attempt."""
    odd = {"a\ud800": [float("nan"), "b\udc00", 1]}
    assert kept_result(odd) == {"a?": [None, "b?", 1]}
    one = problem(tmp_path, PREDICATES)
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    attempt = Attempt(ledger, lambda: 1.0, one, "attempt-1", label="\udc80")
    number = await attempt.called("look\ud800", odd)
    await attempt.answered(number, ok=True, metrics={"cost\ud800": float("nan"), "m\ud800": 1.0})
    state = await load_attempt(ledger, "attempt-1")
    await ledger.close()
    assert state.series == [(1, {"m?": 1.0})] and state.opened.label == "?"


async def test_a_scoring_function_may_answer_with_numbers_of_other_libraries(tmp_path: Path) -> None:
    body = "from fractions import Fraction\ndef score(submission):\n    return {'metrics': {'cost': Fraction(1, 4)}}\n"
    (tmp_path / "score.py").write_text(body, encoding="utf-8")
    one = problem(tmp_path, Scorer(kind="function", function="score.py:score", metrics=(COST,)))
    assert (await judged(one, {"x": 1})).rows[0].value == 0.25


async def test_a_scoring_function_has_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "helper.py").write_text("K = 0.25\n", encoding="utf-8")
    (tmp_path / "judge" / "score.py").write_text(
        "from helper import K\ndef score(submission):\n    import helper\n    return K + helper.K\n", encoding="utf-8"
    )
    one = problem(tmp_path, Scorer(kind="function", function="judge/score.py:score", metrics=(COST,)))
    assert (await judged(one, {"x": 1})).rows[0].value == 0.5


@pytest.mark.parametrize(
    ("value", "words"),
    [(2_592_000.0, "2592000"), (3, "3"), (0.5, "0.5"), (1e-7, "0.0000001"), (1234567.5, "1234567.5")],
)
def test_a_limit_is_written_with_all_of_its_digits(tmp_path: Path, value: float, words: str) -> None:
    one = problem(tmp_path, PREDICATES, budget=Limits(wall_seconds=value))
    assert f"- seconds from the first call: {words}\n" in write_brief(one)
    assert f"wall_seconds ({words}) is spent" in exhausted("wall_seconds", value).message

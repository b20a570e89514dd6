"""What judges may answer with and how much, and numbers in submissions that nothing can measure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from problem_stage import problem

from pursuit import Problem
from pursuit.errors import ValidationFailed
from pursuit.problems.scoring import MAX_OUTPUT, CannotScore, Judged, Submitted, checked_submission, judge
from pursuit.sandbox.sandbox import Sandbox

COST = {"metric": "cost", "direction": "minimize"}


async def judged(one: Problem, submission: Mapping[str, Any]) -> Judged:
    async with Sandbox() as sandbox:
        return await judge(one.manifest, Submitted(submission=submission), expressions=sandbox)


async def test_a_judge_may_print_a_mebibyte_and_is_told_when_it_is_more(tmp_path: Path) -> None:
    body = (
        "import json, sys\nn = json.load(sys.stdin)['submission']['n']\nprint(json.dumps({'cost': 1, 'why': 'x' * n}))"
    )
    (tmp_path / "judge.py").write_text(body, encoding="utf-8")
    one = problem(
        tmp_path, scorer={"kind": "command", "command": ["__python_executable__", "judge.py"], "metrics": [COST]}
    )
    assert (await judged(one, {"n": MAX_OUTPUT - 100})).rows[0].value == 1
    with pytest.raises(CannotScore, match="printed more than the limit of 1048576 bytes"):
        await judged(one, {"n": MAX_OUTPUT})


def test_a_number_that_no_schema_can_measure_is_no_valid_submission(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number", "multipleOf": 0.5}}}
    one = problem(tmp_path, submission=schema)
    assert checked_submission(one.manifest, {"x": 1.5}) == {"x": 1.5}
    with pytest.raises(ValidationFailed) as refused:
        checked_submission(one.manifest, {"x": 10**400})
    assert "does not count" in refused.value.message and "too large" in refused.value.faults[0].reason

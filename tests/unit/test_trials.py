"""The results of a mission as tuners expect them: the best point, a table of trials, the importance of parameters."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_stage import mission, play, repeat, stage

import pursuit
from pursuit import Budget, Report, metric
from pursuit.cli.progress import iteration_line
from pursuit.engine.driver import RunOrder, assemble
from pursuit.errors import ExtraMissing
from pursuit.reports.report import Trial, as_csv, as_frame, as_parquet, table_of


def trials_of(report: Report) -> list[Trial]:
    return msgspec.convert(report.data["trials"], list[Trial])


def fit(x: float, noise: float = 0, api_token: str = "") -> dict[str, Any]:
    """Has its least loss at 0.3."""
    if x > 0.9:
        raise ValueError("too large, =1+1")
    return {"metrics": {"loss": (x - 0.3) ** 2 + noise * 1e-6}}


SEARCH = {
    "kind": "search",
    "tool_name": "fit",
    "args": {"api_token": "secret-of-mine"},
    "parameters": {"x": {"low": 0, "high": 1}, "noise": {"low": 0, "high": 1}},
}


def tuned(folder: Path, **more: Any) -> Report:
    async def scene() -> Report:
        async with stage(folder, fit) as runtime:
            wanted = {
                "criteria": [metric("loss") <= -1],
                "budget": Budget(max_iterations=24),
                "proposer": SEARCH,
                **more,
            }
            return await runtime.pursue(mission(**wanted))

    return play(scene)


@pytest.fixture(name="report", scope="module")
def _report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return tuned(tmp_path_factory.mktemp("tuned"))


@pytest.mark.parametrize("size", [1, 60_000], ids=["short", "longer than a driver keeps"])
async def test_the_stored_report_is_what_the_ledger_says(tmp_path: Path, size: int) -> None:
    def say(x: int) -> dict[str, Any]:
        if x == 3:
            raise ValueError("three")
        return {"metrics": {"x": x}, "text": "a" * min(size, 15_000), "more": ["b" * 14_000] * (size > 14_000)}

    async with stage(tmp_path, say) as runtime:
        found = {"kind": "search", "tool_name": "say", "parameters": {"x": {"low": 0, "high": 99, "kind": "int"}}}
        wanted = mission(criteria=[metric("x") < 0], budget=Budget(max_iterations=80), proposer=found)
        name = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.driver.drive(RunOrder(name, iterations=2))
        await runtime.runner.run(name)
        stored, built = (
            (await runtime.runner.report(name)).as_json(),
            await assemble(runtime.runner.ledger, name),
        )
    later = {"warnings", "ledger"}
    assert {key: value for key, value in stored.items() if key not in later} == {
        key: value for key, value in json.loads(json.dumps(built)).items() if key not in later
    }
    assert stored["iteration_count"] == len(stored["trials"]) == 80 and built["ledger"]["head_seq"] > 300


@pytest.mark.guarantee("each-trial-is-a-row")
def test_each_trial_is_a_row_with_its_arguments_and_metrics(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(trials_of(report)))))
    assert [int(row["trial"]) for row in rows] == list(range(24))
    done = [row for row in rows if row["outcome"] == "ok"]
    assert all(abs((float(row["x"]) - 0.3) ** 2 - float(row["loss"])) < 1e-5 for row in done)
    (best,) = [row for row in rows if row["best"] == "True"]
    assert float(best["loss"]) == min(float(row["loss"]) for row in done)
    assert report.best is not None
    assert (report.best.value, report.best.args and report.best.args["x"]) == (float(best["loss"]), float(best["x"]))
    assert {row["api_token"] for row in rows} == {"[redacted]"}
    assert all("too large" in row["error"] for row in rows if row["outcome"] == "failed")


async def test_plots_have_each_trial_of_a_batch_and_a_mean_is_called_a_mean(tmp_path: Path) -> None:
    told = (0.9 - place / 100 for place in range(100))
    lines: list[str] = []

    def score(x: int) -> dict[str, Any]:
        return {"metrics": {"score": next(told)}}

    async with stage(tmp_path, score) as runtime:
        choices = {"x": {"choices": [1, 2, 3]}}
        proposer = {"kind": "search", "tool_name": "score", "parameters": choices, "batch": 3, "noise": True}
        wanted = mission(criteria=[metric("score") >= 1], budget=Budget(max_iterations=3), proposer=proposer)
        name = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(name, observer=lambda _, _phase, state: lines.append(iteration_line(state)))
        report = await runtime.runner.report(name)
    made = [(row["iteration"], row["metrics"]["score"]) for row in report.data["trials"]]
    assert len(made) == 9 and [tuple(point) for point in report.data["metrics"]["score"]["points"]] == made
    assert ", mean of " in lines[-1] and "highest" not in "".join(lines)


def test_a_report_in_python_is_short_and_a_notebook_shows_it_whole(report: Report) -> None:
    assert report.best is not None
    assert repr(report).startswith(
        f"<Report {report.session_id}: terminated (max_iterations), 24 iterations, best loss = "
    )
    assert len(repr(report)) < 300
    shown = report._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html')
    assert set(pursuit.__all__) <= set(dir(pursuit))


async def test_calls_that_give_no_metrics_are_no_trials(tmp_path: Path) -> None:
    def quiet() -> str:
        """Says nothing."""
        return "done"

    async with stage(tmp_path, quiet) as runtime:
        report = await runtime.pursue(mission(proposer=repeat("world.quiet")))
    assert "trials" not in report.data and "importance" not in report.data
    assert "<h2>Trials</h2>" not in report.html()


def test_names_that_meet_are_told_apart_and_a_cell_is_never_a_formula() -> None:
    row = Trial(
        trial=0, iteration=0, tool="a.b", outcome="ok", best=False, seconds=1, started_at="",
        call_id="c", args={"loss": "=1+1", "tool": 1, "list": [1]}, metrics={"loss": 0.5, "best": 2},
    )  # fmt: skip
    columns, rows = table_of([row])
    assert columns[7:12] == ["arg.loss", "arg.tool", "list", "metric.loss", "metric.best"]
    assert rows[0][7:12] == ["=1+1", 1, [1], 0.5, 2]
    assert "'=1+1,1,[1],0.5,2" in as_csv([row])
    assert as_csv([]).startswith("trial,iteration,")


def test_what_is_not_installed_is_named(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'pursuit\[tables\]'"):
        as_parquet(trials_of(report))
    rows = list(csv.DictReader(io.StringIO(as_csv(trials_of(report)))))
    flat = report.trials()
    assert [list(row) for row in flat] == [list(row) for row in rows]
    assert [str(row["x"]) for row in flat] == [row["x"] for row in rows]
    assert [row["iteration"] for row in flat] == list(range(1, 25))


@pytest.mark.soak
def test_parquet_and_pandas_have_the_same_rows(report: Report, tmp_path: Path) -> None:
    import pandas
    import pyarrow.parquet

    (tmp_path / "t.parquet").write_bytes(as_parquet(trials_of(report)))
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    frame = as_frame(trials_of(report))
    assert isinstance(frame, pandas.DataFrame)
    assert [row["x"] for row in table] == list(frame["x"])
    assert len(table) == 24
    mixed = msgspec.structs.replace(trials_of(report)[0], args={"x": "text", "noise": 1, "l": [1]})
    both = pyarrow.parquet.read_table(io.BytesIO(as_parquet([mixed, *trials_of(report)]))).to_pylist()
    assert both[0]["x"] == "text" and json.loads(both[1]["x"]) == report.data["trials"][0]["args"]["x"]

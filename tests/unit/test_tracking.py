"""Trials are sent to MLflow and TensorBoard while a mission runs, and a tracker that fails changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, play

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import Configuration, load_configuration
from pursuit.errors import ExtraMissing, ValidationFailed
from pursuit.service.tracking import Tracking


def fit(x: float, token: str = "") -> dict[str, Any]:
    """Has its least loss at 0.3."""
    return {"metrics": {"loss": (x - 0.3) ** 2, "best:f1": 1}}


SEARCH = {
    "kind": "search",
    "tool_name": "fit",
    "args": {"token": "hidden"},
    "parameters": {"x": {"low": 0, "high": 1}},
    "batch": 2,
}


def tuned(folder: Path, **tracking: str) -> Any:
    async def scene() -> Any:
        configuration = Configuration(tracking=tracking)
        async with Runtime(state=folder / "ledger.db", config=configuration, servers={"world": [fit]}) as runtime:
            wanted = mission(criteria=[metric("loss") <= -1], budget=Budget(max_iterations=3), proposer=SEARCH)
            return await runtime.pursue(wanted)

    return play(scene)


def test_the_configuration_says_where_and_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pursuit.toml"
    path.write_text('[tracking]\nmlflow = "http://127.0.0.1:5000"\ntensorboard = "runs"\n', encoding="utf-8")
    tracking = load_configuration(path).tracking.places
    assert tracking == {"mlflow": "http://127.0.0.1:5000", "tensorboard": str(tmp_path / "runs")}
    path.write_text('[tracking]\nmlfow = "x"\n', encoding="utf-8")
    with pytest.raises(ValidationFailed, match="did you mean 'mlflow'"):
        load_configuration(path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'pursuit\[mlflow\]'"):
        tuned(tmp_path, mlflow="x")


async def test_a_tracker_that_fails_is_left_alone(tmp_path: Path) -> None:
    class Broken:
        asked = 0

        def send(self, *_: Any) -> None:
            self.asked += 1
            raise OSError("no space left")

        def close(self) -> None:
            raise AssertionError

    broken = Broken()
    tracking = Tracking({"broken": broken})
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), servers={"world": [fit]}) as runtime:
        wanted = mission(criteria=[metric("loss") <= -1], budget=Budget(max_iterations=3), proposer=SEARCH)
        mission_id = (await runtime.runner.start(wanted)).session_id
        state = await runtime.runner.run(mission_id, observer=tracking.see)
        assert (state.iteration_count, state.verdict_reason) == (3, "max_iterations")
    await tracking.aclose()
    assert broken.asked == 1


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_run_for_each_trial(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    report = tuned(tmp_path, mlflow=uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(report.session_id)
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in runs} == {f"{n}.{place}" for n in range(3) for place in range(2)}
    found = {(float(run.data.params["x"]), run.data.metrics["loss"]) for run in runs}
    assert found == {(row["args"]["x"], row["metrics"]["loss"]) for row in report.data["trials"]}
    assert {(run.data.params["token"], run.info.status) for run in runs} == {("[redacted]", "FINISHED")}


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_a_point_for_each_trial(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report = tuned(tmp_path, tensorboard=str(tmp_path / "runs"))
    events = EventAccumulator(str(tmp_path / "runs" / report.session_id)).Reload()
    read = {
        tag: [(one.step, one.tensor_proto.float_val[0]) for one in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    assert set(read) == {"loss", "best:f1", "parameters/x"}
    for tag, part in (("loss", "metrics"), ("parameters/x", "args")):
        name = tag.rpartition("/")[2]
        wanted = [(row["iteration"], pytest.approx(row[part][name], rel=1e-5)) for row in report.data["trials"]]
        assert read[tag] == wanted

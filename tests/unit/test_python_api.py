"""Pursuit as a library: the words of the front page, typed errors as they are, and the report's own helpers."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run
from typing import Any

import mcp_types
import pytest
from engine_stage import stage

import pursuit
from pursuit import (
    Budget,
    Mission,
    PursuitError,
    Runtime,
    ScriptProposer,
    ValidationFailed,
    check,
    errors,
    event,
    metric,
    predicate,
    succeeded,
)
from pursuit.config.configuration import Configuration
from pursuit.core.state import MissionState


class Beam:
    """A beam that gets lighter each time it is cut."""

    def __init__(self) -> None:
        self.mass = 4.0

    def cut(self, by: float) -> dict[str, Any]:
        """Takes mass away."""
        self.mass -= by
        return {"metrics": {"mass": self.mass, "welds": [1, 2]}}

    def certify(self) -> dict[str, Any]:
        """Certifies a beam that is light enough."""
        return {"events": [{"event_name": "certified"}] if self.mass <= 2.4 else []}


SCRIPT = """
world.cut(by=0.5)
if state.metrics.get("mass", 9) <= 3:
    world.certify()
"""


def _mission() -> Mission:
    return Mission(
        directive="Size the beam",
        criteria=[
            metric("mass") <= 2.4,
            event("certified"),
            predicate("obs['metrics']['mass'] > 0"),
            succeeded("cut", at_least=3),
            metric("welds.0") == 1,
            metric("mass").trend("decreasing").optional(),
            check([sys.executable, "-c", "print('stable')"], text="stable"),
        ],
        budget=Budget(max_iterations=50),
        allow_all_tools=True,
        proposer=ScriptProposer(script=SCRIPT),
    )


async def test_the_front_page_works_as_it_is_written(tmp_path: Path) -> None:
    beam = Beam()
    phases: list[str] = []

    def observe(_mission_id: str, phase: str, _state: MissionState) -> None:
        phases.append(phase)

    async with stage(tmp_path, beam.cut, beam.certify) as runtime:
        report = await runtime.pursue(_mission(), observer=observe)
        assert report.completed and report.status == "completed"
        assert report.verdict_reason == "criteria_met"
        assert report.metric("mass") == 2.0
        assert report.metric("welds.1") == 2
        assert report.metric("nothing") is None
        assert [row["status"] for row in report.data["criteria"]] == ["met"] * 7
        assert report.data["iteration_count"] == 4
        assert report.session_id.startswith("mission-")
        markdown, html = report.markdown(), report.html()
        for text in (markdown, html):
            assert "Size the beam" in text and report.session_id in text and "mass &lt;= 2.4" in html
        assert html.lstrip().lower().startswith("<!doctype html") and "<svg" in html
        assert "http://" not in html.replace("http://www.w3.org", "") and "<script src" not in html
        again = await runtime.report(report.session_id)
        assert again == report, "the final report is written once"
    assert phases[:3] == ["propose", "execute", "verify"] and phases[-1] == "ended"


async def test_a_typed_error_comes_out_of_the_runtime_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed) as caught:
        async with stage(tmp_path, Beam().cut) as runtime:
            await runtime.pursue(Mission(**{**_mission().model_dump(), "criteria": [succeeded("weld")]}))
    assert not isinstance(caught.value, ExceptionGroup)
    assert caught.value.as_dict()["code"] == "validation_error"
    with pytest.raises(LookupError):
        async with stage(tmp_path, Beam().cut):
            raise LookupError("the caller's own")


@pytest.mark.parametrize(
    "make",
    [
        lambda: metric("mass") <= "light",  # pyright: ignore[reportOperatorIssue]
        lambda: metric("") <= 1,
        lambda: event(""),
        lambda: predicate("1 +"),
        lambda: succeeded("cut", at_least=0),
        lambda: check(["true"], exitcode=0),
        lambda: Budget(),
        lambda: Mission(directive=" ", criteria=[], budget=Budget(max_iterations=1), allow_all_tools=True),
    ],
)
def test_a_wrong_word_is_refused_where_it_is_written_with_our_own_error(make: Any) -> None:
    with pytest.raises(ValidationFailed) as caught:
        make()
    assert isinstance(caught.value, PursuitError)
    assert caught.value.faults and all(fault.reason for fault in caught.value.faults)


async def test_an_unusable_server_is_refused_with_our_own_error(tmp_path: Path) -> None:
    for servers in ({"world": [lambda x, /: x]}, {"no name!": [Beam().cut]}, {"world": 3}):
        with pytest.raises(ValidationFailed):
            async with Runtime(state=tmp_path / "l.db", config=Configuration(), servers=servers) as runtime:
                await runtime.runner.start(_mission())


def test_every_name_of_the_package_is_there_and_a_bare_import_loads_nothing_heavy() -> None:
    assert all(getattr(pursuit, name) is not None for name in pursuit.__all__)
    with pytest.raises(AttributeError):
        pursuit.no_such_name  # noqa: B018 - reading it is the test
    heavy = ["pydantic", "mcp", "pydantic_monty", "jinja2"]
    source = f"import sys, pursuit; print([name for name in {heavy} if name in sys.modules])"
    done = run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_talks_to_no_server_does_not_load_the_sdk() -> None:
    heavy = ["mcp", "mcp_types", "pydantic_monty", "jinja2", "pursuit.demo", "optuna", "pydantic_ai"]
    source = f"import sys, pursuit.runtime; print([name for name in {heavy} if name in sys.modules])"
    done = run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for name in ("METHOD_NOT_FOUND", "INVALID_PARAMS", "INTERNAL_ERROR"):
        assert getattr(errors, name) == getattr(mcp_types, name)


def test_the_state_is_where_the_caller_the_environment_or_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pursuit.config.files import locate_state

    monkeypatch.delenv("PURSUIT_STATE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    config = tmp_path / "project" / "pursuit.toml"
    assert locate_state(None, config) == tmp_path / "project" / ".pursuit" / "ledger.db"
    if sys.platform != "darwin":
        assert locate_state(None, None) == tmp_path / "data" / "pursuit" / "ledger.db"
    monkeypatch.setenv("PURSUIT_STATE", str(tmp_path / "env.db"))
    assert locate_state(None, config) == tmp_path / "env.db"
    assert locate_state(tmp_path / "given.db", config) == tmp_path / "given.db"


def test_a_criterion_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match=r'write one criterion for each limit: \[metric\("cost"\) >= 0, metric'):
        0 <= metric("cost") <= 1  # noqa: B015 - comparing is the test
    for made in (lambda: event("a") and event("b"), lambda: not predicate("True"), lambda: bool(succeeded("a.b"))):
        with pytest.raises(TypeError, match="neither true nor false"):
            made()
    kept = [metric("cost") >= 0, metric("cost") <= 1]
    assert [(one.op, one.target) for one in kept] == [(">=", 0), ("<=", 1)]
    nested = (metric("metrics.metrics.x") < 1).named("below")
    assert (nested.metric, type(nested)(**nested.model_dump()).metric) == ("metrics.x", "metrics.x")

"""`pursuit serve` keeps the protocol, in the judgement of the official conformance suite."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import suite
from cli_stage import mission
from suite import Check, Judgement, known_scenarios, run_suite, start_mission

SCENARIOS = Path(__file__).with_name("scenarios.toml").read_text(encoding="utf-8")
LISTED: Mapping[str, Any] = tomllib.loads(SCENARIOS)
VERSIONS: Mapping[str, Any] = LISTED["versions"]
LISTS = ("pass", "pass_as", "left_out")
WIRE = "wire-schema-valid"
MISSION = mission(iterations=100)

# One worker runs them all, so that the suite runs once.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    folder = tmp_path_factory.mktemp("conformance")
    start_mission(folder, MISSION)
    return run_suite(folder, VERSIONS)


@pytest.fixture(scope="module")
def with_stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """`make soak` runs it: what it adds are scenarios about fixtures that are not ours."""
    folder = tmp_path_factory.mktemp("stand-ins")
    mission_id = start_mission(folder, MISSION)
    return run_suite(folder, VERSIONS, tomllib.loads(SCENARIOS.replace("MISSION", mission_id))["stand_ins"])


def listed(kind: str) -> list[Any]:
    pairs = [(version, scenario) for version, lists in VERSIONS.items() for scenario in lists[kind]]
    return [pytest.param(*pair, id=":".join(pair)) for pair in pairs]


def broken(checks: list[Check]) -> list[str]:
    return [str(check) for check in checks if not check.good]


def test_every_scenario_of_the_suite_is_listed() -> None:
    ours = {scenario for lists in VERSIONS.values() for kind in LISTS for scenario in lists[kind]}
    assert ours | set(LISTED["never_run"]) == known_scenarios()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_scenario_of_a_version_stands_in_one_list(version: str, judged: Judgement) -> None:
    assert sorted(scenario for kind in LISTS for scenario in VERSIONS[version][kind]) == sorted(judged.checks[version])


@pytest.mark.parametrize(("version", "scenario"), listed("pass"))
def test_passes(version: str, scenario: str, judged: Judgement) -> None:
    checks = judged.checks[version][scenario]
    excused = VERSIONS[version]["checks_left_out"].get(scenario, {})
    assert broken([check for check in checks if check.name not in excused]) == []
    assert any(check.status == "SUCCESS" for check in checks), "nothing was looked at"
    assert excused.keys() == {check.name for check in checks if not check.good}, "an excuse is no longer needed"


@pytest.mark.soak
@pytest.mark.parametrize(("version", "scenario"), listed("pass_as"))
def test_passes_with_ours_in_place_of_a_fixture(version: str, scenario: str, with_stand_ins: Judgement) -> None:
    checks = with_stand_ins.checks[version][scenario]
    assert broken(checks) == []
    assert any(check.name == scenario for check in checks), "nothing was looked at"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_fits_the_schema_whatever_is_asked(version: str, judged: Judgement) -> None:
    assert_all_fit(judged, version)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_fits_the_schema_with_stand_ins(version: str, with_stand_ins: Judgement) -> None:
    assert_all_fit(with_stand_ins, version)


def assert_all_fit(judged: Judgement, version: str) -> None:
    wire = {
        scenario: [check for check in checks if check.name == WIRE]
        for scenario, checks in judged.checks[version].items()
    }
    assert any(wire.values())
    assert {scenario: broken(checks) for scenario, checks in wire.items() if broken(checks)} == {}


def test_the_server_has_nothing_to_complain_of_itself(judged: Judgement) -> None:
    assert [line for line in "".join(judged.notes).splitlines() if json.loads(line)["level"] == "error"] == []


def test_a_missing_suite_fails_and_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "INSTALLED", tmp_path)
    with pytest.raises(suite.NotInstalled, match="make test"):
        suite.command()

"""The gateway keeps what a server behind it keeps, in the judgement of the official conformance suite."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from gateway_runs import DIRECT, TASKLESS, THROUGH, VERSIONS, Runs, run_http, run_stdio

SCENARIOS = {"2026-07-28": 50, "2025-11-25": 33}
# The suite does not look at anything there: it says that it is to be written again.
NOT_LOOKED_AT = {"tasks-status-notifications": {"tasks-status-notifications"}}
# A recommendation about the stream to the client, which is the gateway's own: it keeps no messages on it.
NOT_KEPT = {"server-sse-polling": {"server-sse-priming-event", "server-sse-retry-field"}}
EXPECTED: Mapping[str, Mapping[str, set[str]]] = {"2026-07-28": NOT_LOOKED_AT, "2025-11-25": NOT_KEPT}
"""What does not pass through the gateway, for each version: the checks of a scenario."""

# One worker runs them all, so that the suite runs once.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stdio(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What CI looks at; `make soak` has the other runs."""
    return run_stdio(tmp_path_factory.mktemp("gateway"), VERSIONS[:1])


@pytest.fixture(scope="module")
def runs(stdio: Runs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("gateway")
    return stdio | run_stdio(folder, VERSIONS[1:]) | run_http(folder)


def faults(ran: Runs, how: str, version: str) -> dict[str, set[str]]:
    """The checks that do not pass, of each scenario that has some."""
    found = {name: {one.name for one in checks if not one.good} for name, checks in ran.checks[how, version].items()}
    return {name: checks for name, checks in found.items() if checks}


def assert_passes(ran: Runs, how: str, version: str) -> None:
    assert faults(ran, how, version) == EXPECTED[version]
    assert len(ran.checks[how, version]) == SCENARIOS[version]


def test_every_scenario_passes_through_the_gateway_over_stdio(stdio: Runs) -> None:
    assert_passes(stdio, "over_stdio", VERSIONS[0])


@pytest.mark.soak
@pytest.mark.parametrize("how", THROUGH)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_passes_without_the_gateway_passes_through_it(version: str, how: str, runs: Runs) -> None:
    assert_passes(runs, how, version)
    alone = faults(runs, DIRECT, version)
    assert alone == (NOT_LOOKED_AT if version == VERSIONS[0] else {})
    for scenario, checks in runs.checks[DIRECT, version].items():
        looked_at = {one.name for one in runs.checks[how, version][scenario]}
        assert {one.name for one in checks if one.status == "SUCCESS"} <= looked_at, scenario


@pytest.mark.guarantee("tasks-without-the-server")
def test_every_scenario_about_tasks_passes_in_front_of_a_server_that_knows_none(stdio: Runs) -> None:
    assert len(stdio.checks[TASKLESS, VERSIONS[0]]) == 10
    assert faults(stdio, TASKLESS, VERSIONS[0]) == NOT_LOOKED_AT


def test_the_gateways_have_nothing_to_complain_of(stdio: Runs) -> None:
    assert_no_complaint(stdio)


@pytest.mark.soak
def test_the_gateway_over_http_has_nothing_to_complain_of(runs: Runs) -> None:
    assert_no_complaint(runs)


def assert_no_complaint(runs: Runs) -> None:
    lines = [json.loads(line) for line in "".join(runs.notes).splitlines()]
    assert any(line["event"] == "listening" for line in lines)
    assert [line for line in lines if line["level"] == "error"] == []

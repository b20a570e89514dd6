"""The gateway keeps what a server behind it keeps, in the judgement of the official conformance suite."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
from gateway_runs import DIRECT, RESULTS, TASKLESS, THROUGH, VERSIONS, Runs, in_a_word, run_http, run_stdio
from suite import Check

# The suite does not look at anything there: it says that it is to be written again.
NOT_LOOKED_AT = {"tasks-status-notifications": "skipped: tasks-status-notifications"}

_OWN_STREAM = "a recommendation about the stream to the client, which is the gateway's own: it keeps no messages on it"
ALLOWED: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("2025-11-25", "server-sse-polling"): {
        "server-sse-priming-event": _OWN_STREAM,
        "server-sse-retry-field": _OWN_STREAM,
    },
}

# One worker runs them all, so that the suite runs once.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stdio(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What CI looks at: what the other runs say is in the file, and `make soak` compares them all."""
    return run_stdio(tmp_path_factory.mktemp("gateway"), VERSIONS[:1])


@pytest.fixture(scope="module")
def runs(stdio: Runs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("gateway")
    return stdio | run_stdio(folder, VERSIONS[1:]) | run_http(folder)


def test_the_suite_says_of_the_gateway_over_stdio_what_the_file_says(stdio: Runs) -> None:
    assert_as_kept(VERSIONS[0], stdio)


@pytest.mark.soak
def test_the_suite_says_so_at_the_version_before(runs: Runs) -> None:
    assert_as_kept(VERSIONS[1], runs)


def assert_as_kept(version: str, ran: Runs) -> None:
    kept: Mapping[str, Any] = tomllib.loads(RESULTS.read_text(encoding="utf-8"))["versions"][version]
    said = {scenario: in_a_word(checks) for scenario, checks in ran.checks["over_stdio", version].items()}
    assert said == {scenario: words["over_stdio"] for scenario, words in kept.items()}


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_the_fixture_itself_passes_every_scenario(version: str, runs: Runs) -> None:
    said = {scenario: in_a_word(checks) for scenario, checks in runs.checks[DIRECT, version].items()}
    assert len(said) > 30
    assert {scenario: word for scenario, word in said.items() if word != "passes"} == {
        scenario: word for scenario, word in NOT_LOOKED_AT.items() if scenario in said
    }


@pytest.mark.soak
@pytest.mark.parametrize("how", THROUGH)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_passes_without_the_gateway_passes_through_it(version: str, how: str, runs: Runs) -> None:
    lost = runs.lost(how, version)
    allowed = {scenario: checks.keys() for (of, scenario), checks in ALLOWED.items() if of == version}
    unexpected = {
        scenario: {name: said for name, said in checks.items() if name not in allowed.get(scenario, ())}
        for scenario, checks in lost.items()
    }
    assert {scenario: checks for scenario, checks in unexpected.items() if checks} == {}
    assert {scenario: lost.get(scenario, {}).keys() for scenario in allowed} == allowed, "no longer needed"


@pytest.mark.guarantee("tasks-without-the-server")
def test_every_scenario_about_tasks_passes_in_front_of_a_server_that_knows_none(stdio: Runs) -> None:
    said = {name: in_a_word(checks) for name, checks in stdio.checks[TASKLESS, VERSIONS[0]].items()}
    assert len(said) == 10
    assert {name: word for name, word in said.items() if word != "passes"} == NOT_LOOKED_AT


@pytest.mark.soak
def test_the_file_says_what_the_suite_says(runs: Runs) -> None:
    kept, now = RESULTS.read_text(encoding="utf-8").splitlines(), runs.written().splitlines()
    stale, fresh = [line for line in kept if line not in now], [line for line in now if line not in kept]
    hint = f"if the suite is right, run tests/conformance/write_gateway_results.py; the file says {stale}"
    assert fresh == [], hint
    assert kept == now, hint
    assert tomllib.loads("\n".join(kept))["versions"].keys() == set(VERSIONS)


def test_the_gateways_have_nothing_to_complain_of(stdio: Runs) -> None:
    assert_no_complaint(stdio)


@pytest.mark.soak
def test_the_gateway_over_http_has_nothing_to_complain_of(runs: Runs) -> None:
    assert_no_complaint(runs)


def assert_no_complaint(runs: Runs) -> None:
    lines = [json.loads(line) for line in "".join(runs.notes).splitlines()]
    assert any(line["event"] == "listening" for line in lines)
    assert [line for line in lines if line["level"] == "error"] == []


def check(status: str, name: str = "a") -> Check:
    return Check(name=name, status=status, message="")


@pytest.mark.parametrize(
    ("direct", "through", "lost"),
    [
        pytest.param(["SUCCESS"], ["SUCCESS"], False, id="passes in both"),
        pytest.param(["SUCCESS"], ["INFO"], False, id="only told"),
        pytest.param(["SUCCESS"], ["SUCCESS", "FAILURE"], True, id="one of two looks fails"),
        pytest.param(["SUCCESS"], ["WARNING"], True, id="a recommendation is no longer kept"),
        pytest.param(["SUCCESS"], ["SKIPPED"], True, id="could not be looked at"),
        pytest.param(["SUCCESS"], [], True, id="was not looked at"),
        pytest.param(["FAILURE", "SUCCESS"], ["FAILURE"], False, id="fails in both"),
    ],
)
def test_a_check_is_lost_when_it_passes_only_directly(direct: list[str], through: list[str], lost: bool) -> None:
    said = {DIRECT: direct, "over_http": through}
    runs = Runs(checks={(how, "v"): {"s": [check(one) for one in statuses]} for how, statuses in said.items()})
    assert (runs.lost("over_http", "v") != {}) is lost

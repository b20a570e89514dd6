"""Wrong inputs are refused as a whole with every fault; good ones mean the same in all three shapes."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pursuit import ReplayProposer, ScriptProposer
from pursuit.config.mission_file import load_mission_file
from pursuit.core.criteria import check, event, metric, predicate, succeeded
from pursuit.core.mission import (
    Budget,
    EveryIteration,
    Mission,
    Pace,
    Proposal,
    ToolCall,
    parse_mission,
    parse_proposal,
)
from pursuit.core.patterns import checked_script
from pursuit.errors import Fault, ValidationFailed
from simulation import DONE, mission_data, threshold

GONE = object()
TREND = {"criterion_id": "t", "kind": "metric_trend", "metric": "m", "direction": "increasing"}
PREDICATE = {"criterion_id": "p", "kind": "predicate", "expression": "True"}
CALLED = {"criterion_id": "s", "kind": "tool_call_succeeded", "tool_name": "lab.run"}
CHECK = {"criterion_id": "k", "kind": "check", "tool_name": "lab.test"}
COMMAND = {"criterion_id": "k", "kind": "check", "command": ["true"]}


def one(criterion: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A mission with this one criterion, changed; `GONE` takes a key away."""
    changed = {key: value for key, value in {**criterion, **changes}.items() if value is not GONE}
    return {"criteria": [changed]}


def faults(data: dict[str, Any]) -> list[Fault]:
    with pytest.raises(ValidationFailed) as caught:
        parse_mission(data)
    assert caught.value.code == "validation_error"
    assert caught.value.exit_code == 2
    assert caught.value.details["faults"] == [fault.as_dict() for fault in caught.value.faults]
    return list(caught.value.faults)


# What is changed in a good mission, where the fault lies, and a word of the reason.
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"directive": GONE}, "directive", "missing"),
    ({"directive": ""}, "directive", "at least 1"),
    ({"directive": "x" * 8_193}, "directive", "8192"),
    ({"directive": 3}, "directive", "must be a string"),
    ({"directive": "a\ud800"}, "directive", "unicode"),
    ({"directve": "x"}, "directve", "did you mean 'directive'"),
    ({"zzz": 1}, "zzz", "not a known key"),
    ({"criteria": GONE}, "criteria", "missing"),
    ({"criteria": []}, "criteria", "at least one criterion, such as { criterion_id = "),
    ({"criteria": {}}, "criteria", "list"),
    ({"criteria": [3]}, "criteria[0]", "dictionary"),
    ({"criteria": [{**DONE, "criterion_id": f"c{i}"} for i in range(65)]}, "criteria", "at most 64"),
    ({"criteria": [DONE, {**DONE, "event_name": "other"}]}, "criteria", "given twice: done"),
    ({"criteria": [DONE, {**DONE, "criterion_id": " done "}]}, "criteria", "given twice: done"),
    (one(DONE, kind=GONE), "criteria[0]", "kind"),
    (one(DONE, kind="evnt"), "criteria[0]", "did you mean 'event'"),
    (one(DONE, kind=7), "criteria[0]", "kind"),
    (one(DONE, criterion_id=GONE), "criteria[0].criterion_id", "missing"),
    (one(DONE, criterion_id=" "), "criteria[0].criterion_id", "at least 1"),
    (one(DONE, required="yes"), "criteria[0].required", "must be true or false"),
    (one(DONE, requird=True), "criteria[0].requird", "did you mean 'required'"),
    (one(DONE, event_name=GONE), "criteria[0].event_name", "missing"),
    (one(DONE, event_name="a\x00"), "criteria[0].event_name", "null byte"),
    (one(DONE, scope="all"), "criteria[0].scope", "'mission' or 'iteration'"),
    (one(threshold(), op="=<"), "criteria[0].op", "'<='"),
    (one(threshold(), target="2.4"), "criteria[0].target", "number"),
    (one(threshold(), target=math.nan), "criteria[0].target", "finite"),
    (one(threshold(), metric="metrics."), "criteria[0].metric", "does not name a metric"),
    (one(threshold(), trget=1), "criteria[0].trget", "did you mean 'target'"),
    (one(threshold(), confirm_by="median"), "criteria[0].confirm_by", "needs confirm"),
    (one(threshold(op="=="), confirm=2, confirm_by="worst"), "criteria[0].confirm_by", "do not have a worst value"),
    (one(TREND, direction="up"), "criteria[0].direction", "increasing"),
    (one(TREND, window=1_001), "criteria[0].window", "1000"),
    (one(TREND, min_points=6, window=5), "criteria[0]", "cannot exceed window"),
    (one(CALLED, min_count=0), "criteria[0].min_count", "1"),
    (one(PREDICATE, expression=""), "criteria[0].expression", "empty"),
    (one(PREDICATE, expression="x =="), "criteria[0].expression", "valid Python"),
    (one(PREDICATE, expression="x = 1"), "criteria[0].expression", "valid Python"),
    (one(PREDICATE, expression="a\x00b"), "criteria[0].expression", "null bytes"),
    (one(PREDICATE, expression="1" * 4_097), "criteria[0].expression", "4096"),
    (one(PREDICATE, expression="(" * 101 + "1" + ")" * 101), "criteria[0].expression", "100 brackets"),
    # From Python 3.13 on the parser goes deeper than an expression may be long.
    *(
        [(one(PREDICATE, expression="-" * 4_000 + "1"), "criteria[0].expression", "too deeply")]
        if sys.version_info < (3, 13)
        else []
    ),
    (one(CHECK, tool_name=GONE), "criteria[0]", "exactly one of tool_name, command and check"),
    (one(CHECK, command=["true"]), "criteria[0]", "exactly one"),
    (one(CHECK, cwd="/"), "criteria[0]", "cwd requires command"),
    (one(CHECK, expect={"exit_code": 0}), "criteria[0]", "exit_code requires a command"),
    (one(CHECK, expect={"text": "("}), "criteria[0].expect.text", "regular expression"),
    (one(CHECK, expect={"predicate": "("}), "criteria[0].expect.predicate", "valid Python"),
    (one(CHECK, expect={"count": {"pattern": "a", "target": -1}}), "criteria[0].expect.count.target", "0"),
    (one(CHECK, timeout=0), "criteria[0].timeout", "greater than 0"),
    (one(CHECK, args={"when": date(2026, 1, 2)}), "criteria[0].args", "JSON"),
    (one(COMMAND, command=[]), "criteria[0].command", "at least 1"),
    (one(COMMAND, args={"a": 1}), "criteria[0]", "args requires tool_name"),
    ({"budget": GONE}, "budget", "missing"),
    ({"budget": {}}, "budget", "unbounded = true"),
    ({"budget": 5}, "budget", "dictionary"),
    ({"budget": {"max_iterations": -1, "max_tool_calls": 5}}, "budget", "unbounded = true"),
    ({"budget": {"max_iterations": 0}}, "budget.max_iterations", "positive number, or -1"),
    ({"budget": {"max_iterations": 1.5}}, "budget.max_iterations", "fractional"),
    ({"budget": {"max_iterations": 10**30}}, "budget.max_iterations", "less than"),
    ({"budget": {"max_wall_clock_seconds": math.inf}}, "budget.max_wall_clock_seconds", "finite"),
    ({"budget": {"max_iterations": 1, "on_exhausted": "go"}}, "budget.on_exhausted", "'stop' or 'wait'"),
    ({"budget": {"max_iteration": 1, "unbounded": True}}, "budget.max_iteration", "did you mean 'max_iterations'"),
    ({"allow_all_tools": GONE}, "tool_allowlist", "exactly one"),
    ({"tool_allowlist": ["lab.run"]}, "tool_allowlist", "exactly one"),
    ({"tool_allowlist": [], "allow_all_tools": GONE}, "tool_allowlist", "at least 1"),
    ({"tool_allowlist": "lab.*", "allow_all_tools": GONE}, "tool_allowlist", "list"),
    ({"checkpoint_cadence": "every_iteration"}, "checkpoint_cadence", "dictionary"),
    ({"checkpoint_cadence": {"kind": "every_n"}}, "checkpoint_cadence", "did you mean 'every_n_iterations'"),
    ({"checkpoint_cadence": {"kind": "every_n_iterations"}}, "checkpoint_cadence.n", "missing"),
    ({"checkpoint_cadence": {"kind": "every_t_seconds", "t": 0}}, "checkpoint_cadence.t", "greater than 0"),
    *(({"stagnation_threshold": x}, "stagnation_threshold", "1 to 1000") for x in (0, 1_001, True, "of")),
    ({"pace": 0}, "pace.seconds", "greater than 0"),
    ({"pace": True}, "pace", "dictionary"),
    ({"pace": {"seconds": 1, "backoff": 0.5}}, "pace.backoff", "1"),
    ({"observe": [{"tool": "a", "metric": "m"}]}, "observe[0]", "exactly one of jmespath and regex"),
    ({"observe": [{"tool": "a", "metric": "m", "regex": "("}]}, "observe[0].regex", "regular expression"),
    ({"observe": [{"tool": "a", "metric": "m", "jmespath": "a["}]}, "observe[0].jmespath", "does not parse"),
    ({"proposer": "clint"}, "proposer", "did you mean 'client'"),
    ({"proposer": {}}, "proposer", "kind"),
    ({"proposer": {"kind": "repeat"}}, "proposer.tool_name", "missing"),
    ({"proposer": {"kind": "repeat", "tool_name": "a", "args": {"x": [math.nan]}}}, "proposer.args", "JSON"),
    ({"proposer": {"kind": "client", "tool_name": "a"}}, "proposer.tool_name", "not a known key"),
    ({"proposer": {"kind": "script", "script": "x = ("}}, "proposer.script", "line 1, column 5"),
    ({"proposer": {"kind": "script", "script": "pass\n" * 60_000}}, "proposer.script", "at most 262144"),
    ({"proposer": {"kind": "replay", "proposals": [{}]}}, "proposer.proposals[0]", "exactly one of tool_calls"),
    (
        {"proposer": {"kind": "replay", "proposals": [{"tool_calls": [{"args": {}}]}]}},
        "proposer.proposals[0].tool_calls[0].tool_name",
        "missing",
    ),
]


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mission_data(**changes).items() if value is not GONE}


@pytest.mark.parametrize(("changes", "field", "word"), WRONG, ids=[f"{w[1]}-{i}" for i, w in enumerate(WRONG)])
def test_a_wrong_input_is_refused_with_its_place_and_reason(changes: dict[str, Any], field: str, word: str) -> None:
    data = changed(changes)
    before = copy.deepcopy(data)
    found = faults(data)
    assert [fault.field for fault in found] == [field]
    assert word.lower() in found[0].reason.lower()
    assert data == before


@pytest.mark.guarantee("all-faults-at-once")
def test_every_fault_is_told_and_none_hides_another() -> None:
    criteria = [changes["criteria"][0] for changes, field, _word in WRONG if field.startswith("criteria[0]")]
    data = {
        "directive": " ",
        "criteria": [*criteria[:63], DONE],
        "budget": {"max_tool_calls": 0, "max_cost_usd": "1"},
        "allow_all_tools": False,
        "stagnation_threshold": 0,
        "checkpoint_cadence": {"kind": "every_n_iterations", "n": 0},
        "pace": {"seconds": -1, "backof": 2},
        "observe": [{"tol": "a", "metric": "m"}],
        "proposer": {"kind": "replay", "proposals": [{"tool_calls": [{"tol_name": "x"}], "script": "1 +"}]},
        "polcy": {},
    }
    found = faults(data)
    fields = [fault.field for fault in found]
    for place, (_changes, field, word) in enumerate([w for w in WRONG if w[1].startswith("criteria[0]")][:63]):
        here = field.replace("[0]", f"[{place}]", 1)
        assert any(fault.field == here and word.lower() in fault.reason.lower() for fault in found), here
    expected = {
        "directive",
        "criteria",  # ids given twice
        "budget.max_tool_calls",
        "budget.max_cost_usd",
        "budget",  # no cap at all
        "tool_allowlist",
        "stagnation_threshold",
        "checkpoint_cadence.n",
        "pace.seconds",
        "pace.backof",
        "observe[0].tool",
        "observe[0].tol",
        "observe[0]",
        "proposer.proposals[0]",
        "proposer.proposals[0].script",
        "proposer.proposals[0].tool_calls[0].tool_name",
        "proposer.proposals[0].tool_calls[0].tol_name",
        "polcy",
    }
    assert expected <= set(fields)
    assert len(set(map(str, found))) == len(found), "nothing is said twice"


@pytest.mark.guarantee("all-faults-at-once")
def test_faults_of_a_file_name_the_file_and_its_servers(tmp_path: Path) -> None:
    path = tmp_path / "mission.toml"
    path.write_text(
        'directive = ""\nservers = 3\n[budget]\nmax_iterations = 0\n[proposer]\nkind="script"\nfile="no.py"\n'
    )
    with pytest.raises(ValidationFailed) as caught:
        load_mission_file(path)
    fields = {fault.field for fault in caught.value.faults}
    assert fields == {"directive", "servers", "budget.max_iterations", "criteria", "tool_allowlist", "proposer.file"}
    assert {fault.source for fault in caught.value.faults} == {str(path)}


def test_a_broken_file_is_one_fault_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mission.toml"
    path.write_text('directive = "x"\nbudget = {\n')
    with pytest.raises(ValidationFailed) as caught:
        load_mission_file(path)
    (fault,) = caught.value.faults
    assert fault.line in (2, 3)
    assert "TOML" in fault.reason
    for make in (lambda: path.write_bytes(b"\xff"), path.unlink):
        make()
        with pytest.raises(ValidationFailed):
            load_mission_file(path)


def test_wrong_code_has_line_and_column() -> None:
    (fault,) = faults(changed({"proposer": {"kind": "script", "script": "x = 1\ny = = 2\n"}}))
    assert (fault.line, fault.column) == (2, 5)


def test_limits_are_inclusive() -> None:
    parse_mission(
        mission_data(
            directive="  " + "x" * 8_192 + "\n",
            criteria=[
                *({**DONE, "criterion_id": f"c{i}"} for i in range(60)),
                {**PREDICATE, "expression": "1" * 4_096},
                {**PREDICATE, "criterion_id": "q", "expression": "(" * 100 + "1" + ")" * 100},
                {**TREND, "window": 1_000, "min_points": 1_000},
                {**TREND, "criterion_id": "u", "window": 2},
            ],
            stagnation_threshold=1_000,
        )
    )
    for value in (1, "off", None):
        parse_mission(mission_data(stagnation_threshold=value))


@pytest.mark.parametrize("source", ["x = '\\d'", "1 is 1", "assert (1, 'x')"])
def test_looking_at_code_never_warns(source: str) -> None:
    assert checked_script(source) == source


DEEP = {
    "unary": "'-' * 250_000 + '1'",
    "sums": "'1' + '+1' * 100_000",
    "lambdas": "'lambda:' * 30_000 + '1'",
    "brackets": "'(' * 200_000",
}


def test_deep_code_is_refused_and_the_process_lives() -> None:
    program = (
        "from pursuit.core.patterns import SyntaxProblem, checked_script\n"
        f"for source in ({', '.join(DEEP.values())}):\n"
        "    try:\n        checked_script(source)\n        print('accepted')\n"
        "    except SyntaxProblem:\n        print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * len(DEEP)), done.stderr


def test_deep_arguments_are_refused() -> None:
    args: dict[str, Any] = {}
    for _ in range(5_000):
        args = {"a": args}
    (fault,) = faults(changed({"proposer": {"kind": "repeat", "tool_name": "a", "args": args}}))
    assert "nested more than 100 levels" in fault.reason


def test_defaults() -> None:
    mission = parse_mission(
        {"directive": " go ", "criteria": [DONE], "budget": {"max_iterations": 1}, "tool_allowlist": ["lab.*"]}
    )
    assert mission.directive == "go"
    assert mission.criteria[0].required
    assert mission.budget == Budget(max_iterations=1, max_wall_clock_seconds=-1, max_tool_calls=-1)
    assert (mission.budget.on_exhausted, mission.budget.unbounded) == ("stop", False)
    assert mission.checkpoint_cadence == EveryIteration()
    assert mission.stagnation(mission.proposer.facts()) == 3
    assert mission.proposer.kind == "client"
    assert (mission.pace, mission.observe, mission.allow_scripted_strategies) == (None, [], False)
    trend = parse_mission(mission_data(criteria=[TREND])).criteria[0]
    assert trend.model_dump()["window"] == 1_000
    assert trend.model_dump()["min_points"] == 2


@pytest.mark.parametrize(
    ("data", "field", "word"),
    [
        ({}, "(input)", "exactly one"),
        ({"tool_calls": [], "script": "pass"}, "(input)", "exactly one"),
        ({"script": ""}, "script", "empty"),
        ({"tool_calls": [{"tool_name": "a"}] * 257}, "tool_calls", "256"),
        ({"tool_calls": [], "rationale": "x" * 8_193}, "rationale", "8192"),
        (None, "(input)", "dictionary"),
    ],
)
def test_a_wrong_proposal(data: Any, field: str, word: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        parse_proposal(data)
    (fault,) = caught.value.faults
    assert (fault.field, word in fault.reason) == (field, True), fault


def test_a_proposal_is_calls_or_a_script_or_nothing_to_do() -> None:
    assert parse_proposal({"tool_calls": []}) == Proposal(tool_calls=[])
    both = parse_proposal({"tool_calls": [{"tool_name": "lab.run", "args": {"x": [1, None, "a"]}}], "rationale": "so"})
    assert both.tool_calls == [ToolCall(tool_name="lab.run", args={"x": [1, None, "a"]})]
    assert parse_proposal({"script": "await lab.run()"}).script == "await lab.run()"


DSL = Mission(
    directive="Size the beam",
    criteria=[
        metric("mass", source="lab.*") <= 2.4,
        metric("metrics.scores.0.f1", scope="iteration") > 0.5,
        metric("loss").trend("decreasing", window=10, min_points=5),
        event("certified").optional(),
        predicate("obs['iteration'] > 1").named("later"),
        succeeded("lab.run", at_least=2),
        check("lab.test", {"fast": True}, when="checkpoint", text="ok"),
        check(["make", "test"], exit_code=0, timeout=60, cwd="/work"),
    ],
    budget=Budget(max_iterations=50),
    tool_allowlist=["lab.*"],
    pace=Pace(seconds=2),
    proposer=ScriptProposer(script="lab.run()"),
    stagnation_threshold="off",
)
TOML = """
directive = "Size the beam"
tool_allowlist = ["lab.*"]
pace = 2
stagnation_threshold = "off"
budget = { max_iterations = 50 }
criteria = [
  { criterion_id = "mass <= 2.4", kind = "metric_threshold", metric = "mass", op = "<=", target = 2.4, source = "lab.*" },
  { criterion_id = "metrics.scores.0.f1 > 0.5", kind = "metric_threshold", metric = "metrics.scores.0.f1", op = ">", target = 0.5, scope = "iteration" },
  { criterion_id = "loss decreasing", kind = "metric_trend", metric = "loss", direction = "decreasing", window = 10, min_points = 5 },
  { criterion_id = "event certified", kind = "event", event_name = "certified", required = false },
  { criterion_id = "later", kind = "predicate", expression = "obs['iteration'] > 1" },
  { criterion_id = "lab.run succeeded", kind = "tool_call_succeeded", tool_name = "lab.run", min_count = 2 },
  { criterion_id = "check lab.test", kind = "check", tool_name = "lab.test", args = { fast = true }, when = "checkpoint", expect = { text = "ok" } },
  { criterion_id = "check make test", kind = "check", command = ["make", "test"], timeout = 60, cwd = "/work", expect = { exit_code = 0 } },
]
[proposer]
kind = "script"
file = "steps.py"
[servers.lab]
command = "python"
"""  # noqa: E501 - inline tables cannot be broken over lines


def test_python_and_a_file_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("lab.run()")
    path = tmp_path / "mission.toml"
    path.write_text(TOML)
    loaded = load_mission_file(path)
    assert loaded.mission == DSL
    assert list(loaded.servers) == ["lab"]


def test_a_stored_mission_is_read_back_the_same() -> None:
    stored = DSL.model_dump(mode="json")
    assert Mission(**stored) == DSL
    assert Mission(**stored).model_dump(mode="json") == stored
    replay = mission_data(proposer={"kind": "replay", "proposals": [{"tool_calls": []}, {"script": "pass"}]})
    proposer = parse_mission(replay).proposer
    assert isinstance(proposer, ReplayProposer)
    assert Mission(**parse_mission(replay).model_dump(mode="json")).proposer == proposer

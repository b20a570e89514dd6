"""Wrong input is refused with exit code 2, by name and as a whole: no traceback, and nothing is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_stage import BEAM, DESIGN, REPEAT, Place, mission

from pursuit.cli.errors import explain

pytestmark = pytest.mark.usefixtures("quick_python")

GOOD = mission()

WRONG_FILES = {
    "not TOML": ("directive = ", "m.toml:1:13: is not valid TOML"),
    "nested without end": (f"x = {'[' * 5_000}{']' * 5_000}\n{GOOD}", "m.toml: is nested too deeply"),
    "nested very deeply": (f"pace = {'[' * 200}{']' * 200}\n{GOOD}", "pace"),
    "deep arguments": (GOOD.replace(DESIGN, f"{{ h = {'[' * 250}{']' * 250} }}"), "m.toml"),
    "a number of 5,000 digits": (GOOD.replace("max_iterations = 2", f"max_iterations = {'9' * 5_000}"), "5000 digits"),
    "a target of 400 digits": (GOOD.replace("target = 0.1", f"target = {'9' * 400}"), "criteria[0].target"),
    "a limit of 400 digits": (f"{GOOD}timeout = {'9' * 400}\n", "servers.beam.tools.evaluate.timeout"),
    "a server without a command": (GOOD.replace('command = "__python_executable__"', ""), "servers.beam"),
    "servers that are no table": (f"servers = 3\n{GOOD.replace(BEAM, '')}", "servers"),
    "a script that is not there": (GOOD.replace(REPEAT, 'kind = "script"\nfile = "nope.py"'), "proposer.file"),
    "a predicate that is nested too deeply": (
        GOOD.replace(
            "[budget]",
            f"[[criteria]]\ncriterion_id = 'p'\nkind = 'predicate'\nexpression = '{'(' * 200}1{')' * 200}'\n[budget]",
        ),
        "criteria[1].expression",
    ),
}

WRONG_WORDS = [
    (["run"], "FILE"),
    (["run", "good.toml", "--mode", "yolo"], "use auto, ask or never"),
    (["run", "good.toml", "--config", "nowhere.toml"], "--config"),
    (["run", "good.toml", "--state", "."], "--state"),
    (["run", "binary"], "UTF-8"),
    (["resume"], "--all"),
    (["resume", "mission-0123456789abcdef", "--all"], "--all"),
    (["list", "--limit", "0"], "--limit"),
    (["list", "--status", "runing"], "did you mean 'running'"),
    (["report", "mission-0123456789abcdef", "--format", "pdf"], "--format"),
    (["verify", "nowhere.jsonl"], "nowhere.jsonl"),
    (["verify", "good.toml"], "good.toml"),
    (["iterate", "mission-0123456789abcdef", "--proposal", "nowhere.json"], "nowhere.json"),
    (["iterate", "mission-0123456789abcdef", "--proposal", "good.toml"], "JSON"),
    (["iterate", "mission-0123456789abcdef", "--proposal", "deep.json"], "nested"),
    (["iterate", "mission-0123456789abcdef", "--proposal", "long.json"], "long.json"),
    (["iterate", "mission-0123456789abcdef", "--proposal", "twice.json"], "is repeated"),
    (["run", "good.toml", "--config", "deep.toml"], "nested"),
    (["run", "good.toml", "--config", "long.toml"], "5000 digits"),
    (["verify", "good.toml", "--expect", f"12:{'0' * 64}"], "omit FILE"),
    (["iterate", "mission-0123456789abcdef", "--proposal", "odd.json"], "tool_calls[0].tool_name"),
    (["extend", "mission-0123456789abcdef", "--max-iterations", "9" * 400], "--max-iterations"),
    (["export", "mission-0123456789abcdef"], "--output"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("input")).configured()
    place.write("good.toml", GOOD)
    place.write("deep.json", "[" * 100_000)
    place.write("long.json", f'{{"tool_calls": [{"9" * 5_000}]}}')
    place.write("twice.json", '{"rationale": "a", "rationale": "b"}')
    place.write("deep.toml", "x = " + "[" * 5_000)
    place.write("long.toml", "x = " + "9" * 5_000)
    place.write("odd.json", '{"tool_calls": [{"args": {}}]}')
    (place.folder / "binary").write_bytes(b"\xff\xfe\x00")
    return place


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_mission_is_refused_by_name(place: Place, case: str) -> None:
    text, named = WRONG_FILES[case]
    assert text != GOOD
    place.write("m.toml", text)
    out, err = place.ask("start", "m.toml", code=2)
    assert (out, named in err) == ("", True), err
    assert err.startswith("error: ")
    assert place.json("list") == {"sessions": []}


@pytest.mark.parametrize(("words", "named"), WRONG_WORDS, ids=lambda value: "-".join(value)[:60])
def test_a_wrong_word_is_refused_by_name(place: Place, words: list[str], named: str) -> None:
    out, err = place.ask(*words, code=2)
    assert (out, named in err) == ("", True), err
    told = json.loads(place.ask("--json", *words, code=2)[0])
    assert set(told) == {"code", "message", "details"}
    assert named in json.dumps(told)


def test_ids_that_are_none_never_reach_storage(place: Place, tmp_path: Path) -> None:
    here = Place(tmp_path).configured()
    here.write("client.toml", mission(proposer='kind = "client"'))
    mission_id = here.json("start", "client.toml")["session_id"]
    for wrong in ("../x", mission_id.upper(), f"{mission_id}\n", "x" * 5_000):
        for verb in ("status", "history", "watch", "pause", "abort", "complete", "report", "resume", "iterate"):
            assert here.json(verb, wrong, code=2)["code"] == "invalid_argument", (verb, wrong)
        assert here.json("export", wrong, "-o", "x", code=2)["code"] == "invalid_argument"
        assert here.json("forget", wrong, "--yes", code=2)["code"] == "invalid_argument"
        assert here.json("extend", wrong, "--max-iterations", 9, code=2)["code"] == "invalid_argument"
    unknown = "mission-0123456789abcdef"
    assert here.json("status", unknown, code=2)["code"] == "session_not_found"
    assert not (tmp_path / "x").exists()
    assert [row["session_id"] for row in here.json("list")["sessions"]] == [mission_id]


def test_text_of_a_mission_cannot_steer_a_terminal(tmp_path: Path) -> None:
    here = Place(tmp_path).configured()
    steering = mission(proposer='kind = "client"').replace("Poll the beam", "\\u001b[2Jgone \\u202e [bold]x[/bold]")
    here.write("m.toml", steering)
    mission_id = here.json("start", "m.toml")["session_id"]
    for verb in ("status", "report"):
        out, _ = here.ask(verb, mission_id)
        assert "gone" in out
        assert not {"\x1b", "\u202e"} & set(out)
    assert "[bold]x[/bold]" in here.ask("list")[0]


def test_our_own_fault_is_one_line_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PURSUIT_DEBUG", raising=False)
    broken = ExceptionGroup("several", [ZeroDivisionError("by zero")])
    assert explain(broken, as_json=False) == 1
    out, err = capsys.readouterr()
    assert (out, "internal error: ZeroDivisionError: by zero" in err, "Traceback" in err) == ("", True, False)
    assert explain(broken, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["code"] == "internal_error"
    monkeypatch.setenv("PURSUIT_DEBUG", "1")
    explain(broken, as_json=False)
    assert "+-+------" in capsys.readouterr().err

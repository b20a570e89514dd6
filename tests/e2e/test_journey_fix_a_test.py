"""An engineer's first hour: a language model fixes a failing test, with approvals given in another terminal.

Written as the commands that the engineer types, with the mistakes on the way. The model is a stand-in over HTTP.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from cli_stage import Place
from model_endpoint import ModelEndpoint, Reply, calls

pytestmark = pytest.mark.usefixtures("quick_python")

CONFIGURATION = """
[commands.replace]
description = "Replaces a text in calc.py."
argv = ["__python_executable__", "replace.py", "{old}", "{new}"]
[commands.replace.parameters]
old = { type = "string" }
new = { type = "string" }
"""
MISSION = """
directive = "Make the test of calc.py pass."
tool_allowlist = ["commands.replace"]
[proposer]
kind = "model"
model = "openai:gpt-4o-mini"
[[criteria]]
criterion_id = "tests"
kind = "check"
command = ["python3", "-B", "test_calc.py"]
[budget]
max_iterations = 5
max_tokens = 50000
"""
REPLACE = """\
import pathlib, sys
file, (old, new) = pathlib.Path("calc.py"), sys.argv[1:]
file.write_text(file.read_text().replace(old, new))
"""
TEST = """\
from calc import add
for a, b in (2, 2), (2, 3):
    if add(a, b) != a + b:
        raise SystemExit(f"add({a}, {b}) is {add(a, b)}")
print("all is well")
"""


@pytest.mark.guarantee("approvals-come-from-anywhere")
@pytest.mark.guarantee("own-ledgers-verify")
def test_a_model_fixes_a_test_with_approvals_from_another_terminal(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name, text in {"pursuit.toml": CONFIGURATION, "fix.toml": MISSION, "replace.py": REPLACE}.items():
        place.write(name, text)
    place.write("calc.py", "def add(a, b):\n    return a - b\n")
    place.write("test_calc.py", TEST)

    # The wrong file, then a key that is not there yet.
    assert "this is a configuration" in place.ask("run", "pursuit.toml", code=2)[1]
    first = calls(("commands__replace", {"old": "a - b", "new": "a * b"}), text="It must multiply.")
    second = calls(("commands__replace", {"old": "a * b", "new": "a + b"}), text="No: it must add.")
    done = Reply(text="That should do.")
    with ModelEndpoint(first, done, second, done) as endpoint:
        place.environment.pop("OPENAI_API_KEY", None)
        assert "OPENAI_API_KEY" in place.run("run", "fix.toml", code=2).stderr
        place.environment |= endpoint.environment

        # In the background, without a terminal: it stays while it waits for a person.
        running = place.begin("run", "fix.toml", "--wait", fresh=False)
        hint = running.until("approve or deny:")
        assert "then it continues here" in hint
        # In another terminal: a word that is no question, then everything that is open.
        assert "no open approval has the id" in place.ask("approve", "yes", code=2)[1]
        assert (
            "replace of server commands" in place.ask("approvals")[0] and "a * b" in place.ask("approvals", "last")[0]
        )
        assert "approved: commands.replace" in place.ask("approve", "--mission", "last")[0]

        # The first idea was wrong: the log says what the check printed, and the next question is open.
        running.until("approve or deny:")
        log = place.ask("logs", "last")[0]
        assert re.search(r"check tests: ok in .*, exit code 1\n(    .*\n)*.*add\(2, 3\) is 6", log), log
        assert re.search(r"openai:gpt-4o-mini answered \(\d+ tokens.*It must multiply\.", log), log
        assert "(commands.replace): approved once by " in log
        assert "[waits for approval; its result will be here]" in place.ask("prompt", "last")[0]
        (row,) = place.json("approvals")["approvals"]
        assert re.search(rf"question {row['approval_id']}: commands\.replace .*a \+ b", log)
        short = row["approval_id"].removeprefix("approval-")[:6]
        assert place.json("approve", short, "--reason", "good")["answer"] == "once"

        code, out, _notes = running.end()
    assert (code, "status: completed" in out) == (0, True)
    # Too late for a second answer, and the mission is over.
    assert "no mission waits for" in place.ask("approve", row["approval_id"], code=2)[1]
    assert re.search(r"has ended: completed .*start it again with: pursuit run \S+/fix\.toml", _resumed(place))

    assert re.search(r"criterion tests: met .*\[exit code 0 from ", place.ask("status", "last")[0])
    report = place.json("report", "last")
    assert [one["answer"] for one in report["approvals"]] == ["once", "once"]
    assert report["approvals"][1]["why"] == "good"
    assert [one["exit_code"] for one in report["checks"]] == [1, 0]
    assert report["checks"][1]["output"] == ["all is well"]
    assert [(one["who"], one["text"]) for one in report["turns"]] == [
        ("openai:gpt-4o-mini", "It must multiply."),
        ("openai:gpt-4o-mini", "That should do."),
        ("openai:gpt-4o-mini", "No: it must add."),
        ("openai:gpt-4o-mini", "That should do."),
    ]
    edits = [one for one in report["call_log"] if one["tool"] == "commands.replace"]
    assert [one["args"]["new"] for one in edits] == ["a * b", "a + b"]
    assert all(one["seconds"] > 0 for one in edits), "a call that is a task has its own time"
    assert "No: it must add." in place.ask("report", "last")[0]
    place.ask("export", "last", "-o", "mission.jsonl")
    for words in ((), ("mission.jsonl",)):
        assert place.json("verify", *words)["faults"] == []


PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BLOCK = re.compile(r"^<!-- tutorial -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGE = {"path": "prices.py", "old": "price * percent / 100", "new": "price * (100 - percent) / 100"}


@pytest.mark.guarantee("from-nothing-to-a-model-with-approvals")
def test_the_tutorial_leads_to_a_model_that_is_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (_, commands), (_, mission), (_, elsewhere) = BLOCK.findall(page)
    install, export, init, plan, run = commands.splitlines()
    assert len(mission.splitlines()) <= 12
    assert (install, export) == ("pip install 'pursuit[models]'", "export ANTHROPIC_API_KEY=…")
    monkeypatch.delenv("PURSUIT_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Place(tmp_path).ask(*shlex.split(init.removesuffix(" && cd repair"))[1:])
    place = Place(tmp_path / "repair")
    place.write("model.toml", mission)
    look = calls(
        ("commands__run_tests", {}),
        ("commands__read_file", {"path": "prices.py"}),
        text="I run the tests and read the code.",
    )
    change, done = calls(("commands__replace_text", CHANGE), text="It takes too much."), Reply(text="Done.")
    with ModelEndpoint(look, look, change, done) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        place.environment = {**os.environ, "NO_COLOR": "1"}
        assert "model.toml starts or allows what you have not trusted" in place.ask(*shlex.split(plan)[1:], code=2)[1]
        (trust,) = re.findall(r"`pursuit (trust model\.toml)`", page)
        place.ask(*trust.split())
        for line in place.ask(*shlex.split(plan)[1:])[0].splitlines():
            assert f"\n    {line}\n" in page
        said: list[str] = []

        def answer() -> None:
            (row,) = place.json("approvals")["approvals"]
            for words in map(shlex.split, elsewhere.splitlines()):
                given = [row["approval_id"] if word == "ID" else word for word in words[1:]]
                said.append("\n".join(place.seen(200, *given)))

        code, seen = place.at_terminal(*shlex.split(run)[1:], once="[l]ater", then=answer)
    assert (code, len(said)) == (0, 3), seen
    assert "replace_text of server commands" in said[0] and "approved: commands.replace_text" in said[1]
    assert "It takes too much." in said[2] and "answered elsewhere: once by " in seen
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "")
    question = page[page.index("    replace_text of server") : page.index("[y]es once, yes")]
    assert re.sub(r"(?m)^    ", "", question) in shown
    assert "✓ tests    check commands.run_tests  succeeded: yes  commands.run_tests in iteration 1" in shown


def _resumed(place: Place) -> str:
    return place.ask("resume", "last", code=2)[1]

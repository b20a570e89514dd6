"""The mistakes that people make at the command line, and the answers that they want: one row for each.

A row says in its own words what was done wrong, does it, and names what the answer must hold. Add a row here for each
mistake that a user reports. Those of an engineer who tunes a command (metrics, missing modules, no criteria, invalid
TOML) are in `tests/e2e/test_first_journey.py`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from cli_stage import BEAM, Place, mission, recorded, until_marked

from pursuit import Runtime
from pursuit.cli import queries
from pursuit.config.configuration import Configuration
from pursuit.config.mission_file import load_mission_file
from pursuit.ledger.locks import take_claim

pytestmark = pytest.mark.usefixtures("quick_python")

Act = Callable[[Place], str]
ASKS = '[policy]\nmode = "ask"\n'


def said(*words: object, code: int = 2, **files: str) -> Act:
    """Runs a command after the files were written (`m` is `m.toml`), and gives all that it said."""

    def act(place: Place) -> str:
        for name, text in files.items():
            place.write(f"{name}.toml", text)
        return "".join(place.ask(*words, code=code))

    return act


def server(command: str, *args: str, more: str = "") -> str:
    """A mission whose server is started like this."""
    head = mission().partition("[servers.beam]")[0]
    words = ", ".join(json.dumps(word) for word in args)
    return f"{head}[servers.beam]\ncommand = {json.dumps(command)}\nargs = [{words}]\n{more}"


def ended(place: Place) -> None:
    place.write("m.toml", mission(target=100))
    place.ask("run", "m.toml")


def started(*names: str) -> Callable[[Place], None]:
    """Missions with these ids, which are pending."""

    def act(place: Place) -> None:
        file = load_mission_file(place.write("m.toml", mission()))

        async def start() -> None:
            async with Runtime(state=place.ledger, config=Configuration()) as runtime:
                for name in names:
                    await runtime.start_file(file, session_id=name)

        anyio.run(start)

    return act


def after(first: Callable[[Place], None], *words: object, code: int = 2) -> Act:
    """Runs a command after something else was done."""

    def act(place: Place) -> str:
        first(place)
        return said(*words, code=code)(place)

    return act


def port_in_use(place: Place) -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = place.run("serve", "--http", "--port", taken.getsockname()[1], code=2)
        return done.stdout + done.stderr


def second_driver(place: Place) -> str:
    started("mission-00000000000000aa")(place)
    claim = take_claim(place.ledger.parent / "locks", "mission-00000000000000aa")
    assert claim is not None
    try:
        return said("resume", "last")(place)
    finally:
        anyio.run(claim.release)


def cold_npx(place: Place) -> str:
    """The package of a server takes longer to download than the server may take to start."""
    npx = place.write("npx", "#!/bin/sh\ncat > /dev/null\n")
    npx.chmod(0o755)
    return said("run", "m.toml", m=server(str(npx), "-y", "server", more="timeouts = { connect = 0.2 }\n"))(place)


def without_extra(place: Place) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pursuit.proposers.search.kind.find_spec", lambda _name: None)
        return said("run", "m.toml", m=mission(proposer='kind = "search"\ntool_name = "beam.evaluate"'))(place)


def model(name: str, *, budget: str = "", key: str | None = "sk-none") -> Act:
    """A mission with this language model and a part of its budget; both providers have this key."""

    def act(place: Place) -> str:
        with pytest.MonkeyPatch.context() as patch:
            for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
                patch.delenv(variable, raising=False) if key is None else patch.setenv(variable, key)
            text = mission(proposer=f'kind = "model"\nmodel = "{name}"')
            return said("run", "m.toml", m=text.replace("[budget]", f"[budget]\n{budget}"))(place)

    return act


def table(place: Place) -> str:
    after(ended, "report", "last", "-o", "r.csv", code=0)(place)
    return (place.folder / "r.csv").read_text(encoding="utf-8")


def stopped_by(number: signal.Signals) -> Act:
    """A mission is driven, its driver gets a signal; then its status is asked for, and it is watched."""

    def act(place: Place) -> str:
        record = place.folder / "record"
        place.write("m.toml", recorded(record, steps=3, needed=3, ms=1).replace('"k1", ms = 1', '"k1", ms = 30000'))
        driver = place.begin("run", "m.toml", fresh=False)
        until_marked(record, "k1")
        code, _out, notes = driver.end(number)
        assert code in (128 + number, -number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queries, "WATCH_SECONDS", 0.05)
            watched = place.ask("watch", "last")[0].splitlines()[-1]
        return f"{notes}{place.ask('status', 'last')[0]}{watched}"

    return act


def answered_elsewhere(place: Place) -> str:
    place.write("pursuit.toml", ASKS)
    place.write("m.toml", recorded(place.folder / "record", steps=1, needed=1, ms=1))
    code, seen = place.at_terminal("run", "m.toml", once="[l]ater", then=lambda: place.ask("approve", "--all"))
    assert code == 0, seen
    return seen


def resumed_without_mode(place: Place) -> str:
    place.write("pursuit.toml", ASKS)
    place.write("m.toml", recorded(place.folder / "record", steps=1, needed=1, ms=1))
    place.ask("start", "m.toml", "--mode", "auto")
    return said("resume", "last", code=0)(place) + said("status", "last", code=0)(place)


def expired(place: Place) -> str:
    """A question is answered too late; then the clock is set back, and it is answered again."""
    place.write("pursuit.toml", f"{ASKS}[settings]\napproval_timeout = 0.001\n")
    place.write("m.toml", recorded(place.folder / "record", steps=1, needed=1, ms=1))
    place.ask("run", "m.toml", code=4)
    (row,) = place.json("status", "last")["pending_approvals"]
    late = said("approve", row["approval_id"])(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pursuit.engine.context.SystemClock.now", lambda _clock: 1.0)
        return late + "again: " + said("approve", row["approval_id"])(place)


ID = "mission-[0-9a-f]{16}"
MISTAKES: dict[str, tuple[Act, tuple[str, ...]]] = {
    "a typo in a key of a mission": (
        said("run", "m.toml", m=mission().replace("tool_allowlist", "tool_alowlist")),
        ("tool_alowlist", "did you mean 'tool_allowlist'"),
    ),
    "a typo in a table of the configuration": (
        said("run", "m.toml", m=mission(), pursuit="[polcy]\n"),
        ("polcy", "did you mean 'policy'"),
    ),
    "a wrong type": (
        said("run", "m.toml", m=mission().replace("max_iterations = 2", 'max_iterations = "many"')),
        (r"budget\.max_iterations: .*(integer|number)",),
    ),
    "an unknown command": (said("rum", "m.toml"), ("No such command 'rum'", "try: pursuit --help")),
    "an unknown option": (said("run", "--fast", "m.toml"), ("No such option: --fast",)),
    "no such file": (said("run", "none.toml"), ("none.toml: cannot be read: No such file",)),
    "a folder instead of a file": (said("run", "."), (r"cannot be read: Is a directory",)),
    "an unknown mission": (
        after(started("mission-00000000000000aa"), "status", "mission-ffffffffffffffff"),
        ("mission-ffffffffffffffff", "`pursuit list`"),
    ),
    "no ledger here": (said("status", "last"), ("there is no ledger at .*ledger.db yet", "`pursuit run FILE`")),
    "a syntax error in a script": (
        said("run", "m.toml", m=mission(proposer='kind = "script"\nscript = "x = (\\n"')),
        (r"proposer\.script", "line 1"),
    ),
    "a server whose command is not there": (
        said("run", "m.toml", m=server("no-such-command-here")),
        ("beam", "no-such-command-here", "not found"),
    ),
    "a server that crashes at its start": (
        said("run", "m.toml", m=server("python3", "-c", "import sys; sys.exit('a bad day')")),
        ("beam", "a bad day"),
    ),
    "a server that hangs": (
        said(
            "run",
            "m.toml",
            m=server("python3", "-c", "import sys; sys.stdin.read()", more="timeouts = { connect = 0.2 }\n"),
        ),
        ("beam", r"0\.2 s"),
    ),
    "a server that prints something else than MCP": (
        said("run", "m.toml", m=server("python3", "-c", "print('Listening on port 80')")),
        (r"its standard output is not MCP \(.*\); its first line there is 'Listening on port 80'\n",),
    ),
    "a cold npx": (cold_npx, (r"within 0\.2 s; \S*npx may still be downloading it: run it once by hand",)),
    "an allowlist that matches nothing": (
        said("run", "m.toml", m=mission().replace('["beam.evaluate"]', '["beam.evalute", "plant.*"]')),
        (
            r"tool_allowlist\[0\]: no server offers a tool 'beam\.evalute'; did you mean 'beam\.evaluate'",
            r"tool_allowlist\[1\]: no tool matches 'plant\.\*'; .*beam",
        ),
    ),
    "a missing extra": (without_extra, (r"needs optuna and cmaes: pip install 'pursuit\[search\]'",)),
    "a typo in the provider of a model": (
        model("antropic:claude-haiku-4-5"),
        (r"proposer\.model: .*unknown provider 'antropic'; did you mean 'anthropic'\?",),
    ),
    "an operator the wrong way round": (
        said("run", "m.toml", m=mission().replace('op = "<="', 'op = "=>"')),
        (r"criteria\[0\]\.op: input should be .*; did you mean '>='\?",),
    ),
    "a table with another name": (
        said("run", "m.toml", m=mission(), pursuit='[notifications]\nwebhook = "x"\n'),
        (r"notifications: is not a known key; did you mean 'notify'\?",),
    ),
    "a missing key": (
        model("anthropic:claude-haiku-4-5", key=None),
        (r"the environment variable ANTHROPIC_API_KEY is not set; set it to your key",),
    ),
    "a model without its provider": (
        model("claude-haiku-4-5"),
        (r"proposer\.model: must be provider:name, such as anthropic:claude-haiku-4-5",),
    ),
    "a cap on cost without a price": (
        model("openai:of-my-own", budget="max_cost_usd = 1"),
        (
            "the price of openai:of-my-own is not known",
            r'`"openai:of-my-own" = { input = DOLLARS, output = DOLLARS }` in `\[prices\]`',
        ),
    ),
    "trials as CSV": (table, (r"^trial,iteration,tool,outcome,best,.*,cost,", "^0,1,beam.evaluate,ok,True,")),
    "a variable that is not set": (
        said("run", "m.toml", m=server("python3", more='env = { KEY = "${NOT_SET_ANYWHERE}" }\n')),
        ("NOT_SET_ANYWHERE",),
    ),
    "a port in use": (port_in_use, (r"port \d+", "in use")),
    "wrong arguments of a tool": (
        said("tools", "call", "beam.evaluate", "--arg", "h=high", pursuit=BEAM),
        ("'l' is a required property", "'b' is a required", "h: 'high' is not of type 'number'"),
    ),
    "a second driver": (
        second_driver,
        (rf"is driven by process {os.getpid()} on {re.escape(platform.node())} since \d{{4}}-", "stop that process"),
    ),
    "Ctrl-C": (
        stopped_by(signal.SIGINT),
        (rf"SIGINT.*pursuit resume {ID}", "status: interrupted", rf"interrupted: .*pursuit resume {ID}$"),
    ),
    "an impossible path of the ledger": (
        said("run", "m.toml", "--state", "m.toml/deep/ledger.db", m=mission()),
        (r"--state m\.toml/deep/ledger\.db: cannot be a ledger: Not a directory",),
    ),
    "resume of an ended mission": (
        after(ended, "resume", "last"),
        (rf"{ID} has ended: completed \(criteria_met\); start it again with: pursuit run \S+/m\.toml",),
    ),
    "extend of an ended mission": (
        after(ended, "extend", "last", "--max-iterations", 9),
        (r"has ended: completed \(criteria_met\); start it again with: pursuit run",),
    ),
    "resume of a mission that its budget ended": (
        said("run", "m.toml", code=3, m=mission(iterations=1)),
        (rf"raise its cap with: pursuit extend {ID} --max-iterations N, then: pursuit resume {ID}",),
    ),
    "run of a configuration": (
        said("run", "pursuit.toml"),
        (r"pursuit\.toml: this is a configuration; a mission file has a directive",),
    ),
    "a short id": (
        after(started("mission-0514000000000000"), "status", "0514", code=0),
        ("mission: mission-0514000000000000",),
    ),
    "a short id of several missions": (
        after(started("mission-0514000000000000", "mission-0514ffffffffffff"), "status", "0514"),
        ("'0514' matches 2 ids: mission-0514ffffffffffff, mission-0514000000000000; give more characters",),
    ),
    "an approval that is answered in another terminal": (
        answered_elsewhere,
        ("answered elsewhere: once by ", "completed"),
    ),
    "resume without the mode of the start": (
        resumed_without_mode,
        (
            "policy mode auto, as at the start; --mode changes it",
            "status: completed",
            "policy mode: auto",
        ),
    ),
    "an approval that comes too late": (
        expired,
        (r"expired: it was not answered before \d{4}-", r"again: error: approval-\w+ expired"),
    ),
    "which of several approvals": (after(ended, "approve"), ("give IDs of questions, or --all, or --mission ID",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.guarantee("mistakes-are-answered")
def test_a_mistake_gets_the_answer_that_people_want(mistake: str, tmp_path: Path) -> None:
    act, wanted = MISTAKES[mistake]
    place = Place(tmp_path).configured()
    text = act(place)
    for pattern in wanted:
        assert re.search(pattern, text, re.MULTILINE), (pattern, text)
    assert "Traceback" not in text

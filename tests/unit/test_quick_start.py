"""Programs that are forked instead of started: they get, do and say what they would as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from quick_start import fresh, pursuit, quick

pytestmark = pytest.mark.slow
PROGRAM = """
import atexit, gc, json, os, signal, sys, threading

def tell():
    print(json.dumps({
        "words": sys.argv[1:], "name": os.path.basename(sys.argv[0]), "main": __name__, "path": sys.path[0],
        "cwd": os.getcwd(), "mine": os.environ.get("MINE"), "pid": os.getpid(), "collects": gc.isenabled(),
        "threads": threading.active_count(), "open": sorted(map(int, os.listdir("/dev/fd")))[:-1],
        "stops": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "tests": "pytest" in sys.modules,
        "loaded": "mcp" in sys.modules,
    }), flush=True)

word = sys.argv[1]
if word == "tell":
    tell()
    print("a note", file=sys.stderr)
    atexit.register(print, "last word")
    sys.exit(len(sys.stdin.read()))
if word == "fail":
    raise RuntimeError("broken")
if word == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if word == "wait":
    tell()
    signal.pause()
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return [sys.executable, quick(str(path))]


def run(command: list[str], *words: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([*command, *words], input=text, env=env, capture_output=True, text=True, timeout=60)


@contextmanager
def waiting(program: list[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process that was started, and the program's own."""
    with subprocess.Popen([*program, "wait"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())["pid"]
        finally:
            process.kill()


def test_a_program_has_its_own_words_streams_folder_and_environment(
    program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(program, "tell", "two words", text="abc", MINE="1")
    said, last = done.stdout.splitlines()
    told = json.loads(said)
    assert (done.returncode, done.stderr, last) == (3, "a note\n", "last word")
    del told["pid"]
    assert told == {
        "words": ["tell", "two words"],
        "name": "program.py",
        "main": "__main__",
        "path": str(tmp_path),
        "cwd": str(tmp_path),
        "mine": "1",
        "collects": True,
        "threads": 1,
        "open": [0, 1, 2],
        "stops": True,
        "tests": False,
        "loaded": True,
    }
    assert json.loads(run(program, "tell").stdout.splitlines()[0])["mine"] is None


def test_it_ends_as_the_program_ends(program: list[str]) -> None:
    failed = run(program, "fail")
    assert failed.returncode == 1 and failed.stderr.endswith("RuntimeError: broken\n")
    assert run(program, "kill").returncode == -signal.SIGKILL
    with waiting(program) as (process, _pid):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_killed_it_takes_the_program_with_it(program: list[str]) -> None:
    with waiting(program) as (process, pid):
        there = psutil.Process(pid)
        process.kill()
        process.wait(60)
        there.wait(60)


def test_an_environment_that_counts_before_the_first_line_starts_it_anew(program: list[str]) -> None:
    told = json.loads(run(program, "tell", PYTHONHASHSEED="7").stdout.splitlines()[0])
    assert not told["loaded"]


def test_the_command_is_the_same_either_way() -> None:
    quickly, plainly = run(pursuit(), "--help"), run(fresh(), "--help")
    assert (quickly.returncode, quickly.stdout, quickly.stderr) == (0, plainly.stdout, plainly.stderr)

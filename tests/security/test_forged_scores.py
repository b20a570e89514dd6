"""Code that is handed in cannot forge its score; where it could reach its judge, the score says so."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from workspace import Victim

from pursuit.config.process_environment import Isolation, no_isolation
from pursuit.problems.catalogue import SHIPPED
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.scoring import Submitted, judge
from pursuit.sandbox.sandbox import Sandbox

PROBLEM = read_manifest(SHIPPED / "fix-intervals" / "problem.toml")
SCORE = json.dumps({"passed": 6, "isolated": True})
OUTCOMES = json.dumps([[{"gave": None}, {"gave": 0}]] * 6)
LOOK_UP = f"""
import json, pathlib
tests = json.loads(pathlib.Path({str(PROBLEM.folder)!r}, "hidden", "tests.json").read_text())
values = {{step["run"]: step["gives"] for test in tests for step in test["steps"] if "gives" in step}}
merged = lambda intervals: values.get(f"merged({{intervals}})")
covered = lambda intervals: values[f"covered({{intervals}})"]
"""
WRITE = """
import os
for place in range(1, 12):
    try:
        os.write(place, {text!r})
    except OSError:
        pass
"""
ATTACKS = {
    "it says the key of the process that imports it": """
import os, sys
print("\\n" + getattr(sys.modules["__main__"], "key", ""), 6, flush=True)
os._exit(0)
""",
    "it changes the comparison": """
import json, operator, unittest
unittest.TestCase.assertEqual = lambda *words: None
operator.eq = lambda *words: True
json.loads = json.JSONDecoder.decode = lambda *words: None
merged = covered = lambda intervals: None
""",
    "it prints a score and outcomes": WRITE.format(text=f"{SCORE}\n{OUTCOMES}".encode()) + "os._exit(0)",
    "its child writes into the pipe": f"""
import os
if os.fork() == 0:
    {WRITE.format(text=OUTCOMES.encode()).strip().replace(chr(10), chr(10) + "    ")}
    os._exit(0)
os.wait()
""",
    "it gives objects that are equal to everything, or no JSON": """
class Equal:
    __eq__ = lambda *words: True
def merged(intervals):
    intervals[:] = [Equal(), {1j: float("nan")}]
    return Equal()
covered = lambda intervals: {1j: float("nan")}
""",
}
BEYOND = {
    "it looks the values up": LOOK_UP,
    "it writes into the pipe of the judge": f"""
import os, pathlib
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if b"repository_judge" in (process / "cmdline").read_bytes():
        (process / "fd" / "1").write_text({SCORE!r})
        os.kill(int(process.name), 9)
from nowhere import merged
""",
}  # fmt: skip


async def scores(attacks: Mapping[str, str]) -> dict[str, tuple[float, bool | None]]:
    """The hidden tests that each module passes, and whether it was isolated."""
    found: dict[str, tuple[float, bool | None]] = {}

    async def one(name: str, sandbox: Sandbox) -> None:
        submitted = Submitted(submission={"files": {"intervals.py": attacks[name]}})
        judged = await judge(PROBLEM, submitted, expressions=sandbox)
        found[name] = (judged.rows[0].value, getattr(judged, "isolated", None))

    async with Sandbox() as sandbox, anyio.create_task_group() as tasks:
        for name in attacks:
            tasks.start_soon(one, name, sandbox)
    return found


async def said_by_judge(said: object, isolation: Isolation | None = None) -> bool | None:
    """Whether a score counts as isolated if the judge says this."""
    scorer = dataclasses.replace(PROBLEM.scorer, command=("echo", json.dumps(said)), isolation=isolation)
    judged = judge(dataclasses.replace(PROBLEM, scorer=scorer), Submitted(submission={}), expressions=Sandbox())
    return (await judged).isolated


@pytest.mark.guarantee("a-submission-cannot-forge-its-score")
async def test_a_submission_that_forges_its_score_passes_nothing() -> None:
    isolated = not no_isolation()
    assert await scores(ATTACKS) == dict.fromkeys(ATTACKS, (0, isolated))


ASKS = """
import json, socket
with socket.socket(socket.AF_UNIX) as one:
    one.connect({path!r})
    with one.makefile() as file:
        values = json.load(file)
merged = lambda intervals: values.get(f"merged({{intervals}})")
covered = lambda intervals: values[f"covered({{intervals}})"]
"""


@pytest.mark.skipif(bool(no_isolation()), reason=no_isolation())
async def test_an_isolated_submission_reaches_no_socket_of_the_host() -> None:
    tests = json.loads((PROBLEM.folder / "hidden" / "tests.json").read_text(encoding="utf-8"))
    values = {step["run"]: step["gives"] for test in tests for step in test["steps"] if "gives" in step}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = f"{folder}/socket"

        async def tell(stream: SocketStream) -> None:
            async with stream:
                await stream.send(json.dumps(values).encode())

        async with anyio.create_task_group() as tasks, await anyio.create_unix_listener(path) as listener:
            tasks.start_soon(listener.serve, tell)
            assert await scores({"it asks a program": ASKS.format(path=path)}) == {"it asks a program": (0, True)}
            tasks.cancel_scope.cancel()


@pytest.mark.skipif(bool(no_isolation()), reason=no_isolation())
async def test_an_isolated_submission_sees_neither_the_judge_nor_its_files() -> None:
    assert await scores(BEYOND) == dict.fromkeys(BEYOND, (0, True))
    assert await said_by_judge({"passed": 6, "isolated": True}, isolation=Isolation()) is False, (
        "it shares that with the judge"
    )


def broken(folder: Path) -> str:
    """A PATH whose bubblewrap does not work."""
    program = folder / "broken" / "bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def test_without_isolation_the_score_is_marked(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    monkeypatch.setenv("PATH", broken(victim.home))
    victim.write("mine/intervals.py", LOOK_UP)
    code, said = victim.run("problem", "submit", "fix-intervals", "--folder", "mine")
    assert (code, "passed: 6 (not isolated, target 6)" in said) == (0, True), said
    assert "not isolated" in victim.run("problem", "compare", "fix-intervals")[1]


@pytest.mark.parametrize("said", [{"passed": 6, "isolated": True}, {"passed": 6}, 6])
async def test_a_judge_does_not_decide_that_it_is_isolated(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, said: object
) -> None:
    """Code that is not isolated can write what the judge says."""
    monkeypatch.setenv("PATH", broken(victim.home))
    assert await said_by_judge(said) is False


PROBES = [
    f"open(f'/proc/{{os.getppid()}}/{name}', '{mode}')" for name, mode in (("mem", "rb"), ("fd/1", "w"), ("fd/0", "r"))
]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) and /proc are of Linux")
def test_processes_of_the_same_user_cannot_open_the_judge(tmp_path: Path) -> None:
    steps = [{"run": "import os"}, *({"run": one, "raises": "PermissionError"} for one in PROBES)]
    (tmp_path / "tests.json").write_text(json.dumps([{"test": "probes", "steps": steps}]), encoding="utf-8")
    (tmp_path / "repository").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pursuit.problems.repository_judge", "repository", "tests.json"],
        cwd=tmp_path,
        env={"PATH": broken(tmp_path)},
        input='{"submission": {"files": {}}}',
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(24, 19, 0, 0, 0),  # root, if it is, without CAP_SYS_PTRACE
    )
    assert json.loads(done.stdout) == {"passed": 1, "isolated": False}

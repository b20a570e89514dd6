"""Judges a coding agent's submission: applies its files to a copy of the repository and runs the hidden tests there.

It runs from the folder of the manifest: `python -m pursuit.problems.repository_judge REPOSITORY TESTS`. Standard input
is the submission, standard output the score. The hidden tests are data: a runner imports the submission, gets the steps
without their expected values, and returns the actual values. This process compares them, so code that forges the
runner's answer must know the values. Where bubblewrap works, the runner sees neither this process nor the manifest's
folder.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec

from pursuit.config.process_environment import Isolation, ProcessEnvironment, no_isolation
from pursuit.core.tools import CallFailed
from pursuit.engine.commands import run_command

SECONDS = 30.0
"""Seconds after which all tests count as failed."""
MAX_OUTPUT = 1024 * 1024
_PR_SET_DUMPABLE = 4
READY = " "
"""The runner prints this marker before it imports the submission. Without the marker, the runner did not start."""
RUN = """
import json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
tests = json.load(sys.stdin)
answer.write(" ")
answer.flush()
sys.path.insert(0, ".")

def plain(value):
    return float(value) if hasattr(value, "__float__") else repr(value)

def outcome(step, names):
    try:
        try:
            code = compile(step, "step", "eval")
        except SyntaxError:
            code = compile(step, "step", "exec")
        value = eval(code, names)
    except BaseException as error:
        return {"raised": [one.__name__ for one in type(error).__mro__]}
    try:
        return {"gave": json.loads(json.dumps(value, default=plain))}
    except Exception:
        return {}

said = []
for steps in tests:
    names = {}
    said.append([outcome(step, names) for step in steps])
json.dump(said, answer)
answer.flush()
os._exit(0)
"""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    gives: Any = msgspec.UNSET
    raises: str | None = None

    def holds(self, said: Mapping[str, Any]) -> bool:
        if self.raises is not None:
            return self.raises in said.get("raised", ())
        return "raised" not in said if self.gives is msgspec.UNSET else said.get("gave", msgspec.UNSET) == self.gives


class HiddenTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    test: str
    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]


def main(repository: str, hidden: str) -> None:
    """Prints how many of the hidden tests pass, and whether the submission was isolated from this process."""
    if sys.platform == "linux":  # no process of this user can read the tests in our memory, or write to our pipes
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    files = json.load(sys.stdin)["submission"]["files"]
    try:
        tests = msgspec.json.decode(Path(hidden).read_bytes(), type=list[HiddenTest])
    except (OSError, msgspec.DecodeError) as error:
        sys.exit(f"{hidden}: {error}; hidden tests are a JSON file of steps: see docs/problems.md, Coding problems")
    isolated = not no_isolation()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        tree = Path(place) / "tree"
        shutil.copytree(repository, tree, ignore=shutil.ignore_patterns("__pycache__"))
        _apply(files, tree)
        unseen = (str(Path.cwd()), str(Path(hidden).resolve()))
        around = ProcessEnvironment(isolation=Isolation(write=(str(tree),), hide=unseen, read=()) if isolated else None)
        said = anyio.run(_said, tree, [[step.run for step in test.steps] for test in tests], around)
    json.dump({"passed": _passed(tests, said), "isolated": isolated}, sys.stdout)


def _apply(files: Mapping[str, str | None], tree: Path) -> None:
    root = tree.resolve()
    for name, text in files.items():
        path = (root / name).resolve()
        if root not in path.parents:
            sys.exit(f"{name!r} is not inside the repository")
        if text is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


async def _said(tree: Path, steps: Sequence[Sequence[str]], around: ProcessEnvironment) -> list[list[dict[str, Any]]]:
    """The outcome of each step of each test; empty if the code exited early, did not end or wrote other output."""
    argv, given = [sys.executable, "-B", "-I", "-c", RUN], json.dumps(steps).encode()
    try:
        with anyio.fail_after(SECONDS):
            done = await run_command(argv, str(tree), around=around, given=given, whole=MAX_OUTPUT)
    except TimeoutError:
        return []
    except CallFailed as error:
        return [] if error.answered else sys.exit(str(error))
    if not done["stdout"].startswith(READY):
        sys.exit(f"the hidden tests cannot be run here: {done['stderr'].strip()}")
    try:
        return msgspec.convert(json.loads(done["stdout"]), type=list[list[dict[str, Any]]])
    except (ValueError, RecursionError, msgspec.ValidationError):
        return []


def _passed(tests: Sequence[HiddenTest], said: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    pairs = [(test.steps, row) for test, row in zip(tests, said, strict=False) if len(row) == len(test.steps)]
    return sum(all(step.holds(one) for step, one in zip(steps, row, strict=True)) for steps, row in pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])

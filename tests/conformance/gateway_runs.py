"""The official suite against the fixture server: directly, and through the gateway, over stdio and over HTTP.

Owns: the three runs, what is said of them in a word, and the file that keeps it. Does not know: which differences are
allowed. Invariant: the three are the same fixture, the same suite and the same versions; only what is between differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream
from suite import PACKAGE, PINNED, Check, Results, run_once, run_patiently, serving

VERSIONS = ("2026-07-28", "2025-11-25")
DIRECT = "direct"
THROUGH = ("over_stdio", "over_http")
TASKLESS = "no_tasks_behind"
"""The gateway with a fixture that knows no tasks: those are the gateway's own, as an operator's configuration says."""
TASKS = "tasks-"
TOOLS = """
[servers.fixture.tools]
failing_job = { task_only = true }
"""
"""A gateway could serve this tool to clients without tasks, too; the suite wants one that must not be."""
TASKLESS_TOOLS = f"""{TOOLS}
slow_compute = {{ long = true }}
protocol_error_job = {{ long = true }}
confirm_delete = {{ long = true }}
multi_input = {{ long = true }}
"""
FIXTURE = Path(__file__).with_name("fixture_server.py")
RESULTS = Path(__file__).with_name("gateway_results.toml")
STEADY = ("tasks-status-notifications", "server-sse-polling")
"""Scenarios that the suite always finds something to say of, so that no second run is worth while."""

_WORDS = {"FAILURE": "fails", "WARNING": "warns", "SKIPPED": "skipped"}
_HEAD = """\
# What the official conformance suite, {version}, says of the fixture server itself, and of the gateway with the
# fixture behind it, over stdio and over HTTP. Every check counts, also what the suite only recommends.
# Written by {script}; the test holds it to the truth.
"""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What the suite said in each run, and what the gateways wrote to their logs."""

    checks: dict[tuple[str, str], Results] = field(default_factory=dict[tuple[str, str], Results])
    notes: list[str] = field(default_factory=list[str])

    def __or__(self, other: Runs) -> Runs:
        return Runs(checks=self.checks | other.checks, notes=self.notes + other.notes)

    def scenarios(self, version: str) -> list[str]:
        """Every scenario of a version."""
        return sorted({name for how in (DIRECT, *THROUGH) for name in self.checks[how, version]})

    def lost(self, how: str, version: str) -> dict[str, dict[str, str]]:
        """What passes directly and not through the gateway: for each scenario its checks, with what the suite says."""
        lost: dict[str, dict[str, str]] = {}
        for scenario, checks in self.checks[DIRECT, version].items():
            through = self.checks[how, version].get(scenario, [])
            names = {check.name for check in checks if check.status == "SUCCESS"} - _names(_broken(checks))
            bad = {check.name: str(check) for check in _broken(through) if check.name in names}
            gone = dict.fromkeys(names - _names(through), "was not looked at")
            if bad or gone:
                lost[scenario] = bad | gone
        return lost

    def written(self) -> str:
        """The file that keeps the results."""
        script = RESULTS.with_name("write_gateway_results.py")
        pinned = json.loads(PINNED.read_text(encoding="utf-8"))["dependencies"][PACKAGE]
        return "\n".join([_HEAD.format(version=pinned, script=script.name), *self._tables()])

    def _tables(self) -> Iterator[str]:
        for version in VERSIONS:
            yield f'[versions."{version}"]'
            for scenario in self.scenarios(version):
                also = (TASKLESS,) if scenario in self.checks.get((TASKLESS, version), {}) else ()
                words = (
                    f'{how} = "{in_a_word(self.checks[how, version].get(scenario))}"'
                    for how in (DIRECT, *THROUGH, *also)
                )
                yield f"{scenario} = {{ {', '.join(words)} }}"
            yield ""


def in_a_word(checks: list[Check] | None) -> str:
    """What came of a scenario."""
    if not checks:
        return "did not run"
    broken = _broken(checks)
    if not broken:
        return "passes"
    found = {
        word: sorted({check.name for check in broken if check.status == status}) for status, word in _WORDS.items()
    }
    return "; ".join(f"{word}: {' '.join(names)}" for word, names in found.items() if names)


def _broken(checks: list[Check]) -> list[Check]:
    return [check for check in checks if not check.good]


def _names(checks: list[Check]) -> set[str]:
    return {check.name for check in checks}


def run_stdio(folder: Path, versions: Sequence[str] = VERSIONS) -> Runs:
    """Runs the suite through the gateway over stdio, one version after the other: some checks have a stopwatch."""
    runs = Runs()

    async def main() -> None:
        by = f'command = "__python_executable__"\nargs = {json.dumps([str(FIXTURE)])}'
        async with _gateway(folder / "over_stdio", by, runs) as url:
            await _judge(runs, "over_stdio", url, folder / "over_stdio" / "results", versions)
        await _judge_tasks(runs, folder / TASKLESS, versions)

    anyio.run(main)
    return runs


def run_http(folder: Path) -> Runs:
    """Runs it directly, and through the gateway over HTTP."""
    runs = Runs()

    async def main() -> None:
        async with fixture_over_http(folder) as upstream:
            await _judge(runs, DIRECT, upstream, folder / DIRECT)
            at = f"url = {json.dumps(upstream)}"
            async with _gateway(folder / "over_http", at, runs) as url:
                await _judge(runs, "over_http", url, folder / "over_http" / "results")

    anyio.run(main)
    return runs


async def _judge_tasks(runs: Runs, folder: Path, versions: Sequence[str]) -> None:
    """The scenarios about tasks, in front of a server that has never heard of them."""
    by = f'command = "__python_executable__"\nargs = {json.dumps([str(FIXTURE), "--no-tasks"])}'
    async with _gateway(folder, by, runs, TASKLESS_TOOLS) as url:
        for version in versions:
            names = [name for name in runs.checks["over_stdio", version] if name.startswith(TASKS)]
            for name in names:
                for number in (1, 2, 3):
                    found = await run_once(url, version, folder / f"{version}-{number}-{name}", scenario=name)
                    runs.checks.setdefault((TASKLESS, version), {}).update(found)
                    if name in STEADY or not _broken(found[name]):
                        break


async def _judge(runs: Runs, how: str, url: str, results: Path, versions: Sequence[str] = VERSIONS) -> None:
    for version in versions:
        found = await run_patiently(url, version, results / version, lambda name, _check: name in STEADY)
        runs.checks[how, version] = found


@asynccontextmanager
async def _gateway(folder: Path, server: str, runs: Runs, tools: str = TOOLS) -> AsyncIterator[str]:
    folder.mkdir()
    text = f'[policy]\nmode = "auto"\n\n[servers.fixture]\n{server}\n{tools}'
    (folder / "pursuit.toml").write_text(text, encoding="utf-8")
    notes: list[str] = []
    async with serving(folder, notes, "--gateway") as url:
        yield url
    runs.notes.extend(notes)


@asynccontextmanager
async def fixture_over_http(folder: Path) -> AsyncIterator[str]:
    """The fixture server in a process of its own: its address while it runs."""
    with (folder / "fixture.log").open("wb") as log:
        async with await anyio.open_process(
            [sys.executable, str(FIXTURE), "--http"], stdin=subprocess.DEVNULL, stderr=log
        ) as server:
            assert server.stdout is not None
            try:
                said = ""
                with anyio.fail_after(120):
                    while not said.endswith("\n"):
                        said += await TextReceiveStream(server.stdout).receive()
                yield json.loads(said)["url"]
                server.terminate()
                with anyio.fail_after(120):
                    await server.wait()
            finally:
                if server.returncode is None:
                    server.kill()

"""The official suite against the fixture server: directly, and through the gateway, over stdio and over HTTP.

Owns: the three runs. Does not know: which differences are allowed. Invariant: the three are the same fixture, the same
suite and the same versions; only what is between differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream
from quick_start import quick
from suite import Results, run_once, run_patiently, serving

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
FIXTURE = str(Path(__file__).with_name("fixture_server.py"))
STEADY = ("tasks-status-notifications", "server-sse-polling")
"""Scenarios that the suite always finds something to say of, so that no second run is worth while."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What the suite said in each run, and what the gateways wrote to their logs."""

    checks: dict[tuple[str, str], Results] = field(default_factory=dict[tuple[str, str], Results])
    notes: list[str] = field(default_factory=list[str])

    def __or__(self, other: Runs) -> Runs:
        return Runs(checks=self.checks | other.checks, notes=self.notes + other.notes)


def run_stdio(folder: Path, versions: Sequence[str] = VERSIONS) -> Runs:
    """Runs the suite through the gateway over stdio, one version after the other: some checks have a stopwatch."""
    runs = Runs()

    async def main() -> None:
        by = f'command = "__python_executable__"\nargs = {json.dumps([quick(FIXTURE)])}'
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
    by = f'command = "__python_executable__"\nargs = {json.dumps([quick(FIXTURE), "--no-tasks"])}'
    async with _gateway(folder, by, runs, TASKLESS_TOOLS) as url:
        for version in versions:
            names = [name for name in runs.checks["over_stdio", version] if name.startswith(TASKS)]
            for name in names:
                for number in (1, 2, 3):
                    found = await run_once(url, version, folder / f"{version}-{number}-{name}", scenario=name)
                    runs.checks.setdefault((TASKLESS, version), {}).update(found)
                    if name in STEADY or all(check.good for check in found[name]):
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
            [sys.executable, quick(FIXTURE), "--http"], stdin=subprocess.DEVNULL, stderr=log
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

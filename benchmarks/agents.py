"""What a turn of an agent costs on our side, over the least that git needs, for small and large repositories.

Ours is the snapshot before the turn, the snapshot after it and the diff, with the commits and refs that keep them. The
floor is `git add -A`, `git write-tree` and `git diff` on a copied index. A turn changes ten files. Rounds alternate.

The isolation of an agent is what the start of `true` takes longer in it, with a network of its own, than without it.

Run: python benchmarks/agents.py [--check | --smoke]
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import anyio
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized

from pursuit.config.configuration import AgentsTable
from pursuit.config.process_environment import no_isolation
from pursuit.core.mission import Workspace as Settings
from pursuit.proposers.agent.isolation import AgentIsolation
from pursuit.proposers.agent.workspace import AgentWorkspace

SIZES = (50,) if SMOKE else (1_000, 50_000)
ROUNDS = sized(7, 1)
CHANGED = 10
LIMIT = 1.5
STARTS = sized(30, 2)
MOST_MS = 30.0


def git(folder: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def repository(folder: Path, files: int) -> None:
    for number in range(files):
        path = folder / f"d{number % 100:02}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 20, encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--message=First")


def change(folder: Path, files: int, mark: str) -> None:
    """What the agent does: some files are other ones."""
    for number in range(CHANGED):
        path = folder / f"d{number % 100:02}" / f"f{number % files}.py"
        path.write_text(f"value = '{mark}-{number}'\n" * 20, encoding="utf-8")


def floor_seconds(tree: Path, before: str, files: int, mark: str) -> tuple[float, str]:
    index = tree.with_name("floor-index")
    place = (tree / git(tree, "rev-parse", "--git-path", "index")).resolve()
    if not index.exists():
        shutil.copyfile(place, index)
    change(tree, files, mark)
    began = time.perf_counter()
    git(tree, "add", "-A", GIT_INDEX_FILE=str(index))
    after = git(tree, "write-tree", GIT_INDEX_FILE=str(index))
    git(tree, "diff", before, after)
    return time.perf_counter() - began, after


async def ours_seconds(workspace: AgentWorkspace, files: int, number: int) -> float:
    began = time.perf_counter()
    before = await workspace.before(number)
    spent = time.perf_counter() - began
    change(workspace.tree, files, f"ours-{number}")
    began = time.perf_counter()
    await workspace.changes(before, await workspace.snapshot("after a turn"))
    return spent + time.perf_counter() - began


async def measured(files: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name) / "repo"
        top.mkdir()
        repository(top, files)
        workspace = AgentWorkspace(Settings(path=str(top), protect=["tests/**"]), "bench", Path(name) / "ws")
        await workspace.prepare()
        plain = Path(name) / "floor" / "tree"
        git(top, "worktree", "add", "--quiet", "--detach", str(plain))
        before = git(plain, "write-tree")
        ours: list[float] = []
        floor: list[float] = []
        for number in range(ROUNDS + 1):  # the first round of each warms up
            seconds, before = floor_seconds(plain, before, files, f"floor-{number}")
            floor.append(seconds)
            ours.append(await ours_seconds(workspace, files, number))
        return ratio_of_rounds(ours[1:], floor[1:])


async def start_ms() -> float:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        top = Path(name) / "repo"
        top.mkdir()
        repository(top, 10)
        workspace = AgentWorkspace(Settings(path=str(top)), "bench", Path(name) / ".pursuit" / "workspaces" / "bench")
        await workspace.prepare()
        isolation = AgentIsolation(settings=AgentsTable(), places=workspace.places(), environment=os.environ)
        plain: list[float] = []
        isolated: list[float] = []
        for _ in range(STARTS + 1):
            began = time.perf_counter()
            subprocess.run(["true"], check=True)
            plain.append(time.perf_counter() - began)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                began = time.perf_counter()
                words = isolation.words(["true"], workspace.tree, joined=(theirs.fileno(), ""))
                subprocess.run(words, pass_fds=[theirs.fileno()], check=True)
                isolated.append(time.perf_counter() - began)
        return 1_000 * (statistics.median(isolated[1:]) - statistics.median(plain[1:]))


def main() -> None:
    what = "the start of an agent in its isolation"
    starts = [] if no_isolation() else [Figure(what=what, value=anyio.run(start_ms), unit="ms", limit=MOST_MS)]
    figures = [
        Figure(
            what=f"a turn in {files:,} files over add, write-tree and diff",
            value=anyio.run(measured, files),
            unit="x",
            limit=LIMIT,
        )
        for files in SIZES
    ]
    finish("agents: our own part of a turn", [*starts, *figures])


if __name__ == "__main__":
    main()

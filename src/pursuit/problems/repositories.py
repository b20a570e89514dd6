"""The repository of a coding problem: what an agent starts from, and what of a folder is its submission."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread

from pursuit.errors import InvalidArgument
from pursuit.problems.manifest import Manifest, Repository
from pursuit.proposers.agent.workspace import WorkspaceFailed, run_git

LARGEST_FILE = 1024 * 1024
_WHO = ("-c", "user.name=Pursuit", "-c", "user.email=pursuit@localhost", "-c", "core.hooksPath=/dev/null")


def repository_of(problem: Manifest) -> Repository:
    """The repository of a problem. Raises `InvalidArgument` if it has none."""
    if problem.repository is None:
        raise InvalidArgument(f"{problem.problem_id} is no problem for coding agents: it has no [repository]")
    return problem.repository


async def make_repository(problem: Manifest, place: Path) -> None:
    """Makes a git repository of the files that an agent starts from. Raises `InvalidArgument`."""
    source = problem.folder / repository_of(problem).path
    ignored = shutil.ignore_patterns("__pycache__", ".git")
    await anyio.to_thread.run_sync(lambda: shutil.copytree(source, place, ignore=ignored))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    commands = (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all", "--force"),
        (*_WHO, "commit", "--quiet", f"--message={problem.title}"),
    )
    try:
        for words in commands:
            await run_git(words, cwd=place, environment=environment, given=None)
    except WorkspaceFailed as error:
        raise InvalidArgument(f"the repository of {problem.problem_id} cannot be made: {error}") from None


def changed_files(problem: Manifest, folder: Path) -> dict[str, str | None]:
    """The text of each file that differs from the start, by its path; None is one that was removed.

    Hidden files and caches are left out. Raises `InvalidArgument` for what is no text.
    """
    before = dict(_files(problem.folder / repository_of(problem).path))
    after = dict(_files(folder))
    removed: dict[str, str | None] = {name: None for name in before if name not in after}
    changed = {name: body for name, body in after.items() if before.get(name) != body}
    try:
        return removed | {name: body.decode() for name, body in changed.items()}
    except UnicodeDecodeError:
        raise InvalidArgument(f"{folder} has a file that differs and is no UTF-8 text") from None


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for place, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = Path(place, name)
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size > LARGEST_FILE:
                raise InvalidArgument(f"{path} has more than {LARGEST_FILE} bytes")
            yield path.relative_to(folder).as_posix(), path.read_bytes()

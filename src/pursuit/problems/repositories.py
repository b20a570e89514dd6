"""The repository of a coding problem: the files that an agent starts from, and its submission in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread

from pursuit.errors import InvalidArgument
from pursuit.problems.manifest import Manifest, Repository
from pursuit.proposers.agent.workspace import WorkspaceFailed, run_git

MAX_FILE = 1024 * 1024
_WHO = ("-c", "user.name=Pursuit", "-c", "user.email=pursuit@localhost", "-c", "core.hooksPath=/dev/null")


def repository_of(problem: Manifest) -> Repository:
    if problem.repository is None:
        raise InvalidArgument(f"{problem.problem_id} is not for coding agents: [repository] is missing")
    return problem.repository


async def make_repository(problem: Manifest, place: Path) -> None:
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
        raise InvalidArgument(f"cannot create the repository of {problem.problem_id}: {error}") from None


def changed_files(problem: Manifest, folder: Path) -> dict[str, str | None]:
    """The text of each file that differs from the start, by path; None for a removed file.

    Hidden files and caches are omitted. Raises `InvalidArgument` for a file that is not text.
    """
    before = dict(_files(problem.folder / repository_of(problem).path))
    after = dict(_files(folder))
    removed: dict[str, str | None] = {name: None for name in before if name not in after}
    changed = {name: body for name, body in after.items() if before.get(name) != body}
    try:
        return removed | {name: body.decode() for name, body in changed.items()}
    except UnicodeDecodeError:
        raise InvalidArgument(f"{folder} contains a changed file that is not UTF-8 text") from None


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for place, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = Path(place, name)
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size > MAX_FILE:
                raise InvalidArgument(f"{path} is larger than {MAX_FILE} bytes")
            yield path.relative_to(folder).as_posix(), path.read_bytes()

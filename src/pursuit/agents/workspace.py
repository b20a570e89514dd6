"""The workspace of an agent's mission: a git worktree, snapshots of it, and a throw-away worktree for the checks.

Each snapshot is a commit below `refs/pursuit/MISSION`, made with an index of our own: untracked files are in it,
ignored ones are not, and neither the agent's index nor the user's is touched. Git runs with the repository's own
directory, so an agent that removes or changes the `.git` file of its worktree changes nothing here.

Invariant: the user's own files change by `apply` alone, and by the agent itself where the workspace is in place.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from pursuit.core.mission import Workspace as Settings
from pursuit.errors import InvalidArgument
from pursuit.tasks.supervisor import TAG

LONGEST_DIFF = 4 * 1024 * 1024
"""Bytes of a diff that are stored; git has all of it."""
_CONFIG = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.quotePath=false", "gc.auto=0", "advice.all=false")
_WHO = {
    "GIT_AUTHOR_NAME": "Pursuit",
    "GIT_AUTHOR_EMAIL": "pursuit@localhost",
    "GIT_COMMITTER_NAME": "Pursuit",
    "GIT_COMMITTER_EMAIL": "pursuit@localhost",
}
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv")


class WorkspaceFailed(Exception):
    """Git refused, with its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A commit of ours, and its tree."""

    commit: str
    tree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What differs between two snapshots, the size of the whole diff, and the protected files that differ."""

    diff: bytes
    files: Sequence[str]
    size: int
    protected: Sequence[str]


class Workspace:
    """The workspace of one mission, whose own files are in `folder`. Nothing is made before `prepare`."""

    def __init__(self, settings: Settings, mission_id: str, folder: Path) -> None:
        self.settings = settings
        self.mission_id = mission_id
        self.folder = folder.absolute()
        self.given = Path(settings.path).absolute()
        self.top = self.given
        self.git_dir = self.given / ".git"
        self.start = Snapshot(commit="", tree="")
        self.began_dirty = False
        self.tag = ""
        """What git carries in its environment while this process drives the mission: an orphan is found by it."""
        names = [one.removeprefix("./").rstrip("/") for one in settings.protect]
        globs = [one if "/" in one else f"**/{one}" for one in names]
        self._globs = [*globs, *(f"{one}/**" for one in globs)]  # the name of a folder stands for all below it
        self._newest: Snapshot | None = None
        self._touched = True
        """Whether a protected file may differ from the start."""
        self.last: Snapshot | None = None
        """The newest snapshot, while nothing but the agent can have changed the tree since."""

    @property
    def tree(self) -> Path:
        """Where the agent works."""
        return self.top if self.settings.in_place else self.folder / "tree"

    @property
    def agent_folder(self) -> Path:
        """The folder of the agent: `path` of the mission, in its tree."""
        return self.tree / (self._inside(self.given) or ".")

    @property
    def branch(self) -> str:
        """The branch that a completed mission leaves."""
        return f"pursuit/{self.mission_id}"

    def ref(self, name: str) -> str:
        """A ref of this mission."""
        return f"refs/pursuit/{self.mission_id}/{name}"

    async def locate(self) -> None:
        """Finds the repository. Raises `WorkspaceFailed` if there is none."""
        try:
            said = await self._git("rev-parse", "--show-toplevel", "--absolute-git-dir", cwd=self.given, own=False)
        except WorkspaceFailed as error:
            why = f"workspace.path {self.given} is not in a git repository; `git init` and a first commit make it one"
            raise WorkspaceFailed(f"{why} ({error})") from None
        top, git_dir = said.decode().splitlines()
        self.top, self.git_dir = Path(top), Path(git_dir)

    async def prepare(self) -> None:
        """Makes the worktree, or finds the one that an earlier process made; one that is gone is made again."""
        await self.locate()
        await anyio.to_thread.run_sync(partial(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True))
        if self.tag:
            for lock in self.folder.glob("*.lock"):  # of git that was killed; the indexes here are ours alone
                lock.unlink(missing_ok=True)
        found = await self.find("start")
        self.start = found or await self._begin()
        self.began_dirty = not await self._same(self.start.commit, "HEAD") if found is None else self.began_dirty
        if self.settings.in_place:
            return
        ready = self.folder / "ready"
        if not (ready.exists() and self.tree.is_dir()):
            await self._remove_tree(self.tree)
            await self._add_tree(self.tree, ((await self.find("last")) or self.start).commit)
            ready.touch()
        self._link(self.tree)

    async def find(self, name: str) -> Snapshot | None:
        """The snapshot of that name."""
        with suppress(WorkspaceFailed):
            return await self._look_up(self.ref(name))
        return None

    async def _look_up(self, ref: str) -> Snapshot:
        commit, tree = (await self._git("log", "-1", "--format=%H %T", ref, "--")).decode().split()
        return Snapshot(commit=commit, tree=tree)

    async def before(self, iteration: int) -> Snapshot:
        """The snapshot before a turn: the newest one where nobody else works in the tree, else a new one."""
        found = self.last
        if found is None or self.settings.in_place:
            found = await self.snapshot(f"before turn {iteration}")
        row = json.dumps({"iteration": iteration, "commit": found.commit, "tree": found.tree})
        await anyio.to_thread.run_sync(self._turn_file.write_text, row)
        return found

    async def begun(self, iteration: int) -> Snapshot | None:
        """The snapshot before a turn that another process began; None if it did not come to that."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            row = json.loads(await anyio.to_thread.run_sync(self._turn_file.read_text))
            if row["iteration"] == iteration:
                return Snapshot(commit=row["commit"], tree=row["tree"])
        return None

    @property
    def _turn_file(self) -> Path:
        return self.folder / "turn.json"

    async def snapshot(self, message: str) -> Snapshot:
        """A snapshot of the tree as it is."""
        index = self.folder / "index"
        if not index.exists():
            with suppress(OSError):  # what the worktree's own index knows of files saves reading them
                shutil.copyfile(await self._own_index(), index)
        tree = await self._write_tree(index, self.tree)
        parent = self._newest or await self.find("last") or self.start
        commit = await self._commit(tree, [parent.commit], f"Pursuit {self.mission_id}: {message}")
        await self._git("update-ref", self.ref("last"), commit)
        self.last = self._newest = Snapshot(commit=commit, tree=tree)
        return self.last

    async def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        """The diff between two snapshots, and which protected files differ from the start now."""
        if before.tree == after.tree:
            return Changes(diff=b"", files=(), size=0, protected=await self._protected_names(after))
        # `--raw` first: a line for each file, with its name after a tab.
        said = await self._git("diff-tree", "-r", "-p", "--raw", "--no-renames", *_PLAIN, before.tree, after.tree)
        raw, _, diff = said.partition(b"\n\n")
        names = [line.partition(b"\t")[2].decode(errors="replace") for line in raw.split(b"\n")]
        touched = self._touched or any(self._may_be_protected(name) for name in names)
        protected = await self._protected_names(after) if touched else []
        self._touched = bool(protected)
        return Changes(diff=diff[:LONGEST_DIFF], files=names, size=len(diff), protected=protected)

    async def rollback(self, to: Snapshot) -> None:
        """Makes the tree what it was; ignored files stay."""
        index = self.folder / "index"
        await self._write_tree(index, self.tree)  # so that new files are known, and removed
        await self._git("read-tree", "--reset", "-u", to.tree, index=index, work_tree=self.tree)
        await self._git("update-ref", self.ref("last"), to.commit)
        self.last = self._newest = to
        self._touched = True

    async def counted(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the protected files as they were at the start."""
        rows = await self._protected(snapshot)
        if not rows:
            return snapshot
        index = self.folder / "check-index"
        await self._git("read-tree", snapshot.tree, index=index)
        entries = b"".join(b"%s %s\t%s\0" % (mode, blob, name) for mode, blob, name in rows)
        # `--replace`: a protected folder may have become a file.
        await self._git("update-index", "--replace", "-z", "--index-info", index=index, given=entries)
        tree = (await self._git("write-tree", index=index)).decode().strip()
        commit = await self._commit(tree, [snapshot.commit], f"Pursuit {self.mission_id}: protected files put back")
        return Snapshot(commit=commit, tree=tree)

    async def open_checks(self) -> Path:
        """A throw-away worktree of what counts now, for the checks; `close_checks` removes it."""
        snapshot = self.last
        if snapshot is None or self.settings.in_place:
            snapshot = await self.snapshot("for the checks")
        place = self.folder / "check"
        await self._remove_tree(place)
        await self._add_tree(place, (await self.counted(snapshot)).commit)
        self._link(place)
        return place

    async def close_checks(self) -> None:
        """Removes the worktree of the checks."""
        await self._remove_tree(self.folder / "check")

    def moved(self, cwd: str | None, place: Path) -> str:
        """The folder in another worktree that stands for a folder of the user; one outside of it stays as it is."""
        given = self.given if cwd is None else Path(cwd)
        inside = self._inside(given)
        return str(place / inside) if inside is not None else str(given)

    async def result(self) -> Snapshot:
        """What the mission has come to: the newest snapshot, with protected files as at the start, on top of it."""
        last = self.last or await self.find("last")
        if last is None:
            return self.start
        counted = await self.counted(last)
        if counted.tree == self.start.tree:
            return self.start
        commit = await self._commit(counted.tree, [self.start.commit], f"Pursuit {self.mission_id}")
        return Snapshot(commit=commit, tree=counted.tree)

    async def write_branch(self, message: str, *, again: bool = False) -> str:
        """Makes the branch of a completed mission, once, or with `again` anew; returns its name."""
        known = await self._git("for-each-ref", "--format=%(refname)", f"refs/heads/{self.branch}")
        if again or not known.strip():
            result = await self.result()
            commit = await self._commit(result.tree, [self.start.commit], message)
            await self._git("update-ref", f"refs/heads/{self.branch}", commit)
        return self.branch

    async def total(self) -> bytes:
        """The whole diff from the start to what counts now, in a form that can be applied."""
        return await self._git(
            "diff-tree", "-r", "-p", "--binary", *_PLAIN, self.start.tree, (await self.result()).tree
        )

    async def apply(self) -> Sequence[str]:
        """Applies the result to the user's files, all of it or nothing. Raises `InvalidArgument` if it does not fit."""
        diff = await self.total()
        if not diff:
            return []
        try:
            await self._git("apply", "--whitespace=nowarn", "-", given=diff, cwd=self.top, own=False)
        except WorkspaceFailed as error:
            why = f"the result does not fit your files as they are now, and nothing was changed: {error}"
            raise InvalidArgument(why, session_id=self.mission_id) from None
        names = await self._git("diff-tree", "-r", "-z", "--name-only", self.start.tree, (await self.result()).tree)
        return [name.decode(errors="replace") for name in names.split(b"\0") if name]

    async def drop(self) -> None:
        """Removes the worktrees, the snapshots and the folder; a branch stays."""
        for place in (self.folder / "check", self.folder / "tree"):
            await self._remove_tree(place)
        refs = await self._git("for-each-ref", "--format=delete %(refname)", f"refs/pursuit/{self.mission_id}/")
        await self._git("update-ref", "--stdin", given=refs)
        await anyio.to_thread.run_sync(partial(shutil.rmtree, self.folder, ignore_errors=True))

    # Inside.

    def _inside(self, path: Path) -> Path | None:
        with suppress(ValueError):
            return path.resolve().relative_to(self.top.resolve())
        return None

    async def _begin(self) -> Snapshot:
        """The start: the user's tree as it is, with changes that are not committed."""
        try:
            head = await self._look_up("HEAD")
        except WorkspaceFailed:
            raise WorkspaceFailed(f"{self.top} has no commit yet; make the first one, then run again") from None
        index = self.folder / "start-index"
        with suppress(OSError):
            shutil.copyfile(self.git_dir / "index", index)
        tree = await self._write_tree(index, self.top)
        commit = head.commit
        if tree != head.tree:
            commit = await self._commit(
                tree, [head.commit], f"Pursuit {self.mission_id}: changes that were not committed"
            )
        await self._git("update-ref", self.ref("start"), commit)
        return Snapshot(commit=commit, tree=tree)

    async def _same(self, one: str, other: str) -> bool:
        said = (await self._git("rev-parse", one, other)).decode().split()
        return said[0] == said[1]

    async def _own_index(self) -> Path:
        where = await self._git("rev-parse", "--git-path", "index", cwd=self.tree, own=False)
        return self.tree / where.decode().strip()

    async def _write_tree(self, index: Path, work_tree: Path) -> str:
        # What is linked is the user's, and our own folder may lie in the repository.
        left_out = [name.rstrip("/") for name in self.settings.link]
        if (own := self._inside(self.folder.parent)) is not None and work_tree == self.top:
            left_out.append(str(own))
        if left_out:  # git refuses a path that it ignores anyway, also where it is to be left out
            words = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z", "--", *left_out)
            said = await self._git(*words, index=index, work_tree=work_tree)
            ignored = {name.rstrip("/") for name in said.decode(errors="replace").split("\0")}
            left_out = [name for name in left_out if not ignored.intersection(_with_parents(name))]
        paths = [".", *(f":(exclude,top,literal){name}" for name in left_out)]
        await self._git("add", "-A", "--", *paths, index=index, work_tree=work_tree)
        return (await self._git("write-tree", index=index)).decode().strip()

    async def _commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        words = [word for parent in parents for word in ("-p", parent)]
        return (await self._git("commit-tree", tree, *words, given=message.encode())).decode().strip()

    async def _protected(self, snapshot: Snapshot) -> list[tuple[bytes, bytes, bytes]]:
        """The protected files that differ from the start: mode, blob and name as they were; mode 0 is none."""
        if not self.settings.protect or snapshot.tree == self.start.tree:
            return []
        words = [f":(top,glob){glob}" for glob in self._globs]
        raw = await self._git("diff-tree", "-r", "-z", "--no-renames", self.start.tree, snapshot.tree, "--", *words)
        fields = raw.split(b"\0")
        rows: list[tuple[bytes, bytes, bytes]] = []
        for told, name in zip(fields[0::2], fields[1::2], strict=False):
            mode, _, blob, _, _ = told.removeprefix(b":").split()
            rows.append((mode if mode.strip(b"0") else b"0", blob, name))
        return rows

    def _may_be_protected(self, name: str) -> bool:
        """Whether git may find a name by one of the globs; here `*` matches more than there."""
        return any(fnmatchcase(name, glob.replace("**/", "*")) for glob in self._globs)

    async def _protected_names(self, snapshot: Snapshot) -> list[str]:
        return [name.decode(errors="replace") for _, _, name in await self._protected(snapshot)]

    async def _add_tree(self, place: Path, commit: str) -> None:
        await self._git("worktree", "add", "--quiet", "--force", "--detach", str(place), commit)

    async def _remove_tree(self, place: Path) -> None:
        """Removes one worktree of ours; `prune` would also forget those of the user on a disk that is not there now."""
        await anyio.to_thread.run_sync(partial(shutil.rmtree, place, ignore_errors=True))
        with suppress(WorkspaceFailed):  # there is none
            await self._git("worktree", "remove", "--force", "--force", str(place))

    def _link(self, place: Path) -> None:
        for name in self.settings.link:
            ours, theirs = place / name, self.top / name
            if theirs.exists() and not os.path.lexists(ours):
                ours.parent.mkdir(parents=True, exist_ok=True)
                ours.symlink_to(theirs)

    async def _git(
        self,
        *words: str,
        index: Path | None = None,
        work_tree: Path | None = None,
        cwd: Path | None = None,
        given: bytes | None = None,
        own: bool = True,
    ) -> bytes:
        """What git says; `own` is with the repository's own directory, wherever it runs. Raises `WorkspaceFailed`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {**_WHO, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
        if self.tag:
            environment[TAG] = self.tag
        if own:
            environment["GIT_DIR"] = str(self.git_dir)
            environment["GIT_WORK_TREE"] = str(work_tree or self.top)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        settings = [word for one in _CONFIG for word in ("-c", one)]
        return await run_git(
            [*settings, *words], cwd=cwd or work_tree or self.top, environment=environment, given=given
        )


def _with_parents(name: str) -> list[str]:
    return [name, *(str(one) for one in Path(name).parents)]


async def run_git(words: Sequence[str], *, cwd: Path, environment: Mapping[str, str], given: bytes | None) -> bytes:
    """The output of a git command. It is not cut off half-way: a lock that it holds would stay."""
    # A thread that waits costs less than a process of the event loop: a turn runs several of these.
    run = partial(subprocess.run, ["git", *words], cwd=cwd, env=environment, capture_output=True, check=False)
    try:
        done: subprocess.CompletedProcess[bytes] = await anyio.to_thread.run_sync(partial(run, input=given or b""))
    except OSError as error:
        raise WorkspaceFailed(f"git cannot be run: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise WorkspaceFailed(said[-2_000:] or f"git {words[0]} failed with {done.returncode}")
    return done.stdout

"""The workspace of an agent's mission: a git worktree, snapshots of it, and a temporary worktree for the checks.

Each mission has its own git directory, which uses the objects of the user's repository and none of its settings. A
snapshot is a commit there, with untracked files and without ignored ones, each file with its bytes on the disk. So
filters, attributes, replaced objects and the `.git` file of the agent's worktree do not change what is checked. Only
the branch passes the changed files through the user's filters.

Invariant: only `apply` changes the user's own files, and the agent itself if the workspace is in place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from pursuit.config.process_environment import CannotIsolate
from pursuit.core.mission import Workspace as Settings
from pursuit.errors import InvalidArgument
from pursuit.processes.subreaper import TAG
from pursuit.proposers.agent.isolation import AgentPlaces, linked

MAX_DIFF = 4 * 1024 * 1024
"""Bytes of a diff that are stored; git has the rest."""
MAX_NAMES = 10  # in one warning
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "core.safecrlf=false",
    "diff.ignoreSubmodules=all",  # otherwise `git add` runs `git status` in them, with the agent's settings
    "gc.auto=0",
    "advice.all=false",
)
# `!diff`: git detects binary files by their content. With `-diff`, no diff would show text.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding !diff -merge\n"
_OWN_CONFIG = "[core]\nrepositoryFormatVersion = 1\nbare = true\nprecomposeUnicode\n[extensions]\nobjectFormat = {}\n"
_SUBMODULE = b"160000"
By = Literal["mission", "user", "cwd"]
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
class TreeSnapshot:
    commit: str
    tree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChanges:
    """The differences between two snapshots, the size of the whole diff, and the changed protected files."""

    diff: bytes
    files: Sequence[str]
    size: int
    protected: Sequence[str]


class AgentWorkspace:
    """The workspace of one mission, with its own files in `folder`. `prepare` creates everything."""

    def __init__(self, settings: Settings, mission_id: str, folder: Path) -> None:
        self.settings = settings
        self.mission_id = mission_id
        self.folder = folder.absolute()
        self.given = Path(settings.path).absolute()
        self.top = self.given
        self.git_dir = self.given / ".git"  # the user's
        self.private, self.check_tree = self.folder / "git", self.folder / "check"
        self.start = TreeSnapshot(commit="", tree="")
        self.known_start = ""
        """The tree of the start, from the ledger after the first turn: an agent can write to our git directory."""
        self.notes: dict[str, str] = {}
        """Texts of warnings for the person and the agent, with their codes."""
        self.tag = ""
        """The environment variable that marks the git processes of this driver: it identifies orphans."""
        names = [one.removeprefix("./").rstrip("/") for one in settings.protect]
        globs = [one if "/" in one else f"**/{one}" for one in names]
        # The name of a folder stands for everything below it. `.git` matches nothing, while an empty pathspec would
        # match everything.
        self._pathspecs = [":(top).git", *(f":(top,glob){one}" for name in globs for one in (name, f"{name}/**"))]
        self._newest: TreeSnapshot | None = None
        self.last: TreeSnapshot | None = None
        """The newest snapshot, while only the agent can have changed the tree since."""
        self._objects = self.git_dir / "objects"
        self._submodules: list[str] = []
        self._form = "sha1"
        self._filters = self._kept = ""  # digests of the start: of the user's filters, of the protected files

    @property
    def tree(self) -> Path:
        return self.top if self.settings.in_place else self.folder / "tree"

    @property
    def agent_folder(self) -> Path:
        """The folder of the agent: the mission's `path` in its tree."""
        return self.tree / (self._inside(self.given) or ".")

    @property
    def branch(self) -> str:
        return f"pursuit/{self.mission_id}"

    def ref(self, name: str) -> str:
        """A ref of this mission, in its own git directory; in the user's, `start` keeps the used objects."""
        return f"refs/pursuit/{self.mission_id}/{name}"

    async def locate(self) -> None:
        """Finds the repository. Raises `WorkspaceFailed` if there is none."""
        words = ("rev-parse", "--show-toplevel", "--absolute-git-dir", "--git-path", "objects", "--show-object-format")
        try:
            known = self.private / "top"  # in place, the agent can make a repository in its folder
            place = Path(known.read_text(encoding="utf-8")) if known.is_file() else self.given
            said = await self._git(*words, cwd=place, by="cwd")
        except WorkspaceFailed as error:
            why = f"workspace.path {self.given} is not in a git repository; `git init` and a first commit make it one"
            raise WorkspaceFailed(f"{why} ({error})") from None
        top, git_dir, objects, self._form = said.decode().splitlines()
        self.top, self.git_dir, self._objects = Path(top), Path(git_dir), (place / objects).resolve()

    async def prepare(self) -> None:
        """Creates the worktree, or uses that of an earlier process; recreates a missing one."""
        await self.locate()
        await anyio.to_thread.run_sync(partial(self.folder.mkdir, mode=0o700, parents=True, exist_ok=True))
        if self.tag:
            for lock in (*self.folder.glob("*.lock"), *self.private.rglob("*.lock")):  # left by a killed git
                lock.unlink(missing_ok=True)
        self.start = await self.find("start") or await self._begin()
        with suppress(OSError, ValueError):
            self._filters = (self.folder / "filters").read_text(encoding="utf-8")
        rows = await self._git("ls-tree", "-r", "-z", self.start.tree)
        # Objects can be forged, so the tree is computed again from git's listing.
        if {await self._tree_of(rows, "--index-info"), self.known_start or self.start.tree} != {self.start.tree}:
            raise WorkspaceFailed("the start of the workspace was changed")
        self._kept = await self._protected_tree()
        self._submodules = _submodules_in(rows)
        if self.settings.in_place:
            return
        if not (self._index(self.tree).exists() and self.tree.is_dir()):
            await self._add_agent_tree((await self.find("last")) or self.start)
        self._link(self.tree)

    def places(self, *, check: bool = False) -> AgentPlaces:
        """The paths that the agent can read and write; with `check`, those that a check can. Raises `CannotIsolate`."""
        (self.folder / "home").mkdir(mode=0o700, exist_ok=True)
        read = [one for name in self.settings.link for one in linked(self.top / name)]
        read += [*self._alternates(), self.private] if check else self._alternates()
        tree, locked = self.check_tree if check else self.tree, list[Path]()
        if self.settings.in_place and not check:
            locked, read = [self.top / ".git"], [*read, self.git_dir, self._objects.parent]
            if locked[0].is_symlink() or self.top.is_relative_to(self.folder.parent.parent):
                raise CannotIsolate("in_place is not isolated if `.git` is a link or the ledger lies among the files")
        return AgentPlaces(folder=self.folder, tree=tree, top=self.top, read=read, locked=locked)

    def _alternates(self) -> list[Path]:
        """The object folders of the user's repository, including its alternates."""
        found = [self._objects]
        for place in found:
            with suppress(OSError, UnicodeDecodeError):  # it has no alternates
                lines = (place / "info" / "alternates").read_text(encoding="utf-8").splitlines()
                more = [(place / line).resolve() for line in lines if line and not line.startswith("#")]
                found += [one for one in more if one not in found]
        return found

    async def find(self, name: str) -> TreeSnapshot | None:
        with suppress(WorkspaceFailed):
            commit, tree = (await self._git("rev-parse", self.ref(name), f"{self.ref(name)}^{{tree}}")).decode().split()
            return TreeSnapshot(commit=commit, tree=tree)
        return None

    async def before(self, iteration: int) -> TreeSnapshot:
        """The snapshot before a turn: the newest one if only the agent works in the tree, else a new one."""
        found = self.last
        if found is None or self.settings.in_place:
            found = await self.snapshot(f"before turn {iteration}")
        await self._git("update-ref", self.ref(f"before/{iteration}"), found.commit)
        self.last = None  # until the snapshot after the turn exists
        return found

    async def snapshot(self, message: str) -> TreeSnapshot:
        tree = await self._write_tree(self.tree)
        parent = self._newest or await self.find("last") or self.start
        commit = await self._commit(tree, parent.commit, f"Pursuit {self.mission_id}: {message}")
        await self._git("update-ref", self.ref("last"), commit)
        self.last = self._newest = TreeSnapshot(commit=commit, tree=tree)
        return self.last

    async def changes(self, before: TreeSnapshot, after: TreeSnapshot) -> TreeChanges:
        """The diff between two snapshots, and the protected files that now differ from the start."""
        # `--raw` first: a line for each file, with its name after a tab.
        said = await self._git("diff-tree", "-r", "-p", "--raw", "--no-renames", *_PLAIN, before.tree, after.tree)
        raw, _, diff = said.partition(b"\n\n")
        names = [line.partition(b"\t")[2].decode(errors="replace") for line in raw.splitlines()]
        protected = [name.decode(errors="replace") for _, _, name in await self._protected(after)]
        return TreeChanges(diff=diff[:MAX_DIFF], files=names, size=len(diff), protected=protected)

    async def rollback(self, to: TreeSnapshot) -> None:
        """Restores the tree; ignored files stay."""
        await self._write_tree(self.tree)  # so that new files are tracked, and removed
        await self._check_out(to)
        await self._git("update-ref", self.ref("last"), to.commit)
        self.last = self._newest = to

    async def counted(self, snapshot: TreeSnapshot) -> TreeSnapshot:
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
        commit = await self._commit(tree, snapshot.commit, f"Pursuit {self.mission_id}: protected files put back")
        return TreeSnapshot(commit=commit, tree=tree)

    async def commit(self, name: str) -> TreeSnapshot:
        """A commit of the user's repository. Raises `WorkspaceFailed` if no commit has this name."""
        try:
            said = await self._git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", by="user")
        except WorkspaceFailed:
            raise WorkspaceFailed(f"{self.top} has no commit {name!r}") from None
        commit = said.decode().strip()
        tree = (await self._git("rev-parse", f"{commit}^{{tree}}", by="user")).decode().strip()
        return TreeSnapshot(commit=commit, tree=tree)

    async def open_checks(self, *, again: bool = True, of: TreeSnapshot | None = None) -> Path:
        """A temporary worktree of the current result, or of `of`; without `again` the existing one, if a check runs."""
        place = self.check_tree
        if not again and await anyio.to_thread.run_sync(place.is_dir):
            return place
        snapshot = of or self.last
        if of is None and (snapshot is None or self.settings.in_place):
            snapshot = await self.snapshot("for the checks")
        assert snapshot is not None  # noqa: S101 - made above
        await self.close_checks()
        words = ("worktree", "add", "--quiet", "--force", "--force", "--detach", str(place))  # git may have died
        await self._git(*words, (await self.counted(snapshot)).commit)
        if (found := await self._protected_tree(place)) != self._kept:
            names = (await self._names_between(self._kept, found))[:MAX_NAMES]
            raise WorkspaceFailed(f"nothing was checked, because protected files differ: {', '.join(names)}")
        self._link(place)
        return place

    async def close_checks(self) -> None:
        await _removed(self.check_tree)

    def checked_folder(self, cwd: str | None) -> str:
        """The folder of a check, in the throw-away worktree; one outside of the user's tree stays as it is."""
        given = self.given if cwd is None else Path(cwd)
        inside = self._inside(given)
        return str(self.check_tree / inside) if inside is not None else str(given)

    async def result(self) -> str:
        """The tree of the current result: the newest snapshot, with protected files as at the start."""
        last = self.last or await self.find("last")
        return self.start.tree if last is None else (await self.counted(last)).tree

    async def write_branch(self, message: str, *, again: bool = False) -> str:
        """Creates the branch of a completed mission, once, or again with `again`; uncommitted files are not in it."""
        known = await self._git("for-each-ref", "--format=%(refname)", f"refs/heads/{self.branch}", by="user")
        if again or not known.strip():
            if await self._filters_now() != self._filters:
                raise WorkspaceFailed(f"filters or attributes of git in {self.top} have changed since the start")
            base = (await self._git("rev-parse", f"{self.start.commit}^")).decode().strip()
            tree = await self._filtered_tree(base)
            commit = await self._commit(tree, base, message, by="user")
            await self._git("update-ref", f"refs/heads/{self.branch}", commit, by="user")
        return self.branch

    async def _filtered_tree(self, base: str) -> str:
        """The tree of a commit of the user with the changed files, filtered by the user's own filters."""
        place, index, result = self.folder / "branch", self.folder / "branch-index", await self.result()
        changed = await self._git("diff-tree", "-r", "-z", "--no-renames", "--name-only", self.start.tree, result)
        await _removed(place)
        await anyio.to_thread.run_sync(place.mkdir)
        await self._git("read-tree", result, index=index)
        await self._git("checkout-index", "--all", f"--prefix={place}/", index=index)
        await self._git("read-tree", base, index=index, by="user")
        words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        await self._git(*words, index=index, work_tree=place, by="user", given=changed)
        await _removed(place)
        return (await self._git("write-tree", index=index, by="user")).decode().strip()

    async def total(self) -> bytes:
        """The whole diff from the start to the current result, in a form that can be applied."""
        return await self._git("diff-tree", "-r", "-p", "--binary", *_PLAIN, self.start.tree, await self.result())

    async def apply(self) -> Sequence[str]:
        """Applies the result to the user's files, all or nothing. Raises `InvalidArgument` if it does not fit."""
        diff = await self.total()
        if not diff:
            return []
        try:
            await self._git("apply", "--whitespace=nowarn", "-", given=diff)
        except WorkspaceFailed as error:
            why = f"the result does not fit your current files; nothing was changed: {error}"
            raise InvalidArgument(why, session_id=self.mission_id) from None
        return await self._names_between(self.start.tree, await self.result())

    async def drop(self) -> None:
        """Removes the worktrees, the snapshots and the folder; keeps the branch."""
        await self._remove_agent_tree()
        words = ("for-each-ref", "--format=delete %(refname)", f"refs/pursuit/{self.mission_id}/")
        await self._git("update-ref", "--stdin", given=await self._git(*words, by="user"), by="user")
        await _removed(self.folder)

    # Inside.

    def _inside(self, path: Path) -> Path | None:
        with suppress(ValueError):
            return path.resolve().relative_to(self.top.resolve())
        return None

    async def _begin(self) -> TreeSnapshot:
        """The start: the user's tree with its uncommitted changes."""
        try:
            head = (await self._git("rev-parse", "--verify", "HEAD^{commit}", by="user")).decode().strip()
        except WorkspaceFailed:
            raise WorkspaceFailed(f"{self.top} needs a first commit; make one, then run again") from None
        promised = b""
        with suppress(WorkspaceFailed):  # not set
            promised = await self._git("config", "--get-regexp", r"^remote\..*\.promisor$", by="user")
        if promised:
            raise WorkspaceFailed(f"{self.top} is a partial clone; `git fetch --refetch --no-filter` makes it whole")
        await self._make_private()
        (self.private / "top").write_text(str(self.top), encoding="utf-8")
        # The names in the user's index: a tracked file counts, even if a pattern ignores it.
        tracked = await self._git("ls-files", "--stage", "-z", by="user")
        await self._git("update-index", "-z", "--index-info", index=self._index(self.top), given=tracked)
        self._submodules = _submodules_in(tracked)
        tree = await self._write_tree(self.top)
        words = ("status", "--porcelain", "--", ".", *_left_out(self._own_names()))
        if await self._git(*words, by="user"):
            text = f"{self.top} has uncommitted changes; the workspace includes them"
            self.notes[text] = "uncommitted"
        await self._git("update-ref", self.ref("start"), head, by="user")
        commit = await self._commit(tree, head, f"Pursuit {self.mission_id}: the start")
        (self.folder / "filters").write_text(await self._filters_now(), encoding="utf-8")
        await self._git("update-ref", self.ref("start"), commit)
        return TreeSnapshot(commit=commit, tree=tree)

    async def _make_private(self) -> None:
        """Creates the mission's own git directory, with the user's current ignore rules."""
        words = ("init", "--quiet", "--bare", "--template=", f"--object-format={self._form}", str(self.private))
        await self._git(*words, by="cwd")
        patterns = [Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "git", "ignore")]
        with suppress(WorkspaceFailed):  # not set
            said = await self._git("config", "--type=path", "--get", "core.excludesFile", by="user")
            patterns = [self.top / os.fsdecode(said.strip())]
        patterns.append(self._objects.with_name("info") / "exclude")
        (info := self.private / "info").mkdir(exist_ok=True)
        (info / "exclude").write_bytes(b"\n".join(one.read_bytes() for one in patterns if one.is_file()))
        (self.private / "objects" / "info" / "alternates").write_text(f"{self._objects}\n")

    def _restore_settings(self) -> None:
        """Resets the settings of the mission's git directory, because an agent can write there."""
        for name, text in (("config", _OWN_CONFIG.format(self._form)), ("info/attributes", _ATTRIBUTES)):
            path = self.private / name
            if not path.is_file() or path.read_bytes() != text.encode():
                path.unlink(missing_ok=True)
                path.write_text(text, encoding="utf-8")

    async def _filters_now(self) -> str:
        """A digest of the user's git settings that change a file on its way into a commit."""
        said = await self._git("config", "-z", "--get-regexp", r"^(core|filter)\.", by="user")
        with suppress(OSError):  # there is none
            said += self._objects.with_name("info").joinpath("attributes").read_bytes()
        return hashlib.sha256(said).hexdigest()

    async def _protected_tree(self, place: Path | None = None) -> str:
        """The tree of only the protected files: of a worktree by the bytes on the disk, else of the last reading."""
        index, which, how = self.folder / "check-index", "--stage", ["--index-info"]
        if place is not None:
            index.unlink(missing_ok=True)
            which, how = "--others", ["--add", "--stdin"]
        said = await self._git("ls-files", which, "-z", "--", *self._pathspecs, index=index, work_tree=place)
        rows = [row for row in said.split(b"\0") if place is not None or not row.startswith(_SUBMODULE)]
        return await self._tree_of(b"\0".join(rows), *how, work_tree=place)

    async def _tree_of(self, given: bytes, *how: str, work_tree: Path | None = None) -> str:
        (index := self.folder / "check-index").unlink(missing_ok=True)
        await self._git("update-index", "-z", *how, index=index, work_tree=work_tree, given=given)
        return (await self._git("write-tree", index=index)).decode().strip()

    def _index(self, work_tree: Path) -> Path:
        return self.folder / ("user-index" if work_tree == self.top else "index")

    def _own_names(self) -> list[str]:
        """The folder of the ledger if it is in the repository, else that of the workspaces."""
        inside = (self._inside(one) for one in (self.folder.parent.parent, self.folder.parent))
        return [str(one) for one in inside if one is not None and one.parts][:1]

    async def _write_tree(self, work_tree: Path, refused: Sequence[str] | None = None) -> str:
        index = self._index(work_tree)
        words = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        said = await self._git(*words, index=index, work_tree=work_tree)
        ignored = {os.fsdecode(name).rstrip("/") for name in said.split(b"\0")}
        own = self._own_names() if work_tree == self.top else []
        embedded = await anyio.to_thread.run_sync(_repositories_in, work_tree, ignored.union(own))
        self._note_uncounted(work_tree, embedded, refused or ())
        # Linked files are the user's, and our own folder may be in the repository.
        left_out = [*(name.rstrip("/") for name in self.settings.link), *own, *embedded, *self._submodules]
        left_out += refused or ()
        # Git refuses an ignored path anyway, even one to exclude.
        left_out = [name for name in left_out if not ignored.intersection(map(str, (name, *Path(name).parents)))]
        paths = "\0".join([".", *_left_out(left_out)])
        words = ("add", "-A", "--pathspec-from-file=-", "--pathspec-file-nul")
        add = partial(self._git, *words, index=index, work_tree=work_tree, given=os.fsencode(paths))
        try:
            await add()
        except WorkspaceFailed:
            if refused is not None:
                raise
            with suppress(WorkspaceFailed):
                await add("--ignore-errors")
            words = ("ls-files", "--others", "--exclude-standard", "-z", "--", ".", *_left_out(left_out))
            said = await self._git(*words, index=index, work_tree=work_tree)
            return await self._write_tree(work_tree, [os.fsdecode(name) for name in said.split(b"\0") if name])
        return (await self._git("write-tree", index=index)).decode().strip()

    def _note_uncounted(self, work_tree: Path, embedded: Sequence[str], refused: Sequence[str]) -> None:
        """Notes files that are in no snapshot: those of nested repositories, and those that git refuses."""
        filled = [one for one in self._submodules if (work_tree / one).is_dir() and any((work_tree / one).iterdir())]
        kinds = dict.fromkeys(embedded, "a git repository inside the workspace; remove {}/.git, its files do not count")
        kinds |= dict.fromkeys(filled, "a submodule; its files do not count")
        kinds |= dict.fromkeys(refused, "a file that git refuses; it does not count")
        for name, kind in kinds.items():
            text = f"{name} is {kind.format(name)}"
            self.notes[os.fsencode(text).decode(errors="replace")] = "embedded"

    async def _names_between(self, one: str, other: str) -> list[str]:
        names = await self._git("diff-tree", "-r", "-z", "--no-renames", "--name-only", one, other)
        return [name.decode(errors="replace") for name in names.split(b"\0") if name]

    async def _commit(self, tree: str, parent: str, message: str, *, by: By = "mission") -> str:
        said = await self._git("commit-tree", tree, "-p", parent, given=message.encode(), by=by)
        return said.decode().strip()

    async def _protected(self, snapshot: TreeSnapshot) -> list[tuple[bytes, bytes, bytes]]:
        """The changed protected files, with mode, blob and name at the start; mode 0 means no file."""
        if not self.settings.protect or snapshot.tree == self.start.tree:
            return []
        words = ("diff-tree", "-r", "-z", "--no-renames", self.start.tree, snapshot.tree, "--", *self._pathspecs)
        raw = await self._git(*words)
        fields = raw.split(b"\0")
        rows: list[tuple[bytes, bytes, bytes]] = []
        for told, name in zip(fields[0::2], fields[1::2], strict=False):
            mode, _, blob, _, _ = told.removeprefix(b":").split()
            rows.append((mode if mode.strip(b"0") else b"0", blob, name))
        return rows

    async def _add_agent_tree(self, snapshot: TreeSnapshot) -> None:
        """Creates the worktree of the agent, with a git directory that uses the user's objects and no settings."""
        await self._remove_agent_tree()
        place = self.tree / ".git"
        words = ("init", "--quiet", "--template=", f"--object-format={self._form}", str(self.tree))
        await self._git(*words, cwd=self.folder, by="cwd")
        head = (await self._git("rev-parse", f"{self.start.commit}^")).decode()
        (place / "HEAD").write_text(head, encoding="utf-8")
        (place / "objects" / "info").mkdir(parents=True, exist_ok=True)
        (place / "objects" / "info" / "alternates").write_text(f"{self._objects}\n", encoding="utf-8")
        (place / "info").mkdir(exist_ok=True)
        shutil.copy(self.private / "info" / "exclude", place / "info" / "exclude")
        with suppress(FileNotFoundError):  # the history is whole
            shutil.copy(self._objects.with_name("shallow"), place / "shallow")
        for name in ("user.name", "user.email"):
            with suppress(WorkspaceFailed):  # not set
                value = (await self._git("config", "--get", name, by="user")).decode().rstrip("\n")
                await self._git("config", "--file", str(place / "config"), name, value)
        await self._git("read-tree", "HEAD", cwd=self.tree, by="cwd")
        self._index(self.tree).unlink(missing_ok=True)
        await self._check_out(snapshot)

    async def _check_out(self, snapshot: TreeSnapshot) -> None:
        words = ("read-tree", "--reset", "-u", snapshot.tree)
        await self._git(*words, index=self._index(self.tree), work_tree=self.tree)

    async def _remove_agent_tree(self) -> None:
        """Removes one of our worktrees; `prune` would also forget the user's worktrees on an unmounted disk."""
        ours = self.folder / "tree"  # never `tree`, which is the user's own where the agent works in place
        await _removed(ours)
        with suppress(WorkspaceFailed):  # an earlier release made it a worktree of the user's repository
            await self._git("worktree", "remove", "--force", "--force", str(ours), by="user")

    def _link(self, place: Path) -> None:
        for name in self.settings.link:
            ours, theirs = place / name, self.top / name
            inside = ours.parent.resolve().is_relative_to(place.resolve())  # the agent may have made a link of it
            if inside and theirs.exists() and not os.path.lexists(ours):
                ours.parent.mkdir(parents=True, exist_ok=True)
                ours.symlink_to(theirs)

    async def _git(
        self,
        *words: str,
        index: Path | None = None,
        work_tree: Path | None = None,
        cwd: Path | None = None,
        given: bytes | None = None,
        by: By = "mission",
    ) -> bytes:
        """The output of git `by` our own directory, the user's, or that of `cwd`. Raises `WorkspaceFailed`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {**_WHO, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
        environment["GIT_NO_REPLACE_OBJECTS"] = "1"
        if self.tag:
            environment[TAG] = self.tag
        if by != "cwd":
            environment["GIT_DIR"] = str(self.private if by == "mission" else self.git_dir)
            environment["GIT_WORK_TREE"] = str(work_tree or self.top)
        if by == "mission":  # without settings of the user, of the system or of the agent
            environment |= {"HOME": os.devnull, "XDG_CONFIG_HOME": os.devnull}
            environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        try:
            if by == "mission" and self.private.is_dir():
                self._restore_settings()
        except OSError as error:
            raise WorkspaceFailed(f"the mission's git directory cannot be used: {error}") from None
        settings = [word for one in _CONFIG for word in ("-c", one)]
        return await run_git(
            [*settings, *words], cwd=cwd or work_tree or self.top, environment=environment, given=given
        )


def _repositories_in(top: Path, ignored: Container[str]) -> list[str]:
    found: list[str] = []
    for place, folders, files in os.walk(top):
        inside = Path(place).relative_to(top)
        if inside.parts and ".git" in (*folders, *files):
            found.append(str(inside))
            folders.clear()
        folders[:] = [name for name in folders if str(inside / name) not in ignored and name != ".git"]
    return found


def _submodules_in(rows: bytes) -> list[str]:
    return [os.fsdecode(row.partition(b"\t")[2]) for row in rows.split(b"\0") if row.startswith(_SUBMODULE)]


def _left_out(names: Iterable[str]) -> list[str]:
    return [f":(exclude,top,literal){name}" for name in names]


async def _removed(place: Path) -> None:
    await anyio.to_thread.run_sync(partial(shutil.rmtree, place, ignore_errors=True))


async def run_git(words: Sequence[str], *, cwd: Path, environment: Mapping[str, str], given: bytes | None) -> bytes:
    """The output of a git command. It is not interrupted: a lock that it holds would stay."""
    # A waiting thread costs less than a process of the event loop: a turn runs several of these.
    run = partial(subprocess.run, ["git", *words], cwd=cwd, env=environment, capture_output=True, check=False)
    try:
        done: subprocess.CompletedProcess[bytes] = await anyio.to_thread.run_sync(partial(run, input=given or b""))
    except OSError as error:
        raise WorkspaceFailed(f"git cannot be run: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise WorkspaceFailed(said[-2_000:] or f"git {words[0]} failed with {done.returncode}")
    return done.stdout

"""Isolates a coding agent with bubblewrap: it can write, read and reach only listed parts of this machine.

`/tmp` is empty, and home is a folder of the mission. From below them the agent sees its worktree and, read-only, what
its program, `PATH` and linked folders need. It does not see the user's repository, the ledger, the tokens of the
operator, sockets, or other processes. The checks of its files run in the same way, without a home and a network.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import count
from pathlib import Path

from pursuit.config.configuration import AgentsTable
from pursuit.config.files import user_ledger, write_private
from pursuit.config.process_environment import (
    LINKS,
    MEGABYTE,
    REAL_PYTHON,
    SYSTEM,
    CannotIsolate,
    Isolation,
    begun,
    folder_of,
    listed_system,
    namespaces,
    no_isolation,
    offers,
)
from pursuit.config.trust import Records, started_by, trust_path
from pursuit.core.mission import Mission
from pursuit.errors import ValidationFailed, advice
from pursuit.proposers.agent.known_agents import known_agent

TMP = Path("/tmp")  # noqa: S108 - the agent's own
FIRST_USER = 1000  # the lowest user id inside, if the operator is root
BESIDE = ("lib", "lib64", "libexec", "include", "versions", "toolchains", "pyvenv.cfg")
"""The parts of the parent folder that programs need; its other files may hold secrets."""
OURS = Path(__file__).parents[2] / "problems" / "shipped"  # with hidden tests
SCRIPTS = (Path(__file__).with_name("launcher.py"), Path(__file__).with_name("pytest_check.py"))
MAX_SIGN_IN = 1 << 20


class SignIn:
    """Copies the sign-in files of a known agent into its home inside, and renewed ones back to the user's home."""

    def __init__(self, program: str, folder: Path) -> None:
        known = known_agent(program)
        self._renewed, self._inside, self._home = known.sign_in, folder / "home", Path.home()
        self.names = [one for one in (*known.sign_in, *known.settings) if (self._home / one).is_file()]
        self._record = folder / "sign-in.json"  # digests of what was given, for the next process if this one is killed

    def give(self) -> None:
        """Copies the files, over what an earlier process of the agent left. Raises `OSError`."""
        given: dict[str, str] = {}
        for name in self.names:
            place = _without_links(self._inside, Path(name).parts)
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(place, body := (self._home / name).read_bytes())
            given[name] = sha256(body).hexdigest()
        write_private(self._record, json.dumps(given))

    def take_back(self) -> None:
        """Copies back what the agent renewed, unless you signed in again in the meantime; settings never."""
        given: dict[str, str] = json.loads(self._record.read_bytes()) if self._record.is_file() else {}
        for name in self._renewed:
            mine = self._home / name
            renewed = _read_inside(self._inside, Path(name).parts) if name in given else None
            if renewed and mine.is_file() and sha256(mine.read_bytes()).hexdigest() == given[name]:
                write_private(mine.resolve(), renewed)
                write_private(self._record, json.dumps(given | {name: sha256(renewed).hexdigest()}))


def _read_inside(home: Path, parts: Sequence[str]) -> bytes | None:
    """A small file below home inside, without following a link: the agent may change the folders at any time."""
    one = os.open(home, os.O_DIRECTORY)
    try:
        for part in parts:
            above, one = one, os.open(part, os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=one)
            os.close(above)
        found = os.read(one, MAX_SIGN_IN + 1)
        return found if len(found) <= MAX_SIGN_IN else None
    except OSError:
        return None
    finally:
        os.close(one)


def _without_links(place: Path, parts: Iterable[str]) -> Path:
    """A place in a folder that an agent wrote. Raises `CannotIsolate` if a link is on the way to it."""
    for part in parts:
        place /= part
        if place.is_symlink():
            raise CannotIsolate(f"{place} is a link where the agent needs a folder or a file; remove it")
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlaces:
    """The folders of one mission: the `tree` that is worked in, home, and what is read besides."""

    folder: Path  # the mission's own files, in the folder of the ledger
    tree: Path
    top: Path  # the user's repository
    read: Sequence[Path] = ()
    locked: Sequence[Path] = ()  # the read-only parts of the tree


@dataclass(frozen=True, kw_only=True)
class AgentIsolation(Isolation):
    """The isolation of one agent, or of a `check` of its files. Raises `CannotIsolate` if it fails."""

    settings: AgentsTable
    places: AgentPlaces
    environment: Mapping[str, str] = field(repr=False)
    check: bool = False

    @cached_property
    def home(self) -> Path:
        """Home by its name inside."""
        home = Path(self.environment.get("HOME", ""))
        return home if home.is_absolute() and home.parent != home else TMP / "home"

    def words(self, argv: Sequence[str], cwd: Path, *, joined: tuple[int, str] | None = None) -> list[str]:
        """The command line that runs `argv` isolated in `cwd`; `joined` is what the launcher needs for a network."""
        user = _free_user()
        words = begun(namespaces(user), last=self.check) + (["--share-net"] if self.network else []) + listed_system()
        words += ["--setenv", "HOME", str(self.home), "--unsetenv", "TMPDIR", "--unsetenv", "XDG_RUNTIME_DIR"]
        for _, _, mount in sorted(self._mounts(argv[0], cwd), key=lambda one: one[:2]):
            self._refuse_links(Path(mount[-1]))
            words += mount
        if os.getuid() == 0:
            (passwd := self.places.folder / "passwd").write_text(f"agent:x:{user}:{user}::{self.home}:/bin/sh\n")
            words += ["--ro-bind", str(passwd), "/etc/passwd"]
        limits = [str(self.processes or self.settings.processes), str(int((self.memory_mb or 0) * MEGABYTE))]
        fd, ports = ("", "") if joined is None else map(str, joined)
        launch = [REAL_PYTHON, "-I", "-S", str(SCRIPTS[0]), fd, ports, *limits]
        return [*words, "--remount-ro", "/", "--chdir", str(cwd), "--", *launch, *argv]

    def _mounts(self, program: str, cwd: Path) -> Iterator[tuple[int, int, Sequence[str]]]:
        """Each mount after its place in the order: parents first, so that a folder inside of a hidden one is shown."""

        def at(rank: int, where: Path, *how: str) -> tuple[int, int, Sequence[str]]:
            return len(where.parts), rank, (*how, str(where))

        size = ("--size", str(1 << 30)) if offers("--size") else ()
        yield at(-1, TMP, *size, "--tmpfs")
        home = ("--bind", str(self.places.folder / "home")) if not self.check else (*size, "--tmpfs")
        yield at(-1, self.home, *home)
        seen, writes = self.reads(program), [*self.settings.write, *(folder_of(one, cwd) for one in self.write)]
        seen += [cwd] if self.check and not cwd.is_relative_to(self.places.tree) else []
        for place in seen:
            yield at(0, place, "--ro-bind-try", str(place))
        for place in writes:
            if not place.is_dir():
                raise CannotIsolate(f"the writable folder {place} does not exist")
            yield at(1, place, "--bind", str(place))
        for place in {*seen, *writes, *map(Path, SYSTEM), self.places.tree}:
            real = place.resolve()
            for one in self._hidden:
                if one.is_relative_to(real):
                    yield at(2, place / one.relative_to(real), *size, "--tmpfs")
        yield at(3, self.places.tree, "--bind", str(self.places.tree))
        for place in self.places.locked:
            yield at(4, place, "--ro-bind", str(place))
        for place in (folder_of(one, cwd) for one in self.hide):
            if place.exists():
                yield at(5, place, *((*size, "--tmpfs") if place.is_dir() else ("--ro-bind", "/dev/null")))

    def _refuse_links(self, where: Path) -> None:
        """Bubblewrap follows a link on the way to a mount, even one of the agent that leads out of its isolation."""
        own = [(one, one) for one in (self.places.tree, *self.settings.write)]
        own += [] if self.check else [(self.home, self.places.folder / "home")]
        for inside, source in own:
            if where.is_relative_to(inside):
                _without_links(source, where.relative_to(inside).parts)

    @cached_property
    def _hidden(self) -> list[Path]:
        """Our own folders: hidden tests, the ledger, what the operator trusts, tokens."""
        found = [OURS, self.places.folder.parent.parent, user_ledger().parent]
        with suppress(ValidationFailed):  # the operator has no home
            found.append(trust_path().parent)
        return [one.resolve() for one in found if one.is_dir()]

    def reads(self, program: str) -> list[Path]:
        """The paths outside the system that a program reads, by the names that it sees: parents first."""
        found = [*_program_places(program, self.environment), *_search_path(self.environment), _resolver()]
        covered = [self.home, TMP, self.places.top, *(one for one in self._hidden if one != OURS.resolve())]
        kept = {one for one in found if one is not None and not any(other.is_relative_to(one) for other in covered)}
        kept |= {Path(sys.base_prefix), *SCRIPTS, *self.places.read, *self.settings.read}
        kept = {one for one in kept if one.exists() and not self._is_shown(one)}
        return sorted(one for one in kept if not kept.intersection(one.parents))

    def _is_shown(self, place: Path) -> bool:
        """Whether the system shows it already, and home and `/tmp` do not cover it."""
        above = (place, *place.parents)
        covered = self.home in above or TMP in above
        return not covered and any(Path(one) in above for one in (*SYSTEM, *LINKS))

    def told(self, program: str) -> str:
        """Four lines for a person: what the agent can write, read and reach, and its limits."""
        writes = ", ".join(map(str, (self.places.tree, *self.settings.write)))
        reads = ", ".join(map(str, (*(one for one in SYSTEM if Path(one).exists()), *self.reads(program))))
        copies = [f"~/{one}" for one in SignIn(program, self.places.folder).names]
        more = f"; copies of {', '.join(copies)}" if copies else ""
        hosts = reach(self.settings, program)
        reached = "the network of this machine" if hosts is None else ", ".join(hosts) or "no network"
        processes = "no limit of processes" if os.getuid() == 0 else f"{self.settings.processes} processes"
        limits = f"{'1 GiB' if offers('--size') else 'no limit'} of /tmp; {processes}; no limit of memory and disk"
        return f"{writes}; its own /tmp and home\n{reads}{more}\n{reached}\n{limits}"


def reach(settings: AgentsTable, program: str) -> Sequence[str] | None:
    """The hosts that an agent can reach; None is the network of this machine."""
    if isinstance(settings.network, bool):
        return None if settings.network else ()
    return (*known_agent(program).hosts, *settings.network)


def not_isolated(settings: AgentsTable) -> str:
    """Why agents run without isolation here although it is configured; empty if they are isolated."""
    if not settings.isolation:
        return "nothing limits the agent: isolation is turned off"
    return "" if sys.platform == "linux" else "nothing limits the agent: agents are isolated only on Linux"


def in_force(settings: AgentsTable, mission: Mission) -> AgentsTable:
    """The settings; without isolation, if that does not work here and the operator has accepted this agent so."""
    if not settings.isolation or sys.platform != "linux" or not no_isolation():
        return settings
    accepted = set[str]().union(*Records.read().trusted.values())
    return settings.model_copy(update={"isolation": any(key not in accepted for key, _ in started_by(mission))})


def must_isolate(settings: AgentsTable) -> str:
    """Why an agent may not be started here; empty if it may."""
    why = "" if not_isolated(settings) else no_isolation()
    return why and f"{why}; to run the agent without it, add {advice('`isolation = false` in `[agents]`')}"


def _free_user() -> int:
    taken = {one.pw_uid for one in pwd.getpwall()}
    return next(number for number in count(FIRST_USER) if number not in taken)


def _resolver() -> Path | None:
    """The list of name servers, if it is a link to a file that a program writes."""
    place = Path("/etc/resolv.conf")
    return place.resolve() if place.is_symlink() else None


def _search_path(environment: Mapping[str, str]) -> Iterator[Path]:
    for entry in environment.get("PATH", "").split(os.pathsep):
        if entry.startswith("/"):
            yield from _with_beside(Path(entry))


def _with_beside(folder: Path) -> Iterator[Path]:
    yield folder
    yield from (folder.parent / name for name in BESIDE)
    if (folder.parent / "pyvenv.cfg").is_file():
        yield from _interpreter(folder.parent)


def _interpreter(environment: Path) -> Iterator[Path]:
    """The Python below a virtual environment."""
    python = (environment / "bin" / "python").resolve()
    if python.parent.name == "bin":
        yield python.parent.parent


def linked(place: Path) -> Iterator[Path]:
    """The further paths that a linked file or folder of the user needs."""
    yield place.resolve()
    if (place / "pyvenv.cfg").is_file():
        yield from _interpreter(place)


def _program_places(program: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """The path of the program, with each link on the way to it."""
    found = shutil.which(program, path=environment.get("PATH"))
    place = None if found is None else Path(found).absolute()
    for _ in range(40):
        if place is None:
            return
        packages = [one for one in place.parents if one.name == "node_modules"]
        if packages:
            yield packages[-1]
        elif place.parent.name == "bin":
            yield from _with_beside(place.parent)
        else:
            yield place.parent
            yield place  # if the folder is home
        place = Path(os.path.normpath(place.parent / place.readlink())) if place.is_symlink() else None

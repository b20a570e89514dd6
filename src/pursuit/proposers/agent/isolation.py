"""Isolates a coding agent with bubblewrap: it can write, read and reach only listed parts of this machine.

`/tmp` is empty, and home is a folder of the mission. The agent also sees its worktree and, read-only, the files that
its program, `PATH` and linked folders need. It does not see the user's repository, the ledger, the operator's tokens,
sockets, or other processes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

from pursuit.config.configuration import AgentsTable
from pursuit.config.process_environment import (
    CannotIsolate,
    begun,
    kernel_files,
    limits_tmpfs,
    namespaces,
    no_isolation,
)
from pursuit.errors import advice

SYSTEM = ("/usr", "/etc", "/opt", "/nix")
LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
TMP_BYTES = 1 << 30
"""The size of the agent's `/tmp`."""
FIRST_USER = 1000
"""The lowest user id inside, if the operator is root."""
BESIDE = ("lib", "lib64", "libexec", "include", "versions", "toolchains", "pyvenv.cfg")
"""The parts of the parent folder that programs need; its other files may hold secrets."""
OURS = Path(__file__).parents[2] / "problems" / "shipped"
"""The shipped problems with their hidden tests."""

_CLAUDE = ((".claude/.credentials.json",), (".claude/settings.json",))
_CODEX = ((".codex/auth.json",), (".codex/config.toml",))
SIGN_IN: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "opencode": ((".local/share/opencode/auth.json",), (".config/opencode/opencode.json",)),
    "gemini": ((".gemini/oauth_creds.json", ".gemini/google_accounts.json"), (".gemini/settings.json",)),
    "qwen": ((".qwen/oauth_creds.json",), (".qwen/settings.json",)),
    "codex-acp": _CODEX,
    "codex": _CODEX,
    "claude-agent-acp": _CLAUDE,
    "claude-code-acp": _CLAUDE,
    "claude": _CLAUDE,
    "goose": ((".config/goose/secrets.yaml",), (".config/goose/config.yaml",)),
}
"""The files below home with the sign-in and the settings of known agents, by the names of their programs."""
MAX_SIGN_IN = 1 << 20


class SignIn:
    """Copies the sign-in files of a known agent into its home inside, and renewed ones back to the user's home."""

    def __init__(self, program: str, inside: Path) -> None:
        self._renewed, settings = SIGN_IN.get(Path(program).name, ((), ()))
        self._inside, self._home = inside, Path.home()
        self.names = [one for one in (*self._renewed, *settings) if (self._home / one).is_file()]
        self._given: dict[str, bytes] = {}

    def give(self) -> None:
        """Copies the files, replacing those of an earlier process of the agent."""
        for name in self.names:
            place = _made(self._inside, Path(name).parts)
            if place is not None:
                self._given[name] = (self._home / name).read_bytes()
                place.unlink(missing_ok=True)
                place.touch(mode=0o600)
                place.write_bytes(self._given[name])

    def take_back(self) -> None:
        """Copies back renewed files, unless the user signed in again meanwhile; never the settings."""
        for name in self._renewed:
            given, mine = self._given.get(name), self._home / name
            renewed = None if given is None else _read_inside(self._inside, Path(name).parts)
            if renewed and renewed != given and mine.is_file() and mine.read_bytes() == given:
                target = mine.resolve()
                beside = target.with_name(f".{target.name}.{os.getpid()}")
                beside.touch(mode=0o600)
                beside.write_bytes(renewed)
                beside.replace(target)
                self._given[name] = renewed


def _read_inside(home: Path, parts: Sequence[str]) -> bytes | None:
    """A small file below home inside, read without following links: the agent may change the folders meanwhile."""
    kept = [os.open(home, os.O_DIRECTORY | os.O_NOFOLLOW)]
    try:
        for part in parts[:-1]:
            kept.append(os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=kept[-1]))
        kept.append(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=kept[-1]))
        if not stat.S_ISREG(os.fstat(kept[-1]).st_mode):
            return None
        found = os.read(kept[-1], MAX_SIGN_IN + 1)
        return found if len(found) <= MAX_SIGN_IN else None
    except OSError:
        return None
    finally:
        for one in kept:
            os.close(one)


def _made(home: Path, parts: Sequence[str]) -> Path | None:
    """A file below home inside, with its folders; None if the agent replaced one of them."""
    place = home
    for part in parts[:-1]:
        place /= part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return None
        place.mkdir(mode=0o700, exist_ok=True)
    return None if (place / parts[-1]).is_dir() else place / parts[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlaces:
    """The folders of one mission: the `tree` that the agent changes, its home, and further folders that it reads."""

    tree: Path
    home: Path
    read: Sequence[Path] = ()
    locked: Sequence[Path] = ()
    """The read-only parts of its tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIsolation:
    """The isolation of one agent. Raises `CannotIsolate` if it does not work here."""

    settings: AgentsTable
    places: AgentPlaces
    environment: Mapping[str, str] = field(repr=False)

    @property
    def home(self) -> Path:
        """The path of its home inside."""
        return Path(self.environment.get("HOME") or "/tmp/home")  # noqa: S108 - in the agent's own /tmp

    def words(self, argv: Sequence[str], cwd: Path, further: Iterable[Path] = ()) -> list[str]:
        """The command line that runs `argv` isolated in `cwd`; `further` holds more files and folders that it reads."""
        words = [*begun(namespaces(_free_user())), *([] if self._is_closed else ["--share-net"]), *_system()]
        words += ["--size", str(TMP_BYTES)] if limits_tmpfs() else []
        words += ["--tmpfs", "/tmp", "--bind", str(self.places.home), str(self.home)]  # noqa: S108
        seen = [*self.read(argv), *further]
        for place in seen:
            words += ["--ro-bind-try", str(place), str(place)]
        for place in (*self.settings.write, self.places.tree):
            if not place.is_dir():
                raise CannotIsolate(f"the writable folder {place} does not exist")
            words += ["--bind", str(place), str(place)]
        for place in self.places.locked:
            words += ["--ro-bind", str(place), str(place)]
        shown = (Path("/usr"), Path("/opt"), *seen, *self.settings.write)
        words += ["--tmpfs", str(OURS)] if any(OURS.is_relative_to(one) for one in shown) else []
        return [*words, "--remount-ro", "/", "--chdir", str(cwd), "--", *argv]

    @property
    def _is_closed(self) -> bool:
        return self.settings.network is not None

    def inside(self) -> dict[str, str]:
        """The agent's environment."""
        left_out = ("XDG_RUNTIME_DIR", "TMPDIR")
        kept = {name: value for name, value in self.environment.items() if name not in left_out}
        return {**kept, "HOME": str(self.home)}

    def read(self, argv: Sequence[str]) -> list[Path]:
        """The further files that it reads, with their paths inside, parents first."""
        found = [*_program_places(argv[0], self.environment), *_search_path(self.environment), _resolver()]
        found += [Path(sys.base_prefix), *self.places.read, *self.settings.read]
        kept = {one for one in found if one is not None and one.exists() and not self._is_shown(one)}
        return sorted(one for one in kept if not kept.intersection(one.parents))

    def _is_shown(self, place: Path) -> bool:
        """True if the path is in the system inside, and not covered by home or `/tmp`. Home itself is never shown."""
        above = (place, *place.parents)
        if place in (self.home, *self.home.parents) and place not in self.settings.read:
            return True
        covered = any(one in above for one in (self.home, Path("/tmp")))  # noqa: S108
        return not covered and any(Path(one) in above for one in (*SYSTEM, *LINKS))

    def told(self, argv: Sequence[str]) -> str:
        """Three lines for a person: the paths that the agent can write and read, and the hosts that it can reach."""
        writes = ", ".join(map(str, (self.places.tree, *self.settings.write)))
        reads = ", ".join(map(str, (*(one for one in SYSTEM if Path(one).exists()), *self.read(argv))))
        copies = [f"~/{one}" for one in SignIn(argv[0], self.places.home).names]
        more = f"; copies of {', '.join(copies)}" if copies else ""
        hosts = ", ".join(self.settings.network or ()) if self._is_closed else "the network of this machine"
        return f"{writes}; its own /tmp and home\n{reads}{more}\n{hosts or 'no network'}"


def not_isolated(settings: AgentsTable) -> str:
    """Why agents run without isolation here although it is configured; empty if they are isolated."""
    if not settings.isolation:
        return "nothing limits the agent: the configuration turns isolation off"
    return "" if sys.platform == "linux" else "nothing limits the agent: agents are isolated only on Linux"


def must_isolate(settings: AgentsTable) -> str:
    """Why an agent may not be started here; empty if it may."""
    why = "" if not_isolated(settings) else no_isolation()
    return why and f"{why}; to run the agent without it, add {advice('`isolation = false` in `[agents]`')}"


def _free_user() -> int:
    taken = {one.pw_uid for one in pwd.getpwall()}
    return next(number for number in count(FIRST_USER) if number not in taken)


def _system() -> list[str]:
    """The system, read-only, without files that normal users may not read: an operator who is root may."""
    words = kernel_files()
    for name in SYSTEM:
        words += ["--ro-bind-try", name, name]
    for name in LINKS:
        place = Path(name)
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), name]
        elif place.is_dir():
            words += ["--ro-bind", name, name]
    for place, is_folder in _private_files() if os.getuid() == 0 else ():
        words += ["--tmpfs", place] if is_folder else ["--ro-bind", "/dev/null", place]
    return words


@cache
def _private_files() -> list[tuple[str, bool]]:
    """The files and folders below `/etc` that only root and groups can read."""
    found: list[tuple[str, bool]] = []
    for place, folders, files in os.walk("/etc"):
        for name in (*folders, *files):
            mode = Path(place, name).lstat().st_mode
            needed = 0o005 if stat.S_ISDIR(mode) else 0o004
            if mode & needed != needed and not stat.S_ISLNK(mode):
                found.append((str(Path(place, name)), stat.S_ISDIR(mode)))
        hidden = {path for path, _ in found}
        folders[:] = [name for name in folders if str(Path(place, name)) not in hidden]
    return found


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

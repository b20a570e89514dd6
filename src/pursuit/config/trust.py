"""TrustedFolder trust: what a file starts, who may have written it, and what this user has accepted.

A configuration, a mission file, a problem and a ledger start processes. Each thing that one of them starts has a
digest; each setting that decides what may be done is a line. A record in the user's own folder names, for each real
path, the digests and lines that the user accepted. A new or changed one is not trusted, nor is a file from which an
accepted setting is gone; other edits ask nothing. A file that others can write is refused, whatever was accepted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pursuit.config.configuration import JSON_NAME, TOML_NAME, Configuration
from pursuit.config.files import STATE_FILES, STATE_FOLDERS, databases_folder, user_ledger
from pursuit.config.mission_file import MissionFile, load_mission_file
from pursuit.config.servers import ServerConfig
from pursuit.config.surroundings import USUAL_SURROUNDINGS, Surroundings
from pursuit.core.criteria import Check
from pursuit.errors import Fault, NotTrusted, ValidationFailed, advice
from pursuit.ledger.opening import is_address, without_password

TRUST_VARIABLE = "PURSUIT_TRUST"
"""With the value 1, everything is trusted and nothing is recorded: for CI."""
LONGEST_LINE = 300
CONTINUES = "continues the missions of this ledger, with the commands of their checks"
ACCEPTS = "accepts the tokens and sign-ins in this file"

_NOTES = {"unattended": "asks no permission", "in_place": "changes your own files"}

Starts = Mapping[str, str]
"""What is started: a line for a person by its digest; a setting by itself, as `key = value`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedFolder:
    """A file or folder, what it starts, and the further files that say so."""

    path: Path
    starts: Starts = field(default_factory=dict[str, str])
    files: tuple[Path, ...] = ()


def started(kind: str, name: str, words: Sequence[str], **more: Any) -> tuple[str, str]:
    """One thing that is started: its digest, and its line. `more` is what else decides what runs."""
    given = {key: value for key, value in more.items() if value}
    body = json.dumps([kind, name, list(words), given], sort_keys=True, default=str)
    inherit = given.get("inherit", ())
    notes = [f"sets {', '.join(given['env'])}"] if "env" in given else []
    notes += [f"gets {'all of your variables' if inherit is True else ', '.join(inherit)}"] if inherit else []
    notes += [f"works in {given['path']}"] if "path" in given else []
    notes += [note for key, note in _NOTES.items() if key in given]
    shown = f"{kind} {name}: {shlex.join(words)}".replace("\n", " ")
    if len(shown) > LONGEST_LINE:
        shown = f"{shown[:LONGEST_LINE]}\u2026 ({len(shown)} characters)"
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest(), shown + (
        f" ({', '.join(notes)})" if notes else ""
    )


def started_server(name: str, server: ServerConfig) -> tuple[str, str]:
    """A server, as `started`."""
    words = (server.url or "",) if server.command is None else (server.command, *server.args)
    return started(
        "server",
        name,
        words,
        env=dict(server.env),
        headers=dict(server.headers),
        cwd=server.cwd,
        isolation=server.isolation,
    )


def _surroundings(around: Surroundings) -> dict[str, Any]:
    return {"env": dict(around.env), "inherit": around.inherit, "isolation": around.isolation}


def of_configuration(configuration: Configuration) -> TrustedFolder | None:
    """What a configuration starts; None if there is no file."""
    if configuration.path is None:
        return None
    rows = [started_server(name, server) for name, server in configuration.servers.items() if server.enabled]
    for name, command in configuration.commands.items():
        words = [
            "".join(part if isinstance(part, str) else f"{{{part.name}}}" for part in word)
            for group in command.argv.groups
            for word in group
        ]
        rows.append(started("command", name, words, cwd=command.cwd, **_surroundings(command.surroundings)))
    for name, check in configuration.checks.items():
        around = check.get("surroundings", USUAL_SURROUNDINGS)
        rows.append(started("check", name, check["command"], cwd=check.get("cwd"), **_surroundings(around)))
    if configuration.model is not None:
        rows.append(started("model", "of clients", [configuration.model]))
    if (notify := configuration.notify) is not None:
        words = notify.command or (notify.webhook or "",)
        key, line = started("notification", "of missions", words, webhook=notify.webhook)
        rows.append((key, f"{line}, and {notify.webhook}" if notify.command and notify.webhook else line))
    if (around := _surroundings(configuration.surroundings)) and any(around.values()):
        rows.append(started("environment", "of the checks of mission files, and of notifications", (), **around))
    for kind, place in configuration.tracking.items():
        rows.append(started("tracking", kind, [place]))
    if configuration.state is not None and is_address(configuration.state):
        rows.append(started("ledger", "of missions", [without_password(configuration.state)]))
    if (oauth := configuration.oauth) is not None:
        believed = {"audience": oauth.audience, "resource": oauth.resource, "callers": dict(oauth.callers)}
        believed |= {"approvers": oauth.approvers} if oauth.approvers else {}
        rows.append(started("issuer", "of tokens", [oauth.issuer], keys=oauth.jwks_uri, **believed))
    rows += [(line, f"setting {line}") for line in sorted(configuration.governing)]
    beside = configuration.path.with_name(JSON_NAME)
    files = (beside,) if configuration.path.name == TOML_NAME and beside.is_file() else ()
    return TrustedFolder(path=configuration.path, starts=dict(rows), files=files)


def of_mission(file: MissionFile) -> TrustedFolder:
    """What a mission file starts. The text of a script is none of it: its calls are under policy."""
    rows = [started_server(name, server) for name, server in file.servers.items() if server.enabled]
    for criterion in file.mission.criteria:
        if isinstance(criterion, Check) and criterion.command is not None:
            rows.append(started("check", criterion.criterion_id, criterion.command, cwd=criterion.cwd))
    workspace = file.mission.workspace
    where = {} if workspace is None else workspace.model_dump(include={"path", "in_place"}, exclude_defaults=True)
    for one in file.mission.proposer.starts():
        rows.append(started("proposer", one.name, one.words, **one.details, **where))
    return TrustedFolder(path=file.path, starts=dict(rows))


def of_schedules(configuration: Configuration) -> list[TrustedFolder]:
    """What the missions start that `pursuit serve` starts at their time; a file with faults starts nothing."""
    found: list[TrustedFolder] = []
    for schedule in configuration.schedules.values():
        with suppress(ValidationFailed):
            found.append(of_mission(load_mission_file(schedule.mission)))
    return found


def of_servers(path: Path, servers: Mapping[str, ServerConfig]) -> TrustedFolder:
    """What the servers of a mission file start, for a mission that continues."""
    return TrustedFolder(
        path=path, starts=dict(started_server(name, one) for name, one in servers.items() if one.enabled)
    )


def of_state(ledger: Path) -> TrustedFolder:
    """What a ledger starts; one that is not there yet starts nothing."""
    if not ledger.exists() or _is_users(ledger):
        return TrustedFolder(path=ledger)
    return new_state(ledger)


def new_state(ledger: Path) -> TrustedFolder:
    """What the ledger starts once it is there: this user makes it, so it is trusted."""
    return TrustedFolder(path=ledger, starts={hashlib.sha256(CONTINUES.encode()).hexdigest(): CONTINUES})


def of_credentials(path: Path) -> TrustedFolder:
    """Whom a file with tokens or sessions lets in; the one in the user's own data folder needs no question."""
    key = hashlib.sha256(ACCEPTS.encode()).hexdigest()
    return TrustedFolder(path=path, starts={} if _is_users(path) else {key: ACCEPTS})


def own_files(configuration: Configuration, state: Path) -> tuple[str, ...]:
    """The beginnings of the real paths of the configuration, scheduled missions, the state and the record of trust."""
    begun = [state, *(state.with_name(name) for name in STATE_FILES)]
    found = [state.with_name(name) for name in STATE_FOLDERS]
    found += [schedule.mission for schedule in configuration.schedules.values()]
    if (path := configuration.path) is not None:
        found += [path, *(path.with_name(name) for name in (TOML_NAME, JSON_NAME, ".pursuit"))]
    with suppress(ValidationFailed):
        found.append(trust_path().parent)
    return (*map(os.path.realpath, begun), *(f"{os.path.realpath(one)}/" for one in found))


def open_to_globs(configuration: Configuration, state: Path) -> list[str]:
    """A warning for each rule with a glob that allows a path of Pursuit's own files, if no rule asks or denies."""
    rules = configuration.policy.rules
    forms = [form for path in own_files(configuration, state) for form in (path.rstrip("/"), os.path.relpath(path))]
    free = [form for form in forms if not any(rule.decision != "allow" and rule.looks_at(form) for rule in rules)]
    return [
        f"policy.rules[{place}] ({rule}) also allows {covered}, which decides what clients may do; use "
        "{ under = FOLDER } in place of the glob, which never allows it"
        for place, rule in enumerate(rules)
        if rule.decision == "allow" and (covered := next(filter(rule.looks_at, free), None))
    ]


def trusts_everything() -> bool:
    """Whether the environment says that everything here is trusted."""
    return os.environ.get(TRUST_VARIABLE) == "1"


def require_trusted(workspaces: Iterable[TrustedFolder]) -> None:
    """Raises `NotTrusted` if one of them starts what the user has not accepted, or can be written by others."""
    missing = untrusted(workspaces)
    if missing:
        raise not_trusted(missing)


def untrusted(workspaces: Iterable[TrustedFolder]) -> list[TrustedFolder]:
    """Those that start something which was not accepted, with that alone. Raises `NotTrusted` for unsafe files."""
    if trusts_everything():
        return []
    given = list(workspaces)
    records = Records.read() if given else Records()
    faults = [fault for one in given for path in (one.path, *one.files) for fault in unsafe(path, records.owners)]
    if faults:
        raise NotTrusted("; ".join(map(str, faults)), faults=[fault.as_dict() for fault in faults])
    found: list[TrustedFolder] = []
    for one in given:
        accepted = records.accepted(one.path)
        left = {key: line for key, line in one.starts.items() if key not in accepted}
        left |= {key: f"removed setting {key}" for key in accepted if " = " in key and key not in one.starts}
        found += [TrustedFolder(path=one.path, starts=left)] if left else []
    return found


def not_trusted(workspaces: Sequence[TrustedFolder]) -> NotTrusted:
    """The refusal: what would be started, and the command that accepts it."""
    command = shlex.join(["pursuit", "trust", *(str(one.path) for one in workspaces)])
    rows = [f"{one.path}: {line}" for one in workspaces for line in one.starts.values()]
    paths = ", ".join(str(one.path) for one in workspaces)
    return NotTrusted(
        f"{paths} starts or allows what you have not trusted yet ({'; '.join(rows)}); look at it, then: {command}",
        starts=rows,
        trust=command,
    )


def unsafe(path: Path, owners: Iterable[int] = ()) -> list[Fault]:
    """Why others than this user may have written a file or folder: its owner, or who may write it."""
    faults: list[Fault] = []
    known = {os.getuid(), 0, *owners}
    for place in (real := path.resolve(), real.parent):
        try:
            info = place.stat()
        except OSError:
            continue
        # In a sticky folder, such as /tmp, only its owner can replace a file.
        shared = stat.S_ISDIR(info.st_mode) and bool(info.st_mode & stat.S_ISVTX)
        if info.st_mode & stat.S_IWOTH and not shared:
            reason = f"every user of this machine can write it; chmod o-w {shlex.quote(str(place))}"
            faults.append(Fault(field="", reason=reason, source=str(place)))
        if info.st_uid not in known and not (shared and place != real):
            who = user_of(info.st_uid)
            reason = (
                f"belongs to {who}, not to you; to trust all files of {who}: {advice('pursuit trust --owner {}', who)}"
            )
            faults.append(Fault(field="", reason=reason, source=str(place)))
    return faults


def group_writable(path: Path) -> bool:
    """Whether the members of a group that is not this user's own can write it."""
    try:
        info = path.stat()
    except OSError:
        return False
    return bool(info.st_mode & stat.S_IWGRP) and info.st_gid not in (os.getgid(), 0)


def user_of(uid: int) -> str:
    """The name of a user, or else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def trust_path() -> Path:
    """The file with the records, in the user's own folder. Raises `ValidationFailed` for a user without one."""
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG Base Directory Specification: a relative path there is invalid and must be ignored.
    if sys.platform != "darwin" and given.is_absolute():
        return given / "pursuit" / "trust.json"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():  # else the folder where we are could bring a record of its own
        raise _damaged(home, f"is no home folder for a record of trust; set HOME, or {TRUST_VARIABLE}=1")
    inside = Path("Library", "Application Support") if sys.platform == "darwin" else Path(".config")
    return home / inside / "pursuit" / "trust.json"


def _is_users(path: Path) -> bool:
    """Whether it is a ledger in the user's own data folder, or beside it, which no folder of others brings."""
    real = path.resolve()
    return real.parent == user_ledger().resolve().parent or databases_folder().resolve() in real.parents


@dataclass(slots=True)
class Records:
    """The accepted digests by real path, and the further owners whose files are trusted."""

    trusted: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    owners: list[int] = field(default_factory=list[int])

    @classmethod
    def read(cls) -> Records:
        """The records of this user. Raises `ValidationFailed` for a file that cannot be believed."""
        path = trust_path()
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(path, f"cannot be read: {error}") from None
        if faults := unsafe(path):
            raise ValidationFailed(faults, "the record of what you trust cannot be believed")
        try:
            table: Any = json.loads(text)
            rows, owners = table["trusted"], table["owners"]
            if not all(isinstance(row, list) for row in rows.values()) or not all(type(one) is int for one in owners):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise _damaged(path, "is not a record of Pursuit; move it away, and trust your folders again") from None
        return cls(trusted=cast("dict[str, list[str]]", rows), owners=cast("list[int]", owners))

    def accepted(self, path: Path) -> Sequence[str]:
        """The digests that were accepted for a path."""
        return self.trusted.get(str(path.resolve()), ())


def record(workspaces: Iterable[TrustedFolder] = (), *, owner: int | None = None) -> None:
    """Accepts all that these start, in place of what was accepted for them before; also the files of an owner.

    With `PURSUIT_TRUST=1` nothing is written. Records of paths that are gone are dropped.
    """
    given = list(workspaces)
    if trusts_everything() or (not given and owner is None):
        return
    with _Changing() as records:
        for name in [name for name in records.trusted if not os.path.lexists(name)]:
            del records.trusted[name]
        for one in given:
            records.trusted.pop(name := str(one.path.resolve()), None)
            if one.starts:
                records.trusted[name] = sorted(one.starts)
        if owner is not None and owner not in records.owners:
            records.owners.append(owner)


def forget(paths: Iterable[Path]) -> list[str]:
    """Removes the records of these paths, and of what lies below them; returns which."""
    roots = [path.resolve() for path in paths]
    with _Changing() as records:
        gone = [name for name in records.trusted if any(Path(name).is_relative_to(root) for root in roots)]
        for name in gone:
            del records.trusted[name]
    return gone


class _Changing:
    """Changes the records under a lock: another command may record something at the same time."""

    def __enter__(self) -> Records:
        self._path = trust_path()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _damaged(self._path, f"cannot be written: {error.strerror or error}") from None
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._records = Records.read()
        return self._records

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        try:
            if kind is None:
                self._write()
        finally:
            os.close(self._lock)

    def _write(self) -> None:
        body = json.dumps({"trusted": self._records.trusted, "owners": self._records.owners}, indent=1)
        beside = self._path.with_suffix(".new")
        try:
            with suppress(FileNotFoundError):
                beside.unlink()
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(body)
            beside.replace(self._path)
        except OSError as error:
            raise _damaged(self._path, f"cannot be written: {error.strerror or error}") from None


def _damaged(path: Path, reason: str) -> ValidationFailed:
    return ValidationFailed([Fault(field="", reason=reason, source=str(path))], f"{path}: {reason}")

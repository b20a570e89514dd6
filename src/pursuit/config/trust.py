"""Trust: what a file starts, who may have written it, and what this user has accepted.

Configurations, mission files, problems and ledgers start processes. Each started thing has a digest; each setting that
affects permissions is a line. A record in the user's folder holds, for each real path, the accepted digests and lines.
New or changed entries are not trusted, nor is a file that lost an accepted setting; other edits need no new trust.
Files that other users can write are always refused.
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
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pursuit.config.configuration import JSON_NAME, TOML_NAME, Configuration
from pursuit.config.files import STATE_FILES, STATE_FOLDERS, databases_folder, user_ledger, write_private
from pursuit.config.mission_file import MissionFile, load_mission_file
from pursuit.config.process_environment import USUAL_ENVIRONMENT, ProcessEnvironment
from pursuit.config.servers import ServerConfig
from pursuit.core.criteria import Check
from pursuit.core.mission import Mission
from pursuit.errors import Fault, NotTrusted, ValidationFailed, advice
from pursuit.ledger.opening import is_address, without_password

TRUST_VARIABLE = "PURSUIT_TRUST"
"""Set to 1 (for CI), everything is trusted and nothing is recorded."""
MAX_LINE = 300
CONTINUES = "continues the missions of this ledger, with the commands of their checks"
ACCEPTS = "accepts the tokens and sign-ins in this file"

_NOTES = {
    "network": "has a network",
    "plain": "is not isolated",
    "unattended": "asks no permission",
    "in_place": "changes your own files",
    "unisolated": "is not isolated, which does not work here: nothing limits it",
}

Starts = Mapping[str, str]
"""The started things: digests with a line for people; settings map to themselves, as `key = value`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedFolder:
    """A file or folder, what it starts, and the other files that define it."""

    path: Path
    starts: Starts = field(default_factory=dict[str, str])
    files: tuple[Path, ...] = ()


def started(kind: str, name: str, words: Sequence[str], **more: Any) -> tuple[str, str]:
    """Returns the digest and the line of a started thing. `more` holds whatever else affects what runs."""
    given = {key: value for key, value in more.items() if value}
    body = json.dumps([kind, name, list(words), given], sort_keys=True, default=str)
    inherit = given.get("inherit", ())
    notes = [f"sets {', '.join(given['env'])}"] if "env" in given else []
    notes += [f"gets {'all of your variables' if inherit is True else ', '.join(inherit)}"] if inherit else []
    notes += [f"works in {given['path']}"] if "path" in given else []
    notes += [note for key, note in _NOTES.items() if key in given]
    shown = f"{kind} {name}: {shlex.join(words)}".replace("\n", " ")
    if len(shown) > MAX_LINE:
        shown = f"{shown[:MAX_LINE]}\u2026 ({len(shown)} characters)"
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest(), shown + (
        f" ({', '.join(notes)})" if notes else ""
    )


def started_server(name: str, server: ServerConfig) -> tuple[str, str]:
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


def _environment_of(around: ProcessEnvironment) -> dict[str, Any]:
    return {"env": dict(around.env), "inherit": around.inherit, "isolation": around.isolation}


def of_configuration(configuration: Configuration) -> TrustedFolder | None:
    if configuration.path is None:
        return None
    rows = [started_server(name, server) for name, server in configuration.servers.items() if server.enabled]
    for name, command in configuration.commands.items():
        words = [
            "".join(part if isinstance(part, str) else f"{{{part.name}}}" for part in word)
            for group in command.argv.groups
            for word in group
        ]
        rows.append(started("command", name, words, cwd=command.cwd, **_environment_of(command.process_environment)))
    for name, check in configuration.named_checks.items():
        around = check.get("process_environment", USUAL_ENVIRONMENT)
        rows.append(started("check", name, check["command"], cwd=check.get("cwd"), **_environment_of(around)))
    if configuration.model is not None:
        rows.append(started("model", "of clients", [configuration.model]))
    if (notify := configuration.notify) is not None:
        words = notify.command or (notify.webhook or "",)
        key, line = started("notification", "of missions", words, webhook=notify.webhook)
        rows.append((key, f"{line}, and {notify.webhook}" if notify.command and notify.webhook else line))
    if (around := _environment_of(configuration.process_environment)) and any(around.values()):
        rows.append(started("environment", "of the checks of mission files, and of notifications", (), **around))
    for kind, place in configuration.tracking.places.items():
        rows.append(started("tracking", kind, [place]))
    if configuration.state is not None and is_address(configuration.state):
        rows.append(started("ledger", "of missions", [without_password(configuration.state)]))
    if (oauth := configuration.serve.oauth) is not None:
        believed = {"audience": oauth.audience, "resource": oauth.resource, "callers": dict(oauth.callers)}
        believed |= {"approvers": oauth.approvers} if oauth.approvers else {}
        rows.append(started("issuer", "of tokens", [oauth.issuer], keys=oauth.jwks_uri, **believed))
    rows += [(line, f"setting {line}") for line in sorted(configuration.governing)]
    beside = configuration.path.with_name(JSON_NAME)
    files = (beside,) if configuration.path.name == TOML_NAME and beside.is_file() else ()
    return TrustedFolder(path=configuration.path, starts=dict(rows), files=files)


def of_mission(file: MissionFile) -> TrustedFolder:
    """The things that a mission file starts. Scripts are not part of it: their calls are under policy."""
    rows = [started_server(name, server) for name, server in file.servers.items() if server.enabled]
    for criterion in file.mission.criteria:
        if isinstance(criterion, Check) and criterion.command is not None:
            how = {"cwd": criterion.cwd, "network": criterion.network, "plain": not criterion.isolated}
            rows.append(started("check", criterion.criterion_id, criterion.command, **how))
    return TrustedFolder(path=file.path, starts=dict([*rows, *started_by(file.mission)]))


def started_by(mission: Mission) -> list[tuple[str, str]]:
    """The programs that the proposer of a mission starts."""
    workspace = mission.workspace
    where = {} if workspace is None else workspace.model_dump(include={"path", "in_place"}, exclude_defaults=True)
    return [started("proposer", one.name, one.words, **one.details, **where) for one in mission.proposer.starts()]


def of_schedules(configuration: Configuration) -> list[TrustedFolder]:
    """The things that the scheduled missions of `pursuit serve` start; none for a file with faults."""
    found: list[TrustedFolder] = []
    for schedule in configuration.schedule.values():
        with suppress(ValidationFailed):
            found.append(of_mission(load_mission_file(schedule.mission)))
    return found


def of_servers(path: Path, servers: Mapping[str, ServerConfig]) -> TrustedFolder:
    return TrustedFolder(
        path=path, starts=dict(started_server(name, one) for name, one in servers.items() if one.enabled)
    )


def of_state(ledger: Path) -> TrustedFolder:
    """The things that a ledger starts; none if it does not exist yet."""
    if not ledger.exists() or _is_users(ledger):
        return TrustedFolder(path=ledger)
    return new_state(ledger)


def new_state(ledger: Path) -> TrustedFolder:
    """The things that a new ledger will start: this user creates it, so it is trusted."""
    return TrustedFolder(path=ledger, starts={hashlib.sha256(CONTINUES.encode()).hexdigest(): CONTINUES})


def of_credentials(path: Path) -> TrustedFolder:
    """A file with tokens or sessions; a file in the user's own data folder is trusted without asking."""
    key = hashlib.sha256(ACCEPTS.encode()).hexdigest()
    return TrustedFolder(path=path, starts={} if _is_users(path) else {key: ACCEPTS})


def own_files(configuration: Configuration, state: Path) -> tuple[str, ...]:
    """Prefixes of the real paths of the configuration, scheduled missions, the state and the trust record."""
    begun = [state, *(state.with_name(name) for name in STATE_FILES)]
    found = [state.with_name(name) for name in STATE_FOLDERS]
    found += [schedule.mission for schedule in configuration.schedule.values()]
    if (path := configuration.path) is not None:
        found += [path, *(path.with_name(name) for name in (TOML_NAME, JSON_NAME, ".pursuit"))]
    with suppress(ValidationFailed):
        found.append(trust_path().parent)
    return (*map(os.path.realpath, begun), *(f"{os.path.realpath(one)}/" for one in found))


def open_to_globs(configuration: Configuration, state: Path) -> list[str]:
    """Warns of each glob rule that allows a path of Pursuit's own files, unless another rule asks or denies."""
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
    """True if the environment declares everything trusted."""
    return os.environ.get(TRUST_VARIABLE) == "1"


def require_trusted(workspaces: Iterable[TrustedFolder]) -> None:
    """Raises `NotTrusted` if one of them starts something not accepted, or other users can write it."""
    missing = untrusted(workspaces)
    if missing:
        raise not_trusted(missing)


def untrusted(workspaces: Iterable[TrustedFolder]) -> list[TrustedFolder]:
    """Returns those that start something not accepted, reduced to that. Raises `NotTrusted` for unsafe files."""
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
    command = shlex.join(["pursuit", "trust", *(str(one.path) for one in workspaces)])
    rows = [f"{one.path}: {line}" for one in workspaces for line in one.starts.values()]
    paths = ", ".join(str(one.path) for one in workspaces)
    return NotTrusted(
        f"{paths} starts or allows what you have not trusted yet ({'; '.join(rows)}); look at it, then: {command}",
        starts=rows,
        trust=command,
    )


def unsafe(path: Path, owners: Iterable[int] = ()) -> list[Fault]:
    """Reasons why another user may have written a file or folder: its owner, or its permissions."""
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
            reason = f"is writable by every user of this machine; chmod o-w {shlex.quote(str(place))}"
            faults.append(Fault(field="", reason=reason, source=str(place)))
        if info.st_uid not in known and not (shared and place != real):
            who = user_of(info.st_uid)
            reason = (
                f"belongs to {who}, not to you; to trust all files of {who}: {advice('pursuit trust --owner {}', who)}"
            )
            faults.append(Fault(field="", reason=reason, source=str(place)))
    return faults


def group_writable(path: Path) -> bool:
    """True if a group other than this user's own can write it."""
    try:
        info = path.stat()
    except OSError:
        return False
    return bool(info.st_mode & stat.S_IWGRP) and info.st_gid not in (os.getgid(), 0)


def user_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def trust_path() -> Path:
    """The file with the records, in the user's folder. Raises `ValidationFailed` for a user without a home folder."""
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG Base Directory Specification: a relative path there is invalid and must be ignored.
    if sys.platform != "darwin" and given.is_absolute():
        return given / "pursuit" / "trust.json"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():  # otherwise the current folder could supply its own record
        raise _damaged(home, f"cannot store trust records in this home folder; set HOME, or {TRUST_VARIABLE}=1")
    inside = Path("Library", "Application Support") if sys.platform == "darwin" else Path(".config")
    return home / inside / "pursuit" / "trust.json"


def _is_users(path: Path) -> bool:
    """True for a ledger in the user's own data folder or beside it, which no foreign folder can supply."""
    real = path.resolve()
    return real.parent == user_ledger().resolve().parent or databases_folder().resolve() in real.parents


class Records(BaseModel):
    model_config = ConfigDict(strict=True)

    trusted: dict[str, list[str]] = {}
    owners: list[int] = []

    @classmethod
    def read(cls) -> Records:
        """The records of this user. Raises `ValidationFailed` for an unsafe or damaged file."""
        path = trust_path()
        try:
            body = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error}") from None
        if faults := unsafe(path):
            raise ValidationFailed(faults, "other users may have changed your trust records")
        try:
            return cls.model_validate_json(body)
        except ValidationError:
            raise _damaged(
                path, "is not a trust record of Pursuit; move it away, then trust your folders again"
            ) from None

    def accepted(self, path: Path) -> Sequence[str]:
        return self.trusted.get(str(path.resolve()), ())


def record(workspaces: Iterable[TrustedFolder] = (), *, owner: int | None = None) -> None:
    """Accepts everything that these start, replacing earlier records of them; also accepts the files of an owner.

    With `PURSUIT_TRUST=1` nothing is written. Records of deleted paths are dropped.
    """
    given = list(workspaces)
    if trusts_everything() or (not given and owner is None):
        return
    with _changing() as records:
        for name in [name for name in records.trusted if not os.path.lexists(name)]:
            del records.trusted[name]
        for one in given:
            records.trusted.pop(name := str(one.path.resolve()), None)
            if one.starts:
                records.trusted[name] = sorted(one.starts)
        if owner is not None and owner not in records.owners:
            records.owners.append(owner)


def forget(paths: Iterable[Path]) -> list[str]:
    """Removes and returns the records of these paths and of everything below them."""
    roots = [path.resolve() for path in paths]
    with _changing() as records:
        gone = [name for name in records.trusted if any(Path(name).is_relative_to(root) for root in roots)]
        for name in gone:
            del records.trusted[name]
    return gone


@contextmanager
def _changing() -> Generator[Records]:
    """Changes the records under a lock, because another command may record at the same time."""
    path = trust_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = Records.read()
            yield records
            write_private(path, records.model_dump_json(indent=1))
    except OSError as error:
        raise _damaged(path, f"cannot be written: {error.strerror or error}") from None


def _damaged(path: Path, reason: str) -> ValidationFailed:
    return ValidationFailed([Fault(field="", reason=reason, source=str(path))], f"{path}: {reason}")

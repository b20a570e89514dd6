"""Edits one entry in a JSON configuration file of another program, and keeps a backup.

Every other character of the file stays as it was. The file is replaced atomically, and a concurrent change by another
program is never lost.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pursuit.config.files import as_table, parse_json
from pursuit.core.base_model import kind
from pursuit.errors import Conflict, InvalidArgument, ValidationFailed

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    key: str
    start: int
    value: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    start: int
    end: int
    members: tuple[_Member, ...]

    def member(self, key: str) -> _Member | None:
        return next((member for member in self.members if member.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """The layout of the text; without an indentation unit the text is a single line."""

    newline: str
    unit: str | None
    comma: str
    colon: str

    def pair(self, key: str, value: Any, indent: str | None) -> str:
        return json.dumps(key, ensure_ascii=False) + self.colon + self.value(value, indent)

    def value(self, value: Any, indent: str | None) -> str:
        if indent is None or self.unit is None:
            return json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon))
        laid = json.dumps(value, ensure_ascii=False, indent=self.unit, separators=(",", self.colon))
        return laid.replace("\n", self.newline + indent)


def set_member(text: str, within: str, key: str, value: Any) -> str:
    """Returns the text with this member set in the object `within`; adds both if they are missing."""
    text = text if text.strip() else "{}\n"
    root, style = _read(text)
    outer = root.member(within)
    if outer is None:
        return _add(text, root, within, {key: value}, style)
    inner = _object(text, outer.value)
    member = inner.member(key)
    if member is None:
        return _add(text, inner, key, value, style)
    return text[: member.value] + style.value(value, _indent(text, member.start)) + text[member.end :]


def drop_member(text: str, within: str, key: str) -> str:
    """Returns the text without this member of the object `within`; both must exist."""
    root, _ = _read(text)
    outer = root.member(within)
    inner = _object(text, outer.value) if outer else root
    place = [member.key for member in inner.members].index(key)
    member = inner.members[place]
    if len(inner.members) == 1:
        return text[: inner.start] + "{}" + text[inner.end :]
    if place + 1 < len(inner.members):
        return text[: member.start] + text[inner.members[place + 1].start :]
    return text[: inner.members[place - 1].end] + text[member.end :]


def _add(text: str, into: _Object, key: str, value: Any, style: _Style) -> str:
    if into.members:
        end = into.members[-1].end
        lead = _indent(text, into.members[0].start)
        between = style.comma if lead is None else f",{style.newline}{lead}"
        return text[:end] + between + style.pair(key, value, lead) + text[end:]
    if style.unit is None:
        return text[: into.start] + "{" + style.pair(key, value, None) + "}" + text[into.end :]
    line = text[text.rfind("\n", 0, into.start) + 1 : into.start]
    outer = line[: len(line) - len(line.lstrip())]
    inner = outer + style.unit
    body = f"{{{style.newline}{inner}{style.pair(key, value, inner)}{style.newline}{outer}}}"
    return text[: into.start] + body + text[into.end :]


def _read(text: str) -> tuple[_Object, _Style]:
    root = _object(text, _skip(text, 0))
    newline = "\r\n" if "\r\n" in text else "\n"
    if not root.members:
        return root, _Style(newline=newline, unit="  ", comma=", ", colon=": ")
    first = root.members[0]
    tight = text[first.value - 1] == ":"
    unit = _indent(text, first.start)
    return root, _Style(newline=newline, unit=unit, comma="," if tight else ", ", colon=":" if tight else ": ")


def _indent(text: str, place: int) -> str | None:
    """The indentation before this position; None if other text precedes it on the line."""
    line = text.rfind("\n", 0, place) + 1
    return text[line:place] if not text[line:place].strip() else None


def _object(text: str, start: int) -> _Object:
    """The members of the object that starts here; the text must be valid JSON."""
    members: list[_Member] = []
    place = _skip(text, start + 1)
    while text[place] != "}":
        key, end = _DECODER.raw_decode(text, place)
        value = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key=key, start=place, value=value, end=end))
        place = _skip(text, end)
        place = _skip(text, place + 1) if text[place] == "," else place
    return _Object(start=start, end=place + 1, members=tuple(members))


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


Action = Literal["added", "updated", "removed", "unchanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """The file as it was read; links in `path` are resolved, and `raw` is None if the file does not exist."""

    path: Path
    raw: bytes | None

    @property
    def text(self) -> str:
        return (self.raw or b"").decode("utf-8-sig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    within: str
    name: str
    entry: dict[str, Any] | None


def read_file(path: Path) -> ClientFile:
    """Reads the file, following links. Raises `InvalidArgument` if it cannot be read."""
    try:
        real = path.resolve()
        if real.exists() and not real.is_file():
            raise InvalidArgument(f"{path} is not a file; name another file with --file", file=str(path))
        return ClientFile(path=real, raw=_bytes(real))
    except (OSError, RuntimeError, ValueError) as error:  # circular links; a name with a null byte
        raise _impossible(path, "read", error) from None


def plan(file: ClientFile, edit: Edit) -> tuple[Action, str]:
    """Returns the action and the new text. Raises `InvalidArgument` if the edit is impossible."""
    try:
        text = file.text
        servers = _servers(file, text, edit)
    except UnicodeDecodeError as error:
        raise _refuse(file, edit, f"is not UTF-8 text (byte {error.start})") from None
    old = servers.get(edit.name)
    if edit.entry is None:
        return ("removed", drop_member(text, edit.within, edit.name)) if edit.name in servers else ("unchanged", text)
    if edit.name not in servers:
        return "added", set_member(text, edit.within, edit.name, edit.entry)
    table = as_table(old)
    if table is None or ("url" in table) != ("url" in edit.entry):
        kind_of = "starts a command" if "url" in edit.entry and table is not None else "starts no command"
        raise InvalidArgument(
            f"{file.path} already has an entry {edit.name!r}, which {kind_of}; nothing was changed. "
            "Give another --name, or remove it with --remove",
            file=str(file.path),
        )
    merged = {**table, **edit.entry}  # keeps keys that the user added to our entry, such as `env`
    if merged == table:
        return "unchanged", text
    return "updated", set_member(text, edit.within, edit.name, merged)


def is_shared(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_mode & _OTHERS)


def write_file(file: ClientFile, text: str, *, private: bool = False) -> Path | None:
    """Replaces the file with this text and returns the backup of the old file, if it existed.

    Only the owner can read the backup and, with `private`, the file: both may hold a token.
    Raises `Conflict` if the file has changed since it was read; nothing is changed then, and no backup is left.
    """
    data = text.encode()
    if file.raw is not None and file.raw.startswith(codecs.BOM_UTF8):
        data = codecs.BOM_UTF8 + data
    made: list[Path] = []
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        backup = None if file.raw is None else _back_up(file.path, file.raw, made)
        _replace(file, data, made, private=private)
    except BaseException as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if isinstance(error, OSError):
            raise _impossible(file.path, "written", error) from None
        raise
    with suppress(OSError):  # some file systems cannot sync a folder; the file itself is on the disk
        descriptor = os.open(file.path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return backup


def _servers(file: ClientFile, text: str, edit: Edit) -> dict[str, Any]:
    """The entries of the file; empty if the file is missing or empty."""
    if not text.strip():
        return {}
    try:
        value = parse_json(text, source=str(file.path))
    except ValidationFailed as failed:
        fault = failed.faults[0]
        where = f" (line {fault.line}, column {fault.column}; comments are not JSON)" if fault.line else ""
        reason = f"{fault.field!r} {fault.reason}" if fault.field else f"{fault.reason}{where}"
        raise _refuse(file, edit, reason) from None
    root = as_table(value)
    if root is None:
        raise _refuse(file, edit, f"contains {kind(value)}, not an object")
    servers = as_table(root.get(edit.within, {}))
    if servers is None:
        raise _refuse(file, edit, f"contains {kind(root[edit.within])} as {edit.within!r}, not an object")
    return cast("dict[str, Any]", servers)


def _back_up(path: Path, raw: bytes, made: list[Path]) -> Path:
    stem = f"{path.name}.backup-{time.strftime('%Y%m%d-%H%M%S')}"
    backup, number = path.with_name(stem), 1
    while True:
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            number += 1
            backup = path.with_name(f"{stem}-{number}")
        else:
            made.append(backup)
            _fill(descriptor, raw, path.stat(), private=True)
            return backup


def _replace(file: ClientFile, data: bytes, made: list[Path], *, private: bool) -> None:
    # mkstemp makes the file readable by the owner only, whatever the umask is.
    descriptor, name = tempfile.mkstemp(prefix=f".{file.path.name}.", suffix=".tmp", dir=file.path.parent)
    temporary = Path(name)
    made.append(temporary)
    _fill(descriptor, data, None if file.raw is None else file.path.stat(), private=private)
    if _bytes(file.path) != file.raw:
        raise Conflict(
            f"{file.path} was changed by another program at the same time; nothing was written; try again",
            file=str(file.path),
        )
    temporary.replace(file.path)


def _fill(descriptor: int, data: bytes, like: os.stat_result | None, *, private: bool) -> None:
    """Writes a new file to disk, with the mode and, if permitted, the owner of the old file.

    With `private`, other users cannot access it.
    """
    with os.fdopen(descriptor, "wb") as out:
        if like is not None:
            with suppress(PermissionError):
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, like.st_mode & 0o7777 & ~(_OTHERS if private else 0))
        out.write(data)
        out.flush()
        os.fsync(descriptor)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _refuse(file: ClientFile, edit: Edit, reason: str) -> InvalidArgument:
    refused = f"{file.path} {reason}; nothing was changed. You can"
    if edit.entry is None:
        return InvalidArgument(f"{refused} remove {edit.name!r} from {edit.within!r} yourself", file=str(file.path))
    entry = {edit.within: {edit.name: edit.entry}}
    shown = json.dumps(entry, indent=2, ensure_ascii=False)
    return InvalidArgument(f"{refused} add this to it yourself:\n\n{shown}\n", file=str(file.path), entry=entry)


def _impossible(path: Path, action: str, error: Exception) -> InvalidArgument:
    return InvalidArgument(
        f"{path} cannot be {action}: {getattr(error, 'strerror', None) or error}; nothing was changed", file=str(path)
    )

"""A mission in a TOML file: directive, criteria, budget, proposer, and servers of its own.

Owns: what only a file has: servers, a script in a file beside it, paths that are relative to it.
Invariant: all faults of the file at once, each with its field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pursuit.errors import Fault, ValidationFailed
from pursuit.model.mission import Mission, parse_mission
from pursuit.tools.server_config import ServerConfig, parse_servers

_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionFile:
    """What a file holds."""

    path: Path
    mission: Mission
    servers: Mapping[str, ServerConfig]


def load_mission_file(path: Path) -> MissionFile:
    """Reads and checks a mission file."""
    source = str(path)
    data = _read(path, source)
    faults: list[Fault] = []
    servers: Mapping[str, ServerConfig] = {}
    table = data.pop("servers", None)
    if isinstance(table, dict):
        servers, found = parse_servers(cast("dict[str, Any]", table), source=source, base=path.parent, prefix="servers")
        faults.extend(found)
    elif table is not None:
        faults.append(Fault(field="servers", reason="must be a table of servers", source=source))
    _inline_script(data, path, source, faults)
    _anchor_checks(data, path)
    mission: Mission | None = None
    try:
        mission = parse_mission(data, source=source)
    except ValidationFailed as failed:
        faults.extend(failed.faults)
    if faults or mission is None:
        raise ValidationFailed(faults, f"{source} has {len(faults)} fault{'' if len(faults) == 1 else 's'}")
    return MissionFile(path=path.resolve(), mission=mission, servers=servers)


def servers_in(path: Path) -> Mapping[str, ServerConfig]:
    """The servers of a mission file; none if the file is gone."""
    return load_mission_file(path).servers if path.is_file() else {}


def _read(path: Path, source: str) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (text.count("\n") + 1, None)
        reason = f"is no valid TOML: {_PLACE.sub('', str(error))}"
        raise ValidationFailed([Fault(field="", reason=reason, source=source, line=line, column=column)]) from None
    except UnicodeDecodeError:
        raise ValidationFailed([Fault(field="", reason="is not UTF-8 text", source=source)]) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ValidationFailed([Fault(field="", reason=reason, source=source)]) from None


def _inline_script(data: dict[str, Any], path: Path, source: str, faults: list[Fault]) -> None:
    """`proposer.file` names a script beside the mission file; the mission keeps its text."""
    proposer = data.get("proposer")
    if not isinstance(proposer, dict) or "file" not in proposer:
        return
    table = cast("dict[str, Any]", proposer)
    name = table.pop("file")
    if "script" in table:
        faults.append(Fault(field="proposer.file", reason="give either file or script", source=source))
        return
    table["script"] = "pass"
    try:
        table["script"] = (path.parent / str(name)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        faults.append(Fault(field="proposer.file", reason=reason, source=source))


def _anchor_checks(data: dict[str, Any], path: Path) -> None:
    """Commands of checks run in the folder of the mission file unless they say otherwise."""
    criteria = data.get("criteria")
    if not isinstance(criteria, list):
        return
    for criterion in cast("list[Any]", criteria):
        if isinstance(criterion, dict) and "command" in criterion:
            row = cast("dict[str, Any]", criterion)
            row["cwd"] = str((path.parent / str(row.get("cwd", "."))).resolve())

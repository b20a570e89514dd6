"""A mission in a TOML file: directive, criteria, budget, proposer, and its own servers.

All faults of the file are raised together, each with its field. Its servers never count as the operator's. To resume a
mission, only the servers are read: the mission itself is in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pursuit.config.configuration import TOML_KEYS
from pursuit.config.files import parse_toml, read_text, too_deep
from pursuit.config.servers import ServerConfig, parse_servers
from pursuit.core.mission import Mission, parse_mission
from pursuit.core.proposing import settings_type
from pursuit.errors import Fault, ValidationFailed, advice


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionFile:
    path: Path
    mission: Mission
    servers: Mapping[str, ServerConfig]


def load_mission_file(path: Path) -> MissionFile:
    source = str(path)
    data = parse_toml(read_text(path), source=source)
    _refuse_configuration(data, source)
    servers, faults = _servers(data.pop("servers", None), path)
    _read_beside(data, path, source, faults)
    _anchor(data, path.parent)
    mission: Mission | None = None
    try:
        mission = parse_mission(data, source=source)
    except ValidationFailed as failed:
        faults.extend(failed.faults)
    except RecursionError:
        raise too_deep(source) from None
    if faults or mission is None:
        raise ValidationFailed(faults, _count(path, faults))
    return MissionFile(path=path.resolve(), mission=mission, servers=servers)


def servers_in(path: Path) -> Mapping[str, ServerConfig]:
    """The servers of a mission file, despite faults elsewhere in it; empty if the file is gone."""
    if not path.is_file():
        return {}
    servers, faults = _servers(parse_toml(read_text(path), source=str(path)).get("servers"), path)
    if faults:
        raise ValidationFailed(faults, _count(path, faults))
    return servers


def _servers(table: object, path: Path) -> tuple[Mapping[str, ServerConfig], list[Fault]]:
    if table is None:
        return {}, []
    # Resolved, so that the same file means the same servers under each of its names, now and on resume.
    found, faults = parse_servers(table, source=str(path), base=path.resolve().parent)
    return {name: server.model_copy(update={"operators": False}) for name, server in found.items()}, faults


def _refuse_configuration(data: Mapping[str, Any], source: str) -> None:
    """Raises if the file is a configuration: without a directive, and only with keys of configurations."""
    if data and data.keys() <= TOML_KEYS:
        reason = f"this is a configuration; a mission file has a directive: `{advice('pursuit scaffold {}', 'GOAL')}`"
        raise ValidationFailed([Fault(field="", reason=reason, source=source)])


def _count(path: Path, faults: Sequence[Fault]) -> str:
    return f"{path} has {len(faults)} fault{'' if len(faults) == 1 else 's'}"


def _read_beside(data: dict[str, Any], path: Path, source: str, faults: list[Fault]) -> None:
    """Reads the files that the proposer names beside the mission file; the mission stores their text."""
    proposer = data.get("proposer")
    kind = settings_type(proposer)
    if kind is None or not isinstance(proposer, dict):
        return
    for broken in kind.in_file(cast("dict[str, Any]", proposer), path.parent):
        faults.append(Fault(field=f"proposer.{broken.field}", reason=broken.reason, source=source))


def _anchor(data: dict[str, Any], folder: Path) -> None:
    """Resolves the workspace and the folders of check commands relative to the mission file."""
    workspace, criteria = data.get("workspace"), data.get("criteria")
    places = [("path", workspace)]
    places += [("cwd", one) for one in cast("list[Any]", criteria)] if isinstance(criteria, list) else []
    for key, table in places:
        if isinstance(table, dict) and (key == "path" or "command" in table):
            row = cast("dict[str, Any]", table)
            if isinstance(given := row.get(key, "."), str):
                row[key] = str((folder / given).resolve())

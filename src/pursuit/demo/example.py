"""Writes an example of `pursuit init` into a folder: all its files, or none if any would replace a file."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from pursuit.config.configuration import JSON_NAME, TOML_NAME, load_configuration
from pursuit.config.json_schemas import SCHEMAS, schema_text
from pursuit.config.mission_file import load_mission_file
from pursuit.config.trust import of_configuration, of_mission, record
from pursuit.core.base_model import nearest
from pursuit.errors import Fault, ValidationFailed, advice

DEFAULT = "beam"
SCHEMA_FOLDER = ".pursuit"
"""Also the folder of the ledger: the schemas belong to the installed version, not to the project."""
_SCHEMA_LINES = {"mission.toml": "mission", "pursuit.toml": "config"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleTemplate:
    """An example: its summary, its files in reading order, and the commands to try."""

    summary: str
    names: tuple[str, ...]
    steps: tuple[str, ...] = (advice("pursuit run {}", "mission.toml"), advice("pursuit list"))
    extra: tuple[str, str] | None = None
    """The extra that it needs, and a module to detect it."""


TEMPLATES = {
    "beam": ExampleTemplate(
        summary="a script designs a welded beam at an MCP server",
        names=("pursuit.toml", "mission.toml", "strategy.py"),
    ),
    "tune": ExampleTemplate(
        summary="a search tunes the arguments of a command, guided by a number in its log",
        names=("pursuit.toml", "mission.toml", "train.py"),
        extra=("search", "optuna"),
    ),
    "fix-tests": ExampleTemplate(
        summary="failing tests are repaired, with approvals",
        names=("pursuit.toml", "mission.toml", "strategy.py", "files.py", "prices.py", "test_prices.py"),
    ),
    "watch-and-repair": ExampleTemplate(
        summary="a service is watched, and repaired when it reports errors",
        names=("pursuit.toml", "mission.toml", "strategy.py", "service.py"),
    ),
    "coding": ExampleTemplate(
        summary="a coding agent works in this git repository until the tests pass",
        names=("fix.toml",),
        steps=(advice("pursuit agents"), advice("pursuit run {}", "fix.toml"), advice("pursuit workspace diff last")),
    ),
    "client": ExampleTemplate(
        summary="an MCP client starts a mission and proposes each step",
        names=("pursuit.toml", "client.py"),
        steps=(f"{sys.executable} client.py", advice("pursuit install claude-code --dry-run")),
    ),
}


def template_named(name: str) -> ExampleTemplate:
    if name not in TEMPLATES:
        known = nearest(name, TEMPLATES) or "; use " + ", ".join(TEMPLATES)
        raise ValidationFailed([Fault(field="--template", reason=f"{name!r} is not a template{known}")])
    return TEMPLATES[name]


def next_steps(template: ExampleTemplate) -> list[str]:
    needed = template.extra
    missing = needed is not None and find_spec(needed[1]) is None
    return [*([f"pip install 'pursuit[{needed[0]}]'"] if needed is not None and missing else []), *template.steps]


def write_example(target: Path, *, force: bool = False, template: str = DEFAULT) -> list[Path]:
    """Writes an example into `target`, creating it if needed; returns its files in reading order.

    The schemas for editors go into a separate folder and replace older ones. Raises `ValidationFailed` before writing
    anything, with one fault for each file that cannot be written.
    """
    paths = {target / name: _content(template, name) for name in template_named(template).names}
    if faults := [*_target_faults(target), *(fault for path in paths for fault in _file_faults(path, force=force))]:
        raise ValidationFailed(faults, "the example was not written")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path, body in paths.items():
            # Replaced, not overwritten: it may be a link to a file of the user.
            path.unlink(missing_ok=True)
            path.write_bytes(body)
        folder = target / SCHEMA_FOLDER
        for name in SCHEMAS if any(path.name in _SCHEMA_LINES for path in paths) else ():
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / f"{name}.schema.json").write_text(schema_text(name), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValidationFailed([Fault(field=str(target), reason=reason)], "the example was not written") from error
    # The user requested these files, so they are trusted. The servers of an mcp.json that was there before may be a
    # stranger's: they are not. If nothing is recorded, `run` asks.
    with suppress(ValidationFailed):
        has_one = target / TOML_NAME in paths and not (target / JSON_NAME).exists()
        own = of_configuration(load_configuration(target / TOML_NAME)) if has_one else None
        written = [path for path in paths if path.suffix == ".toml" and path.name != TOML_NAME]
        missions = [of_mission(load_mission_file(path)) for path in written]
        record([*([] if own is None else [own]), *missions])
    return list(paths)


def _content(template: str, name: str) -> bytes:
    """A file of a template; scripts are stored as text because their top-level `await` works only in the sandbox."""
    folder = files("pursuit.demo") / "templates" / template
    body = (folder / (f"{name}.txt" if name.endswith(".py") else name)).read_bytes()
    if name in _SCHEMA_LINES:
        return f"#:schema ./{SCHEMA_FOLDER}/{_SCHEMA_LINES[name]}.schema.json\n".encode() + body
    return body


def _target_faults(target: Path) -> list[Fault]:
    """Faults for files in the way: the target must not be a file or below one, or contain a file of the example."""
    nearest_path = next((path for path in (target, *target.parents) if path.exists()), None)
    if nearest_path is None or nearest_path.is_dir():
        return []
    return [Fault(field=str(nearest_path), reason="is not a folder; name another one")]


def _file_faults(path: Path, *, force: bool) -> list[Fault]:
    if path.is_dir():
        return [Fault(field=str(path), reason="is a folder, but the example needs a file here; move the folder")]
    if path.is_symlink() or path.exists():
        return [] if force else [Fault(field=str(path), reason="already exists; move it, or use --force")]
    return []

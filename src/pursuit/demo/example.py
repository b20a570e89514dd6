"""Writes the example of `pursuit init` into a folder: all its files, or none if one would replace a file."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from pursuit.config.configuration import TOML_NAME, load_configuration
from pursuit.config.mission_file import load_mission_file
from pursuit.config.trust import of_configuration, of_mission, record
from pursuit.errors import Fault, ValidationFailed

# The script is stored as text: with its top-level `await` it is Python for the sandbox, not for this interpreter.
EXAMPLE = {
    "pursuit.toml": "pursuit.toml",
    "mission.toml": "mission.toml",
    "strategy.py": "strategy.py.txt",
}


def write_example(target: Path, *, force: bool = False) -> list[Path]:
    """Writes the example into `target`, creating it if needed; returns the files in reading order.

    Raises `ValidationFailed`, having written nothing, with one fault for each file that cannot be written.
    """
    paths = {target / name: template for name, template in EXAMPLE.items()}
    if faults := [*_target_faults(target), *(fault for path in paths for fault in _file_faults(path, force=force))]:
        raise ValidationFailed(faults, "the example was not written")
    templates = files("pursuit.demo") / "templates"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path, template in paths.items():
            # Replaced, not written through: a link may lead to a file of the user.
            path.unlink(missing_ok=True)
            path.write_bytes((templates / template).read_bytes())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValidationFailed([Fault(field=str(target), reason=reason)], "the example was not written") from error
    # The person asked for these files, so what they start is trusted. Where that cannot be recorded, `run` asks.
    with suppress(ValidationFailed):
        own = of_configuration(load_configuration(target / TOML_NAME))
        record([*([] if own is None else [own]), of_mission(load_mission_file(target / "mission.toml"))])
    return list(paths)


def _target_faults(target: Path) -> list[Fault]:
    """A path that is a file, or lies below one, cannot hold the example."""
    nearest = next((path for path in (target, *target.parents) if path.exists()), None)
    if nearest is None or nearest.is_dir():
        return []
    return [Fault(field=str(nearest), reason="is not a folder; name another one")]


def _file_faults(path: Path, *, force: bool) -> list[Fault]:
    if path.is_dir():
        return [Fault(field=str(path), reason="is a folder where the example has a file; move it away")]
    if path.is_symlink() or path.exists():
        return [] if force else [Fault(field=str(path), reason="exists already; move it away, or use --force")]
    return []

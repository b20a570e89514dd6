"""The files that a manifest names, and their content.

Invariant: every name gives a file or a reason; only files that `files_of` finds may be outside of the problem's folder.
"""

from __future__ import annotations

import ast
import glob
import stat
import warnings
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024
_MAX_NAME = 80


def file_of(folder: Path, name: str) -> Path | str:
    shown = repr(name[:_MAX_NAME])
    if why := _no_name(name):
        return why
    try:
        root = folder.resolve()
        path = (root / name).resolve()
        inside, there = path.is_relative_to(root), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, not Unicode, circular links
        return f"{shown} cannot be a file: {getattr(error, 'strerror', None) or error}"
    if not inside:
        return f"{shown} is outside of the problem's folder"
    return path if there else f"file {shown} does not exist"


def files_of(folder: Path, pattern: str) -> list[Path] | str:
    """The files that a path or glob matches, relative to the folder, even outside of it; or why it matches none."""
    shown = repr(pattern[:_MAX_NAME])
    if why := _no_name(pattern):
        return why
    if Path(pattern).is_absolute():
        return f"{shown} must be relative to the manifest"
    try:
        found = {folder / pattern} if (folder / pattern).exists() else set[Path]()
        found |= {folder / name for name in glob.iglob(pattern, root_dir=folder, recursive=True)}  # noqa: PTH207
        files = sorted(path.resolve() for path in found if path.is_file())
    except (OSError, ValueError, RuntimeError) as error:  # also RecursionError, for an endless pattern
        return f"{shown} cannot be a file: {getattr(error, 'strerror', None) or error}"
    if files:
        return files
    reason = f"{shown} is a folder; write {shown[1:-1] + '/**'!r} for its files"
    return reason if found else f"file {shown} does not exist"


def _no_name(text: str) -> str | None:
    if not text.strip():
        return "must not be empty"
    return None if text.isprintable() else f"{text[:_MAX_NAME]!r} contains characters that cannot be printed"


def is_folder(folder: Path, name: str) -> bool:
    try:
        return (folder / name).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return False


def text_of(path: Path) -> str | None:
    """The text of a file; None if it is not text, too long, or cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # ValueError: bytes that are not text
        return None


def not_a_file(path: Path) -> str | None:
    """Why a path cannot be read as a file, found without opening it: opening a pipe would wait forever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISDIR(mode):
        return "is a directory, not a file"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def parsed_python(source: str | Path, mode: str = "exec") -> ast.AST | None:
    """Parses Python source, or the file that holds it, without warnings; None if it is not valid Python."""
    try:
        if isinstance(source, Path) and source.stat().st_size > MAX_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source if isinstance(source, str) else source.read_bytes(), mode=mode)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None

"""The files that a manifest names, and what they hold.

Invariant: whatever the name is, the result is a file or a reason; only what `files_of` finds may lie outside of the
problem's folder.
"""

from __future__ import annotations

import ast
import glob
import stat
import warnings
from pathlib import Path

MOST_BYTES = 4 * 1024 * 1024
_LONGEST_NAME = 80


def file_of(folder: Path, name: str) -> Path | str:
    """The file of this name, with every link followed; or why there is none."""
    shown = repr(name[:_LONGEST_NAME])
    if why := _no_name(name):
        return why
    try:
        root = folder.resolve()
        path = (root / name).resolve()
        inside, there = path.is_relative_to(root), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, no Unicode, links that go round in a circle
        return f"{shown} cannot be a file: {getattr(error, 'strerror', None) or error}"
    if not inside:
        return f"{shown} lies outside of the problem's folder"
    return path if there else f"there is no file {shown}"


def files_of(folder: Path, pattern: str) -> list[Path] | str:
    """The files that a path or glob means, relative to the folder and also outside of it; or why there are none."""
    shown = repr(pattern[:_LONGEST_NAME])
    if why := _no_name(pattern):
        return why
    if Path(pattern).is_absolute():
        return f"{shown} must be relative to the manifest"
    try:
        found = {folder / pattern} if (folder / pattern).exists() else set[Path]()
        found |= {folder / name for name in glob.iglob(pattern, root_dir=folder, recursive=True)}  # noqa: PTH207
        files = sorted(path.resolve() for path in found if path.is_file())
    except (OSError, ValueError, RuntimeError) as error:  # also a RecursionError, of a pattern without end
        return f"{shown} cannot be a file: {getattr(error, 'strerror', None) or error}"
    if files:
        return files
    return f"{shown} is a folder; write {shown[1:-1] + '/**'!r} for its files" if found else f"there is no file {shown}"


def _no_name(text: str) -> str | None:
    if not text.strip():
        return "must not be empty"
    return None if text.isprintable() else f"{text[:_LONGEST_NAME]!r} has characters that no name of a file should have"


def is_folder(folder: Path, name: str) -> bool:
    """Whether this is the name of a folder, here or anywhere."""
    try:
        return (folder / name).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return False


def text_of(path: Path) -> str | None:
    """What a file says; None if it is no text, too long to look through, or cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # ValueError: bytes that are no text
        return None


def cannot_open(path: Path) -> str | None:
    """Why a file cannot be read, or None."""
    try:
        with path.open("rb"):
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def not_a_file(path: Path) -> str | None:
    """Why a path cannot be read as a file, without opening it: a pipe would wait for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISDIR(mode):
        return "is a directory; a problem.toml is a file"
    return None if stat.S_ISREG(mode) else "is no regular file"


def parsed_python(source: str | Path, mode: str = "exec") -> ast.AST | None:
    """Python source, or the file that holds it, as a tree, without its warnings; None if it is no Python."""
    try:
        if isinstance(source, Path) and source.stat().st_size > MOST_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source if isinstance(source, str) else source.read_bytes(), mode=mode)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None

"""The files of a problem's folder that its manifest names.

Owns: whether a name is that of a file inside the folder, and what it holds. Does not know: what a file is for.
Invariant: whatever the name is, the answer is a file or a reason; nothing outside of the folder is ever opened.
"""

from __future__ import annotations

import ast
import stat
import warnings
from pathlib import Path

MOST_BYTES = 4 * 1024 * 1024
_LONGEST_NAME = 80


def file_of(folder: Path, name: str) -> Path | str:
    """The file of this name, with every link followed; or why there is none."""
    shown = repr(name[:_LONGEST_NAME])
    if not name.strip():
        return "must not be empty"
    if not name.isprintable():
        return f"{shown} has characters that no name of a file should have"
    try:
        root = folder.resolve()
        path = (root / name).resolve()
        inside, there = path.is_relative_to(root), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, no Unicode, links that go round in a circle
        return f"{shown} cannot be a file: {getattr(error, 'strerror', None) or error}"
    if not inside:
        return f"{shown} lies outside of the problem's folder"
    return path if there else f"there is no file {shown}"


def text_of(path: Path) -> str | None:
    """What a file says; None if it is no text, too long to look through, or cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # ValueError: bytes that are no text
        return None


def not_a_file(path: Path) -> str | None:
    """Why a path cannot be read as a file, without opening it: a pipe would wait for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISDIR(mode):
        return "is a directory; a problem.toml is a file"
    return None if stat.S_ISREG(mode) else "is no regular file"


def parsed_python(text: str, mode: str = "exec") -> ast.AST | None:
    """Python source as a tree, without its warnings; None if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

"""The files of a problem's folder that its manifest names.

Owns: whether a name is that of a file inside the folder, and what it holds. Does not know: what a file is for.
Invariant: whatever the name is, the answer is a file or a reason; nothing outside of the folder is ever opened.
"""

from __future__ import annotations

import ast
import codecs
import io
import stat
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 4 * 1024 * 1024
_OVERLAP = 64 * 1024
_MARKS = (
    ((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
    ((codecs.BOM_UTF8,), "utf-8-sig"),
)
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


def source_of(path: Path) -> str | None:
    """Python source as Python itself reads it, with a mark at its beginning or a coding in its first lines."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        whole = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(whole).readline)
        return io.TextIOWrapper(io.BytesIO(whole), encoding).read()
    except (OSError, ValueError, SyntaxError):  # SyntaxError: a coding that there is not
        return None


def pieces_of(path: Path) -> Iterator[str]:
    """What a file says, piece after piece, whatever its size; each begins with the end of the one before.

    Bytes that are no Unicode are read as Latin-1. A file that cannot be read has no pieces.
    """
    before = ""
    try:
        with path.open(encoding=_encoding_of(path), errors="replace") as file:
            while piece := file.read(MOST_BYTES):
                yield before + piece
                before = piece[-_OVERLAP:]
    except (OSError, ValueError):
        return


def _encoding_of(path: Path) -> str:
    with path.open("rb") as file:
        begin = file.read(_OVERLAP)
    for marks, name in _MARKS:
        if begin.startswith(marks):
            return name
    # In UTF-16 without a mark every other byte of a Western text is null.
    for place, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if begin[place::2].count(0) * 2 > len(begin[place::2]) and 0 not in begin[1 - place :: 2]:
            return name
    try:
        with path.open(encoding="utf-8") as file:
            while file.read(MOST_BYTES):
                pass
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


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


def parsed_python(text: str, mode: str = "exec") -> ast.AST | None:
    """Python source as a tree, without its warnings; None if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

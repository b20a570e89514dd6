"""Whether the command of a judge or of a server could be started.

Owns: which word of a command is the program, which the script or module that it runs, and where each may lie. Does not
know: what it does. Looks at files and runs nothing. Invariant: what cannot be known without running it (the modules of
another Python, what a shell is told) is let pass.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from pursuit.problems.files import file_of, is_folder, not_a_file
from pursuit.tools.fields import Fields
from pursuit.tools.server_config import PYTHON

_PYTHONS = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?t?)?(?:\.exe)?")
_OTHERS = ("sh", "bash", "node", "ruby", "perl")
_OPTION = re.compile(r"-[^cmWX]*(?P<letter>[cmWX])(?P<glued>.*)", re.DOTALL)
"""Options of Python in one word, the last of which takes what follows it."""

_WITH_A_WORD = ("--check-hash-based-pycs",)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def check_command(
    fields: Fields,
    key: str,
    command: Sequence[object],
    folder: Path,
    *,
    shift: int = 0,
    confined: bool = True,
    judges: bool = True,
) -> None:
    """That each word is one, and that what is run is there; nothing is run.

    `shift` is how many words of it stand elsewhere than in the list `key`. What is not `confined` may lie anywhere. The
    program of what `judges` must be there, too: it would be missed only when the one submission is spent.
    """
    for place, word in enumerate(command):
        if isinstance(word, str) and "\0" in word:
            fields.fault(_word(key, place - shift), "has a null character, which no program can be told")
        elif isinstance(word, str) and place == 0 and not word.strip():
            fields.fault(_word(key, place - shift), "must not be empty: it is the program")
    words = [word for word in command if isinstance(word, str)]
    if len(words) != len(command) or not words or not words[0].strip() or any("\0" in word for word in words):
        return
    begin = _program(words)
    for place in dict.fromkeys((0, begin)) if judges else ():
        if place < len(words) and (why := _no_program(words[place], folder)) is not None:
            fields.fault(_word(key, place - shift), why)
            return
    found = _run_by(words, begin)
    if found is None:
        return
    place, name, is_module = found
    why = _no_module(words[begin], name, folder) if is_module else _no_script(name, folder, confined, judges=judges)
    if why is not None:
        fields.fault(_word(key, place - shift), why)


def _program(words: Sequence[str]) -> int:
    """Where the program stands, also behind `env` with its options and variables."""
    if PurePosixPath(words[0]).name != "env":
        return 0
    place = 1
    while place < len(words) and (words[place].startswith("-") or _ASSIGNED.fullmatch(words[place])):
        if words[place] in ("-S", "--split-string") or words[place].startswith("-S"):
            return len(words)  # what follows is a command line of its own
        place += 2 if words[place] in ("-u", "-C", "--unset", "--chdir") else 1
    return place


def _run_by(words: Sequence[str], begin: int) -> tuple[int, str, bool] | None:
    """The script or module that a program is given to run, with its place; the program itself if it is a path."""
    if begin >= len(words):
        return None
    program = words[begin]
    if program != PYTHON and not _PYTHONS.fullmatch(PurePosixPath(program).name):
        place = begin + (PurePosixPath(program).name in _OTHERS)
        known = place < len(words) and not words[place].startswith("-") and (place > begin or "/" in program)
        return (place, words[place], False) if known else None
    place = begin + 1
    while place < len(words) and words[place].startswith("-"):
        word, place = words[place], place + 1
        if word.startswith("--"):
            place += word in _WITH_A_WORD
            continue
        option = _OPTION.fullmatch(word)
        if word == "-" or (option is not None and option["letter"] == "c"):
            return None  # it reads its source elsewhere
        if option is not None and option["letter"] == "m":
            at, name = (place - 1, option["glued"]) if option["glued"] else (place, "".join(words[place : place + 1]))
            return (at, name, True) if name else None
        place += option is not None and not option["glued"]
    return (place, words[place], False) if place < len(words) else None


def _no_program(program: str, folder: Path) -> str | None:
    """Why a program cannot be started, as far as can be seen."""
    if program == PYTHON:
        return None
    if "/" not in program:
        return None if shutil.which(program) else f"there is no program {program[:80]!r} on this machine"
    if not PurePosixPath(program).is_absolute():
        found = file_of(folder, program)
        path = found if isinstance(found, Path) else None
        why = None if path is not None else str(found)
    else:
        path = Path(program)
        why = None if not_a_file(path) is None else f"there is no file {program[:80]!r}"
    if why is None and path is not None and not os.access(path, os.X_OK):
        return f"{program[:80]!r} is not executable"
    return why


def _no_script(name: str, folder: Path, confined: bool, *, judges: bool) -> str | None:
    """Why there is no such script; a folder that Python can run is one."""
    if not name:
        return None
    if PurePosixPath(name).is_absolute():
        there = not judges or not_a_file(Path(name)) is None or is_folder(folder, name)
        return None if there else f"there is no file {name[:80]!r}"
    root = folder if confined else Path(folder.anchor)
    place = name if confined else str(folder / name)
    found = file_of(root, place)
    if isinstance(found, Path) or isinstance(file_of(root, f"{place}/__main__.py"), Path):
        return None
    return found


def _no_module(program: str, name: str, folder: Path) -> str | None:
    """Why there is no such module: neither in the folder nor, where this Python runs it, among its own."""
    stem = name.replace(".", "/")
    if any(isinstance(file_of(folder, f"{stem}{end}"), Path) for end in (".py", "/__main__.py", "/__init__.py")):
        return None
    first = name.partition(".")[0]
    if not _is_ours(program):
        return None
    try:
        known = find_spec(first) is not None
    except (ImportError, ValueError):
        known = False
    return None if known else f"there is no module {name[:80]!r}"


def _is_ours(program: str) -> bool:
    """Whether it is the Python that runs this."""
    found = shutil.which(program)
    return program == PYTHON or (found is not None and Path(found).parent == Path(sys.executable).parent)


def _word(key: str, place: int) -> str:
    return "command" if place < 0 else f"{key}[{place}]"

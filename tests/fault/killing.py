"""`pursuit` that ends the process which drives a mission at a chosen write, whichever process writes it.

`deadly` is a command that stands for Python: what it starts of itself dies by it, too. The point is a line in a file:
the type of an event, a word that must stand in it, `before` or `after` the write, and the signal. It counts once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any


def deadly(folder: Path, point: str, number: signal.Signals = signal.SIGKILL) -> list[str]:
    """The words that run it."""
    from quick_start import REAL, quick  # not there when this file is the program

    folder.mkdir()
    (folder / "point").write_text(f"{point} {int(number)}", encoding="utf-8")
    wrapper = folder / "python"
    mine = f'[ "$2" = pursuit ] && exec {REAL} {quick(str(Path(__file__)))} {folder} "$@"'
    wrapper.write_text(f'#!/bin/sh\n{mine}\nexec {REAL} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o700)
    return [str(wrapper), "-m", "pursuit"]


def _strike(folder: Path) -> None:
    """Ends the driver, once."""
    try:
        (folder / "point").rename(folder / "struck")
    except FileNotFoundError:
        return
    number = int((folder / "struck").read_text(encoding="utf-8").split()[-1])
    os.kill(int((folder / "driver").read_text(encoding="utf-8")), number)


def main() -> None:
    from pursuit.cli.main import main as command
    from pursuit.ledger.sqlite import SqliteLedger

    folder, words = Path(sys.argv[1]), sys.argv[2:]
    if not (folder / "driver").exists():
        (folder / "driver").write_text(str(os.getpid()), encoding="utf-8")
    sys.executable = str(folder / "python")
    kind, word, when = (folder / "point").read_text(encoding="utf-8").split()[:3] if _armed(folder) else ("", "", "")
    appended = SqliteLedger.append

    async def append(self: SqliteLedger, stream: str, expected: int, drafts: Any, **named: Any) -> Any:
        met = any(one.type == kind and word.encode() in one.body for one in drafts)
        if met and when == "before":
            _strike(folder)
        head = await appended(self, stream, expected, drafts, **named)
        if met and when == "after":
            _strike(folder)
        return head

    SqliteLedger.append = append
    sys.argv = ["pursuit", *words[2:]]
    command()


def _armed(folder: Path) -> bool:
    return (folder / "point").exists()


if __name__ == "__main__":
    main()

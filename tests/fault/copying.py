"""`pursuit migrate` that is killed in the middle of a chosen part of the copy: half of its rows are sent.

Words: the number of the part, then those of the command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

ROWS = 60


class Deadly(list[Any]):
    """Rows whose reader is killed at half of them."""

    def __iter__(self) -> Iterator[Any]:
        for number, row in enumerate(list.__iter__(self)):
            if number == len(self) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield row


def main() -> None:
    from pursuit.cli.main import main as command
    from pursuit.ledger import transfer

    left = int(sys.argv.pop(1))
    transfer.ROWS = ROWS

    def deadly(put: Any) -> Any:
        def half(self: Any, table: str, columns: str, rows: Sequence[Any]) -> None:
            nonlocal left
            left -= 1
            put(self, table, columns, rows if left else Deadly(rows))

        return half

    for target in (transfer._IntoSqlite, transfer._IntoPostgres):
        target.put = deadly(target.put)
    command()


if __name__ == "__main__":
    main()

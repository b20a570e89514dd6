"""`pursuit worker` as a machine of its own, with a clock that a fault can put wrong; it notes what was acknowledged.

Words: the folder of the run, the name of the worker, then those of the command. The folder has the offset of each
worker's clock (`NAME.clock`), and gets its process (`NAME.pid`) and its acknowledged appends (`NAME.appends`).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    import faulthandler
    import platform
    import signal

    from history import Append

    from pursuit.cli.main import main as command
    from pursuit.engine.context import SystemClock
    from pursuit.ledger import leases
    from pursuit.ledger.postgres import PostgresLedger

    folder, name = Path(sys.argv.pop(1)), sys.argv.pop(1)
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    faulthandler.register(signal.SIGUSR1)  # where it stands, if it does not end

    # To the others it is another machine: that its process has died is known only by its lease.
    (folder / f"{name}.boot").write_text(name)
    leases._BOOT = folder / f"{name}.boot"
    platform.node = lambda: name

    clock = folder / f"{name}.clock"

    def now() -> float:
        return time.time() + (float(clock.read_text()) if clock.exists() else 0.0)

    SystemClock.now = staticmethod(now)
    opened = PostgresLedger.open.__func__

    def open_(cls: Any, *words: Any, **named: Any) -> Any:
        return opened(cls, *words, **{"clock": now, **named})

    PostgresLedger.open = classmethod(open_)
    notes = os.open(folder / f"{name}.appends", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    appended = PostgresLedger.append

    async def append(self: PostgresLedger, stream: str, *words: Any, claim: Any = None, **named: Any) -> Any:
        head = await appended(self, stream, *words, claim=claim, **named)
        epoch = None if claim is None else claim.epoch
        one = Append(at=time.monotonic(), by=name, stream=stream, seq=head.seq, hash=head.hash.hex(), epoch=epoch)
        os.write(notes, one.line().encode())
        return head

    PostgresLedger.append = append
    command()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()

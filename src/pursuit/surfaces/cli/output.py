"""Where a command may write the file that was asked for.

Owns: the rule for `--output`. Writes nothing itself. Invariant: nothing that is there is replaced without `--force`,
and the ledger not even with it.
"""

from __future__ import annotations

from pathlib import Path

from pursuit.errors import Fault, ValidationFailed
from pursuit.surfaces.cli.context import ledger_path
from pursuit.surfaces.cli.options import Common

_LEDGER_FILES = ("", "-wal", "-shm", "-journal", "-gate")


def check_output(common: Common, output: Path, *, force: bool) -> None:
    """Refuses an output that would replace something it must not."""
    ledger = ledger_path(common)
    try:
        reason = _objection(ledger, output, force=force)
    except (OSError, RuntimeError) as error:  # a name that is too long, links in a ring
        reason = f"{output} cannot be written: {getattr(error, 'strerror', None) or error}"
    if reason is not None:
        raise ValidationFailed([Fault(field="--output", reason=reason)])


def _objection(ledger: Path, output: Path, *, force: bool) -> str | None:
    if _is_of_the_ledger(ledger, output):
        return f"{output} belongs to the ledger, which would be destroyed; name another file"
    if output.is_dir():
        return f"{output} is a folder; name a file"
    if output.exists() and not force:
        return f"{output} is there already; --force replaces it"
    return None


def _is_of_the_ledger(ledger: Path, output: Path) -> bool:
    real = ledger.resolve()
    files = [real.with_name(real.name + suffix) for suffix in _LEDGER_FILES]
    # By name too: SQLite makes some of them only while the ledger is open.
    return output.resolve() in files or any(output.exists() and one.exists() and output.samefile(one) for one in files)

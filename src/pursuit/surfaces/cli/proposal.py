"""A proposal from a file or from standard input.

Owns: the way from bytes to a checked `Proposal`. Invariant: what is wrong is told with its file and place.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pursuit.config.files import parse_json, too_deep, unreadable
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.errors import Fault, ValidationFailed

STDIN = "-"
MOST_BYTES = 16 * 1024 * 1024


def read_proposal(place: str) -> Proposal:
    """The proposal in a JSON file, or in standard input for `-`."""
    source = "standard input" if place == STDIN else place
    text = _read(place, source)
    try:
        return parse_proposal(parse_json(text, source=source))
    except RecursionError:
        raise too_deep(source) from None
    except ValidationFailed as failed:
        raise ValidationFailed([_placed(fault, source) for fault in failed.faults]) from None


def _read(place: str, source: str) -> str:
    try:
        if place == STDIN:
            body = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                body = file.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise unreadable(source, f"is larger than {MOST_BYTES:,} bytes")
        return body.decode()
    except UnicodeDecodeError:
        raise unreadable(source, "is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise unreadable(source, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _placed(fault: Fault, source: str) -> Fault:
    if fault.source is not None:
        return fault
    return Fault(field=fault.field, reason=fault.reason, source=source, line=fault.line, column=fault.column)

"""The names of attempts.

Owns: what an attempt may be called, so that the ledger can keep it. Knows no ledger. Invariant: no two problems share
the name of a shared attempt.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.manifest import Manifest

PREFIX = "attempt-"
ATTEMPT_ID = re.compile(r"attempt-[a-z0-9_-]{1,100}")
"""What the ledger can keep, and a file can be named by."""


def checked_attempt_id(text: str, field: str) -> str:
    """An id that somebody chose for an attempt; raises `ValidationFailed`."""
    if ATTEMPT_ID.fullmatch(text) is None:
        reason = (
            f"{text[:80]!r} cannot be kept: write attempt- and then 1 to 100 of a-z, 0-9, '-' and '_', "
            "such as attempt-mine-1; or leave it out for a new one"
        )
        raise ValidationFailed([Fault(field=field, reason=reason)])
    return text


def new_attempt_id() -> str:
    """An id that nobody can guess."""
    return f"{PREFIX}{secrets.token_hex(8)}"


def shared_attempt_id(problem: Manifest) -> str:
    """The id of the one attempt that all clients of a shared problem work at; in the ledger it can have no dot."""
    name = problem.problem_id
    if "." in name:
        name = f"{name.replace('.', '-')}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"{PREFIX}shared-{name}"


def is_attempt(text: str) -> bool:
    """Whether it could be the id of an attempt."""
    return text.startswith(PREFIX)

"""Who asks for something, and over which way.

Owns: the caller's name as it stands in events and in the audit. Knows no transport.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from functools import cache

LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`who` is a person or a credential, `client` the program that speaks for them.

    `credential` is the name of the token that was shown, where one was: what it began is its own.
    """

    who: str = "operator"
    transport: str = "python"
    client: str | None = None
    credential: str | None = None

    def __str__(self) -> str:
        if self.transport == "python":
            return self.who
        ways = ", ".join(part for part in (self.transport, self.client) if part)
        return f"{self.who} ({ways})"[:LONGEST]


OPERATOR = Caller()


@cache
def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in many containers
        return OPERATOR.who

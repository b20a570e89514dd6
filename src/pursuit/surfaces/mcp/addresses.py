"""The `mission://` addresses: what each of them names.

Owns: their spelling, both ways. Knows no handler. Invariant: an `Address` names a well-formed mission id; whether the
mission exists is asked of the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from pursuit.errors import InvalidArgument, SessionNotFound
from pursuit.ledger.contract import FORGOTTEN, StreamRow
from pursuit.service import Service
from pursuit.service.queries import MISSION_ID

Part = Literal["status", "report", "events"]

TEMPLATES: dict[Part, str] = {
    "status": "mission://{id}",
    "report": "mission://{id}/report",
    "events": "mission://{id}/events",
}
_URI = re.compile(rf"mission://({MISSION_ID.pattern})(?:/(report|events))?(?:\?after=([0-9]{{1,15}}))?", re.ASCII)
_EXIST = f"there are {', '.join(TEMPLATES.values())}, where {{id}} is `mission-` and 16 hex digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One resource of one mission; `after` is the event that a page of events begins behind."""

    mission_id: str
    part: Part = "status"
    after: int | None = None

    @property
    def uri(self) -> str:
        """The address as it is written."""
        page = "" if self.after is None else f"?after={self.after}"
        return TEMPLATES[self.part].replace("{id}", self.mission_id) + page


def parse(uri: str) -> Address:
    """The address in a URI, or `InvalidArgument`."""
    found = _URI.fullmatch(uri)
    if found is None or (found[3] is not None and found[2] != "events"):
        raise InvalidArgument(f"{uri[:200]!r} is no resource of this server; {_EXIST}")
    part = cast("Part", found[2] or "status")
    return Address(mission_id=found[1], part=part, after=None if found[3] is None else int(found[3]))


async def find(service: Service, uri: str) -> tuple[Address, StreamRow]:
    """The address in a URI and what the listing says of its mission; raises `InvalidArgument` or `SessionNotFound`."""
    address = parse(uri)
    row = await service.ledger.row(address.mission_id)
    if row is None or row.status == FORGOTTEN:
        was = "exists under the id" if row is None else "is kept any longer under the id"
        text = f"no mission {was} {address.mission_id}; resources/list names those that are there"
        raise SessionNotFound(text, session_id=address.mission_id)
    return address, row

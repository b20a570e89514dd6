"""The events of a gateway: calls that may write, refusals, and questions to a person. Pure.

Invariant: a stored event stays readable for ever and contains neither secrets nor large values. A blob has the
arguments of a question if they do not fit into its event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from pursuit.core.events import Channel, Permission, encode

GatewayOutcome = Literal["ok", "failed", "asked", "cancelled", "unknown"]


class GatewayEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A fact; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0


class GatewayOpened(GatewayEvent, frozen=True, kw_only=True):
    """A gateway started; written with its first event."""

    servers: list[str]
    by: str


class GatewayCallIntended(GatewayEvent, frozen=True, kw_only=True):
    """A call that may write is about to be sent."""

    call_id: str
    tool: str
    args: dict[str, Any]
    scope: str
    by: str


class GatewayCallSettled(GatewayEvent, frozen=True, kw_only=True):
    """The outcome of a call; without this event it is unknown."""

    call_id: str
    outcome: GatewayOutcome
    why: str | None = None


class GatewayCallRefused(GatewayEvent, frozen=True, kw_only=True):
    """A call was not sent."""

    tool: str
    args: dict[str, Any]
    why: str
    by: str


class GatewayApprovalAsked(GatewayEvent, frozen=True, kw_only=True):
    """A person is asked whether a call of `who` may be made; after `until`, silence counts as no.

    `whole` is the digest of the full arguments if `args` omit a part. `cut` is true if the description omits a part.
    """

    approval_id: str
    tool: str
    args: dict[str, Any]
    scope: str
    description: str
    reason: str
    until: float
    who: str
    by: str
    require: int = 1
    whole: str | None = None
    cut: bool = False
    digest: str | None = None
    accepts: dict[str, Any] | None = None
    """The changes (`Changes.what`) that an approval accepts, if the question is about a server's changes; else None."""


class GatewayApprovalAnswered(GatewayEvent, frozen=True, kw_only=True):
    """A person's answer. One denial decides, or approval by as many people (`person`) as are required.

    `audited` is true if the audit has an entry for it; expiries and answers in older ledgers lack one.
    """

    approval_id: str
    answer: Permission
    by: str
    reason: str | None = None
    channel: Channel | None = None
    person: str | None = None
    audited: bool = False


class GatewayApprovalShown(GatewayEvent, frozen=True, kw_only=True):
    """A person has seen the full arguments of a question."""

    approval_id: str
    by: str
    person: str


class GatewayApprovalUsed(GatewayEvent, frozen=True, kw_only=True):
    """A call used the answer; an answer for one call is valid only once."""

    approval_id: str


class GatewayClosed(GatewayEvent, frozen=True, kw_only=True):
    """The gateway stopped in an orderly way."""


AnyGatewayEvent = (
    GatewayOpened
    | GatewayCallIntended
    | GatewayCallSettled
    | GatewayCallRefused
    | GatewayApprovalAsked
    | GatewayApprovalAnswered
    | GatewayApprovalShown
    | GatewayApprovalUsed
    | GatewayClosed
)

encode_gateway: Callable[[AnyGatewayEvent], tuple[str, bytes]] = encode
decode_gateway: Callable[[bytes], AnyGatewayEvent] = msgspec.json.Decoder(AnyGatewayEvent).decode

"""Missions as resources, completion of their ids, and the MCP App view of a mission.

Invariant: a result is bounded by one mission's state and report; events are read one page at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import msgspec
from mcp_types import (
    Annotations,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from pursuit.core.events import AnyEvent, decoded
from pursuit.core.report import iso
from pursuit.core.state import TERMINAL
from pursuit.core.truncate import cut_text
from pursuit.errors import InvalidArgument, SessionNotFound
from pursuit.ledger.contract import FORGOTTEN, StreamRow
from pursuit.server.errors import APP_TYPE, APP_URI, Context, caller_of, mcp_errors, one_page, resource_errors
from pursuit.service.audit import Caller
from pursuit.service.queries import ListedMission
from pursuit.service.service import Service
from pursuit.upstream.fixed_patterns import MISSION_URI

Part = Literal["status", "report", "events"]

TEMPLATES: dict[Part, str] = {
    "status": "mission://{id}",
    "report": "mission://{id}/report",
    "events": "mission://{id}/events",
}
_EXIST = f"there are {', '.join(TEMPLATES.values())}, where {{id}} is `mission-` and 16 hex digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A resource of a mission, which may not exist; a page of events begins after the event `after`."""

    mission_id: str
    part: Part = "status"
    after: int | None = None

    @property
    def uri(self) -> str:
        page = "" if self.after is None else f"?after={self.after}"
        return TEMPLATES[self.part].replace("{id}", self.mission_id) + page


async def find(service: Service, uri: str, caller: Caller) -> tuple[Address, StreamRow]:
    """The address in a URI and the ledger's row of its mission; raises `InvalidArgument` or `SessionNotFound`."""
    found = MISSION_URI.fullmatch(uri)
    if found is None or (found[3] is not None and found[2] != "events"):
        raise InvalidArgument(f"{uri[:200]!r} is not a resource of this server; {_EXIST}")
    part, after = cast("Part", found[2] or "status"), None if found[3] is None else int(found[3])
    address = Address(mission_id=found[1], part=part, after=after)
    row = await service.ledger.row(address.mission_id)
    hidden = row is not None and not service.is_visible(caller, row)
    if row is None or hidden or row.status == FORGOTTEN:
        was = "exists under the id" if row is None or hidden else "is kept any longer under the id"
        text = f"no mission {was} {address.mission_id}; resources/list lists the existing ones"
        raise SessionNotFound(text, session_id=address.mission_id)
    return address, row


JSON = "application/json"
MARKDOWN = "text/markdown"
MAX_EVENTS = 200
MAX_EVENT_BYTES = 256 * 1024
MAX_TITLE = 80

_ABOUT: dict[Part, tuple[str, str]] = {
    "status": (
        "A mission's status",
        "The current state of a mission: status, criteria with evidence, budget and usage, metrics.",
    ),
    "report": (
        "A mission's report",
        "The report of a mission, final once it has ended: as JSON, and as Markdown for people.",
    ),
    "events": (
        "A mission's events",
        f"The newest {MAX_EVENTS} events of a mission. "
        "Add ?after=SEQ for the events after SEQ; ?after=0 starts at the beginning.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSettings:
    missions_a_page: int = 50
    missions_to_complete: int = 1_000
    """Only the newest missions are completed."""
    max_completions: int = 100
    """The specification's maximum for one `completion/complete`."""


class Resources:
    def __init__(self, service: Service, settings: ResourceSettings | None = None) -> None:
        self._service = service
        self._settings = settings or ResourceSettings()

    async def list(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        """The missions, newest first; each has its status, and its report once it has ended."""
        with mcp_errors():
            cursor = params.cursor if params is not None else None
            page = await self._service.list(cursor=cursor, limit=self._settings.missions_a_page, caller=caller_of(ctx))
        found = [resource for row in page.missions for resource in _listed(row)]
        return ListResourcesResult(resources=found, next_cursor=page.next_cursor)

    async def templates(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        one_page(params)
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(
                    name=f"mission_{part}",
                    title=_ABOUT[part][0],
                    description=_ABOUT[part][1],
                    uri_template=template,
                    mime_type=None if part == "report" else JSON,
                )
                for part, template in TEMPLATES.items()
            ]
        )

    async def read(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Returns one resource. The view of a mission is not listed, because tools refer clients to it."""
        if params.uri == APP_URI:
            return ReadResourceResult(contents=[_app()])
        with resource_errors(ctx, params.uri):
            address, row = await find(self._service, params.uri, caller_of(ctx))
            match address.part:
                case "status":
                    status = await self._service.status(address.mission_id)
                    contents = [_text(params.uri, JSON, _json(status.as_json()))]
                case "report":
                    report = await self._service.report(address.mission_id)
                    contents = [
                        _text(params.uri, JSON, _json(report.data)),
                        _text(params.uri, MARKDOWN, report.markdown()),
                    ]
                case "events":
                    events = await self._events(address, row.head.seq)
                    contents = [_text(params.uri, JSON, _json(events))]
        return ReadResourceResult(contents=[*contents])

    async def _events(self, address: Address, head: int) -> dict[str, Any]:
        """The newest events, or a page of those after `after`; excess events are cut at the other end."""
        newest = address.after is None
        after = max(0, head - MAX_EVENTS) if address.after is None else address.after
        stored = await self._service.ledger.read(address.mission_id, after, MAX_EVENTS)
        rows = _fitting(
            [_event(one.seq, event) for one, event in zip(stored, decoded(stored), strict=True)], from_the_end=newest
        )
        document: dict[str, Any] = {
            "session_id": address.mission_id,
            "total": max(head, stored[-1].seq if stored else 0),
        }
        if rows:
            document |= {"first_seq": rows[0]["seq"], "last_seq": rows[-1]["seq"]}
            if rows[-1]["seq"] < document["total"]:
                page = Address(mission_id=address.mission_id, part="events", after=rows[-1]["seq"])
                document["next"] = page.uri
        return {**document, "events": rows}

    async def complete(self, ctx: Context, params: CompleteRequestParams) -> CompleteResult:
        """Missions whose id begins with the value, with or without `mission-`; completes no other arguments."""
        if params.argument.name not in ("id", "session_id"):
            return CompleteResult(completion=Completion(values=[], total=0, has_more=False))
        with mcp_errors():
            page = await self._service.list(limit=self._settings.missions_to_complete, caller=caller_of(ctx))
        typed, most = params.argument.value, self._settings.max_completions
        found = [row.mission_id for row in page.missions if row.mission_id.startswith((typed, f"mission-{typed}"))]
        more = page.next_cursor is not None
        total = None if more else len(found)
        return CompleteResult(
            completion=Completion(values=found[:most], total=total, has_more=more or len(found) > most)
        )


@cache
def _app() -> TextResourceContents:
    """The page that a client with MCP Apps shows in a frame; it loads nothing, so it requests no origin."""
    page = files("pursuit.server.missions").joinpath("mission_app.html").read_text(encoding="utf-8")
    meta: dict[str, Any] = {"ui": {"csp": {}, "prefersBorder": True}}
    return TextResourceContents(uri=APP_URI, mime_type=APP_TYPE, text=page, _meta=meta)


def _listed(row: ListedMission) -> list[Resource]:
    mission_id, status, count = row.mission_id, row.status, row.iteration_count
    title = _line(row.directive) or mission_id
    words = status if row.waiting_for is None else f"{status} for {row.waiting_for}"
    facts = f"{words}, {count} iteration{'' if count == 1 else 's'}, created {row.created_at}"
    found = [
        Resource(
            uri=Address(mission_id=mission_id).uri,
            name=mission_id,
            title=title,
            description=f"Mission {mission_id}: {facts}.",
            mime_type=JSON,
        )
    ]
    if status in TERMINAL:
        found.append(
            Resource(
                uri=Address(mission_id=mission_id, part="report").uri,
                name=f"{mission_id}/report",
                title=f"Report: {title}",
                description=f"The final report of {mission_id} ({status}), as JSON and as Markdown.",
                annotations=Annotations(audience=["user", "assistant"]),
            )
        )
    return found


def _event(seq: int, event: AnyEvent) -> dict[str, Any]:
    """An event of the ledger in its current form, without its trace, which reveals our code and this machine."""
    data = cast("dict[str, Any]", msgspec.to_builtins(event))
    at = iso(data.pop("at", 0.0))
    kind = data.pop("type")
    data.pop("trace", None)
    return {"seq": seq, "at": at, "type": kind, "data": data}


def _fitting(rows: list[dict[str, Any]], *, from_the_end: bool) -> list[dict[str, Any]]:
    """The rows that fit, without gaps; a row that is too large for any page comes without its data."""
    kept: list[dict[str, Any]] = []
    room = MAX_EVENT_BYTES
    for row in reversed(rows) if from_the_end else rows:
        size = len(msgspec.json.encode(row))
        shown = row
        if size > MAX_EVENT_BYTES // 2:
            shown = {**row, "data": None, "omitted_bytes": size}
            size = len(msgspec.json.encode(shown))
        if size > room:
            break
        room -= size
        kept.append(shown)
    return kept[::-1] if from_the_end else kept


def _line(text: str) -> str:
    """A directive on one line, without control characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return cut_text(" ".join(printable.split()), MAX_TITLE)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _text(uri: str, mime_type: str, text: str) -> TextResourceContents:
    return TextResourceContents(uri=uri, mime_type=mime_type, text=text)

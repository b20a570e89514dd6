"""Missions as resources that a client can list and read, the view of one as an MCP App, and completion of their ids.

Invariant: a result is bounded by one mission's state and report; of its events one page is read, however many there
are.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    PromptReference,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from pursuit.core.events import AnyEvent
from pursuit.core.history import decoded
from pursuit.core.report import iso
from pursuit.core.state import TERMINAL
from pursuit.errors import InvalidArgument, SessionNotFound
from pursuit.ledger.contract import FORGOTTEN, StreamRow
from pursuit.server.errors import Context, caller_of, mcp_errors, one_page, resource_errors
from pursuit.server.missions.tool_dispatch import APP_TYPE, APP_URI
from pursuit.service import Service
from pursuit.service.audit import Caller
from pursuit.service.queries import ListedMission
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
    """One resource of one mission, which may not exist; a page of events begins behind the event `after`."""

    mission_id: str
    part: Part = "status"
    after: int | None = None

    @property
    def uri(self) -> str:
        """The address as it is written."""
        page = "" if self.after is None else f"?after={self.after}"
        return TEMPLATES[self.part].replace("{id}", self.mission_id) + page


async def find(service: Service, uri: str, caller: Caller) -> tuple[Address, StreamRow]:
    """The address in a URI and the ledger's row of its mission; raises `InvalidArgument` or `SessionNotFound`."""
    found = MISSION_URI.fullmatch(uri)
    if found is None or (found[3] is not None and found[2] != "events"):
        raise InvalidArgument(f"{uri[:200]!r} is no resource of this server; {_EXIST}")
    part, after = cast("Part", found[2] or "status"), None if found[3] is None else int(found[3])
    address = Address(mission_id=found[1], part=part, after=after)
    row = await service.ledger.row(address.mission_id)
    hidden = row is not None and not service.is_visible(caller, row)
    if row is None or hidden or row.status == FORGOTTEN:
        was = "exists under the id" if row is None or hidden else "is kept any longer under the id"
        text = f"no mission {was} {address.mission_id}; resources/list names those that are there"
        raise SessionNotFound(text, session_id=address.mission_id)
    return address, row


JSON = "application/json"
MARKDOWN = "text/markdown"
MOST_EVENTS = 200
MOST_EVENT_BYTES = 256 * 1024
LONGEST_TITLE = 80

_ABOUT: dict[Part, tuple[str, str]] = {
    "status": (
        "A mission's status",
        "How a mission stands now: its status, criteria with evidence, budget and what was used of it, metrics.",
    ),
    "report": (
        "A mission's report",
        "The report of a mission, final once it has ended: as JSON, and as Markdown for people.",
    ),
    "events": (
        "A mission's events",
        f"What happened in a mission, event by event: the newest {MOST_EVENTS}. "
        "Add ?after=SEQ for those that follow the event SEQ, from the beginning with ?after=0.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSettings:
    """How much one request lists, completes and reads."""

    missions_a_page: int = 50
    most_completions: int = 100
    """The most values that the specification allows in one `completion/complete`."""
    completion_pages: int = 10
    completion_page: int = 1_000


class Resources:
    """The handlers of `resources/list`, `resources/templates/list`, `resources/read` and `completion/complete`."""

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
        """What can be read of any mission."""
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
        """One resource, whole; the view of a mission is not listed, since tools name it to the clients that show it."""
        if params.uri == APP_URI:
            return ReadResourceResult(contents=[_app()])
        with resource_errors(ctx, params.uri):
            address, row = await find(self._service, params.uri, caller_of(ctx))
            match address.part:
                case "status":
                    status = await self._service.status(address.mission_id)
                    contents = [_text(params.uri, JSON, _json(status.as_json()))]
                case "report":
                    contents = await self._report(params.uri, address.mission_id)
                case "events":
                    events = await self._events(address, row.head.seq)
                    contents = [_text(params.uri, JSON, _json(events))]
        return ReadResourceResult(contents=[*contents])

    async def _report(self, uri: str, mission_id: str) -> Sequence[TextResourceContents]:
        report = await self._service.report(mission_id)
        return [_text(uri, JSON, _json(report.data)), _text(uri, MARKDOWN, report.markdown())]

    async def _events(self, address: Address, head: int) -> dict[str, Any]:
        """The newest events, or a page of those behind `after`; what does not fit is cut at the other end."""
        newest = address.after is None
        after = max(0, head - MOST_EVENTS) if address.after is None else address.after
        stored = await self._service.ledger.read(address.mission_id, after, MOST_EVENTS)
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
        """The missions whose id begins like this, with or without `mission-`; none for any other argument.

        It completes `id` in the resource templates and `session_id` of the prompt `review_mission`. It reads a bounded
        number of pages of the ledger, newest missions first, and then says that there are more.
        """
        if not _wants_mission(params):
            return CompleteResult(completion=Completion(values=[], total=0, has_more=False))
        with mcp_errors():
            found, all_seen = await self._matching(params.argument.value, caller_of(ctx))
        values = found[: self._settings.most_completions]
        total = len(found) if all_seen else None
        return CompleteResult(
            completion=Completion(values=values, total=total, has_more=not all_seen or len(found) > len(values))
        )

    async def _matching(self, typed: str, caller: Caller) -> tuple[list[str], bool]:
        """Matching ids, newest first, and whether every mission was looked at."""
        found: list[str] = []
        cursor: str | None = None
        for _ in range(self._settings.completion_pages):
            page = await self._service.list(cursor=cursor, limit=self._settings.completion_page, caller=caller)
            ids = [row.mission_id for row in page.missions]
            found += [one for one in ids if one.startswith(typed) or one.removeprefix("mission-").startswith(typed)]
            cursor = page.next_cursor
            if cursor is None:
                return found, True
        return found, False


@cache
def _app() -> TextResourceContents:
    """The page that a client with MCP Apps shows in a frame; it loads nothing, so it asks for no origin."""
    page = files("pursuit.server.missions").joinpath("mission_app.html").read_text(encoding="utf-8")
    meta: dict[str, Any] = {"ui": {"csp": {}, "prefersBorder": True}}
    return TextResourceContents(uri=APP_URI, mime_type=APP_TYPE, text=page, _meta=meta)


def _listed(row: ListedMission) -> list[Resource]:
    """A mission in the list, with its report once it has ended."""
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
    """An event of the ledger in today's form, without its trace, which shows our code and this machine."""
    data = cast("dict[str, Any]", msgspec.to_builtins(event))
    at = iso(data.pop("at", 0.0))
    kind = data.pop("type")
    data.pop("trace", None)
    return {"seq": seq, "at": at, "type": kind, "data": data}


def _fitting(rows: list[dict[str, Any]], *, from_the_end: bool) -> list[dict[str, Any]]:
    """As many rows as fit, without a gap; a row that is too large for any page comes without its data."""
    kept: list[dict[str, Any]] = []
    room = MOST_EVENT_BYTES
    for row in reversed(rows) if from_the_end else rows:
        size = len(msgspec.json.encode(row))
        shown = row
        if size > MOST_EVENT_BYTES // 2:
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
    flat = " ".join(printable.split())
    return flat if len(flat) <= LONGEST_TITLE else f"{flat[: LONGEST_TITLE - 1].rstrip()}…"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _text(uri: str, mime_type: str, text: str) -> TextResourceContents:
    return TextResourceContents(uri=uri, mime_type=mime_type, text=text)


def _wants_mission(params: CompleteRequestParams) -> bool:
    if isinstance(params.ref, PromptReference):
        return params.ref.name == "review_mission" and params.argument.name == "session_id"
    return params.ref.uri in TEMPLATES.values() and params.argument.name == "id"

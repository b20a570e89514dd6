"""The page as an ASGI application: sign-in, sessions, headers, and what every view needs to parse and render.

A view is a handler: it parses, makes one call of the service, and renders. `Page.get` and `Page.post` wrap it.
Invariants: no view answers without a session; a form changes something only with the session's CSRF token, from this
page's own origin, and with a token that has the scope. Each response carries the same strict policy.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import URL, MutableHeaders
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pursuit.config.servers import LIMITS
from pursuit.errors import Fault, InvalidArgument, PursuitError, ValidationFailed, advice
from pursuit.page.live import CSRF_MARK, Live, Render
from pursuit.page.markup import environment
from pursuit.page.sessions import CHALLENGE_HEADER, Session, Sessions
from pursuit.runtime import Runtime
from pursuit.server.bind import PAGE_PATH
from pursuit.server.operator_api import STATUSES, Forbidden, read_body
from pursuit.service.audit import local_subject
from pursuit.service.service import Service
from pursuit.service.timeline import Timelines

ROOT: Final = PAGE_PATH
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""`default-src` says nothing about forms, `<base>` and frames, so they are named."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with `no-referrer` a form's Origin would be `null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NAVIGATION: Final = (
    ("Missions", "/missions"),
    ("Approvals", "/approvals"),
    ("Tasks", "/tasks"),
    ("Tools", "/tools"),
    ("Fleet", "/fleet"),
    ("Workers", "/workers"),
    ("Problems", "/problems"),
    ("Audit", "/audit"),
    ("Lessons", "/lessons"),
)
"""The entries of the navigation, each with its path below `ROOT`."""
MOST_FIELDS: Final = 100
_STATIC = Path(__file__).with_name("static")

Handler = Callable[["PageView"], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """One request of a signed-in operator."""

    page: Page
    request: Request
    session: Session
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fields of a form that was sent; its CSRF token was checked."""

    @property
    def service(self) -> Service:
        """The operations."""
        return self.page.runtime.runner

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address; of one that is given twice, the last."""
        return self.request.query_params

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def may(self, scope: str) -> bool:
        """Whether this operator's token has a scope."""
        return self.session.may(scope)

    def render(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """A whole page."""
        return self.page.render(self.request, template, self.session, status=status, **context)

    def fragment(self, template: str, **context: Any) -> Response:
        """A part of a page."""
        return _html(self.text(template, **context))

    def text(self, template: str, **context: Any) -> str:
        """A rendered template, for a live fragment; `csrf` in it is a mark that each viewer's own token replaces."""
        return self.page.text(template, may=self.may, **context)

    def json(self, value: Any) -> Response:
        """Data for the page's own script."""
        return JSONResponse(value)

    def redirect(self, path: str, **query: str) -> Response:
        """Sends the browser on after a form, so that a reload does not send the form again."""
        return RedirectResponse(address(path, **query), 303)

    def live(self, key: str, render: Render, *, stream: str | None = None, every: float | None = None) -> Response:
        """Server-sent events with the newest fragment; see `Live.follow`."""
        rights = "".join("1" if self.may(scope) else "0" for scope in ("missions:write", "approvals:answer", "tasks:*"))
        last = self.request.headers.get("last-event-id", "")
        events = self.page.live.follow(
            f"{rights} {key}",
            render,
            stream=stream,
            every=every,
            last=last,
            csrf=self.session.csrf,
            valid=lambda: self.page.session(self.request) is not None,
        )
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)


class Page:
    """The page of one server. `more` are functions that add the routes of further views."""

    def __init__(
        self, runtime: Runtime, sessions: Sessions, live: Live, more: Sequence[Callable[[Page], None]]
    ) -> None:
        self.runtime = runtime
        self.sessions = sessions
        self.live = live
        self.timelines = Timelines(runtime.runner)
        self._nonce = secrets.token_urlsafe(16)
        self._routes: list[Route | Mount] = [
            Route(ROOT, self._home, methods=["GET"]),
            Route(f"{ROOT}/", self._home, methods=["GET"]),
            Route(f"{ROOT}/sign-in", self._sign_in, methods=["GET", "POST"]),
            Mount(f"{ROOT}/static", StaticFiles(directory=_STATIC)),
        ]
        self.post("/sign-out", self._sign_out, scope=None)
        for add in more:
            add(self)

    def get(self, path: str, handler: Handler, *, scope: str = "missions:read") -> None:
        """Adds a view that reads."""
        self._routes.append(Route(f"{ROOT}{path}", partial(self._guarded, handler, scope), methods=["GET"]))

    def post(self, path: str, handler: Handler, *, scope: str | None = "missions:write") -> None:
        """Adds a form, which needs this scope."""
        self._routes.append(Route(f"{ROOT}{path}", partial(self._guarded, handler, scope), methods=["POST"]))

    def route(self) -> Route:
        """The whole page as one route for the HTTP server, which checks Host and Origin before it."""
        router = Router(self._routes, redirect_slashes=False, default=self._missing)
        return Route(ROOT + "{path:path}", endpoint=_Headers(ExceptionMiddleware(router)))

    def render(
        self, request: Request, template: str, session: Session | None, *, status: int = 200, **context: Any
    ) -> Response:
        """A whole page for a session, or without one."""
        may = session.may if session is not None else _nothing
        csrf = session.csrf if session is not None else ""
        here = request.url.path.removeprefix(ROOT)
        body = self.text(template, may=may, csrf=csrf, session=session, here=here, nonce=self._nonce, **context)
        return _html(body, status)

    @staticmethod
    def text(template: str, **context: Any) -> str:
        """A rendered template."""
        known = {"csrf": CSRF_MARK, "root": ROOT, "navigation": NAVIGATION, "title": "", "notice": ""}
        return environment().get_template(template).render({**known, **context})

    def callers(self) -> dict[str, str]:
        """Who can own a mission, by name, with the owner as the ledger has it."""
        return {"operator": "", "local clients": local_subject(), **self.sessions.owners()}

    def error(self, request: Request, session: Session | None, error: PursuitError) -> Response:
        """What went wrong, in words, with all faults."""
        faults = [str(one) for one in error.faults] if isinstance(error, ValidationFailed) else []
        back = _same_site(request.headers.get("referer"), request.url)
        status = STATUSES.get(error.code, STATUSES["internal_error"])
        shown = {"error": error, "faults": faults, "back": back or ROOT}
        if "hx-request" in request.headers:
            return _html(self.text("_error.html", **shown), status)
        return self.render(request, "error.html", session, status=status, title="Not done", **shown)

    def session(self, request: Request) -> Session | None:
        """The session of a request, if it has not ended."""
        cookie = request.cookies.get(cookie_name(request), "")
        return self.sessions.find(cookie) if cookie else None

    async def _guarded(self, handler: Handler, scope: str | None, request: Request) -> Response:
        session: Session | None = None
        try:
            session = self.session(request)
            if session is None:
                return self._signed_out(request)
            form = await self._form(request, session) if request.method == "POST" else {}
            if scope is not None and not session.may(scope):
                raise Forbidden(f"your token lacks the scope {scope}: you can look, and not change anything here")
            return await handler(PageView(page=self, request=request, session=session, form=form))
        except PursuitError as error:
            return self.error(request, session, error)
        except ClientDisconnect:
            return Response(status_code=400)

    def _signed_out(self, request: Request) -> Response:
        """Sends a person to the sign-in; a script gets 401."""
        wanted = request.headers.get("accept", "")
        if request.method != "GET" or "hx-request" in request.headers or "text/html" not in wanted:
            return Response("Sign in to the page again.", 401, media_type="text/plain")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # With a link of another site, such as a terminal in a browser, a SameSite=Strict cookie does not come; it
            # comes when this document asks again.
            return _html('<!doctype html><title>Pursuit</title><meta http-equiv="refresh" content="0">')
        return RedirectResponse(f"{ROOT}/sign-in", 303)

    async def _form(self, request: Request, session: Session) -> dict[str, str]:
        """The fields of a form, if it is one of this page's own."""
        require_own_origin(request)
        form = await fields(request)
        if not hmac.compare_digest(form.pop("csrf", "").encode(errors="replace"), session.csrf.encode()):
            raise Forbidden("the form is not from your session of this page; go back, reload the page and press again")
        return form

    async def _home(self, _request: Request) -> Response:
        return RedirectResponse(f"{ROOT}/missions", 303)

    async def _sign_in(self, request: Request) -> Response:
        """Redeems the key of a link, or takes a token from the form; both set the session's cookie."""
        shown: dict[str, Any] = {"title": "Sign in", "fault": ""}
        cookie: str | None = None
        if request.method == "POST":
            try:
                require_own_origin(request)
                given = await fields(request)
                cookie = self.sessions.begin(given.get("token", "").strip())
            except PursuitError as error:
                return self.error(request, None, error)
            shown["fault"] = f"This is not a valid operator's token; `{advice('pursuit token --operator')}` makes one."
        elif "key" in request.query_params:
            cookie = self.sessions.redeem(request.query_params["key"])
            shown["fault"] = f"This link was used before, or is too old. `{advice('pursuit page')}` opens a new one."
        if cookie is None:
            response = self.render(request, "sign_in.html", None, status=403 if shown["fault"] else 200, **shown)
            if challenge := request.headers.get(CHALLENGE_HEADER):
                response.headers[CHALLENGE_HEADER] = self.sessions.proof(challenge)
            return response
        response = RedirectResponse(f"{ROOT}/missions", 303)
        response.set_cookie(
            cookie_name(request),
            cookie,
            max_age=int(self.sessions.limits.session_seconds),
            path=ROOT,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def _sign_out(self, view: PageView) -> Response:
        name = cookie_name(view.request)
        self.sessions.end(view.request.cookies.get(name, ""))
        response = RedirectResponse(f"{ROOT}/sign-in", 303)
        response.delete_cookie(name, path=ROOT, httponly=True, samesite="strict")
        return response

    async def _missing(self, scope: Scope, receive: Receive, send: Send) -> None:
        shown: dict[str, Any] = {
            "title": "Not found",
            "error": InvalidArgument("there is no such page"),
            "faults": [],
            "back": ROOT,
        }
        response = self.render(Request(scope, receive), "error.html", None, status=404, **shown)
        await response(scope, receive, send)


def cookie_name(request: Request) -> str:
    """The cookie's name; it has the port, because a browser sends cookies to every port of a host."""
    return f"pursuit_page_{request.url.port or 0}"


def address(path: str, **query: str) -> str:
    """An address of the page, from a path below `ROOT`."""
    return ROOT + quote(path, safe="/") + (f"?{urlencode(query)}" if query else "")


def require_own_origin(request: Request) -> None:
    """Refuses a form that another site sent; the server has checked Host and Origin against its list before."""
    origin, own = request.headers.get("origin"), f"//{request.headers.get('host', '')}"
    if origin is not None and origin.partition(":")[2] != own:
        raise Forbidden("the form comes from another site")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("the form comes from another site")


async def fields(request: Request) -> dict[str, str]:
    """The fields of a form; raises `PursuitError` if it is too large or too slow, or has too many or one twice."""
    received = await read_body(request, LIMITS.request_seconds)
    try:
        pairs = parse_qsl(received.decode(errors="replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise ValidationFailed([Fault(field="form", reason=f"has more than {MOST_FIELDS} fields")]) from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise ValidationFailed([Fault(field="form", reason="has a field twice")])
    return form


def _same_site(referer: str | None, here: URL) -> str | None:
    """The path of the page that the browser came from, if it is one of ours."""
    if referer is None:
        return None
    try:
        came = urlsplit(referer)
    except ValueError:
        return None
    ours = (came.scheme, came.netloc) == (here.scheme, here.netloc) and came.path.startswith(ROOT)
    return f"{came.path}?{came.query}" if ours and came.query else came.path if ours else None


def _nothing(_scope: str) -> bool:
    return False


def _html(body: str, status: int = 200) -> Response:
    return Response(
        body.encode(errors="replace"), status, {"Cache-Control": "no-store"}, media_type="text/html; charset=utf-8"
    )


class _Headers:
    """ASGI middleware that puts the page's headers on each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, sent)

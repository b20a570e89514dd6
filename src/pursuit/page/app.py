"""The page as an ASGI application: sign-in, sessions, headers, and shared parsing and rendering.

A view is a handler: it parses, makes one call of the service, and renders. `Page.get` and `Page.post` wrap it.
Invariants: every view requires a session; a form changes something only with the session's CSRF token, from this page's
own origin, and with a token that has the scope. Every response carries the same strict policy.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pursuit.config.servers import LIMITS
from pursuit.errors import Fault, InvalidArgument, PursuitError, ValidationFailed, advice
from pursuit.page.live import CSRF_MARK, Live
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
"""`default-src` does not cover forms, `<base>` and frames, so they are listed."""
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
    ("Workers", "/workers"),
    ("Problems", "/problems"),
    ("Audit", "/audit"),
)
"""The entries of the navigation, each with its path below `ROOT`."""
MAX_FIELDS: Final = 100
_STATIC = Path(__file__).with_name("static")

Handler = Callable[["PageView"], Awaitable[Response]]
Shown = Callable[["PageView"], Awaitable[dict[str, Any]]]
"""Returns the variables of a view's template, including `title`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    page: Page
    request: Request
    session: Session
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fields of a submitted form, whose CSRF token was checked."""

    @property
    def service(self) -> Service:
        return self.page.runtime.runner

    @property
    def query(self) -> Mapping[str, str]:
        """The query parameters; the last value of a repeated parameter."""
        return self.request.query_params

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def may(self, scope: str) -> bool:
        return self.session.may(scope)

    def render(self, template: str, *, status: int = 200, **context: Any) -> Response:
        return self.page.render(self.request, template, self.session, status=status, **context)

    def fragment(self, template: str, **context: Any) -> Response:
        return _html(self.text(template, **context))

    def text(self, template: str, **context: Any) -> str:
        """A rendered template for a live fragment; `csrf` in it is a placeholder for each viewer's own token."""
        return self.page.text(template, may=self.may, **context)

    def redirect(self, path: str, **query: str) -> Response:
        """Redirects the browser after a form, so that a reload does not submit the form again."""
        return RedirectResponse(address(path, **query), 303)


class Page:
    """The page of one server. `more` are functions that add the routes of further views."""

    def __init__(
        self, runtime: Runtime, sessions: Sessions, live: Live, more: Sequence[Callable[[Page], None]]
    ) -> None:
        self.runtime = runtime
        self.sessions = sessions
        self._live = live
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
        self._routes.append(Route(f"{ROOT}{path}", partial(self._guarded, handler, scope), methods=["GET"]))

    def post(self, path: str, handler: Handler, *, scope: str | None = "missions:write") -> None:
        self._routes.append(Route(f"{ROOT}{path}", partial(self._guarded, handler, scope), methods=["POST"]))

    def view(self, path: str, shown: Shown, template: str, *, stream: str = "", every: float | None = None) -> None:
        """Adds a view that renders what `shown` returns, with live updates; its fragment is `_TEMPLATE`."""

        async def whole(view: PageView) -> Response:
            return view.render(template, **await shown(view))

        self.get(path, whole)
        self.live(path, shown, f"_{template}", stream=stream, every=every)

    def live(self, path: str, shown: Shown, template: str, *, stream: str = "", every: float | None = None) -> None:
        """Adds server-sent events with the newest fragment below `path`; see `Live.follow`.

        `stream` is the path parameter that names the stream to follow.
        """

        async def follow(view: PageView) -> Response:
            async def render() -> str:
                return view.text(template, **await shown(view))

            rights = [view.may(scope) for scope in ("missions:write", "approvals:answer", "tasks:*")]
            events = self._live.follow(
                f"{rights} {view.request.url}",
                render,
                stream=view.path(stream) if stream else None,
                every=every,
                last=view.request.headers.get("last-event-id", ""),
                csrf=view.session.csrf,
                valid=lambda: self.session(view.request) is not None,
            )
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)

        self.get(f"{path}/live", follow)

    def route(self) -> Route:
        """The whole page as one route for the HTTP server, which checks Host and Origin first."""
        router = Router(self._routes, redirect_slashes=False, default=self._missing)
        return Route(ROOT + "{path:path}", endpoint=_Headers(ExceptionMiddleware(router)))

    def render(
        self, request: Request, template: str, session: Session | None, *, status: int = 200, **context: Any
    ) -> Response:
        may: Callable[[str], bool] = session.may if session is not None else lambda _scope: False
        csrf = session.csrf if session is not None else ""
        here = request.url.path.removeprefix(ROOT)
        body = self.text(template, may=may, csrf=csrf, session=session, here=here, nonce=self._nonce, **context)
        return _html(body, status)

    @staticmethod
    def text(template: str, **context: Any) -> str:
        known = {"csrf": CSRF_MARK, "root": ROOT, "navigation": NAVIGATION, "title": "", "notice": ""}
        return environment().get_template(template).render({**known, **context})

    def callers(self) -> dict[str, str]:
        """The possible owners of missions: names mapped to the owner in the ledger."""
        return {"operator": "", "local clients": local_subject(), **self.sessions.owners()}

    def error(self, request: Request, session: Session | None, error: PursuitError) -> Response:
        faults = [str(one) for one in error.faults] if isinstance(error, ValidationFailed) else []
        status = STATUSES.get(error.code, STATUSES["internal_error"])
        shown = {"error": error, "faults": faults}
        if "hx-request" in request.headers:
            return _html(self.text("_error.html", **shown), status)
        return self.render(request, "error.html", session, status=status, title="Not done", **shown)

    def session(self, request: Request) -> Session | None:
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
                raise Forbidden(f"your token lacks the scope {scope}: this page is read-only for you")
            return await handler(PageView(page=self, request=request, session=session, form=form))
        except PursuitError as error:
            return self.error(request, session, error)
        except ClientDisconnect:
            return Response(status_code=400)

    def _signed_out(self, request: Request) -> Response:
        """Redirects a person to the sign-in page; a script gets 401."""
        wanted = request.headers.get("accept", "")
        if request.method != "GET" or "hx-request" in request.headers or "text/html" not in wanted:
            return Response("Sign in to the page again.", 401, media_type="text/plain")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # Following a link from another site, the browser omits the SameSite=Strict cookie; it sends the cookie
            # when this document reloads.
            return _html('<!doctype html><title>Pursuit</title><meta http-equiv="refresh" content="0">')
        return RedirectResponse(f"{ROOT}/sign-in", 303)

    async def _form(self, request: Request, session: Session) -> dict[str, str]:
        require_own_origin(request)
        form = await fields(request)
        if not hmac.compare_digest(form.pop("csrf", "").encode(errors="replace"), session.csrf.encode()):
            raise Forbidden("the form does not belong to your session; go back, reload the page and try again")
        return form

    async def _home(self, _request: Request) -> Response:
        return RedirectResponse(f"{ROOT}/missions", 303)

    async def _sign_in(self, request: Request) -> Response:
        shown: dict[str, Any] = {"title": "Sign in", "fault": ""}
        cookie: str | None = None
        if request.method == "POST":
            try:
                require_own_origin(request)
                given = await fields(request)
                cookie = self.sessions.begin(given.get("token", "").strip())
            except PursuitError as error:
                return self.error(request, None, error)
            shown["fault"] = (
                f"This is not a valid operator's token; `{advice('pursuit token --operator')}` creates one."
            )
        elif "key" in request.query_params:
            cookie = self.sessions.redeem(request.query_params["key"])
            shown["fault"] = f"This link was already used or has expired. `{advice('pursuit page')}` opens a new one."
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
        error = InvalidArgument("this page does not exist")
        request = Request(scope, receive)
        response = self.render(request, "error.html", None, status=404, title="Not found", error=error, faults=[])
        await response(scope, receive, send)


def cookie_name(request: Request) -> str:
    """The cookie's name; it contains the port, because a browser sends cookies to every port of a host."""
    return f"pursuit_page_{request.url.port or 0}"


def address(path: str, **query: str) -> str:
    return ROOT + quote(path, safe="/") + (f"?{urlencode(query)}" if query else "")


def require_own_origin(request: Request) -> None:
    """Refuses a form from another site; the server has already checked Host and Origin against its list."""
    origin, own = request.headers.get("origin"), f"//{request.headers.get('host', '')}"
    if origin is not None and origin.partition(":")[2] != own:
        raise Forbidden("the form comes from another site")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("the form comes from another site")


async def fields(request: Request) -> dict[str, str]:
    received = await read_body(request, LIMITS.request_seconds)
    try:
        pairs = parse_qsl(received.decode(errors="replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise ValidationFailed([Fault(field="form", reason=f"has more than {MAX_FIELDS} fields")]) from None
    return dict(pairs)


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

"""What the tests of the page over HTTP share: a runtime, the page behind the real front door, and people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2

from pursuit import Runtime
from pursuit.page import Sessions, open_page
from pursuit.page.live import LiveSettings
from pursuit.server.bind import HttpBinding
from pursuit.server.http import serve_http
from pursuit.server.tokens import Tokens


@dataclass
class Seen(HTMLParser):
    """A page as a browser's parser reads it: each element with its attributes, and the text."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @classmethod
    def of(cls, body: str) -> Seen:
        seen = cls()
        seen.feed(body)
        return seen

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


class Person:
    """Someone with a browser: cookies, and forms with the token that the page gave."""

    def __init__(self, wire: httpx2.AsyncClient) -> None:
        self.wire = wire
        self.csrf = ""

    async def get(self, path: str, status: int = 200, **headers: str) -> Seen:
        answer = await self.wire.get(f"/page{path}", headers={"Accept": "text/html", **headers})
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        seen = Seen.of(answer.text)
        tokens = [one["value"] or "" for one in seen.all("input") if one.get("name") == "csrf"]
        self.csrf = tokens[0] if tokens else self.csrf
        return seen

    async def press(self, path: str, status: int = 303, *, csrf: str | None = None, **fields: str) -> httpx2.Response:
        body = {"csrf": self.csrf if csrf is None else csrf, **fields}
        answer = await self.wire.post(f"/page{path}", data=body)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer


@dataclass(frozen=True)
class Served:
    """A served page, with everything behind it."""

    runtime: Runtime
    tokens: Tokens
    sessions: Sessions
    url: str

    @property
    def root(self) -> str:
        return self.url.removesuffix("/mcp")

    @asynccontextmanager
    async def wire(self, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(
            base_url=self.root, headers=headers, timeout=60, trust_env=False, verify=False
        ) as wire:
            yield wire

    @asynccontextmanager
    async def person(self, token: str | None = None) -> AsyncIterator[Person]:
        """Someone who has signed in: by a link, or with this token."""
        async with self.wire() as wire:
            if token is None:
                link = urlsplit(self.sessions.link(f"{self.root}/page"))
                answer = await wire.get("/page/sign-in", params={"key": parse_qs(link.query)["key"][0]})
            else:
                answer = await wire.post("/page/sign-in", data={"token": token})
            assert answer.status_code == 303, answer.text
            person = Person(wire)
            await person.get("/missions")
            yield person


@asynccontextmanager
async def page(runtime: Runtime, folder: Path, **options: Any) -> AsyncIterator[Served]:
    """Serves the page of an open runtime at a free port of this machine."""
    tokens = Tokens(folder / "tokens.json")
    sessions = Sessions.beside(tokens)
    told = anyio.Event()
    found: list[str] = []

    def listening(url: str) -> None:
        found.append(url)
        told.set()

    async def serve() -> None:
        async with open_page(runtime, sessions, options.get("live", LiveSettings(interval=0.05))) as routes:
            await serve_http(None, HttpBinding(tokens=tokens, operators=tokens), routes=routes, listening=listening)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        with anyio.fail_after(60):
            await told.wait()
        yield Served(runtime, tokens, sessions, found[0])
        tasks.cancel_scope.cancel()

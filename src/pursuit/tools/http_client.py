"""The HTTP client that reaches one upstream.

Owns: its headers, timeouts, redirects, and the words of its failures. Does not know: MCP. Invariant: no address and no
header is ever part of an error or of a log line; certificates are always checked; a redirect is followed only within
the same origin, so that headers go nowhere else.
"""

from __future__ import annotations

import logging
import socket
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

import httpx2

from pursuit.tools.server_config import ServerConfig
from pursuit.tools.wire import CallBroken, NotReached

_MOST_REDIRECTS = 5
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_KEEPING_METHOD = (307, 308)


class _Hush(logging.Filter):
    """Keeps the addresses of upstreams out of the HTTP client's own log, which states every one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[tuple[str, int | None]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        words = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(word, httpx2.URL) and (word.host, word.port) in self.places for word in words)


_hush = _Hush()
logging.getLogger("httpx2").addFilter(_hush)


def http_client(config: ServerConfig) -> httpx2.AsyncClient:
    """A client for an expanded configuration. How long an answer may take is the caller's to decide."""
    url = httpx2.URL(config.url or "")
    _hush.places.add((url.host, url.port))
    return httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(config.timeouts.connect, read=None, pool=None, write=config.timeouts.read),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        follow_redirects=False,
        # A proxy from the environment is for other machines.
        trust_env=not is_loopback(url.host),
    )


def is_loopback(host: str) -> bool:
    """Whether this is our own machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.")


@asynccontextmanager
async def streamed(
    client: httpx2.AsyncClient, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None = None
) -> AsyncGenerator[httpx2.Response]:
    """One request and its answer, still to be read; raises `CallBroken` with words that give nothing away."""
    try:
        request = client.build_request(method, url, headers=dict(headers), content=content)
        for _ in range(_MOST_REDIRECTS):
            response = await client.send(request, stream=True)
            _acknowledge(response)
            try:
                if response.next_request is None:
                    yield response
                    return
                request = _followed(response)
            finally:
                await response.aclose()
    except httpx2.InvalidURL:
        raise CallBroken("its url is malformed", sent=False) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise NotReached(words(error)) from None
    except (httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
        raise CallBroken(words(error), sent=False) from None
    except httpx2.HTTPError as error:
        raise CallBroken(words(error)) from None
    raise CallBroken("it redirects without end", sent=False)


def _acknowledge(response: httpx2.Response) -> None:
    """Says at once that the head has come: a server that writes in pieces may wait for it with the rest (Nagle).

    Else our system takes 40 ms for it on a connection that is used again.
    """
    stream = response.extensions.get("network_stream")
    wire = None if stream is None else stream.get_extra_info("socket")
    if wire is not None and _QUICKACK is not None:
        with suppress(OSError):  # a connection that broke just now says so when it is read
            wire.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def _followed(response: httpx2.Response) -> httpx2.Request:
    request, target = response.request, response.next_request
    same = target is not None and _origin(target.url) == _origin(request.url) and not _brings_user(request, target)
    if target is None or not same or (request.method != "GET" and response.status_code not in _KEEPING_METHOD):
        said = "it redirects to another place, which is not followed; configure that place instead"
        raise CallBroken(said, sent=False)
    return target


def _brings_user(request: httpx2.Request, target: httpx2.Request) -> bool:
    return bool(target.url.userinfo) and target.url.userinfo != request.url.userinfo


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def words(error: httpx2.HTTPError) -> str:
    """What went wrong, without the address that the client's own words may hold."""
    match error:
        case httpx2.ConnectTimeout():
            return "it did not take the connection in time"
        case httpx2.ConnectError():
            return "its certificate was not accepted" if "CERTIFICATE" in str(error) else "it cannot be connected to"
        case httpx2.ProxyError():
            return "the proxy refused the connection"
        case httpx2.UnsupportedProtocol():
            return "its url is neither http nor https"
        case httpx2.TimeoutException():
            return "it stopped answering"
        case httpx2.SSEError():
            return "its stream of events is malformed"
        case _:
            return "the HTTP connection broke"


def status_words(response: httpx2.Response) -> str:
    """What an HTTP status means for whoever configured the server."""
    code = response.status_code
    hint = {
        401: "; check the headers in its configuration",
        403: "; check the headers in its configuration",
        404: "; check the url in its configuration",
    }
    return f"it answered with HTTP {code}{hint.get(code, '')}"


def url_secrets(url: str | None) -> tuple[str, ...]:
    """The parts of an address that nobody shall read in an error of the server: all of it, its user, its query."""
    if not url:
        return ()
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    password = user.partition(":")[2]
    # As it stands there, as the server reads it, and as it travels in the header.
    basic = b64encode(unquote(user).encode()).decode()
    values = (one.partition("=")[2] for one in parts.query.split("&"))
    said = [part for value in (user, password, parts.query, *values) for part in (value, unquote(value))]
    return tuple(part for part in (url, basic, *said) if part)

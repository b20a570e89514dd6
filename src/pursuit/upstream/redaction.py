"""Removes the secrets of a server's configuration from the server's output.

Names of tools, addresses, schemas and the result of a successful request are data and pass unchanged: redacting them
would change what can be called or what a caller gets. Everything a person reads is redacted: what the server says about
itself, descriptions and titles in lists, errors, progress, log messages and stderr.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pursuit.core.tools import InitializeResult, UpstreamError

MAX_LINES = 40
MAX_BYTES = 8 * 1024
_MASK = "***"
_TEXT_KEYS = frozenset({"description", "title"})
_NOTIFICATION_TEXTS = {"notifications/progress": "message", "notifications/message": "data"}


class StderrTail:
    """The last lines of a server's stderr as text, and the secrets that must not appear in any text.

    It holds at most `MAX_LINES` lines and `MAX_BYTES` bytes, and no secret.
    """

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MAX_LINES)
        self._size = 0
        self._partial = b""
        self.stray: str | None = None
        """The first line on standard output, if it is not MCP and no message came before it."""
        self.secrets: tuple[str, ...] = ()
        """The texts to hide, longest first; `hide` sets them."""
        self._secret_bytes: tuple[bytes, ...] = ()

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Hides these texts from now on, the longest first."""
        self.secrets = secrets
        # Environment variables may hold bytes that are not UTF-8; Python represents them as lone surrogates.
        self._secret_bytes = tuple(secret.encode("utf-8", "surrogateescape") for secret in secrets)

    def feed(self, data: bytes) -> None:
        """Takes the next piece of the stream, which may begin or end anywhere."""
        *lines, partial = self.redact_bytes(self._partial + data).split(b"\n")
        # The kept part may end within a secret that the next piece completes: keep that much more of it.
        longest = max((len(secret) for secret in self._secret_bytes), default=0)
        self._partial = partial[-(MAX_BYTES + longest) :]
        for line in lines:
            self.add(line)

    def add(self, line: bytes) -> None:
        if len(self._lines) == MAX_LINES:
            self._size -= len(self._lines[0])
        self._lines.append(self.redact_bytes(line)[-MAX_BYTES:])
        self._size += len(self._lines[-1])
        while self._size > MAX_BYTES:
            self._size -= len(self._lines.popleft())

    def text(self) -> str:
        whole = self.redact_bytes(b"\n".join((*self._lines, self._partial)))[-MAX_BYTES:]
        return whole.decode("utf-8", errors="replace").strip()

    def redact_bytes(self, data: bytes) -> bytes:
        """The bytes without secrets. Call it before cutting: a cut secret is no longer found."""
        for secret in self._secret_bytes:
            data = data.replace(secret, _MASK.encode())
        return data

    def redact(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, _MASK)
        return text

    def clear(self) -> None:
        """Drops the lines of the previous process; the secrets stay."""
        self._lines.clear()
        self._size = 0
        self._partial = b""
        self.stray = None


def redact_result(tail: StderrTail, method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result: only a tool's error and the texts of a list are redacted."""
    if result.get("isError") is True:
        return _everywhere(tail, result)
    if not method.endswith("/list"):
        return result
    entries: Any = result.get("tools")
    if method == "tools/list" and isinstance(entries, list):
        return {**result, "tools": [_tool(tail, entry) for entry in cast("list[Any]", entries)]}
    return _texts(tail, result)


def redact_error(tail: StderrTail, error: UpstreamError) -> UpstreamError:
    return UpstreamError(error.code, tail.redact(error.message), _everywhere(tail, error.data))


def redact_notification(tail: StderrTail, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a notification: progress and log messages are redacted."""
    key = _NOTIFICATION_TEXTS.get(method)
    if key is None or key not in params or not tail.secrets:
        return params
    return {**params, key: _everywhere(tail, params[key])}


def redact_about(tail: StderrTail, about: InitializeResult) -> InitializeResult:
    instructions = None if about.instructions is None else tail.redact(about.instructions)
    return replace(about, server_info=_everywhere(tail, about.server_info), instructions=instructions)


def _tool(tail: StderrTail, entry: Any) -> Any:
    """A tool of a list. An unusable tool is redacted entirely: it cannot be called, and a warning may quote it."""
    schema: Any = cast("Mapping[str, Any]", entry).get("inputSchema") if isinstance(entry, Mapping) else None
    usable = isinstance(schema, Mapping) and cast("Mapping[str, Any]", schema).get("type", "object") == "object"
    return _texts(tail, entry) if usable else _everywhere(tail, entry)


def _everywhere(tail: StderrTail, value: Any) -> Any:
    if isinstance(value, str):
        return tail.redact(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {tail.redact(key): _everywhere(tail, item) for key, item in table.items()}
    if isinstance(value, list):
        return [_everywhere(tail, item) for item in cast("list[Any]", value)]
    return value


def _texts(tail: StderrTail, value: Any) -> Any:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {
            key: tail.redact(item) if key in _TEXT_KEYS and isinstance(item, str) else _texts(tail, item)
            for key, item in table.items()
        }
    if isinstance(value, list):
        return [_texts(tail, item) for item in cast("list[Any]", value)]
    return value

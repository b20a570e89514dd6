"""The last lines that a server wrote to its stderr, so that an error can show them.

Owns: the bounds and the redaction. Does not know: processes. Invariant: never more than 40 lines and 8 KiB, and never
one of the secrets that it was told.
"""

from __future__ import annotations

from collections import deque

MOST_LINES = 40
MOST_BYTES = 8 * 1024
_BLANK = b"***"


class StderrTail:
    """Keeps a bounded tail of a byte stream as text."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._size = 0
        self._partial = b""
        self._secrets: tuple[str, ...] = ()
        self._blanked: tuple[bytes, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown, longest first."""
        return self._secrets

    @secrets.setter
    def secrets(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets
        # Variables may hold bytes that are no UTF-8; Python hands them over as lone surrogates.
        self._blanked = tuple(secret.encode("utf-8", "surrogateescape") for secret in secrets)

    def feed(self, data: bytes) -> None:
        """Takes the next piece, wherever it was cut."""
        *lines, partial = self.blank(self._partial + data).split(b"\n")
        # What is kept may end within a secret that the next piece completes: that much more must stay whole.
        longest = max((len(secret) for secret in self._blanked), default=0)
        self._partial = partial[-(MOST_BYTES + longest) :]
        for line in lines:
            self.add(line)

    def add(self, line: bytes) -> None:
        """Takes one whole line."""
        if len(self._lines) == MOST_LINES:
            self._size -= len(self._lines[0])
        self._lines.append(self.blank(line)[-MOST_BYTES:])
        self._size += len(self._lines[-1])
        while self._size > MOST_BYTES:
            self._size -= len(self._lines.popleft())

    def text(self) -> str:
        """The tail as text, without secrets."""
        whole = self.blank(b"\n".join((*self._lines, self._partial)))[-MOST_BYTES:]
        return whole.decode("utf-8", errors="replace").strip()

    def blank(self, data: bytes) -> bytes:
        """The same bytes without secrets; always done before anything is cut, or half a secret would stay."""
        for secret in self._blanked:
            data = data.replace(secret, _BLANK)
        return data

    def redacted(self, text: str) -> str:
        """The same text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _BLANK.decode())
        return text

    def clear(self) -> None:
        """Forgets everything, for a fresh process."""
        self._lines.clear()
        self._size = 0
        self._partial = b""

"""The last lines that a server wrote to its stderr, so that an error can show them.

Owns: the bounds and the redaction. Does not know: processes. Invariant: never more than 40 lines and 8 KiB, and never
one of the secrets that it was told.
"""

from __future__ import annotations

from collections import deque

MOST_LINES = 40
MOST_BYTES = 8 * 1024


class StderrTail:
    """Keeps a bounded tail of a byte stream as text."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._size = 0
        self._partial = b""
        self.secrets: tuple[str, ...] = ()

    def feed(self, data: bytes) -> None:
        """Takes the next piece, wherever it was cut."""
        *lines, partial = (self._partial + data[-2 * MOST_BYTES :]).split(b"\n")
        self._partial = partial[-MOST_BYTES:]
        for line in lines:
            self.add(line)

    def add(self, line: bytes) -> None:
        """Takes one whole line."""
        if len(self._lines) == MOST_LINES:
            self._size -= len(self._lines[0])
        self._lines.append(line[-MOST_BYTES:])
        self._size += len(self._lines[-1])
        while self._size > MOST_BYTES:
            self._size -= len(self._lines.popleft())

    def text(self) -> str:
        """The tail as text, without secrets."""
        whole = b"\n".join((*self._lines, self._partial))[-MOST_BYTES:]
        text = whole.decode("utf-8", errors="replace").strip()
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def clear(self) -> None:
        """Forgets everything, for a fresh process."""
        self._lines.clear()
        self._size = 0
        self._partial = b""

r"""Bytes as they were cut, made into whole lines of bounded length.

Owns: where a line ends (at `\n`, `\r\n` or `\r`, by which progress bars redraw), and what becomes of a line that is too
long. Knows no file and no meaning. Invariant: it holds at most one line and `LONGEST` bytes of it; no secret is left,
also not half of one at a cut.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 64 * 1024
CUT = " … [the rest of this line, which is longer than 64 KiB, is left out]".encode()
_BLANK = b"***"


class LineCutter:
    """Takes pieces, gives whole lines; `held` bytes at the end of what it took are not part of any line yet."""

    def __init__(self, secrets: Sequence[str] = (), *, skipping: bool = False) -> None:
        self._secrets = [secret.encode("utf-8", "surrogateescape") for secret in secrets]
        self._margin = max((len(secret) for secret in self._secrets), default=0)
        self._held = b""
        self.skipping = skipping
        """Whether the rest of a line that was too long is being left out."""

    @property
    def held(self) -> int:
        """How many bytes wait for the end of their line."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        r"""Whole lines, each with its end, as `\n`."""
        data = self._held + data if self._held else data
        self._held = b""
        if data.endswith(b"\r"):  # it may be half of an end
            data, self._held = data[:-1], b"\r"
        if b"\r" in data:
            data = self._ends(data)
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        self._held = rest + self._held
        if self.skipping and whole:
            whole, self.skipping = whole[whole.index(b"\n") + 1 :], False
        if self.skipping:
            self._held = self._held[-1:] if self._held.endswith(b"\r") else b""
        lines = self._bounded(self._blank(whole))
        if len(self._held) > LONGEST + self._margin:
            # The end of it may be half of a secret.
            shown = self._blank(self._held)[: -self._margin or None]
            lines += _whole_characters(shown[:LONGEST]) + CUT + b"\n"
            self._held, self.skipping = b"\r" if self._held.endswith(b"\r") else b"", True
        return lines

    def rest(self) -> bytes:
        """The last line, which had no end."""
        rest, self._held = self._held, b""
        if not rest or self.skipping:
            return b""
        return self._bounded(self._blank(rest.removesuffix(b"\r")) + b"\n")

    def _blank(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, _BLANK)
        return data

    @staticmethod
    def _ends(data: bytes) -> bytes:
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _bounded(self, lines: bytes) -> bytes:
        """Cuts what is too long; the usual case costs one look for each 64 KiB."""
        place, size = 0, len(lines)
        while size - place > LONGEST:
            end = lines.rfind(b"\n", place, place + LONGEST + 1)
            if end < 0:
                return b"".join(self._cut(line) for line in lines.splitlines(keepends=True))
            place = end + 1
        return lines

    @staticmethod
    def _cut(line: bytes) -> bytes:
        end = b"\n" if line.endswith(b"\n") else b""
        if len(line) - len(end) <= LONGEST:
            return line
        return _whole_characters(line[:LONGEST]) + CUT + end


def _whole_characters(text: bytes) -> bytes:
    """Without the beginning of a character at the end; bytes that are no UTF-8 stay."""
    for count in range(1, 4):
        if text[-count : len(text) - count + 1] >= b"\xc0":
            return text[:-count]
    return text

"""What tools, prompts and resources of several servers are called behind one.

Owns: the two spellings of a qualified name, and that of a resource that several servers have. Pure. Invariant: every
spelling can be read back, and no two things share one; with a single server everything keeps its own name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pursuit.surfaces.mcp.gateway.options import Spelling

LONGEST_NAME = 128
"""What the protocol allows for the name of a tool."""

SCHEME = "via"
_PLAIN = re.compile(r"[A-Za-z0-9-]")
_KEPT = re.compile(r"[A-Za-z0-9_-]+")
_SEPARATOR = "_-"
_TOKEN = re.compile(r"_-|__|_x[0-9a-f]+_|[A-Za-z0-9-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of these servers' things; `spelling` is for clients whose model takes no dot in a name."""

    servers: Sequence[str]
    spelling: Spelling = "dotted"

    @property
    def single(self) -> bool:
        """Whether there is only one server, whose names are kept if the spelling allows it."""
        return len(self.servers) == 1

    def qualified(self, server: str, name: str) -> str:
        """How a client sees a tool or a prompt."""
        if not self.single:
            return self.spelled(server, name)
        kept = self.spelling == "dotted" or (_KEPT.fullmatch(name) and not name.startswith(_SEPARATOR))
        return name if kept else escaped("", name)

    def spelled(self, server: str, name: str) -> str:
        """A name of two parts."""
        return f"{server}.{name}" if self.spelling == "dotted" else escaped(server, name)

    def owner(self, name: str) -> tuple[str, str] | None:
        """The server and its own name for a thing; None if no server is meant."""
        if self.single:
            whose, found, rest = _read(name) if self.spelling == "escaped" else ("", "", "")
            return self.servers[0], rest if found and not whose else name
        server, found, rest = name.partition(".") if self.spelling == "dotted" else _read(name)
        return (server, rest) if found and server in self.servers else None

    def uri_of(self, server: str, uri: str) -> str:
        """How a client sees a resource that other servers have, too."""
        return f"{SCHEME}://{server}/{quote(uri, safe='')}"

    def uri_owner(self, uri: str) -> tuple[str, str] | None:
        """The server and its own URI behind such an address; None for any other one."""
        scheme, found, rest = uri.partition("://")
        server, slash, quoted = rest.partition("/")
        if scheme != SCHEME or not found or not slash or server not in self.servers:
            return None
        return server, unquote(quoted)


def escaped(server: str, name: str) -> str:
    """A name of letters, digits, `-` and `_` only: `_` is doubled, anything else is `_x` code `_`, between is `_-`."""
    return f"{_escape(server)}{_SEPARATOR}{_escape(name)}"


def _escape(text: str) -> str:
    return "".join("__" if c == "_" else c if _PLAIN.match(c) else f"_x{ord(c):x}_" for c in text)


def _read(name: str) -> tuple[str, str, str]:
    """The parts of an escaped name, as `partition` gives them; without a separator where it is none."""
    parts = [""]
    place = 0
    while place < len(name):
        token = _TOKEN.match(name, place)
        if token is None:
            return name, "", ""
        word = token.group()
        place = token.end()
        if word == _SEPARATOR:
            parts.append("")
        elif word == "__":
            parts[-1] += "_"
        elif word.startswith("_x"):
            code = int(word[2:-1], 16)
            if code > 0x10FFFF:
                return name, "", ""
            parts[-1] += chr(code)
        else:
            parts[-1] += word
    return (parts[0], _SEPARATOR, parts[1]) if len(parts) == 2 else (name, "", "")

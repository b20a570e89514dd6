"""How a script spells the tools of a mission: `server.tool(…)` and `call("server.tool", {…})`.

Owns: the escape of names, and the way from a call's arguments to the tool's own argument object.
Knows neither the sandbox nor schemas beyond the order of their parameters.
Invariant: every tool is reachable through `call`; a spelling that could mean two tools means none.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

RESERVED = frozenset({"call", "mission", "state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Misspelt:
    """A call that cannot be made: the Python exception that the script sees."""

    exception: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call that can be made."""

    tool: str
    arguments: dict[str, Any]


def escaped(name: str) -> str:
    """The nearest Python identifier: odd characters become `_`, a leading digit gets one, a keyword ends in one."""
    text = re.sub(r"\W", "_", name)
    if not text or text[0].isdigit():
        text = f"_{text}"
    if not text.isidentifier():
        text = re.sub(r"[^0-9A-Za-z_]", "_", text)
    return f"{text}_" if keyword.iskeyword(text) else text


def spellings(names: Iterable[str], reserved: frozenset[str] = frozenset()) -> dict[str, str]:
    """Identifier to name, without the identifiers that two names share or that are taken."""
    known = list(names)
    count = Counter(escaped(name) for name in known)
    return {escaped(name): name for name in known if count[escaped(name)] == 1 and escaped(name) not in reserved}


class Toolbox:
    """The tools that one script may name."""

    def __init__(self, tools: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        self.servers = spellings(tools, RESERVED)
        self._tools = {server: spellings(offered) for server, offered in tools.items()}
        self._parameters = {
            f"{server}.{tool}": tuple(parameters)
            for server, offered in tools.items()
            for tool, parameters in offered.items()
        }

    def tool(self, server: str, attribute: str) -> str | None:
        """The qualified name behind `server.attribute`."""
        name = self._tools[server].get(attribute)
        return None if name is None else f"{server}.{name}"

    def hidden(self, server: str) -> dict[str, str]:
        """Attribute to tool, for the spellings that Monty takes for private and never asks its host about."""
        return {name: f"{server}.{tool}" for name, tool in self._tools[server].items() if name.startswith("_")}

    def method(self, server: str, attribute: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request | Misspelt:
        """`server.attribute(*args, **kwargs)`."""
        tool = self.tool(server, attribute)
        if tool is None:
            near = self.near(attribute, self._tools[server])
            return Misspelt(exception="AttributeError", message=f"{server} has no tool {attribute!r}{near}")
        return self.bound(tool, args, kwargs)

    def bound(self, tool: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request | Misspelt:
        """Positional arguments take the names of the schema, in its order."""
        parameters = self._parameters[tool]
        if len(args) > len(parameters):
            return _wrong(f"{tool} takes {len(parameters)} positional arguments but {len(args)} were given")
        arguments = dict(zip(parameters, args, strict=False))
        spelt = spellings(parameters)
        for key, value in kwargs.items():
            name = key if key in parameters else spelt.get(key, key)
            if name in arguments:
                return _wrong(f"{tool} got two values for the argument {name!r}")
            arguments[name] = value
        return Request(tool=tool, arguments=arguments)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request | Misspelt:
        """`call(name, args)`."""
        given = {**dict(zip(("name", "args"), args, strict=False)), **kwargs}
        if len(args) + len(kwargs) != len(given) or not {"name"} <= given.keys() <= {"name", "args"}:
            return _wrong('write call("server.tool", {"argument": value})')
        name, arguments = given["name"], given.get("args")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            return _wrong('write call("server.tool", {"argument": value})')
        if name not in self._parameters:
            near = self.near(name, self._parameters)
            return Misspelt(exception="LookupError", message=f"there is no tool {name!r}{near}")
        return Request(tool=name, arguments=dict(cast("dict[str, Any]", arguments or {})))

    def knows(self, tool: str) -> bool:
        """Whether this is the qualified name of a tool."""
        return tool in self._parameters

    def unknown_name(self, name: str) -> Misspelt:
        """A function that the script neither defined nor was given."""
        near = self.near(name, [*self.servers, *RESERVED])
        return Misspelt(exception="NameError", message=f"name {name!r} is not defined{near}")

    def missing(self, server: str | None, name: str) -> str:
        """The hint for a name, or an attribute of a server, that is not there."""
        return self.near(name, [*self.servers, *RESERVED] if server is None else self._tools[server])

    @staticmethod
    def near(name: str, known: Iterable[str]) -> str:
        """`; did you mean …?`, or all that there is when it is little, or nothing."""
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        if close:
            return f"; did you mean {', '.join(close)}?"
        return f"; there is {', '.join(names)}" if 0 < len(names) <= 12 else ""


def _wrong(message: str) -> Misspelt:
    return Misspelt(exception="TypeError", message=message)

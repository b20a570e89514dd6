"""Whether a call may be sent.

Owns: the operator's policy, the layers that may only tighten it, and `decide`. Does not know: approvals, or who asks.
Invariant: `decide` is pure; a layer turns allow into ask or deny and ask into deny, never back; deny wins.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

from pursuit.core.base_model import nearest
from pursuit.core.tools import SPAWN_TOOL, Tool
from pursuit.errors import Fault, ValidationFailed

# A decision about a call, a host or a tool, with the reason that a person reads.

Decision = Literal["allow", "ask", "deny"]
Mode = Literal["auto", "ask", "never"]

SEVERITY: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision, and why."""

    decision: Decision
    reason: str = ""


def stricter(one: Ruling, other: Ruling) -> Ruling:
    """The one that lets less through; the first, where both let the same through."""
    return other if SEVERITY[other.decision] > SEVERITY[one.decision] else one


# One rule of the operator: which calls it means.
# Invariant: pure; where a value can be read in several ways, a rule that forbids matches if any reading does, and a
# rule that allows only if all do.

ANY = "*"
MOST_FORMS = 16
_SLASHES = re.compile("/+")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_ORIGIN = re.compile(r"[^/?#:]+://[^/?#]*")
_DROPPED = re.compile("[\t\r\n]")  # what readers of addresses leave out, wherever it stands


class _Unreadable(Exception):
    """Escaped more often than anybody does in good faith."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Globs over the server, the tool and the text of arguments, which are named by their dotted path."""

    decision: Decision
    server: str = ANY
    tool: str = ANY
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    reason: str = ""

    def means(self, tool: Tool) -> bool:
        """Whether it is about this tool, whatever the arguments.

        A rule that allows means the server of a mission file only if it names it: who wrote `*` did not know of it.
        """
        if self.decision == "allow" and not tool.operators and not self._names(tool.server):
            return False
        return (self.server == ANY or fnmatchcase(tool.server, self.server)) and (
            self.tool == ANY or fnmatchcase(tool.name, self.tool) or fnmatchcase(tool.qualified, self.tool)
        )

    def _names(self, server: str) -> bool:
        return self.server == server or self.tool.startswith(f"{server}.")

    def matches(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Whether it is about this call: every pattern finds its argument."""
        if not self.means(tool):
            return False
        allows = self.decision == "allow"
        try:
            return all(
                _fits(values_at(arguments, path.split(".")), pattern, every=allows)
                for path, pattern in self.arguments.items()
            )
        except (RecursionError, _Unreadable):  # cannot be looked through: that allows nothing
            return not allows

    def __str__(self) -> str:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in self.arguments.items())
        said = f"{self.decision} {self.server}.{self.tool}" + (f" when {when}" if when else "")
        return f"{said}: {self.reason}" if self.reason else said


def _fits(values: Sequence[Any], pattern: str, *, every: bool) -> bool:
    patterns = {pattern, _folded(pattern)}
    readings = (reading for value in values for reading in _readings(value))
    fitting = (any(fnmatchcase(reading, one) for one in patterns) for reading in readings)
    return bool(values) and all(fitting) if every else any(fitting)


def values_at(value: Any, path: Sequence[str]) -> list[Any]:
    """What lies at a dotted path: `*` is any key, a list stands for its elements, a key may itself hold dots."""
    if isinstance(value, list | tuple):
        return [found for item in cast("Sequence[Any]", value) for found in values_at(item, path)]
    if not path:
        return [value]
    if not isinstance(value, Mapping):
        return []
    table = cast("Mapping[str, Any]", value)
    if path[0] == ANY:
        return [found for item in table.values() for found in values_at(item, path[1:])]
    found: list[Any] = []
    for length in range(1, len(path) + 1):
        key = ".".join(path[:length])
        if key in table:
            found += values_at(table[key], path[length:])
    return found


def _readings(value: Any) -> Iterator[str]:
    """The text of a value; if it may be a path or an address in disguise, also where it really leads."""
    if not isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
        return
    for form in _forms(value):
        yield form
        if "/" in form:
            yield from _straight(form)


def _forms(text: str) -> Iterator[str]:
    """The text as servers may undo its escapes, in whichever order and however often: the text itself comes first."""
    forms = [text]
    for form in forms:
        yield form
        plainer = [unquote(form)] if "%" in form else []
        if "\\" in form:
            plainer.append(form.replace("\\", "/"))
        if ":" in form and _DROPPED.search(form):
            plainer.append(_DROPPED.sub("", form))
        plainer.append(_folded(form))
        forms += dict.fromkeys(one for one in plainer if one not in forms)
        if len(forms) > MOST_FORMS:
            raise _Unreadable


def _folded(text: str) -> str:
    """An address, or a pattern of addresses, with its scheme and host in small letters: their case says nothing."""
    origin = _ORIGIN.match(text)
    return text if origin is None else f"{origin.group().lower()}{text[origin.end() :]}"


def _straight(text: str) -> Iterator[str]:
    """Where a text leads as a path, and as an address if it is one; nothing where that is the text itself."""
    address = _ADDRESS.fullmatch(text)
    path = posixpath.normpath(_SLASHES.sub("/", text))
    if address is None:
        if path not in (text, text.removesuffix("/")):  # a slash at the end is no detour
            yield path
        return
    scheme, host, inside, rest = address.groups()
    if "/.." in text:  # to a reader of paths the scheme is a folder, which can be left
        yield f"{scheme}://{path.removeprefix(f'{scheme}:/')}" if path.startswith(f"{scheme}:/") else path
    straight = posixpath.normpath(_SLASHES.sub("/", inside)) if inside else ""  # from the root: no `..` takes the host
    if straight not in (inside, inside.removesuffix("/")):
        yield f"{scheme}://{host}{straight}{rest}"


# Which hosts an upstream may be reached at.
# Invariant: deny wins over allow, and allow over ask; a rule `.example.com` means the sub-domains and not
# `example.com` itself. A host that no rule names is allowed, for the operator wrote its address himself; `ask =
# ["*"]` makes a list of allowed ones complete.

NetworkRuling = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """Hosts, `.suffixes` for sub-domains, or `*` for all; each may end in `:port`."""

    allow: Sequence[str] = ()
    ask: Sequence[str] = ()
    deny: Sequence[str] = ()


def network_ruling(rules: NetworkRules, url: str) -> NetworkRuling:
    """What the rules say of this address; an address without a host is denied."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "deny"
    if parts.scheme not in ("http", "https") or not host:
        return "deny"
    port = port or (443 if parts.scheme == "https" else 80)
    if _named(rules.deny, host, port):
        return "deny"
    if _named(rules.allow, host, port):
        return "allow"
    return "ask" if _named(rules.ask, host, port) else "allow"


def _named(patterns: Sequence[str], host: str, port: int) -> bool:
    return any(_matches(pattern, _plain(host), port) for pattern in patterns)


def _matches(pattern: str, host: str, port: int) -> bool:
    name, said = _split(pattern)
    if said is not None and said != str(port):
        return False
    if name == "*":
        return True
    if name.startswith("."):
        return host.endswith(_plain(name)) and len(host) > len(name)
    return host == _plain(name)


def _split(pattern: str) -> tuple[str, str | None]:
    """Host and port; an IPv6 address is in brackets if a port follows, as in a URL."""
    if pattern.startswith("["):
        name, _, rest = pattern[1:].partition("]")
        return name, rest.removeprefix(":") or None
    if pattern.count(":") == 1:
        name, _, port = pattern.partition(":")
        return name, port
    return pattern, None


def _plain(host: str) -> str:
    """One spelling for each host: lower case, no dot at the end, addresses in their short form."""
    host = host.lower().rstrip(".") or host
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError:
        return host


MODES: tuple[Mode, ...] = ("auto", "ask", "never")
"""From the loosest to the strictest."""

_ALLOWED = Ruling(decision="allow", reason="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightening:
    """A further layer: the mission's, or the caller's. `allowed` are qualified names; None is all."""

    who: str
    allowed: frozenset[str] | None = None
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    mode: Mode = "auto"

    def decide(self, tool: Tool) -> Ruling:
        """What this layer says of a tool; allow is the least that it can say."""
        if self.allowed is not None and tool.qualified not in self.allowed:
            return Ruling(decision="deny", reason=f"{tool.qualified} is not on {self.who}'s list of tools")
        lists: tuple[tuple[Decision, tuple[str, ...]], ...] = (("deny", self.deny), ("ask", self.ask))
        for decision, words in lists:
            word = next((word for word in words if names(word, tool)), None)
            if word is not None:
                return Ruling(decision=decision, reason=f"{self.who}'s own policy says {decision} ({word})")
        return _ALLOWED


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """The operator's layer. The servers in `own` live in this process, handed in by the program itself."""

    mode: Mode = "ask"
    rules: tuple[Rule, ...] = ()
    network: NetworkRules = field(default_factory=NetworkRules)
    own: frozenset[str] = frozenset()
    callers: Mapping[str, Tightening] = field(default_factory=dict[str, Tightening])
    """What further holds for whoever shows the token of a name."""

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """What the rules say, whatever the mode; without one: allow what is read-only, ask for the rest."""
        found: Ruling | None = None
        for place, rule in enumerate(self.rules, start=1):
            if rule.matches(tool, arguments):
                ruling = Ruling(decision=rule.decision, reason=rule.reason or f"rule {place} of the policy: {rule}")
                found = ruling if found is None else stricter(found, ruling)
        return found or self._without_rule(tool)

    def _without_rule(self, tool: Tool) -> Ruling:
        if tool is SPAWN_TOOL:
            return Ruling(
                decision="allow", reason="the mission has a fleet; what its children call is judged by itself"
            )
        if tool.server in self.own:
            return Ruling(decision="allow", reason="handed in by the program itself")
        if tool.traits.read_only:
            return Ruling(decision="allow", reason=f"it only reads ({_why(tool, 'read_only')})")
        if tool.traits.destructive:
            return Ruling(decision="ask", reason=f"it may destroy something ({_why(tool, 'destructive')})")
        return Ruling(decision="ask", reason=f"it may write ({_why(tool, 'read_only')})")


def _why(tool: Tool, trait: str) -> str:
    return tool.traits.why.get(trait, "nobody says otherwise")


def names(word: str, tool: Tool) -> bool:
    """Whether a name or glob means this tool: its qualified name, or, without a dot, its bare one."""
    if word in (tool.qualified, tool.name) or fnmatchcase(tool.qualified, word):
        return True
    return "." not in word and fnmatchcase(tool.name, word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The operator's policy and whatever tightens it, in order."""

    operator: OperatorPolicy = field(default_factory=OperatorPolicy)
    tighter: tuple[Tightening, ...] = ()

    @property
    def mode(self) -> Mode:
        """The strictest mode that any layer asks for."""
        modes: list[Mode] = [self.operator.mode, *(layer.mode for layer in self.tighter)]
        return max(modes, key=MODES.index)


def decide(layers: Layers, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
    """Whether this tool may be called with these arguments, and why."""
    mode = layers.mode
    ruling = layers.operator.decide(tool, arguments)
    if mode == "auto" and ruling.decision == "ask":
        ruling = Ruling(decision="allow", reason=f"mode auto; else asked: {ruling.reason}")
    for layer in layers.tighter:
        ruling = stricter(ruling, layer.decide(tool))
    if mode == "never" and ruling.decision == "ask":
        return Ruling(decision="deny", reason=f"mode never, nobody is asked: {ruling.reason}")
    return ruling


def conditional(layers: Layers, tool: Tool) -> list[Rule]:
    """The rules that are about this tool with some arguments only: a listing cannot foresee them."""
    return [rule for rule in layers.operator.rules if rule.arguments and rule.means(tool)]


def may_ask(layers: Layers, tools: Iterable[Tool]) -> bool:
    """Whether a person may have to be asked about a call of one of these tools."""
    if layers.mode == "never":
        return False
    asks = layers.mode == "ask" and any(rule.decision == "ask" for rule in layers.operator.rules)
    return asks or any(decide(layers, tool, {}).decision == "ask" for tool in tools)


def parse_mode(mode: str, *, field: str = "mode") -> Mode:
    """The mode by its name; raises `ValidationFailed` for one that does not exist, given as `field`."""
    if mode in MODES:
        return mode
    reason = f"{mode!r} is no mode{nearest(mode, MODES) or '; use ' + _listed(MODES)}"
    fault = Fault(field=field, reason=reason)
    raise ValidationFailed([fault], str(fault))


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


__all__ = [
    "MODES",
    "Decision",
    "Layers",
    "Mode",
    "OperatorPolicy",
    "Ruling",
    "Tightening",
    "conditional",
    "decide",
    "may_ask",
    "names",
    "parse_mode",
]

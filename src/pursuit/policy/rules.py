"""Decides whether a call may be sent, and whether a host may be reached.

The operator's policy comes first. Further layers (the mission's, the caller's) can only tighten it: a layer turns allow
into ask or deny and ask into deny, never back. Deny wins. All functions are pure, except that `Under` asks the file
system where a path leads.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from ipaddress import IPv4Address, ip_address
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

from pursuit.core.base_model import nearest
from pursuit.core.pins import Changes
from pursuit.core.tools import Tool
from pursuit.errors import Fault, ValidationFailed, advice

Decision = Literal["allow", "ask", "deny"]
Mode = Literal["auto", "ask", "never"]

SEVERITY: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
MODES: tuple[Mode, ...] = ("auto", "ask", "never")
"""From the loosest to the strictest."""

ANY = "*"
MOST_FORMS = 16
MOST_PATH = 4_096
MOST_TEXT = 65_536
"""Characters that the path of a rule may select in one call: reading them takes time, and other clients wait."""
MOST_VALUES = 2_048
"""Values that the path of a rule may select in one call: each rule looks at each of them."""
MOST_ORIGIN = 300
"""Scheme, host and port of an address: a host name has at most 253 characters."""
_SLASHES = re.compile("/+")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_ORIGIN = re.compile(r"[^/?#:]+://[^/?#]*")
_CONTROLS = re.compile("[\x00-\x1f\x7f]")
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_DROPPED = re.compile("[\t\r\n]")  # URL parsers drop these wherever they stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision, and the reason that a person reads. If it asks, `require` is how many people must say yes."""

    decision: Decision
    reason: str = ""
    require: int = 1
    changes: Changes | None = None
    """What the operator must accept before a rule that allows the call counts again."""


def stricter(one: Ruling, other: Ruling) -> Ruling:
    """The stricter of the two; the first one if they are equal."""
    return max(one, other, key=lambda ruling: (SEVERITY[ruling.decision], ruling.require))


class Undecided(Exception):
    """A rule that allows does not count for this call, and one that asks or denies does; the text says why."""


class CallArguments:
    """The arguments of one call of a server in the folder `cwd`. What a path selects is read once, for all rules.

    `protected` are the beginnings of paths that no rule with `under` allows; a whole path ends with a slash.
    """

    def __init__(self, arguments: Mapping[str, Any], cwd: str | None = None, protected: Sequence[str] = ()) -> None:
        self.at = cache(partial(values_at, arguments))
        self.readings = cache(self._readings)
        self.place = cache(partial(_place, cwd))
        self.host = cache(plain_host)
        self._protected = [path.casefold() for path in protected]  # on some file systems PURSUIT.TOML is the same file

    def protects(self, place: str) -> bool:
        """Whether a path leads to what is protected, or to a folder that contains it: a tool may move that folder."""
        plain = f"{place.casefold().rstrip('/')}/"
        return any(plain.startswith(one) or one.startswith(plain) for one in self._protected)

    def _readings(self, path: str) -> set[str] | None:
        """Each text that a server may take one of the values at a path for; None if they are too many."""
        found: set[str] = set()
        for value in self.at(path) or ():
            forms = _readings(_text(value))
            if forms is None or len(found) > 2 * MOST_VALUES:
                return None
            found.update(forms)
        return found if sum(map(len, found)) <= 4 * MOST_TEXT else None


def _place(cwd: str | None, path: str) -> str | None:
    """Where a path leads: symbolic links are followed, `..` is resolved. None if that cannot be said."""
    return os.path.realpath(Path(cwd or "/", path)) if cwd is not None or path.startswith("/") else None


@dataclass(frozen=True, slots=True)
class Under:
    """A path, or a `file:` address, that leads into a folder."""

    folder: str

    def holds(self, value: Any, given: CallArguments, *, allows: bool) -> bool | None:
        """Whether it does; None if the value cannot be read as one path."""
        path = _as_path(value)
        place, folder = None if path is None else given.place(path), given.place(self.folder)
        if place is None or folder is None:
            return None
        inside = place == folder or place.startswith(f"{folder.rstrip('/')}/")
        if inside and allows and given.protects(place):
            raise Undecided(f"no rule with under allows what leads to Pursuit's own files: {place}")
        return inside

    def __str__(self) -> str:
        return f"under {self.folder}"


def _as_path(value: Any) -> str | None:
    """The one path that a text is: no home, no other scheme, nothing that a reader may take for something else.

    Servers trim spaces and quotes: `link"` would be a new file here, and a symbolic link there.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MOST_PATH:
        return None
    if value.startswith("~") or _CONTROLS.search(value):
        return None
    if value.strip().strip("\"'") != value:
        return None
    if value[:5].lower() != "file:":
        return None if "://" in value else value
    try:
        parts = urlsplit(value)
        path = unquote(parts.path, errors="strict")
    except ValueError:
        return None
    plain = parts.netloc in ("", "localhost") and not parts.query and not parts.fragment and "?" not in value
    return path if plain and path.startswith("/") and not _CONTROLS.search(path) else None


@dataclass(frozen=True, slots=True)
class Hosts:
    """An address at one of these hosts; `.example.org` is each sub-domain.

    Only a lower-case name or a dotted quad, as `urlsplit` and IDNA give it, can match: a reader may take every other
    form (a user, an escape, a number, IPv6, a dot at the end) for another host.
    """

    names: tuple[str, ...]

    def holds(self, value: Any, given: CallArguments, *, allows: bool) -> bool | None:
        """Whether it is; None if the value is no plain address."""
        host = given.host(value) if isinstance(value, str) else None
        if host is None:
            return None
        return any(host.endswith(name) if name.startswith(".") else host == name for name in self.names)

    def __str__(self) -> str:
        return f"host {', '.join(self.names)}"


def plain_host(address: str) -> str | None:
    """The host of an address in its one plain form, or None; a long one is not read."""
    if _CONTROLS.search(address) or "\\" in address or " " in address:
        return None
    origin = _ORIGIN.match(address)
    if origin is None or len(origin.group()) > MOST_ORIGIN:
        return None
    try:
        parts = urlsplit(origin.group())
        if not parts.scheme or "@" in parts.netloc or (parts.port is None and parts.netloc.endswith(":")):
            return None
        return plain_name(parts.hostname or "")
    except ValueError:
        return None


def plain_name(host: str) -> str | None:
    """A host as a lower-case ASCII name or a dotted quad; None for every other form."""
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        return None
    if not _NAME.fullmatch(name):
        return None
    last = name.rpartition(".")[2]
    if not (last.isdigit() or last.startswith("0x")):
        return name
    try:
        return str(IPv4Address(name))
    except ValueError:
        return None


Pattern = str | Under | Hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Globs over the server, the tool and the text of arguments, which are named by their dotted path.

    An argument may also have a type: `Under` or `Hosts`.

    Where a value can be read in several ways, a rule that asks or denies matches if any reading does, and a rule that
    allows only if all do.
    """

    decision: Decision
    server: str = ANY
    tool: str = ANY
    arguments: Mapping[str, Pattern] = field(default_factory=dict[str, Pattern])
    reason: str = ""
    require: int = 1
    """So many people must say yes, where it asks."""

    def means(self, tool: Tool) -> bool:
        """Whether it concerns this tool, with any arguments.

        A rule that allows applies to the server of a mission file only if it names that server: the operator who wrote
        `*` did not know of it.
        """
        named = self.server == tool.server or self.tool.startswith(f"{tool.server}.")
        if self.decision == "allow" and not tool.operators and not named:
            return False
        # A server can give its tool the qualified name of another server's tool.
        bare = "." not in self.tool or self.decision != "allow"
        return (self.server == ANY or fnmatchcase(tool.server, self.server)) and (
            fnmatchcase(tool.qualified, self.tool) or (bare and fnmatchcase(tool.name, self.tool))
        )

    def matches(self, tool: Tool, given: CallArguments) -> bool:
        """Whether it concerns this call: each pattern matches its argument. Raises `Undecided`."""
        if not self.means(tool):
            return False
        doubt = ""
        for path, pattern in self.arguments.items():
            try:
                if not self._fits(path, pattern, given):
                    return False
            except (Undecided, RecursionError) as why:
                doubt = str(why)
        if doubt:
            raise Undecided(doubt)
        return True

    def _fits(self, path: str, pattern: Pattern, given: CallArguments) -> bool:
        values = given.at(path)
        if values is None:
            raise Undecided(f"the argument {path} has more than {MOST_TEXT:,} characters or {MOST_VALUES:,} values")
        allows = self.decision == "allow"
        if not isinstance(pattern, str):
            held = [pattern.holds(value, given, allows=allows) for value in values]
            return bool(held) and all(one is True for one in held) if allows else any(one is not False for one in held)
        patterns = {pattern, _folded(pattern)}
        readings = given.readings(path)
        if readings is None:
            raise Undecided(f"the argument {path} is escaped too often")
        fitting = (any(fnmatchcase(one, glob) for glob in patterns) for one in readings)
        return bool(values) and all(fitting) if allows else any(fitting)

    def looks_at(self, text: str) -> bool:
        """Whether one of its patterns, or for a rule that allows one of its globs, matches this text."""
        globs = {path: one for path, one in self.arguments.items() if isinstance(one, str) or self.decision != "allow"}
        return any(self._fits(path, pattern, CallArguments({path: text})) for path, pattern in globs.items())

    def __str__(self) -> str:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in self.arguments.items())
        people = f" {self.require} people about" if self.require > 1 else ""
        said = f"{self.decision}{people} {self.server}.{self.tool}" + (f" when {when}" if when else "")
        return f"{said}: {self.reason}" if self.reason else said


def values_at(arguments: Mapping[str, Any], path: str) -> list[Any] | None:
    """The values at a dotted path: `*` is any key, a list stands for its elements, a key may itself hold dots.

    None if they are more than `MOST_VALUES`, or more than `MOST_TEXT` characters together.
    """
    found: list[Any] = []
    left: list[tuple[Any, Sequence[str]]] = [(arguments, path.split("."))]
    seen = 0
    while left:
        seen += 1
        value, rest = left.pop()
        inside: Iterable[tuple[Any, Sequence[str]]] = ()
        if isinstance(value, list | tuple):
            inside = ((item, rest) for item in cast("Sequence[Any]", value))
        elif not rest:
            found.append(value)
        elif isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            heads = [(".".join(rest[:length]), rest[length:]) for length in range(1, len(rest) + 1)]
            inside = ((table[key], tail) for key, tail in heads if key in table)
            if rest[0] == ANY:
                inside = ((item, rest[1:]) for item in table.values())
        left += islice(inside, MOST_TEXT)
        if seen + len(left) > MOST_TEXT or len(found) > MOST_VALUES:
            return None
    return found if sum(len(_text(one)) for one in found) <= MOST_TEXT else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _readings(text: str) -> list[str] | None:
    """A text; for what may be a path or an address also where it really leads. None if it is escaped too often."""
    forms = _forms(text)
    return forms and [*forms, *(place for form in forms if "/" in form for place in _normalized(form))]


def _forms(text: str) -> list[str] | None:
    """The text itself, then each form that a server may get by undoing escapes, in any order; None for too many."""
    forms = [text]
    for form in forms:
        plainer = [unquote(form)] if "%" in form else []
        if "\\" in form:
            plainer.append(form.replace("\\", "/"))
        if ":" in form and _DROPPED.search(form):
            plainer.append(_DROPPED.sub("", form))
        plainer.append(_folded(form))
        forms += dict.fromkeys(one for one in plainer if one not in forms)
        if len(forms) > MOST_FORMS:
            return None
    return forms


def _folded(text: str) -> str:
    """An address, or a pattern of addresses, with its scheme and host in lower case: they are case-insensitive."""
    origin = _ORIGIN.match(text)
    return text if origin is None else f"{origin.group().lower()}{text[origin.end() :]}"


def _normalized(text: str) -> Iterator[str]:
    """Where a text leads as a path, and as an address if it is one; nothing if that is the text itself."""
    address = _ADDRESS.fullmatch(text)
    path = posixpath.normpath(_SLASHES.sub("/", text))
    if address is None:
        if path not in (text, text.removesuffix("/")):  # a trailing slash leads to the same place
            yield path
        return
    scheme, host, inside, rest = address.groups()
    if "/.." in text:  # a reader of paths takes the scheme for a folder
        yield f"{scheme}://{path.removeprefix(f'{scheme}:/')}" if path.startswith(f"{scheme}:/") else path
    normal = posixpath.normpath(_SLASHES.sub("/", inside)) if inside else ""  # from the root: no `..` removes the host
    if normal not in (inside, inside.removesuffix("/")):
        yield f"{scheme}://{host}{normal}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """Hosts, `.suffixes` for sub-domains, or `*` for all; each may end in `:port`.

    `.example.com` does not include `example.com`. Deny wins over allow, allow over ask. A host that no rule names is
    allowed, since the operator wrote its address; `ask = ["*"]` makes the list of allowed hosts complete.
    """

    allow: Sequence[str] = ()
    ask: Sequence[str] = ()
    deny: Sequence[str] = ()


def network_ruling(rules: NetworkRules, url: str) -> Decision:
    """The decision about this address; an address without a host is denied."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "deny"
    if parts.scheme not in ("http", "https") or not host:
        return "deny"
    port = port or (443 if parts.scheme == "https" else 80)
    host = _canonical(host)
    lists: tuple[tuple[Decision, Sequence[str]], ...] = (
        ("deny", rules.deny),
        ("allow", rules.allow),
        ("ask", rules.ask),
    )
    for decision, patterns in lists:
        if any(_matches_host(pattern, host, port) for pattern in patterns):
            return decision
    return "allow"


def _matches_host(pattern: str, host: str, port: int) -> bool:
    name, wanted_port = _split_port(pattern)
    if wanted_port is not None and wanted_port != str(port):
        return False
    if name == ANY:
        return True
    if name.startswith("."):
        return host.endswith(_canonical(name)) and len(host) > len(name)
    return host == _canonical(name)


def _split_port(pattern: str) -> tuple[str, str | None]:
    """Host and port; an IPv6 address is in brackets if a port follows, as in a URL."""
    if pattern.startswith("["):
        name, _, rest = pattern[1:].partition("]")
        return name, rest.removeprefix(":") or None
    if pattern.count(":") == 1:
        name, _, port = pattern.partition(":")
        return name, port
    return pattern, None


def _canonical(host: str) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightening:
    """A further layer: the mission's, or the caller's. `allowed` are qualified names; None is all."""

    who: str
    allowed: frozenset[str] | None = None
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    mode: Mode = "auto"

    def decide(self, tool: Tool) -> Ruling:
        """The ruling of this layer about a tool."""
        if self.allowed is not None and tool.qualified not in self.allowed:
            return Ruling(decision="deny", reason=f"{tool.qualified} is not on {self.who}'s list of tools")
        lists: tuple[tuple[Decision, tuple[str, ...]], ...] = (("deny", self.deny), ("ask", self.ask))
        for decision, patterns in lists:
            pattern = next((pattern for pattern in patterns if names(pattern, tool)), None)
            if pattern is not None:
                return Ruling(decision=decision, reason=f"{self.who}'s own policy says {decision} ({pattern})")
        return Ruling(decision="allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """The operator's layer. The servers in `own` live in this process, handed in by the program itself."""

    mode: Mode = "ask"
    rules: tuple[Rule, ...] = ()
    network: NetworkRules = field(default_factory=NetworkRules)
    own: frozenset[str] = frozenset()
    callers: Mapping[str, Tightening] = field(default_factory=dict[str, Tightening])
    """A further layer for the caller with the token of this name."""
    folders: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where a server, or a command by its qualified name, runs: relative paths start there."""
    protected: tuple[str, ...] = ()
    """The beginnings of paths that no rule with `under` allows: Pursuit's own files. A whole path ends with a slash."""

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """The strictest matching rule, before the mode; without one: allow what is read-only, ask for the rest."""
        if tool.changes is not None and tool.changes.denies:
            return Ruling(decision="deny", reason=f"{tool.changes.reason}; `{advice('pursuit tools pin')}` accepts it")
        return self.ruled(tool, arguments) or self.without_rule(tool)

    def ruled(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling | None:
        """The strictest matching rule, before the mode. For a changed tool, one that allows it asks to accept it."""
        given = CallArguments(
            arguments, self.folders.get(tool.qualified) or self.folders.get(tool.server), self.protected
        )
        found: Ruling | None = None
        for place, rule in enumerate(self.rules, start=1):
            decision, doubt = rule.decision, ""
            try:
                if not rule.matches(tool, given):
                    continue
            except Undecided as why:
                if decision == "allow" and tool.traits.read_only:  # allowed without a rule, too
                    continue
                decision, doubt = "ask" if decision == "allow" else decision, f" ({why})"
            reason = f"{rule.reason or f'rule {place} of the policy: {rule}'}{doubt}"
            ruling = Ruling(decision=decision, reason=reason, require=rule.require)
            found = ruling if found is None else stricter(found, ruling)
        if found is not None and found.decision == "allow" and tool.changes is not None:
            return Ruling(decision="ask", reason=tool.changes.reason, changes=tool.changes)
        return found

    def without_rule(self, tool: Tool) -> Ruling:
        """What holds for a call that no rule concerns, before the mode."""
        if tool.allowed_because is not None:
            return Ruling(decision="allow", reason=tool.allowed_because)
        if tool.server in self.own:
            return Ruling(decision="allow", reason="handed in by the program itself")
        changed = "" if tool.changes is None else f"; {tool.changes.reason}"
        reads, destroys = (tool.traits.why.get(key, "nothing says otherwise") for key in ("read_only", "destructive"))
        if tool.traits.read_only and tool.changes is not None:  # it may not have been read-only before
            return Ruling(decision="ask", reason=tool.changes.reason, changes=tool.changes)
        if tool.traits.read_only:
            return Ruling(decision="allow", reason=f"it only reads ({reads})")
        if tool.traits.destructive:
            return Ruling(decision="ask", reason=f"it may destroy something ({destroys}){changed}")
        return Ruling(decision="ask", reason=f"it may write ({reads}){changed}")


def names(pattern: str, tool: Tool) -> bool:
    """Whether a name or glob matches this tool: its qualified name, or, without a dot, its bare one."""
    if pattern in (tool.qualified, tool.name) or fnmatchcase(tool.qualified, pattern):
        return True
    return "." not in pattern and fnmatchcase(tool.name, pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The operator's policy and the layers that tighten it, in order."""

    operator: OperatorPolicy = field(default_factory=OperatorPolicy)
    tighter: tuple[Tightening, ...] = ()

    @property
    def mode(self) -> Mode:
        """The strictest mode that any layer asks for."""
        modes: list[Mode] = [self.operator.mode, *(layer.mode for layer in self.tighter)]
        return max(modes, key=MODES.index)


def decide(layers: Layers, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
    """Whether this tool may be called with these arguments, and why."""
    return _tightened(layers, tool, layers.operator.decide(tool, arguments))


def _tightened(layers: Layers, tool: Tool, ruling: Ruling) -> Ruling:
    """The operator's ruling in the mode that holds, and after the further layers."""
    mode = layers.mode
    if mode == "auto" and ruling.decision == "ask":
        ruling = Ruling(decision="allow", reason=f"mode auto; else asked: {ruling.reason}")
    for layer in layers.tighter:
        ruling = stricter(ruling, layer.decide(tool))
    if mode == "never" and ruling.decision == "ask":
        return Ruling(decision="deny", reason=f"mode never, no one is asked: {ruling.reason}")
    return ruling


def without_lists(layers: Layers) -> Layers:
    """The layers without their lists of tools, for what is on none: `deny`, `ask` and the modes hold."""
    return replace(layers, tighter=tuple(replace(layer, allowed=None) for layer in layers.tighter))


def decide_own(layers: Layers, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
    """Whether a check or a judge may run: the operator wrote or trusted it, so it is allowed without a rule.

    In mode `never` it needs a rule that allows it. A mission's list of tools is not about it; `deny` and `ask` are.
    """
    ruling = layers.operator.ruled(tool, arguments)
    if ruling is None and layers.mode == "never":
        return Ruling(decision="deny", reason=f"mode never, and no rule allows {tool.qualified}")
    return _tightened(without_lists(layers), tool, ruling or Ruling(decision="allow", reason="the operator wrote it"))


def decide_request(layers: Layers, tool: Tool, params: Mapping[str, Any]) -> Ruling:
    """Whether a request that is no call may be sent, whose method `tool` stands for, or a command that is offered.

    No one is asked about it. So one that is neither a read nor named by a rule or by a layer is denied only in mode
    `never`.
    """
    ruled = layers.operator.ruled(tool, params)
    ruling = _tightened(layers, tool, ruled or layers.operator.without_rule(tool))
    named = ruled is not None or any(layer.decide(tool).decision != "allow" for layer in layers.tighter)
    if ruling.decision == "ask" and not named:
        return Ruling(decision="allow", reason=ruling.reason)
    return ruling


def conditional_rules(layers: Layers, tool: Tool) -> list[Rule]:
    """The rules that concern this tool only with some arguments: a listing cannot foresee them."""
    return [rule for rule in layers.operator.rules if rule.arguments and rule.means(tool)]


def may_ask(layers: Layers, tools: Iterable[Tool]) -> bool:
    """Whether a person may have to be asked about a call of one of these tools."""
    if layers.mode == "never":
        return False
    asks = layers.mode == "ask" and any(rule.decision == "ask" for rule in layers.operator.rules)
    return (
        asks
        or any(layer.ask for layer in layers.tighter)
        or any(decide(layers, tool, {}).decision == "ask" for tool in tools)
    )


def parse_mode(mode: str, *, field: str = "mode") -> Mode:
    """The mode by its name; raises `ValidationFailed` for one that does not exist, given as `field`."""
    if mode in MODES:
        return mode
    reason = f"{mode!r} is no mode{nearest(mode, MODES) or '; use auto, ask or never'}"
    fault = Fault(field=field, reason=reason)
    raise ValidationFailed([fault], str(fault))

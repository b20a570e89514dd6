"""Decides whether a call may be sent, and whether a host may be reached.

The operator's policy comes first. Further layers (the mission's, the caller's) can only tighten it: a layer turns allow
into ask or deny, and ask into deny, never the reverse. Deny wins. All functions are pure, except that `Under` resolves
paths in the file system.
"""

from __future__ import annotations

import json
import math
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
from typing import Annotated, Any, Literal, cast
from urllib.parse import unquote, urlsplit

from pursuit.core.base_model import must, nearest
from pursuit.core.pins import Changes
from pursuit.core.tools import Tool, matches_tool
from pursuit.errors import Fault, ValidationFailed, advice

Decision = Literal["allow", "ask", "deny"]
Mode = Literal["auto", "ask", "never"]

SEVERITY: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
MODES: tuple[Mode, ...] = ("auto", "ask", "never")
"""The modes, from loosest to strictest."""

ANY = "*"
MAX_FORMS = 16
MAX_PATH = 4_096
MAX_TEXT = 65_536
"""The most characters that a rule's path may select in one call: reading them takes time while other clients wait."""
MAX_VALUES = 2_048
"""The most values that a rule's path may select in one call: each rule checks each of them."""
MAX_ORIGIN = 300
"""The most characters in scheme, host and port of an address: a host name has at most 253."""
_SLASHES = re.compile("/+")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_ORIGIN = re.compile(r"[^/?#:]+://[^/?#]*")
_CONTROLS = re.compile("[\x00-\x1f\x7f]")
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_DROPPED = re.compile("[\t\r\n]")  # URL parsers drop these at any position


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision, with a reason for people. If it asks, `require` is the number of people who must approve."""

    decision: Decision
    reason: str = ""
    require: int = 1
    changes: Changes | None = None
    """The changes that the operator must accept before an allow rule applies again."""


def stricter(one: Ruling, other: Ruling) -> Ruling:
    """The stricter ruling; the first if they are equal."""
    return max(one, other, key=lambda ruling: (SEVERITY[ruling.decision], ruling.require))


class Undecided(Exception):
    """It is unclear whether a rule matches: then allow rules do not apply and others do. The text says why."""


class CallArguments:
    """The arguments of one call of a server in the folder `cwd`. The values at a path are read once for all rules.

    `protected` has the path prefixes that no rule with `under` allows; a complete path ends with a slash.
    """

    def __init__(self, arguments: Mapping[str, Any], cwd: str | None = None, protected: Sequence[str] = ()) -> None:
        self.at = cache(partial(values_at, arguments))
        self.readings = cache(self._readings)
        self.place = cache(partial(_place, cwd))
        self.host = cache(plain_host)
        self._protected = [path.casefold() for path in protected]  # file names may ignore case

    def protects(self, place: str) -> bool:
        """True if a path leads to a protected place, or to a folder that contains one: a tool may move that folder."""
        plain = f"{place.casefold().rstrip('/')}/"
        return any(plain.startswith(one) or one.startswith(plain) for one in self._protected)

    def _readings(self, path: str) -> set[str] | None:
        """All texts that a server may read from the values at a path; None if there are too many."""
        found: set[str] = set()
        for value in self.at(path) or ():
            forms = _readings(_text(value))
            if forms is None or len(found) > 2 * MAX_VALUES:
                return None
            found.update(forms)
        return found if sum(map(len, found)) <= 4 * MAX_TEXT else None


def _place(cwd: str | None, path: str) -> str | None:
    """The target of a path: follows symbolic links and resolves `..`. None if it cannot be determined."""
    return os.path.realpath(Path(cwd or "/", path)) if cwd is not None or path.startswith("/") else None


@dataclass(frozen=True, slots=True)
class Under:
    """Matches paths and `file:` addresses that lead into a folder."""

    folder: str

    def holds(self, value: Any, given: CallArguments, *, allows: bool) -> bool | None:
        path = _as_path(value)
        place, folder = None if path is None else given.place(path), given.place(self.folder)
        if place is None or folder is None:
            return None
        inside = place == folder or place.startswith(f"{folder.rstrip('/')}/")
        if inside and allows and given.protects(place):
            raise Undecided(f"rules with under do not allow paths to Pursuit's own files: {place}")
        return inside

    def __str__(self) -> str:
        return f"under {self.folder}"


def _as_path(value: Any) -> str | None:
    """The text as a path if it is unambiguous: no home folder, no other scheme, nothing that servers read differently.

    Servers trim spaces and quotes: `link"` would be a new file here, but a symbolic link there.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH:
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
    """Matches addresses at one of these hosts; `.example.org` matches each sub-domain.

    Only a lower-case name or a dotted quad, as `urlsplit` and IDNA return it, can match: servers may read any other
    form (a user, an escape, a number, IPv6, a final dot) as another host.
    """

    names: tuple[str, ...]

    def holds(self, value: Any, given: CallArguments, *, allows: bool) -> bool | None:
        host = given.host(value) if isinstance(value, str) else None
        if host is None:
            return None
        return any(host.endswith(name) if name.startswith(".") else host == name for name in self.names)

    def __str__(self) -> str:
        return f"host {', '.join(self.names)}"


def plain_host(address: str) -> str | None:
    """The host of an address in its plain form; None if it does not have one, or if the address is too long."""
    if _CONTROLS.search(address) or "\\" in address or " " in address:
        return None
    origin = _ORIGIN.match(address)
    if origin is None or len(origin.group()) > MAX_ORIGIN:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Matches numbers, or texts by their length, within bounds; both ends are inside.

    A text is never a number here: servers read numbers in texts in many ways.
    """

    least: float | None = None
    most: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    def holds(self, value: Any, given: CallArguments, *, allows: bool) -> bool | None:
        if self.min_length is not None or self.max_length is not None:
            return _between(self.min_length, len(value), self.max_length) if isinstance(value, str) else None
        nan = isinstance(value, float) and math.isnan(value)
        number = isinstance(value, int | float) and not isinstance(value, bool) and not nan
        return _between(self.least, value, self.most) if number else None

    def __str__(self) -> str:
        names = {"min": self.least, "max": self.most, "min_length": self.min_length, "max_length": self.max_length}
        return ", ".join(f"{name} {value:g}" for name, value in names.items() if value is not None)


def _between(least: float | None, value: float, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


Pattern = str | Under | Hosts | Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Globs for the server, the tool and the text of arguments, which are named by their dotted path.

    An argument may also have a type: `Under`, `Hosts` or `Bounds`.

    If a value can be read in several ways, an ask or deny rule matches if any reading matches, and an allow rule only
    if all do.
    """

    decision: Decision
    server: str = ANY
    tool: str = ANY
    arguments: Mapping[str, Pattern] = field(default_factory=dict[str, Pattern])
    reason: str = ""
    require: int = 1
    """The number of people who must approve, for an ask rule."""

    def means(self, tool: Tool) -> bool:
        """True if it can match this tool, with any arguments.

        An allow rule applies to the server of a mission file only if it names that server: an operator who wrote `*`
        did not know of it.
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
        """True if it matches this call: each pattern matches its argument. Raises `Undecided`."""
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
            raise Undecided(f"the argument {path} has more than {MAX_TEXT:,} characters or {MAX_VALUES:,} values")
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
        """True if one of its patterns (for an allow rule, one of its globs) matches this text."""
        globs = {path: one for path, one in self.arguments.items() if isinstance(one, str) or self.decision != "allow"}
        return any(self._fits(path, pattern, CallArguments({path: text})) for path, pattern in globs.items())

    def __str__(self) -> str:
        when = ", ".join(f"{path} = {pattern}" for path, pattern in self.arguments.items())
        people = f" {self.require} people about" if self.require > 1 else ""
        said = f"{self.decision}{people} {self.server}.{self.tool}" + (f" when {when}" if when else "")
        return f"{said}: {self.reason}" if self.reason else said


def values_at(arguments: Mapping[str, Any], path: str) -> list[Any] | None:
    """The values at a dotted path: `*` is any key, a list stands for its elements, and keys may contain dots.

    None for more than `MAX_VALUES` values, or more than `MAX_TEXT` characters in total.
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
        left += islice(inside, MAX_TEXT)
        if seen + len(left) > MAX_TEXT or len(found) > MAX_VALUES:
            return None
    return found if sum(len(_text(one)) for one in found) <= MAX_TEXT else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _readings(text: str) -> list[str] | None:
    """The text and, if it may be a path or an address, its actual targets. None if it is escaped too often."""
    forms = _forms(text)
    return forms and [*forms, *(place for form in forms if "/" in form for place in _normalized(form))]


def _forms(text: str) -> list[str] | None:
    """The text, then each form that a server may get by undoing escapes in any order; None for too many."""
    forms = [text]
    for form in forms:
        plainer = [unquote(form)] if "%" in form else []
        if "\\" in form:
            plainer.append(form.replace("\\", "/"))
        if ":" in form and _DROPPED.search(form):
            plainer.append(_DROPPED.sub("", form))
        plainer.append(_folded(form))
        forms += dict.fromkeys(one for one in plainer if one not in forms)
        if len(forms) > MAX_FORMS:
            return None
    return forms


def _folded(text: str) -> str:
    """An address or address pattern with scheme and host, which are case-insensitive, in lower case."""
    origin = _ORIGIN.match(text)
    return text if origin is None else f"{origin.group().lower()}{text[origin.end() :]}"


def _normalized(text: str) -> Iterator[str]:
    """Yields the targets of a text as a path and as an address, unless they equal the text."""
    address = _ADDRESS.fullmatch(text)
    path = posixpath.normpath(_SLASHES.sub("/", text))
    if address is None:
        if path not in (text, text.removesuffix("/")):  # a trailing slash leads to the same place
            yield path
        return
    scheme, host, inside, rest = address.groups()
    if "/.." in text:  # as a path, the scheme is a folder
        yield f"{scheme}://{path.removeprefix(f'{scheme}:/')}" if path.startswith(f"{scheme}:/") else path
    normal = posixpath.normpath(_SLASHES.sub("/", inside)) if inside else ""  # keeps the host
    if normal not in (inside, inside.removesuffix("/")):
        yield f"{scheme}://{host}{normal}{rest}"


NetworkHost = Annotated[
    str,
    must(
        lambda pattern: pattern and "/" not in pattern and " " not in pattern,
        "{!r} is not a host; write example.com, .example.com (sub-domains) or *",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """Hosts, `.suffixes` for sub-domains, or `*` for all; each may end in `:port`.

    `.example.com` does not include `example.com`. Deny wins over allow, allow over ask. Unlisted hosts are allowed,
    since the operator wrote their addresses; with `ask = ["*"]` only listed hosts are allowed.
    """

    allow: tuple[NetworkHost, ...] = ()
    ask: tuple[NetworkHost, ...] = ()
    deny: tuple[NetworkHost, ...] = ()


def network_ruling(rules: NetworkRules, url: str) -> Decision:
    """The decision about this address; an address without a host is denied."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "deny"
    if parts.scheme not in ("http", "https") or not host:
        return "deny"
    wanted = str(port or (443 if parts.scheme == "https" else 80))
    host = _canonical(host)
    lists: tuple[tuple[Decision, Sequence[str]], ...] = (
        ("deny", rules.deny),
        ("allow", rules.allow),
        ("ask", rules.ask),
    )
    for decision, patterns in lists:
        for name, at in map(_split_port, patterns):
            below = name.startswith(".") and host.endswith(_canonical(name)) and len(host) > len(name)
            if at in (None, wanted) and (below or name == ANY or host == _canonical(name)):
                return decision
    return "allow"


def _split_port(pattern: str) -> tuple[str, str | None]:
    """Splits host and port; an IPv6 address is in brackets if a port follows, as in a URL."""
    if pattern.startswith("["):
        name, _, rest = pattern[1:].partition("]")
        return name, rest.removeprefix(":") or None
    if pattern.count(":") == 1:
        name, _, port = pattern.partition(":")
        return name, port
    return pattern, None


def _canonical(host: str) -> str:
    """The canonical spelling of a host: lower case, without a final dot, addresses in their short form."""
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
    """A further layer: the mission's, or the caller's. `allowed` has qualified names; None means all."""

    who: str
    allowed: frozenset[str] | None = None
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    mode: Mode = "auto"

    def decide(self, tool: Tool) -> Ruling:
        if self.allowed is not None and tool.qualified not in self.allowed:
            return Ruling(decision="deny", reason=f"{tool.qualified} is not in {self.who}'s list of tools")
        lists: tuple[tuple[Decision, tuple[str, ...]], ...] = (("deny", self.deny), ("ask", self.ask))
        for decision, patterns in lists:
            pattern = next((pattern for pattern in patterns if matches_tool(pattern, tool.qualified)), None)
            if pattern is not None:
                return Ruling(decision=decision, reason=f"{self.who}'s policy says {decision} ({pattern})")
        return Ruling(decision="allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """The operator's layer. The servers in `own` run in this process; the program itself passed them in."""

    mode: Mode = "ask"
    rules: tuple[Rule, ...] = ()
    network: NetworkRules = field(default_factory=NetworkRules)
    own: frozenset[str] = frozenset()
    callers: Mapping[str, Tightening] = field(default_factory=dict[str, Tightening])
    """A further layer for the caller with the token of this name."""
    folders: Mapping[str, str] = field(default_factory=dict[str, str])
    """The working folder of a server, or of a command by its qualified name: relative paths start there."""
    protected: tuple[str, ...] = ()
    """Path prefixes that no rule with `under` allows: Pursuit's own files. A complete path ends with a slash."""

    def ruled(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling | None:
        """The ruling of the strictest matching rule, before the mode. If a tool changed, an allow rule asks instead."""
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
        """The default without a matching rule, before the mode: allow read-only tools, ask for others."""
        if tool.allowed_because is not None:
            return Ruling(decision="allow", reason=tool.allowed_because)
        if tool.server in self.own:
            return Ruling(decision="allow", reason="passed in by the program itself")
        changed = "" if tool.changes is None else f"; {tool.changes.reason}"
        reads, destroys = (tool.traits.why.get(key, "nothing says otherwise") for key in ("read_only", "destructive"))
        if tool.traits.read_only and tool.changes is not None:  # it may have been read-write before
            return Ruling(decision="ask", reason=tool.changes.reason, changes=tool.changes)
        if tool.traits.read_only:
            return Ruling(decision="allow", reason=f"it only reads ({reads})")
        if tool.traits.destructive:
            return Ruling(decision="ask", reason=f"it may destroy something ({destroys}){changed}")
        return Ruling(decision="ask", reason=f"it may write ({reads}){changed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The operator's policy and the layers that tighten it, in order."""

    operator: OperatorPolicy = field(default_factory=OperatorPolicy)
    tighter: tuple[Tightening, ...] = ()

    @property
    def mode(self) -> Mode:
        modes: list[Mode] = [self.operator.mode, *(layer.mode for layer in self.tighter)]
        return max(modes, key=MODES.index)


def decide(layers: Layers, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
    """The ruling for a call of this tool with these arguments."""
    if tool.changes is not None and tool.changes.denies:
        reason = f"{tool.changes.reason}; `{advice('pursuit tools pin')}` accepts it"
        return _tightened(layers, tool, Ruling(decision="deny", reason=reason))
    return _tightened(layers, tool, layers.operator.ruled(tool, arguments) or layers.operator.without_rule(tool))


def _tightened(layers: Layers, tool: Tool, ruling: Ruling) -> Ruling:
    """The operator's ruling after the mode in force and the further layers."""
    mode = layers.mode
    if mode == "auto" and ruling.decision == "ask":
        ruling = Ruling(decision="allow", reason=f"mode auto; else asked: {ruling.reason}")
    for layer in layers.tighter:
        ruling = stricter(ruling, layer.decide(tool))
    if mode == "never" and ruling.decision == "ask":
        return Ruling(decision="deny", reason=f"mode never, nobody is asked: {ruling.reason}")
    return ruling


def without_lists(layers: Layers) -> Layers:
    """The layers without their tool lists, for calls that no list covers: `deny`, `ask` and the modes still apply."""
    return replace(layers, tighter=tuple(replace(layer, allowed=None) for layer in layers.tighter))


def decide_own(layers: Layers, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
    """The ruling for a check or a judge: allowed without a rule, because the operator wrote or trusted it.

    In mode `never` it needs an allow rule. A mission's list of tools does not apply to it; `deny` and `ask` do.
    """
    ruling = layers.operator.ruled(tool, arguments)
    if ruling is None and layers.mode == "never":
        return Ruling(decision="deny", reason=f"mode never, and no rule allows {tool.qualified}")
    return _tightened(without_lists(layers), tool, ruling or Ruling(decision="allow", reason="the operator wrote it"))


def decide_request(layers: Layers, tool: Tool, params: Mapping[str, Any]) -> Ruling:
    """The ruling for a request that is not a call (`tool` stands for its method), or for an offered command.

    It cannot be approved. Without a rule or layer that names it, a request that is not a read is denied only in
    mode `never`.
    """
    ruled = layers.operator.ruled(tool, params)
    ruling = _tightened(layers, tool, ruled or layers.operator.without_rule(tool))
    named = ruled is not None or any(layer.decide(tool).decision != "allow" for layer in layers.tighter)
    if ruling.decision == "ask" and not named:
        return Ruling(decision="allow", reason=ruling.reason)
    return ruling


def conditional_rules(layers: Layers, tool: Tool) -> list[Rule]:
    """The rules that match this tool only with some arguments: a listing cannot predict them."""
    return [rule for rule in layers.operator.rules if rule.arguments and rule.means(tool)]


def may_ask(layers: Layers, tools: Iterable[Tool]) -> bool:
    """True if a call of one of these tools may need approval."""
    if layers.mode == "never":
        return False
    asks = layers.mode == "ask" and any(rule.decision == "ask" for rule in layers.operator.rules)
    return (
        asks
        or any(layer.ask for layer in layers.tighter)
        or any(decide(layers, tool, {}).decision == "ask" for tool in tools)
    )


def parse_mode(mode: str, *, field: str = "mode") -> Mode:
    """The mode by its name; raises `ValidationFailed` for an unknown name, given as `field`."""
    if mode in MODES:
        return mode
    reason = f"{mode!r} is not a mode{nearest(mode, MODES) or '; use auto, ask or never'}"
    fault = Fault(field=field, reason=reason)
    raise ValidationFailed([fault], str(fault))

"""Which hosts an upstream may be reached at.

Owns: the rules and the ruling, a pure function. Does not know: connections. Invariant: deny wins over allow, and allow
over ask; a rule `.example.com` means the sub-domains and not `example.com` itself. A host that no rule names is
allowed, for the operator wrote its address himself; `ask = ["*"]` makes a list of allowed ones complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from pursuit.errors import Fault
from pursuit.tools.fields import Fields, as_table, kind

NetworkRuling = Literal["allow", "ask", "deny"]
_LISTS = ("allow", "ask", "deny")


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


def parse_network(table: object, *, source: str, at: str = "network") -> tuple[NetworkRules, list[Fault]]:
    """The rules of a configuration's table, and every fault."""
    entries = as_table(table)
    if entries is None:
        return NetworkRules(), [Fault(field=at, reason=f"must be a table, not {kind(table)}", source=source)]
    faults: list[Fault] = []
    fields = Fields(entries, at=at, source=source, faults=faults)
    fields.only(_LISTS)
    lists: Mapping[str, Sequence[str]] = {key: fields.texts(key) or () for key in _LISTS}
    for key, patterns in lists.items():
        for pattern in patterns:
            if not pattern or "/" in pattern or " " in pattern:
                fields.fault(key, f"{pattern!r} is no host; write example.com, .example.com (sub-domains) or *")
    return NetworkRules(allow=lists["allow"], ask=lists["ask"], deny=lists["deny"]), faults

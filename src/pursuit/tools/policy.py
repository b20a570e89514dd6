"""Whether a call may be sent.

Owns: the operator's policy, the layers that may only tighten it, and `decide`. Does not know: approvals, or who asks.
Invariant: `decide` is pure; a layer turns allow into ask or deny and ask into deny, never back; deny wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pursuit.core.base_model import nearest
from pursuit.core.tools import SPAWN_TOOL, Tool
from pursuit.errors import Fault, ValidationFailed
from pursuit.tools.network import NetworkRules
from pursuit.tools.rules import Rule
from pursuit.tools.ruling import Decision, Mode, Ruling, stricter

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

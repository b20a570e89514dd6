"""Reads the table `[policy]` of `pursuit.toml`.

Owns: its keys and the words of its faults. Does not know: what a rule decides. Invariant: a policy that it hands out
is whole; every fault, with its place, is in the reader's list.
"""

from __future__ import annotations

from typing import cast

from pursuit.core.base_model import nearest
from pursuit.errors import ValidationFailed
from pursuit.tools.fields import Fields, as_table, kind
from pursuit.tools.network import NetworkRules, parse_network
from pursuit.tools.policy import OperatorPolicy, Tightening, parse_mode
from pursuit.tools.rules import ANY, Rule
from pursuit.tools.ruling import SEVERITY, Decision, Mode

POLICY_KEYS = ("mode", "rules", "network", "callers")
CALLER_KEYS = ("mode", "deny", "ask")
RULE_KEYS = ("decision", "server", "tool", "arguments", "reason")


def parse_policy(fields: Fields) -> OperatorPolicy:
    """The operator's policy out of the whole configuration; the default where there is no such table."""
    table = Fields(fields.subtable("policy"), at="policy", source=fields.source, faults=fields.faults)
    table.only(POLICY_KEYS)
    return OperatorPolicy(mode=_mode(table), rules=_rules(table), network=_network(table), callers=_callers(table))


def _mode(table: Fields) -> Mode:
    word = table.text("mode")
    if word is None:
        return "ask"
    try:
        return parse_mode(word)
    except ValidationFailed as failed:
        table.fault("mode", failed.faults[0].reason)
        return "ask"


def _callers(table: Fields) -> dict[str, Tightening]:
    """What holds for whoever shows a token, by the token's name."""
    found: dict[str, Tightening] = {}
    for name, value in table.subtable("callers").items():
        entry = as_table(value)
        if entry is None:
            table.fault(f"callers.{name}", f"must be a table, not {kind(value)}")
            continue
        fields = Fields(entry, at=f"policy.callers.{name}", source=table.source, faults=table.faults)
        fields.only(CALLER_KEYS)
        found[name] = Tightening(
            who=f"the caller {name}",
            deny=fields.texts("deny") or (),
            ask=fields.texts("ask") or (),
            mode=_mode(fields) if "mode" in entry else "auto",
        )
    return found


def _rules(table: Fields) -> tuple[Rule, ...]:
    if "rules" not in table.table:
        return ()
    value = table.table["rules"]
    if not isinstance(value, list):
        table.fault("rules", f"must be a list of tables ([[policy.rules]]), not {kind(value)}")
        return ()
    found: list[Rule] = []
    for place, item in enumerate(cast("list[object]", value)):
        at = f"rules[{place}]"
        entry = as_table(item)
        if entry is None:
            table.fault(at, f"must be a table, not {kind(item)}")
            continue
        rule = Fields(entry, at=f"policy.{at}", source=table.source, faults=table.faults)
        rule.only(RULE_KEYS)
        found.append(
            Rule(
                decision=_decision(rule),
                server=rule.text("server") or ANY,
                tool=rule.text("tool") or ANY,
                arguments=rule.text_map("arguments"),
                reason=rule.text("reason") or "",
            )
        )
    return tuple(found)


def _decision(rule: Fields) -> Decision:
    word = rule.text("decision")
    if word in SEVERITY:
        return word
    if "decision" not in rule.table:
        rule.fault("decision", "is missing; say allow, ask or deny")
    elif word is not None:
        rule.fault("decision", f"{word!r} is no decision{nearest(word, SEVERITY) or '; use allow, ask or deny'}")
    return "deny"


def _network(table: Fields) -> NetworkRules:
    if "network" not in table.table:
        return NetworkRules()
    rules, faults = parse_network(table.table["network"], source=table.source, at="policy.network")
    table.faults.extend(faults)
    return rules

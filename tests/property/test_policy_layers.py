"""Policy is a pure function, and no layer loosens the ones before it, whatever they say."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pursuit.core.mission import MissionPolicy
from pursuit.core.tools import Tool, Traits
from pursuit.policy.rules import (
    MODES,
    SEVERITY,
    CallArguments,
    Layers,
    OperatorPolicy,
    Rule,
    Tightening,
    Undecided,
    decide,
    may_ask,
)
from pursuit.upstream.host import ToolHost
from pursuit.upstream.pool import Pool

PIECES = ["/", "..", ".", "a", "%2e", "%2f", "%252e", "%252f", "%5c", "\\", "x:", "://", "?", "#", "%", "25", "\t"]
SERVERS, NAMES = ("a", "git"), ("log", "reset", "write_file")
globs = st.sampled_from(["*", "a", "g*", "log", "re*", "write_*", "git.log", "nothing"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["/tmp/x", "/etc/y", "/tmp/../etc/y", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "x"]), inner, max_size=2),
    max_leaves=6,
)
arguments = st.dictionaries(st.sampled_from(["path", "x", "x.path"]), values, max_size=3)
patterns = st.dictionaries(
    st.sampled_from(["path", "x", "x.path", "*"]), st.sampled_from(["*", "/etc/*", "/tmp/*", "true", "1"]), max_size=2
)
rules = st.builds(Rule, decision=st.sampled_from(list(SEVERITY)), server=globs, tool=globs, arguments=patterns)
modes = st.sampled_from(MODES)
operators = st.builds(
    OperatorPolicy,
    mode=modes,
    rules=st.lists(rules, max_size=4).map(tuple),
    own=st.frozensets(st.sampled_from(SERVERS)),
)
layers = st.builds(
    Tightening,
    who=st.just("somebody"),
    allowed=st.none() | st.frozensets(st.sampled_from([f"{s}.{n}" for s in SERVERS for n in NAMES])),
    deny=st.lists(globs, max_size=2).map(tuple),
    ask=st.lists(globs, max_size=2).map(tuple),
    mode=modes,
)
stacks = st.builds(Layers, operator=operators, tighter=st.lists(layers, max_size=3).map(tuple))
tools = st.builds(
    Tool,
    server=st.sampled_from(SERVERS),
    name=st.sampled_from(NAMES),
    input_schema=st.just({}),
    definition=st.just({}),
    traits=st.builds(Traits, read_only=st.booleans(), destructive=st.booleans()),
)


def severity(stack: Layers, tool: Tool, given_: dict[str, Any]) -> int:
    return SEVERITY[decide(stack, tool, given_).decision]


def matches(rule: Rule, tool: Tool, arguments: dict[str, Any]) -> bool:
    """Whether the rule counts for the call; one that cannot be decided counts unless it allows."""
    try:
        return rule.matches(tool, CallArguments(arguments))
    except Undecided:
        return rule.decision != "allow"


@pytest.mark.guarantee("policy-only-tightens")
@given(stacks, layers, tools, arguments)
def test_a_further_layer_never_loosens(stack: Layers, layer: Tightening, tool: Tool, given_: dict[str, Any]) -> None:
    more = Layers(operator=stack.operator, tighter=(*stack.tighter, layer))
    assert severity(more, tool, given_) >= severity(stack, tool, given_)


@pytest.mark.guarantee("policy-only-tightens")
@given(operators, st.lists(st.sampled_from(NAMES)), st.sampled_from([None, "ask", "never"]), tools, arguments)
def test_a_missions_own_policy_never_loosens_the_operators(
    operator: OperatorPolicy, words: list[str], mode: Any, tool: Tool, given_: dict[str, Any]
) -> None:
    host = ToolHost(Pool({}), operator)
    mission = MissionPolicy(deny=words[:1], ask=words[1:], mode=mode)
    assert severity(host.layers([tool.qualified], mission), tool, given_) >= severity(host.layers(), tool, given_)


@given(stacks, tools, arguments)
def test_deny_wins_and_each_answer_has_a_reason(stack: Layers, tool: Tool, given_: dict[str, Any]) -> None:
    assert decide(stack, tool, given_).reason
    denied = any(rule.decision == "deny" and matches(rule, tool, given_) for rule in stack.operator.rules)
    denied |= any(layer.decide(tool).decision == "deny" for layer in stack.tighter)
    if denied:
        assert decide(stack, tool, given_).decision == "deny"


@given(stacks, tools, arguments)
def test_a_stricter_mode_never_allows_more(stack: Layers, tool: Tool, given_: dict[str, Any]) -> None:
    operator = stack.operator
    answers = [
        severity(
            Layers(operator=OperatorPolicy(mode=mode, rules=operator.rules, own=operator.own), tighter=stack.tighter),
            tool,
            given_,
        )
        for mode in MODES
    ]
    assert answers == sorted(answers)


@given(stacks, tools, arguments)
def test_nobody_is_asked_where_it_was_said_that_nobody_would_be(
    stack: Layers, tool: Tool, given_: dict[str, Any]
) -> None:
    if not may_ask(stack, [tool]):
        assert decide(stack, tool, given_).decision != "ask"


@given(tools, patterns, arguments)
def test_whatever_a_rule_allows_the_same_rule_would_deny(
    tool: Tool, pattern: dict[str, str], given_: dict[str, Any]
) -> None:
    if matches(Rule(decision="allow", arguments=pattern), tool, given_):
        assert matches(Rule(decision="deny", arguments=pattern), tool, given_)


@given(st.sampled_from(["/work/out/", "https://x.example/out/"]), st.lists(st.sampled_from(PIECES), max_size=12))
def test_what_a_rule_allows_below_a_place_stays_there_however_it_is_read(place: str, pieces: list[str]) -> None:
    value = place + "".join(pieces)
    tool = Tool(server="a", name="log", input_schema={}, definition={})
    if not matches(Rule(decision="allow", arguments={"path": f"{place}*"}), tool, {"path": value}):
        return
    for _ in range(5):
        for read in (value, value.replace("\\", "/")):
            # urlsplit leaves tabs out, as browsers do.
            path = urlsplit(read).path if "://" in place else read
            assert f"{posixpath.normpath(path)}/".startswith(urlsplit(place).path), read
        value = unquote(value)

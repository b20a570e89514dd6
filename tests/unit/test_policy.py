"""What policy says of a call: rules, modes, layers, and the words that a person decides by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pursuit.config.configuration import load_configuration
from pursuit.core.tools import Tool, Traits
from pursuit.errors import ValidationFailed
from pursuit.policy.rules import (
    CallArguments,
    Layers,
    Mode,
    OperatorPolicy,
    Rule,
    Tightening,
    conditional_rules,
    decide,
    may_ask,
)
from pursuit.policy.traits import (
    tool_approval_description,
)

SAFE = Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False)
WORST = Traits()


def tool(name: str = "git.reset", traits: Traits = WORST, **more: Any) -> Tool:
    server, _, bare = name.partition(".")
    return Tool(server=server, name=bare, input_schema={}, definition={}, traits=traits, **more)


def say(policy: OperatorPolicy, *tighter: Tightening, on: Tool | None = None, **arguments: Any) -> str:
    return decide(Layers(operator=policy, tighter=tighter), on or tool(), arguments).decision


def ruled(*rules: Rule, mode: Mode = "ask") -> OperatorPolicy:
    return OperatorPolicy(mode=mode, rules=rules)


def test_without_a_rule_reads_are_allowed_and_the_rest_is_asked_about() -> None:
    assert say(OperatorPolicy(), on=tool(traits=SAFE)) == "allow"
    assert say(OperatorPolicy()) == "ask"
    assert say(OperatorPolicy(), on=tool(traits=Traits(destructive=False))) == "ask"
    reason = decide(Layers(), tool(traits=Traits(why={"destructive": "it says so"})), {}).reason
    assert reason == "it may destroy something (it says so)"


def test_what_the_program_handed_in_is_its_own_but_rules_hold() -> None:
    own = OperatorPolicy(own=frozenset({"git"}))
    assert say(own) == "allow"
    assert say(own, Tightening(who="the mission", ask=("reset",))) == "ask"
    rule = Rule(decision="deny", server="git")
    assert say(OperatorPolicy(own=frozenset({"git"}), rules=(rule,))) == "deny"


@pytest.mark.parametrize(
    ("rule", "ours", "theirs"),
    [
        (Rule(decision="allow"), "allow", "ask"),
        (Rule(decision="allow", server="g*"), "allow", "ask"),
        (Rule(decision="allow", tool="*.reset"), "allow", "ask"),
        (Rule(decision="allow", tool="reset"), "allow", "ask"),
        (Rule(decision="allow", server="git"), "allow", "allow"),
        (Rule(decision="allow", tool="git.*"), "allow", "allow"),
        (Rule(decision="deny"), "deny", "deny"),
        (Rule(decision="ask", server="g*"), "ask", "ask"),
    ],
)
def test_a_rule_that_allows_means_a_mission_files_server_only_by_its_name(rule: Rule, ours: str, theirs: str) -> None:
    assert say(ruled(rule), on=tool()) == ours
    assert say(ruled(rule), on=tool(operators=False)) == theirs
    assert say(ruled(Rule(decision="deny"), Rule(decision="allow")), on=tool(operators=False)) == "deny"


@pytest.mark.parametrize(
    ("mode", "reads", "writes", "denied"),
    [("auto", "allow", "allow", "deny"), ("ask", "allow", "ask", "deny"), ("never", "allow", "deny", "deny")],
)
def test_modes(mode: Mode, reads: str, writes: str, denied: str) -> None:
    policy = ruled(Rule(decision="deny", tool="drop*"), mode=mode)
    assert say(policy, on=tool(traits=SAFE)) == reads
    assert say(policy) == writes
    assert say(policy, on=tool("db.drop_all", SAFE)) == denied


def test_deny_wins_over_ask_and_ask_over_allow() -> None:
    allow, ask, deny = (Rule(decision=word) for word in ("allow", "ask", "deny"))
    assert say(ruled(allow)) == "allow"
    assert say(ruled(allow, ask)) == say(ruled(ask, allow)) == "ask"
    assert say(ruled(deny, allow, ask)) == say(ruled(ask, allow, deny)) == "deny"


def test_rules_name_servers_and_tools_by_globs() -> None:
    for found in (
        Rule(decision="deny", server="g*"),
        Rule(decision="deny", tool="re?et"),
        Rule(decision="deny", tool="git.reset"),
    ):
        assert say(ruled(found)) == "deny", found
    for missed in (
        Rule(decision="deny", server="gi"),
        Rule(decision="deny", tool="RESET"),
        Rule(decision="deny", server="git", tool="x"),
    ):
        assert say(ruled(missed)) == "ask", missed


@pytest.mark.parametrize(
    ("pattern", "arguments", "matches"),
    [
        ({"path": "/etc/*"}, {"path": "/etc/passwd"}, True),
        ({"path": "/etc/*"}, {}, False),
        ({"path": "/etc/*"}, {"path": "/tmp/../etc/passwd"}, True),
        ({"path": "/etc/*"}, {"path": "//etc//passwd"}, True),
        ({"path": "/etc/*"}, {"path": ["/tmp/x", "/etc/y"]}, True),
        ({"options.path": "/etc/*"}, {"options": {"path": "/etc/x"}}, True),
        ({"edits.newText": "*sudo*"}, {"edits": [{"newText": "a"}, {"newText": "x sudo y"}]}, True),
        ({"*": "*secret*"}, {"a": 1, "b": "my secret"}, True),
        ({"*.path": "/etc/*"}, {"a": {"path": "/etc/x"}}, True),
        ({"force": "true"}, {"force": True}, True),
        ({"force": "true"}, {"force": "false"}, False),
        ({"n": "5"}, {"n": 5}, True),
        ({"o": '{"a":1,"b":*}'}, {"o": {"b": 2, "a": 1}}, True),
        ({"url": "https://x.example/a/*"}, {"url": "https://x.example/b/../a/c"}, True),
        ({"path": "/etc/*"}, {"path": "/tmp/%2e%2e/etc/passwd"}, True),
        ({"path": "/etc/*"}, {"path": "/tmp/%252e%252e%252fetc%252fpasswd"}, True),
        ({"path": "/etc/*"}, {"path": "\\tmp\\..\\etc\\passwd"}, True),
        ({"url": "https://x.example/admin*"}, {"url": "https://x.example/a/.\t./admin"}, True),
        ({"url": "https://x.example/*"}, {"url": "HTTPS://X.Example/a"}, True),
        ({"url": "https://x.example/admin*"}, {"url": "hTTps://X.example/a/%2e%2e/admin"}, True),
        ({"url": "https://x.example/A*"}, {"url": "https://X.example/a"}, False),
        ({"a": "1", "b": "2"}, {"a": 1, "b": 3}, False),
        ({"a": "1", "b": "2"}, {"a": 1, "b": 2}, True),
    ],
)
def test_a_rule_that_denies_matches_if_any_reading_does(
    pattern: dict[str, str], arguments: dict[str, Any], matches: bool
) -> None:
    assert Rule(decision="deny", arguments=pattern).matches(tool(), CallArguments(arguments)) is matches


@pytest.mark.parametrize(
    ("path", "matches"),
    [
        ("/tmp/a", True),
        ("/tmp/sub/", True),
        ("/tmp/../etc/passwd", False),
        (["/tmp/a", "/tmp/b"], True),
        (["/tmp/a", "/etc/passwd"], False),
        ([], False),
        (None, False),
    ],
)
def test_a_rule_that_allows_matches_only_if_every_reading_does(path: Any, matches: bool) -> None:
    assert (
        Rule(decision="allow", arguments={"path": "/tmp/*"}).matches(tool(), CallArguments({"path": path})) is matches
    )


@pytest.mark.parametrize(
    ("value", "matches"),
    [
        ("/work/out/a", True),
        ("/work/out/a b/100%", True),
        ("/work/out/a%20b/", True),
        ("/work/out/see://there", True),
        ("/work/out/x://../../../etc/cron.d/evil", False),
        ("/work/out/%2e%2e/x", False),
        ("/work/out/a%252fb%2f..%2f..%2fc", False),  # leads out if it is decoded once, and not if twice
        ("/work/out/..\\x", False),
        ("https://x.example/a/b", True),
        ("https://x.example/a/b/../c?q=1#f", True),
        ("HTTPS://x.example/a/b", False),  # as a text it is another one
        ("https://x.example/a/../admin", False),
        ("https://x.example/a/%2e%2e/admin", False),
        ("https://x.example/a/..\\admin", False),
        ("https://x.example/a/..?q", False),
        ("https://x.example/a/.\n./admin", False),
        ("https://x.example/a/../../x.example/a/b", False),  # a browser keeps the host: /x.example/a/b
    ],
)
def test_what_leads_elsewhere_in_any_reading_is_not_allowed(value: str, matches: bool) -> None:
    place = "https://x.example/a/*" if value.lower().startswith("https") else "/work/out/*"
    assert Rule(decision="allow", arguments={"path": place}).matches(tool(), CallArguments({"path": value})) is matches


def test_a_rule_that_allows_an_address_means_it_in_either_case() -> None:
    rule = Rule(decision="allow", arguments={"url": "https://X.Example/a/*"})
    for address in ("https://X.Example/a/b", "https://x.example/a/b"):
        assert rule.matches(tool(), CallArguments({"url": address}))
    assert not rule.matches(tool(), CallArguments({"url": "https://x.example/A/b"}))


def test_what_is_escaped_beyond_reason_is_allowed_by_no_rule() -> None:
    value = f"/tmp/%{'25' * 40}2e"
    assert say(ruled(Rule(decision="allow", arguments={"path": "*"})), path=value) == "ask"
    assert say(ruled(Rule(decision="deny", arguments={"path": "/etc/*"})), path=value) == "deny"


def test_arguments_that_are_nested_too_deeply_are_allowed_by_no_rule() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = {"b": [deep]}
    assert say(ruled(Rule(decision="deny", arguments={"a": "never"})), a=deep) == "deny"
    assert say(ruled(Rule(decision="allow", arguments={"a": "*"})), a=deep) == "ask"


def test_the_missions_layer_tightens() -> None:
    auto = OperatorPolicy(mode="auto")
    assert say(auto, Tightening(who="the mission", mode="ask")) == "ask"
    assert say(auto, Tightening(who="the mission", mode="never")) == "deny"
    assert say(auto, Tightening(who="the mission", ask=("git.re*",))) == "ask"
    assert say(auto, Tightening(who="the mission", ask=("reset",)), on=tool(traits=SAFE)) == "ask"
    assert (
        say(OperatorPolicy(mode="never"), Tightening(who="the mission", ask=("reset",)), on=tool(traits=SAFE)) == "deny"
    )
    assert say(auto, Tightening(who="the mission", deny=("*",))) == "deny"
    assert say(auto, Tightening(who="the mission", allowed=frozenset({"git.log"}))) == "deny"
    ruling = decide(Layers(tighter=(Tightening(who="the mission", allowed=frozenset()),)), tool(), {})
    assert ruling.reason == "git.reset is not in the mission's list of tools"


def test_whether_a_person_may_be_asked_at_all() -> None:
    writes, reads = tool(), tool("git.log", SAFE)
    assert may_ask(Layers(), [writes, reads])
    assert not may_ask(Layers(), [reads])
    assert not may_ask(Layers(operator=OperatorPolicy(mode="auto")), [writes])
    assert not may_ask(Layers(operator=OperatorPolicy(mode="never")), [writes])
    rule = Rule(decision="ask", arguments={"path": "/etc/*"})
    assert may_ask(Layers(operator=ruled(rule)), [reads])
    assert not may_ask(Layers(operator=ruled(rule, mode="auto")), [reads])
    mission = Tightening(who="the mission", ask=("log",))
    assert may_ask(Layers(operator=OperatorPolicy(mode="auto"), tighter=(mission,)), [reads])
    assert conditional_rules(Layers(operator=ruled(rule, Rule(decision="deny"))), reads) == [rule]


def test_a_policy_is_for_pursuit_toml_only(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}, "policy": {"mode": "auto"}}')
    with pytest.raises(ValidationFailed) as caught:
        load_configuration(tmp_path / "mcp.json")
    assert [fault.field for fault in caught.value.faults] == ["policy"]


def test_the_question_to_a_person() -> None:
    arguments = {"path": "/tmp/x", "api_token": "hunter2", "content": "y" * 5_000, "\x1b[2Jname": "\u202egpj.exe\n"}
    text = tool_approval_description(tool(), arguments, "it may\nwrite")
    assert text.splitlines()[0] == "reset of server git (may destroy things)"
    assert '  path: "/tmp/x"' in text.splitlines()
    assert "hunter2" not in text
    assert "(5000 characters)" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.splitlines()[-1] == "asked because it may write"
    assert "without arguments" in tool_approval_description(tool(traits=SAFE), {}, "you said so")
    many = tool_approval_description(tool(), {f"a{place}": "x" * 400 for place in range(50)}, "why")
    assert len(many) < 7_000
    assert "50 arguments" in many


def test_what_is_too_long_decides_only_where_all_other_patterns_match() -> None:
    long = "x" * 65_537
    for patterns in ({"content": "*sudo*", "path": "/etc/*"}, {"path": "/etc/*", "content": "*sudo*"}):
        rule = Rule(decision="deny", arguments=patterns)
        assert say(ruled(rule), on=tool(traits=SAFE), path="/tmp/x", content=long) == "allow"
        assert say(ruled(rule), on=tool(traits=SAFE), path="/etc/x", content=long) == "deny"
        assert say(ruled(rule), on=tool(traits=SAFE), path="/etc/x", content=long[1:]) == "allow"
    allow = Rule(decision="allow", arguments={"content": "*"})
    assert [say(ruled(allow), content=text) for text in (long[1:], long, [long[1:], "x"])] == ["allow", "ask", "ask"]
    assert say(ruled(allow), on=tool(traits=SAFE), content=long) == "allow"
    assert say(ruled(allow, mode="never"), content=long) == "deny"

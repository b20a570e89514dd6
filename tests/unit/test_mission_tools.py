"""What a mission's tools say of a call: the same as the policy, however often it is asked."""

from __future__ import annotations

from pursuit.core.catalogue import Catalogue
from pursuit.core.tools import Tool, Traits
from pursuit.policy.rules import Layers, OperatorPolicy, Rule, decide
from pursuit.upstream.host import UpstreamTools
from pursuit.upstream.pool import Pool


def tool(name: str, *, reads: bool = False) -> Tool:
    return Tool(server="lab", name=name, input_schema={}, definition={}, traits=Traits(read_only=reads))


def tools_under(*rules: Rule) -> UpstreamTools:
    layers = Layers(operator=OperatorPolicy(mode="ask", rules=rules))
    return UpstreamTools(pool=Pool({}), catalogue=Catalogue(), layers=layers, asking=True)


def test_a_rule_about_arguments_is_asked_about_each_call() -> None:
    tools = tools_under(Rule(decision="deny", tool="write", arguments={"path": "/etc/*"}))
    write = tool("write", reads=True)
    asked = [tools.rule(write, {"path": path}).decision for path in ("/tmp/a", "/etc/a", "/tmp/a", "/etc/a")]
    assert asked == ["allow", "deny", "allow", "deny"]


def test_what_no_rule_judges_by_its_arguments_is_remembered_by_tool() -> None:
    tools = tools_under(Rule(decision="deny", tool="drop"), Rule(decision="deny", tool="write", arguments={"x": "1"}))
    drop, read = tool("drop"), tool("read", reads=True)
    for one in (drop, read, drop, read):
        assert tools.rule(one, {"x": 1}) == decide(tools.layers, one, {"x": 1})
    assert tools.rule(drop, {}) is tools.rule(drop, {"x": 2})


def test_another_tool_of_the_same_name_is_judged_anew() -> None:
    tools = tools_under()
    assert tools.rule(tool("run", reads=True), {}).decision == "allow"
    assert tools.rule(tool("run"), {}).decision == "ask"

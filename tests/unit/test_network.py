"""Which hosts may be reached: a pure function, and its rules in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pursuit.config.configuration import load_configuration
from pursuit.errors import ValidationFailed
from pursuit.policy.rules import NetworkRules, network_ruling


@pytest.mark.parametrize(
    ("rules", "url", "expected"),
    [
        ({}, "https://example.com/mcp", "allow"),
        ({"deny": ["example.com"]}, "https://example.com/mcp", "deny"),
        ({"deny": ["example.com"], "allow": ["example.com"]}, "https://example.com", "deny"),
        ({"deny": ["example.com"]}, "https://a.example.com", "allow"),
        ({"deny": [".example.com"]}, "https://a.example.com", "deny"),
        ({"deny": [".example.com"]}, "https://a.b.example.com", "deny"),
        ({"deny": [".example.com"]}, "https://example.com", "allow"),
        ({"deny": [".example.com"]}, "https://notexample.com", "allow"),
        ({"deny": ["example.com"]}, "https://EXAMPLE.com./x", "deny"),
        ({"deny": ["EXAMPLE.com"]}, "https://example.com", "deny"),
        ({"deny": [".EXAMPLE.com"]}, "HTTPS://A.Example.COM/mcp", "deny"),
        ({"deny": ["example.com:443"]}, "HTTPS://Example.COM", "deny"),
        ({"ask": ["*"], "allow": ["Example.com"]}, "Http://EXAMPLE.COM/", "allow"),
        ({"deny": ["bücher.de"]}, "https://xn--bcher-kva.de", "deny"),
        ({"deny": ["xn--bcher-kva.de"]}, "https://bücher.de", "deny"),
        ({"deny": ["example.com"]}, "https://user:x@example.com:8443/", "deny"),
        ({"deny": ["example.com:8443"]}, "https://example.com:8443/", "deny"),
        ({"deny": ["example.com:8443"]}, "https://example.com/", "allow"),
        ({"deny": ["example.com:443"]}, "https://example.com/", "deny"),
        ({"deny": ["::1"]}, "http://[0:0:0:0:0:0:0:1]:80/", "deny"),
        ({"deny": ["[::1]:80"]}, "http://[::1]/", "deny"),
        ({"deny": ["*"]}, "http://127.0.0.1/", "deny"),
        ({"ask": ["*"]}, "http://127.0.0.1/", "ask"),
        ({"ask": ["*"], "allow": [".example.com"]}, "https://a.example.com", "allow"),
        ({"ask": ["*"], "allow": [".example.com"]}, "https://example.com", "ask"),
        ({"ask": ["a.example.com"], "deny": [".example.com"]}, "https://a.example.com", "deny"),
        ({}, "ftp://example.com", "deny"),
        ({}, "not an address", "deny"),
        ({}, "http://", "deny"),
        ({}, "http://[::1", "deny"),
        ({}, "http://example.com:99999999/", "deny"),
    ],
)
def test_the_ruling(rules: dict[str, list[str]], url: str, expected: str) -> None:
    assert network_ruling(NetworkRules(**rules), url) == expected


def test_the_rules_are_read_with_all_their_faults(tmp_path: Path) -> None:
    path = tmp_path / "pursuit.toml"
    path.write_text("[policy.network]\nallow = ['a.com']\ndeny = ['.b.com']\n", encoding="utf-8")
    assert load_configuration(path).policy.network == NetworkRules(allow=("a.com",), deny=(".b.com",))
    path.write_text("[policy.network]\nalow = []\ndeny = ['http://b.com/', 1]\nask = 'x'\n", encoding="utf-8")
    with pytest.raises(ValidationFailed) as refused:
        load_configuration(path)
    fields = sorted(fault.field.removeprefix("policy.network.") for fault in refused.value.faults)
    assert fields == ["alow", "ask", "deny[0]", "deny[1]"]

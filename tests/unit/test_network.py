"""Which hosts may be reached: a pure function."""

from __future__ import annotations

import pytest

from pursuit.policy.rules import NetworkRules, network_ruling


@pytest.mark.parametrize(
    ("rules", "url", "expected"),
    [
        ({}, "https://example.com/mcp", "allow"),
        ({"deny": ["example.com"]}, "https://example.com/mcp", "deny"),
        ({"deny": ["example.com"], "allow": ["example.com"]}, "https://example.com", "deny"),
        ({"deny": ["example.com"]}, "https://a.example.com", "allow"),
        ({"deny": [".example.com"]}, "https://a.example.com", "deny"),
        ({"deny": [".example.com"]}, "https://example.com", "allow"),
        ({"deny": [".example.com"]}, "https://notexample.com", "allow"),
        ({"deny": ["example.com"]}, "https://EXAMPLE.com./x", "deny"),
        ({"deny": [".EXAMPLE.com"]}, "HTTPS://A.Example.COM/mcp", "deny"),
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
        ({"ask": ["a.example.com"], "deny": [".example.com"]}, "https://a.example.com", "deny"),
        ({}, "ftp://example.com", "deny"),
        ({}, "not an address", "deny"),
        ({}, "http://[::1", "deny"),
        ({}, "http://example.com:99999999/", "deny"),
    ],
)
def test_the_ruling(rules: dict[str, list[str]], url: str, expected: str) -> None:
    assert network_ruling(NetworkRules(**rules), url) == expected

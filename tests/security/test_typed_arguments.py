"""Rules with `under` and `host`: no other spelling gets through a rule that allows, nor past one that denies."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from workspace import Victim

from pursuit.config.configuration import load_configuration
from pursuit.core.tools import Tool
from pursuit.policy.rules import Layers, decide

CONFIGURATION = """
[servers.files]
command = "x"
cwd = "work"
[servers.far]
url = "http://127.0.0.1:9/mcp"
[policy]
mode = "never"
[[policy.rules]]
decision = "{decision}"
arguments = {{ {arguments} }}
"""

PATHS: dict[str, bool] = {
    "data/x": True,
    "./data/../data/x": True,
    "ROOT/work/data": True,
    "ROOT/work/data/deep/er": True,
    "file://ROOT/work/data/x": True,
    "file://localhostROOT/work/data/x": True,
    "file:ROOT/work/data/x": True,
    "inside": True,
    "data/%2e%2e/secret": True,  # a name, as the file system reads it
    "": False,
    "data/../secret": False,
    "ROOT/work/data-secrets": False,
    "ROOT/work/data/../secret": False,
    "ROOT/work/dat": False,
    "ROOT/work": False,
    "outside": False,
    "data/outside": False,
    "data/outside/x": False,
    "/etc/passwd": False,
    "~/x": False,
    "~root/x": False,
    "file://ROOT/work/data/%2e%2e/secret": False,
    "file://ROOT/work/data/..%2fsecret": False,
    "file://otherROOT/work/data/x": False,
    "FILE://ROOT/work/secret": False,
    "file://ROOT/work/data/x?../..": False,
    "file://ROOT/work/data/x#y": False,
    "file://ROOT/work/data/%ff": False,
    "http://ROOT/work/data/x": False,
    "data/x\0": False,
    "data/x\n": False,
    " data/x": False,  # servers trim spaces and quotes, and then it is another file
    "data/outside ": False,
    '"ROOT/work/data/x"': False,
    "data/outside'": False,
}
HOSTS: dict[str, bool] = {
    "https://example.org": True,
    "https://example.org/x?y#z": True,
    "http://EXAMPLE.org:8080/": True,
    "https://a.sub.test/": True,
    "http://127.0.0.1:9/": True,
    "https://b\u00fccher.test/": True,
    "https://xn--bcher-kva.test/": True,
    "https://sub.test/": False,
    "https://evil.org": False,
    "https://example.org.evil.org/": False,
    "https://evilexample.org/": False,
    "https://example.org@evil.org/": False,
    "https://me@example.org/": False,
    "https://example.org:@evil.org/": False,
    "https://example.org./": False,
    "https://example.org\\@evil.org/": False,
    "https:\\\\example.org\\x": False,
    "https://exa\tmple.org/": False,
    " https://example.org/": False,
    "https://example%2eorg/": False,
    "https://example\u3002org/": True,  # IDNA's own full stop: it is example.org to everyone
    "//example.org/": False,
    "example.org": False,
    "https:example.org": False,
    "https:///example.org": False,
    "http://2130706433/": False,
    "http://0x7f000001/": False,
    "http://0x7f.0.0.1/": False,
    "http://127.1/": False,
    "http://0177.0.0.1/": False,
    "http://127.0.0.1.nip.io/": False,
    "http://[::1]/": False,
    "http://[::ffff:127.0.0.1]/": False,
    "http://[example.org]/": False,
    "https://example.org:99999/": False,
    "https://": False,
    "": False,
}
UNDER = 'path = { under = "work/data" }'
HOST = 'url = { host = ["example.org", ".sub.test", "127.0.0.1", "B\u00fccher.test"] }'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("work/data/deep", "work/secret", "work/data-secrets"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/outside").symlink_to("/etc")
    (tmp_path / "work/data/outside").symlink_to("../secret")
    (tmp_path / "work/inside").symlink_to("data/deep")
    return tmp_path


def decided(folder: Path, decision: str, arguments: str, call: Mapping[str, Any], server: str = "files") -> str:
    path = folder / "pursuit.toml"
    path.write_text(CONFIGURATION.format(decision=decision, arguments=arguments), encoding="utf-8")
    policy = load_configuration(path).policy
    return decide(Layers(operator=policy), Tool(server=server, name="t", input_schema={}, definition={}), call).decision


@pytest.mark.guarantee("typed-arguments-have-one-reading")
@pytest.mark.parametrize(("value", "inside"), PATHS.items())
def test_under(folder: Path, value: str, inside: bool) -> None:
    given = value.replace("ROOT", str(folder.resolve()))
    assert decided(folder, "allow", UNDER, {"path": given}) == ("allow" if inside else "deny")


@pytest.mark.parametrize(("value", "inside"), HOSTS.items())
def test_host(folder: Path, value: str, inside: bool) -> None:
    assert decided(folder, "allow", HOST, {"url": value}) == ("allow" if inside else "deny")


@pytest.mark.parametrize("value", [["data/x", "secret/x"], ["data/x", 3], [], None, 3, {"a": "data/x"}])
def test_every_value_of_a_list_must_be_inside(folder: Path, value: Any) -> None:
    assert decided(folder, "allow", UNDER, {"path": value}) == "deny"
    assert decided(folder, "allow", UNDER, {"path": ["data/x", "data/y"]}) == "allow"


def test_a_relative_path_of_a_server_whose_folder_is_not_known_is_not_allowed(folder: Path) -> None:
    assert decided(folder, "allow", UNDER, {"path": "data/x"}, server="far") == "deny"
    assert decided(folder, "allow", UNDER, {"path": str(folder.resolve() / "work/data/x")}, server="far") == "allow"


def asked(folder: Path, arguments: str, call: Mapping[str, Any]) -> str:
    """What a rule that denies decides beside one that allows everything."""
    path = folder / "pursuit.toml"
    text = CONFIGURATION.format(decision="deny", arguments=arguments) + '[[policy.rules]]\ndecision = "allow"\n'
    path.write_text(text, encoding="utf-8")
    tool = Tool(server="files", name="t", input_schema={}, definition={})
    return decide(Layers(operator=load_configuration(path).policy), tool, call).decision


def test_a_rule_that_denies_also_catches_what_cannot_be_read(folder: Path) -> None:
    assert asked(folder, UNDER, {"path": "secret/x"}) == "allow"
    assert {asked(folder, UNDER, {"path": value}) for value in ("data/x", "inside", "~/x", "http://x/", "", 3)} == {
        "deny"
    }
    assert asked(folder, HOST, {"url": "https://evil.org/"}) == "allow"
    unreadable = ("https://example.org", "http://2130706433/", "https://a@evil.org/", "http://[::1]/")
    assert {asked(folder, HOST, {"url": value}) for value in unreadable} == {"deny"}


SERVER = Path(__file__).parents[1] / "servers" / "recorder.py"
REACHES = {
    'under = "data"': (["data/x", "ROOT/data/x"], ["ROOT/data-secrets", "ROOT/data/outside/x"]),
    'host = ["example.org"]': (
        ["https://example.org/x"],
        ["https://example.org@evil.org/", "https://example.org.evil.org/", "https://example.org\\@evil.org/"],
    ),
}
"""What a rule lets through and what not. A glob, `ROOT/data*` or `https://example.org*`, allows each of the latter."""


@pytest.mark.guarantee("typed-arguments-have-one-reading")
@pytest.mark.parametrize(
    ("rule", "good", "bad"), [(rule, *rows) for rule, rows in REACHES.items()], ids=["under", "host"]
)
def test_a_call_reaches_no_other_folder_or_host(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, rule: str, good: list[str], bad: list[str]
) -> None:
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    record, root = victim.folder / "record", victim.folder.resolve()
    for name in ("data", "data-secrets"):
        (root / name).mkdir()
    (root / "data/outside").symlink_to("../data-secrets")
    started = f'command = {json.dumps(sys.executable)}\nargs = {json.dumps([str(SERVER)])}\ncwd = "."'
    rules = f'[policy]\nmode = "never"\n[[policy.rules]]\ndecision = "allow"\narguments = {{ key = {{ {rule} }} }}\n'
    victim.write("pursuit.toml", f"{rules}[servers.files]\n{started}\nenv = {{ RECORD = {json.dumps(str(record))} }}\n")
    for value in (*good, *bad):
        given = value.replace("ROOT", str(root))
        code, said = victim.run("tools", "call", "files.step", "--arg", f"key={given}")
        reached = f"step {given} " in record.read_text(encoding="utf-8")
        assert (code, reached) == ((0, True) if value in good else (2, False)), said

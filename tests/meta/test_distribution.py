"""The files for registries and agents follow their rules and agree with the package and with each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pursuit import __version__
from pursuit.cli.gate import EVENTS
from pursuit.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugin"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_description_fits_an_index_and_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = project["description"]
    assert 1 <= len(text) <= 100
    (offered,) = read(ROOT / ".claude-plugin" / "marketplace.json")["plugins"]
    files = ("server.json", "plugin/plugin.json", "plugin/.claude-plugin/plugin.json")
    assert {offered["description"], *(read(ROOT / name)["description"] for name in files)} == {text}
    assert {read(ROOT / name)["version"] for name in files} == {__version__}
    assert text in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_entry_for_a_registry_follows_its_rules() -> None:
    server = read(ROOT / "server.json")
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert 3 <= len(server["name"]) <= 200
    assert f"<!-- mcp-name: {server['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    (package,) = server["packages"]
    assert package["version"] == __version__
    assert (package["registryType"], package["identifier"], package["runtimeHint"]) == ("pypi", "pursuit", "uvx")
    assert package["transport"] == {"type": "stdio"}
    assert [one["value"] for one in package["packageArguments"]] == ["serve"]
    assert "serve" in COMMANDS


def test_the_plugin_follows_the_rules_of_agent_plugins() -> None:
    manifest, servers = read(PLUGIN / "plugin.json"), read(PLUGIN / "mcp.json")
    assert manifest.keys() <= {"$schema", "name", "version", "description", "author", "license", "keywords"}
    assert manifest["$schema"] == "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?", manifest["name"])
    assert servers.keys() == {"$schema", "mcpServers"}
    assert servers["mcpServers"] == {"pursuit": {"type": "stdio", "command": "uvx", "args": ["pursuit", "serve"]}}
    (skill,) = PLUGIN.glob("skills/*/SKILL.md")
    head = skill.read_text(encoding="utf-8").split("---\n")[1]
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields["name"] == skill.parent.name
    assert len(fields["description"]) <= 1024


def test_the_marketplace_names_a_plugin_that_is_there() -> None:
    (offered,) = read(ROOT / ".claude-plugin" / "marketplace.json")["plugins"]
    manifest = read(ROOT / offered["source"] / ".claude-plugin" / "plugin.json")
    assert manifest["name"] == offered["name"] == read(PLUGIN / "plugin.json")["name"]


@pytest.mark.parametrize("event", EVENTS)
def test_the_hook_of_the_plugin_calls_the_gate_only_where_there_is_one(event: str, tmp_path: Path) -> None:
    hooks = read(PLUGIN / "hooks" / "hooks.json")["hooks"]
    assert hooks.keys() == set(EVENTS)
    ((hook,),) = [one["hooks"] for one in hooks[event]]
    program = tmp_path / "bin" / "pursuit"  # says how it was called: the gate itself is tested in test_cli_gate.py
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport os, sys\nprint(os.getcwd(), *sys.argv[1:])\n", encoding="utf-8")
    program.chmod(0o755)
    project = tmp_path / "a project"
    project.mkdir()
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "CLAUDE_PROJECT_DIR": str(project)}

    def called() -> str:
        words = ["/bin/sh", "-c", hook["command"]]
        return subprocess.run(words, cwd="/", env=environment, capture_output=True, text=True, check=True).stdout

    assert called() == ""
    (project / "gate.toml").touch()
    assert called() == f"{project} gate gate.toml\n"


def test_workflows_pin_each_action_by_commit_and_test_each_supported_python() -> None:
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / "action.yml"]
    used = [line for file in files for line in re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))]
    assert len(used) > 5
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = set(re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])))
    tested = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'system: ubuntu-[\d.]+, python: "(3\.\d+)"', tested)) == supported
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"| Python | {', '.join(sorted(supported))} |" in page


def test_the_action_runs_a_check_with_options_that_exist(tmp_path: Path) -> None:
    command = re.findall(r"run: '(.* check .*)'", (ROOT / "action.yml").read_text(encoding="utf-8"))[0]
    program = tmp_path / "pursuit" / "bin" / "pursuit"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(sys.executable).with_name("pursuit"))
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "RUNNER_TEMP": str(tmp_path), "PURSUIT_TRUST": "1"}
    (tmp_path / "m.toml").write_text(
        'directive = "Look"\nbudget = { max_iterations = 1 }\nallow_all_tools = true\n'
        'criteria = [{ criterion_id = "there", kind = "check", command = ["test", "-f", "there"] }]\n',
        encoding="utf-8",
    )

    def code() -> int:
        words = ["bash", "-c", command]
        given = {**environment, "MISSION": "m.toml", "AT": ""}
        return subprocess.run(words, cwd=tmp_path, env=given, capture_output=True, check=False).returncode

    assert code() == 1
    (tmp_path / "there").touch()
    assert code() == 0

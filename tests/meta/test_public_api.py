"""The public names are these, with docstrings and known types; what the docs import from Pursuit is among them."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from sysconfig import get_path
from types import FunctionType

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("pursuit", "pursuit.ports", "pursuit.tasks", "pursuit.testing")
NAMES = """
pursuit:
    Approval ApprovalRow BestPoint Budget BudgetUse Call CapUse ClientProposer Configuration Fleet GatewayOptions
    Iteration Mission MissionApprovals MissionHandle Pace Problem Proposal PursuitError PythonProposer
    RepeatProposer ReplayProposer Report Runtime ScriptProposer SearchProposer Status ToolCall Trial Update
    ValidationFailed View call check done event leave metric nothing predicate run scaffold script serve succeeded
    tool wait
pursuit.ports:
    ANY Blocked CheckPlace ChecksImpossible Clock Done Draft DrivingPlace Failed Head Health Job KnownTraits
    Mission MissionAdmission MissionState Performed Placement Proposal Proposed Proposer ProposerContext ProposerFacts
    ProposerKind ProposerSettings Requirements Reschedule ServerConfig Services Serving SimpleKind StartedProcess
    StoredEvent StoredObjective StreamPage StreamRow TaskStore Tool ToolCall ToolOverride ToolTraits Traits View Waiting
    Wakeup WorkerRow
pursuit.tasks:
    InvalidTask TaskContext TaskRecords cancel_task create_task generate_task_id is_terminal task_execution
pursuit.testing:
    FakeClock InMemoryTaskStore RecordingWorker Reply ScriptedModel SmallServer check_placement check_proposer
    check_task_store check_tool_traits temporary_ledger
"""
FOR_SERVERS = {"pursuit.server.problems.api", "pursuit.config.configuration", "pursuit.errors"}
"""Other modules that the docs import from."""
FOREIGN = {"pursuit.sandbox.pool.monty"}
"""A module of another package that has no types."""


def listed(module: str) -> list[str]:
    found = re.search(rf"^{re.escape(module)}:\n((?:    .*\n)+)", NAMES, re.MULTILINE)
    return found[1].split()


@pytest.mark.parametrize("module", MODULES)
def test_the_public_names_are_these(module: str) -> None:
    assert import_module(module).__all__ == listed(module)


@pytest.mark.parametrize("module", MODULES)
def test_public_classes_and_functions_have_docstrings(module: str) -> None:
    bare: list[str] = []
    for name in listed(module):
        thing = getattr(import_module(module), name)
        if not isinstance(thing, type | FunctionType):
            continue
        bare += [name] if not inspect.getdoc(thing) else []
        methods = vars(thing).items() if isinstance(thing, type) else ()
        bare += [f"{name}.{n}" for n, one in methods if callable(one) and n[0] != "_" and not inspect.getdoc(one)]
    assert bare == []


def test_the_docs_import_public_names() -> None:
    texts = [page.read_text() for page in (ROOT / "README.md", ROOT / "docs/python.md", ROOT / "docs/extend.md")]
    for module, names in re.findall(r"^from (pursuit[\w.]*) import ([\w, ]+)$", "\n".join(texts), re.MULTILINE):
        assert module in FOR_SERVERS or set(names.split(", ")) <= set(listed(module)), module
    for name in re.findall(r"\bpursuit\.([A-Za-z]\w*)\(", "\n".join(texts)):
        assert name in listed("pursuit"), name


def test_each_port_has_a_short_example() -> None:
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8").partition("## Testing")[0]
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 4
    assert max(len([line for line in one.splitlines() if line.strip()]) for one in examples) <= 30


@pytest.mark.soak
def test_public_names_have_known_types(tmp_path: Path) -> None:
    """As `pyright --verifytypes` sees an installed package, but for the repositories that coding agents repair.

    `make test` has the types of the source checked as strictly by `pyright` itself.
    """
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), get_path("purelib")])}
    checker = [sys.executable, "-m", "pyright", "--ignoreexternal", "--outputjson", "--verifytypes", "pursuit"]
    done = subprocess.run(
        checker, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, timeout=300
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    assert len(symbols) > 5_000
    unknown = [one["name"] for one in symbols if not one["isTypeKnown"] and not one["isTypeAmbiguous"]]
    assert [name for name in unknown if ".shipped." not in name and name not in FOREIGN] == []

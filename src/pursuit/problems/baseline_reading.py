"""Reads the `[baseline]` of a manifest.

Owns: its keys, and that whoever proposes could begin. Runs nothing of it.
Invariant: the proposer of a `Baseline` that is given out is one that a mission takes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pursuit.model.expressions import SyntaxProblem, checked_script
from pursuit.problems.files import file_of, text_of
from pursuit.problems.manifest import Baseline
from pursuit.tools.fields import Fields, as_table

BASELINE_KEYS = ("proposer", "max_iterations", "max_wall_clock_seconds")
BASELINE_PROPOSERS = ("search", "script")
SCRIPT_KEYS = ("kind", "file", "script")


def read_baseline(root: Fields, folder: Path) -> Baseline | None:
    """The baseline of a manifest, if it has one."""
    if "baseline" not in root.table:
        return None
    fields = Fields(root.subtable("baseline"), at="baseline", source=root.source, faults=root.faults)
    fields.only(BASELINE_KEYS)
    proposer = Fields(fields.subtable("proposer"), at="baseline.proposer", source=root.source, faults=root.faults)
    if "proposer" not in fields.table:
        if as_table(root.table["baseline"]) is not None:
            fields.fault("proposer", "is missing; give a table with kind search or script")
    elif as_table(fields.table["proposer"]) is not None:
        chosen = proposer.word("kind", BASELINE_PROPOSERS, needed=True)
        if chosen == "script":
            _check_script(proposer, folder)
        elif chosen == "search":
            _check_search(proposer)
    most, seconds = fields.number("max_iterations", whole=True), fields.number("max_wall_clock_seconds")
    return Baseline(
        proposer=dict(proposer.table),
        max_iterations=500 if most is None else int(most),
        max_wall_clock_seconds=300.0 if seconds is None else float(seconds),
    )


def _check_script(proposer: Fields, folder: Path) -> None:
    proposer.only(SCRIPT_KEYS)
    file, script = proposer.text("file"), proposer.text("script")
    if ("file" in proposer.table) == ("script" in proposer.table):
        proposer.fault("file", "give exactly one of file and script")
    if file is not None:
        path = file_of(folder, file)
        source = path if isinstance(path, str) else text_of(path)
        if isinstance(path, str):
            proposer.fault("file", path)
        elif source is None:
            proposer.fault("file", f"{file!r} is no text that could be a script")
        else:
            _check_syntax(proposer, "file", source)
    if script is not None:
        _check_syntax(proposer, "script", script)


def _check_syntax(proposer: Fields, key: str, source: str) -> None:
    try:
        checked_script(source)
    except SyntaxProblem as problem:
        proposer.fault(key, str(problem))


def _check_search(proposer: Fields) -> None:
    from pydantic import ValidationError  # noqa: PLC0415 - only a baseline that searches needs it

    from pursuit.model.faults import faults_of  # noqa: PLC0415
    from pursuit.model.search import SearchProposer  # noqa: PLC0415

    if "tool" not in proposer.table and "tool_name" not in proposer.table:
        proposer.fault("tool", "is missing; name the tool whose arguments are searched")
        return
    try:
        SearchProposer.model_validate(dict(proposer.table))
    except ValidationError as error:
        for fault in faults_of(error, SearchProposer, source=proposer.source):
            proposer.faults.append(replace(fault, field=f"{proposer.at}.{fault.field}"))

"""Values exchanged between a script, its driver and the ledger: JSON of limited size."""

from __future__ import annotations

import ast
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pursuit.core.base_model import nearest
from pursuit.core.patterns import SyntaxProblem
from pursuit.core.truncate import cut_text

MAX_TEXT = 2_000


def canonical(value: object) -> str:
    """The canonical text of a JSON value: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def rendered(value: object) -> str:
    """A short text for a value that is not JSON."""
    try:
        return cut_text(repr(value), MAX_TEXT)
    except (ValueError, RecursionError):
        # Python refuses to print a huge integer or a very deep list.
        return f"<{type(value).__name__}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpec:
    """One run: the source, its tools (server, tool, parameters in order), its state, seed and time."""

    source: str
    tools: Mapping[str, Mapping[str, Sequence[str]]]
    state: Mapping[str, Any]
    seed: int
    now: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCall:
    """A call that the script awaits. `index` counts the calls of the run from 0."""

    index: int
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFailure:
    """The answer to a failed call: the script sees a `RuntimeError` with this message."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The script awaits all of these: one call, or those of a `gather`."""

    calls: tuple[ScriptCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The script has ended. If its new memory cannot be kept, `memory` is the old one and `error` says why."""

    memory: dict[str, Any]
    observed: tuple[tuple[str, Any], ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    printed: str = ""


Step = Calls | Finished


MODULES = frozenset({
    "asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal",
    "functools", "hashlib", "itertools", "json", "math", "os", "pathlib", "posixpath", "random", "re", "sys", "time",
    "tomllib", "typing", "unicodedata",
})  # fmt: skip
"""The modules that a script can import."""


def missing_modules(source: str) -> list[SyntaxProblem]:
    """The imports of a valid script that the sandbox lacks, except inside a `try`."""
    found: list[SyntaxProblem] = []
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:
        nodes += [inner for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.Try)]
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in names:
            if name.partition(".")[0] not in MODULES:
                known = nearest(name, MODULES) or f"; it has {', '.join(sorted(MODULES))}"
                reason = f"the sandbox has no module {name!r}; packages cannot be installed in it{known}"
                found.append(SyntaxProblem(reason, node.lineno, node.col_offset + 1))
    return found


KNOWN_DUNDERS = frozenset(f"__{name}__" for name in ["annotations", "debug", "doc", "file", "name", "package", "spec"])
"""The `__x__` names that the sandbox defines."""


def unassigned_dunders(source: str) -> list[SyntaxProblem]:
    """The `__x__` names that a valid script loads and never assigns, and that the sandbox does not define."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = KNOWN_DUNDERS | {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    known |= {getattr(node, key, None) for node in nodes for key in ("name", "asname", "arg")}
    return [
        SyntaxProblem(f"{one.id} is not defined, and the script never assigns it", one.lineno, one.col_offset + 1)
        for one in names
        if one.id[:2] == one.id[-2:] == "__" and one.id not in known
    ]

"""Runs a scoring function in a separate process: `scoring` starts this file, which imports nothing of Pursuit.

It calls one function, from JSON on standard input to JSON on standard output. Invariant: output of the function goes to
standard error; any failure, including exit, becomes an error in the answer or ends only this process.

    {"file": "/…/score.py", "name": "score", "parts": {…}, "counts": {…}}  ->  {"said": …} or {"error": "KeyError: 'x'"}

The function gets all `parts`, and those `counts` that it has parameters for.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import sys
from typing import Any

LONGEST = 500


def main() -> None:
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    try:
        written = json.dumps({"said": _called(**asked)}, default=_plain)
    except BaseException as error:  # noqa: BLE001 - the boundary to the problem's own code, which may exit
        written = json.dumps({"error": f"{type(error).__name__}: {error}"[:LONGEST]})
    with answer:
        answer.write(written)
    sys.stdout.flush()
    os._exit(0)  # threads that the function left running cannot delay the exit


def _called(file: str, name: str, parts: dict[str, Any], counts: dict[str, int]) -> Any:
    spec = importlib.util.spec_from_file_location("_pursuit_scorer", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # The function can import the modules beside its file, as in any script.
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # noqa: PTH100, PTH120 - quick to start
    spec.loader.exec_module(module)
    function = getattr(module, name)
    takes = inspect.signature(function).parameters.values()
    named = {one.name for one in takes if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    wants_all = any(one.kind == one.VAR_KEYWORD for one in takes)
    given = {**parts, **{key: value for key, value in counts.items() if wants_all or key in named}}
    if inspect.iscoroutinefunction(function):
        return asyncio.run(function(**given))
    return function(**given)


def _plain(value: Any) -> Any:
    """Converts a number or truth value of another library to a plain one; raises for other values."""
    return value.item() if hasattr(value, "item") else float(value)


if __name__ == "__main__":
    main()

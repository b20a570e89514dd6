"""A scoring function in a process of its own: started by `scoring` as a file, and importing nothing of Pursuit.

One call of one function, from JSON on standard input to JSON on standard output. Invariant: whatever the function
prints goes to standard error; whatever it does, including exit, is an error in the answer or ends this process alone.

    {"file": "/…/score.py", "name": "score", "parts": {…}, "counts": {…}}  ->  {"said": …} or {"error": "KeyError: 'x'"}

It is given all `parts`, and of the `counts` those that it has parameters for.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

LONGEST = 500


def main() -> None:
    """Answers the one question."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    try:
        written = json.dumps({"said": _called(**asked)}, default=_plain)
    except BaseException as error:  # noqa: BLE001 - the boundary to the problem's own code, which may leave
        written = json.dumps({"error": f"{type(error).__name__}: {error}"[:LONGEST]})
    with answer:
        answer.write(written)
    sys.stdout.flush()
    os._exit(0)  # threads that it left behind have no say any more


def _called(file: str, name: str, parts: dict[str, Any], counts: dict[str, int]) -> Any:
    spec = importlib.util.spec_from_file_location("_pursuit_scorer", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # Its own modules lie beside it, as for any script that is run.
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # noqa: PTH100, PTH120 - quick to start
    spec.loader.exec_module(module)
    function = getattr(module, name)
    given = {**parts, **{key: value for key, value in counts.items() if _takes(function, key)}}
    if inspect.iscoroutinefunction(function):
        return asyncio.run(function(**given))
    return function(**given)


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function can be given a keyword argument of this name."""
    for one in inspect.signature(function).parameters.values():
        named = one.name == name and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if named or one.kind == one.VAR_KEYWORD:
            return True
    return False


def _plain(value: Any) -> Any:
    """A number or truth value of another library as a plain one; what is none raises."""
    item = getattr(value, "item", None)
    found = item() if callable(item) else None
    if isinstance(found, bool | int | float):
        return found
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
    return bool(value) if hasattr(value, "__bool__") and not is_number else float(value)


if __name__ == "__main__":
    main()

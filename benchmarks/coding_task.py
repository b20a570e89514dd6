"""A coding task for any agent: files of 400 lines, tools over them, and a scripted model that does it in forty steps.

Owns: the task, the same for every agent. Knows nothing of Pursuit: LangGraph's interpreter loads it too.
"""

from __future__ import annotations

import os
from typing import Any

STEPS = int(os.environ.get("TASK_STEPS", "40"))
LINES = 400
FILES = 12
GOAL = "Repair the package: change the constants that its tests complain about, until no test fails."
INSTRUCTIONS = "You are a careful engineer. Read a file before you edit it, and run the tests after your edits."
MODELS = {"openai-chat": "gpt-4o-mini", "openai-responses": "gpt-5-mini", "anthropic": "claude-haiku-4-5"}


def plan(step: int) -> tuple[str, dict[str, Any]]:
    """The call of a step: read a file, edit it, run the tests, and then the next file; the last step runs the tests."""
    turn, what = divmod(step, 3)
    path = f"package/module_{turn % FILES:02d}.py"
    if what == 2 or step == STEPS - 1:
        return "run_tests", {}
    if what == 0:
        return "read_file", {"path": path}
    line = turn // FILES + 1
    return "edit_file", {"path": path, "old": f"VALUE_{line:03d} = {line} ", "new": f"VALUE_{line:03d} = {line}000 "}


class Workspace:
    """The package, in memory."""

    def __init__(self) -> None:
        text = "\n".join(f"VALUE_{line:03d} = {line}  # of the mark" for line in range(LINES))
        self._files = {f"package/module_{number:02d}.py": text for number in range(FILES)}
        self._failing = [plan(step)[0] for step in range(STEPS)].count("run_tests")

    def read_file(self, path: str) -> str:
        """Reads a whole file of the package."""
        return self._files[path]

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replaces a text that occurs once in a file of the package."""
        text = self._files[path]
        assert text.count(old) == 1, (path, old)
        self._files[path] = text.replace(old, new)
        return f"replaced 1 occurrence in {path}"

    def run_tests(self) -> dict[str, Any]:
        """Runs the tests of the package and reports those that fail."""
        self._failing -= 1
        rows = [f"FAILED tests/test_{number:02d}.py::test_values: assert 1 == 2" for number in range(self._failing)]
        return {"output": "\n".join([*rows, f"{self._failing} failed"]), "metrics": {"failed": self._failing}}

    @property
    def tools(self) -> list[Any]:
        return [self.read_file, self.edit_file, self.run_tests]


answered = 0


def model(request: dict[str, Any]) -> Any:
    """The scripted model: its n-th answer is the n-th step, whatever it is told; then it says that it is done."""
    global answered
    from model_endpoint import Reply, calls

    step, answered = answered, answered + 1
    if step >= STEPS:
        return Reply(text="All tests pass.")
    name, args = plan(step)
    tools = [tool.get("function", tool)["name"] for tool in request["body"]["tools"]]
    (shown,) = [tool for tool in tools if tool.endswith(name)]
    return calls((shown, args), text=f"Step {step}: {name}.")

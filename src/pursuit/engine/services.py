"""What a run does for a proposer that performs calls itself: it asks for permission, and makes calls of the mission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.core.tools import Tool
from pursuit.engine.approvals import answer_question, hold_call
from pursuit.engine.call_admission import MustWait, Planned
from pursuit.engine.context import Run
from pursuit.engine.execute import execute, whole_result

NO_ANSWER = "a person must approve this call, and has not answered yet; end your turn, and try again in the next one"


class RunServices:
    """The services of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reserved = (-1, -1)  # an iteration, and the last place of a call in it: a held call is not recorded yet

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], *, unattended: bool, seconds: float) -> bool | None:
        """Whether policy, or a person within these seconds, allows a step; None if nobody answered in time."""
        return await answer_question(self._run, tool, dict(arguments), unattended=unattended, seconds=seconds)

    async def call(self, tool: Tool, arguments: dict[str, Any], *, seconds: float) -> Mapping[str, Any]:
        """Makes a call of the mission inside of the call that is performed now, and returns its MCP result."""
        run = self._run
        iteration = run.state.open
        if iteration is None or run.stop_ordered:
            return _failed("the mission was stopped")
        if faults := run.tools.check(tool.qualified, arguments):
            return _failed("; ".join(faults))
        places = [call.order for call in iteration.calls.values()]
        places += [self._reserved[1]] if self._reserved[0] == iteration.index else []
        order = max(places, default=-1) + 1
        self._reserved = (iteration.index, order)
        call_id = f"{run.mission_id}:{iteration.index}:{order}"
        planned = Planned(call_id=call_id, tool=tool.qualified, args=arguments, order=order)
        try:
            held = await hold_call(run, planned, seconds)
            if held is None:
                return _failed(NO_ANSWER)
            await execute(run, [held], durable=True)
        except MustWait:
            return _failed(NO_ANSWER)
        record = run.state.call(call_id)
        if record is None:
            return _failed("the mission was stopped")
        result = await whole_result(run, record)
        if result is None or record.outcome not in ("ok", "failed"):
            return _failed(f"{record.outcome}: {record.error}")
        return result

    def offered(self) -> Mapping[str, Tool]:
        """The tools of the mission, but for the proposer's own and those whose calls are tasks."""
        run = self._run
        found = {name: run.tools.get(name) for name in run.state.tools if name not in run.state.facts.tools}
        return {name: tool for name, tool in found.items() if tool is not None and not tool.long}


def _failed(text: str) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}

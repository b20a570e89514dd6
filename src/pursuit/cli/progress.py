"""Shows a running mission: a live panel, or one line per iteration.

The panel is redrawn at most ten times a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec

from pursuit.cli.console import Screen, line
from pursuit.cli.show import criteria_table
from pursuit.core.audit import redacted
from pursuit.core.best import Best, BestPoint
from pursuit.core.budgets import budget_use
from pursuit.core.criteria import MetricThreshold
from pursuit.core.report import criteria_rows, iso
from pursuit.core.state import FOR_PROVIDERS, MissionState
from pursuit.engine.context import Observer, Phase
from pursuit.reports.wording import best_words, compact, figure, gauges, span, stated, waits

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel
    from rich.text import Text

REDRAW_SECONDS = 0.1
MAX_CRITERIA = 12
MAX_WARNINGS = 3
MAX_QUESTIONS = 3
WIDTH = 100
_DOING = {
    "propose": "asking for the next calls",
    "execute": "calling tools",
    "verify": "running checks",
    "evaluate": "evaluating criteria",
    "decided": "decided",
    "waiting": "waiting",
    "ended": "ended",
}


@dataclass(slots=True)
class Snapshot:
    mission_id: str
    phase: Phase
    state: MissionState


@asynccontextmanager
async def progress(screen: Screen, live: Path | None = None) -> AsyncGenerator[Observer]:
    """Shows a mission within the block; yields an observer that must receive every phase.

    `live` is the folder with the streamed output of models.
    """
    if not screen.rich:
        yield lines(screen)
        return
    from rich.live import Live

    seen: Snapshot | None = None

    def see(mission_id: str, phase: Phase, state: MissionState) -> None:
        nonlocal seen
        seen = Snapshot(mission_id, phase, state)

    def draw(width: int) -> Panel | str:
        return "" if seen is None else panel(seen, time.time(), min(WIDTH, width), words_of(live, seen.mission_id))

    with Live(console=screen.console, auto_refresh=False, transient=True) as shown:

        async def redraw() -> None:
            while True:
                shown.update(draw(screen.console.width), refresh=True)
                await anyio.sleep(REDRAW_SECONDS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(redraw)
            yield see
            tasks.cancel_scope.cancel()
        shown.update(draw(screen.console.width), refresh=True)


def words_of(live: Path | None, mission_id: str) -> str:
    try:
        with (live / mission_id).open("rb") if live is not None else BytesIO() as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def lines(screen: Screen) -> Observer:
    """Prints a line on standard error for each ended iteration, new warning and question of an agent."""
    shown: dict[str, int] = {}
    asked: set[str] = set()
    warned: dict[str, int] = {}
    said: dict[str, float | None] = {}

    def see(mission_id: str, phase: Phase, state: MissionState) -> None:
        known = warned.setdefault(mission_id, len(state.raised))
        if phase in ("decided", "ended") and state.iteration_count > shown.get(mission_id, -1):
            shown[mission_id] = state.iteration_count
            screen.note(iteration_line(state))
        if phase == "waiting" and state.waiting_for in FOR_PROVIDERS and state.wait_until != said.get(mission_id):
            said[mission_id] = state.wait_until
            screen.note(waits(str(state.waiting_for), line(state.wait_detail or "", 300), iso(state.wait_until)))
        for question in state.approvals.open() if phase == "execute" else ():  # the call waits for the answer
            if question.approval_id not in asked:
                asked.add(question.approval_id)
                answer = screen.command("approve", question.approval_id)
                screen.note(f"the agent asks: {line(question.tool)} {line(compact(redacted(question.args)))}; {answer}")
        warned[mission_id] = len(state.raised)
        for warning in state.raised[known:]:
            screen.note(f"warning: {line(warning.message)}")

    return see


def iteration_line(state: MissionState) -> str:
    cap = state.cap("max_iterations")
    words = [f"iteration {state.iteration_count}{f'/{cap:.0f}' if cap is not None else ''}"]
    if state.last_ended is not None:
        words.append(f"{state.last_ended.verdict} ({state.last_ended.reason})")
    words.append(f"criteria {_met(state)}/{len(state.mission.criteria)}")
    for criterion in state.mission.criteria:
        best = state.best_points.of(criterion.criterion_id)
        if isinstance(criterion, MetricThreshold) and best is not None:
            wanted = f"{criterion.op} {stated(criterion.target)}"
            words.append(f"best {line(criterion.metric)} {_found(best, criterion)} ({wanted})")
    left = _left(state)
    return "; ".join([*words, *([f"left: {left}"] if left else [])])


def panel(seen: Snapshot, now: float, width: int, said: str = "") -> Panel:
    """The mission in a frame, with the model's streamed output."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    state = seen.state
    last = state.last_ended
    seconds = state.wall_clock_at(now, driven=True)
    found = BestPoint.of(state.best_points.best())
    best = "" if found is None else best_words(msgspec.structs.replace(found, args=_short(found.args)))
    criteria = criteria_rows(state)
    more = len(criteria) - MAX_CRITERIA
    rows: list[RenderableType] = [
        Text(line(state.mission.directive, 2 * width - 20), style="dim"),
        Text(),
        _headline(seen, seconds),
        Text(f"criteria     {_met(state)} of {len(criteria)} met"),
        criteria_table(criteria[:MAX_CRITERIA]),
        *([Text(f"  and {more} more", style="dim")] if more > 0 else []),
        *([Text(f"best         {line(best, 2 * width - 20)}")] if best else []),
        Text(f"budget left  {_left(state, seconds) or 'no caps'}"),
        Text(f"last verdict {'none yet' if last is None else f'{last.verdict} ({last.reason})'}"),
        *(Text(f"warning: {line(warning)}", style="yellow") for warning in state.standing_warnings[-MAX_WARNINGS:]),
        *_last_call(state),
        *_questions(state),
    ]
    if words := line(said, len(said) + 1):
        rows.append(Text(f"model        {words[-2 * width + 40 :]}"))
    title = Text(f"{seen.mission_id} \u00b7 {state.status}")
    return Panel(Group(*rows), title=title, title_align="left", border_style="dim", width=width, expand=False)


def _short(value: Any) -> Any:
    """Rounds numbers to seven digits; `pursuit status` shows them in full."""
    match value:
        case float():
            return float(f"{value:.7g}")
        case dict():
            return {name: _short(one) for name, one in cast("dict[str, Any]", value).items()}
        case _:
            return value


def _last_call(state: MissionState) -> list[Text]:
    """The last call, ended or in progress."""
    from rich.text import Text

    for iteration in (state.open, state.last):
        if iteration is not None and iteration.calls:
            call = list(iteration.calls.values())[-1]
            error = f": {line(call.error, 200)}" if call.error else ""
            args = line(compact(_short(redacted(call.args))))
            words = f"{line(call.tool)} {args} {call.outcome or 'in progress'}{error}"
            return [Text(f"last call    {words}", no_wrap=True, overflow="ellipsis")]
    return []


def _questions(state: MissionState) -> list[Text]:
    """The open questions with their ids."""
    from rich.text import Text

    asked = state.approvals.open()[:MAX_QUESTIONS]
    words = [f"question     {one.approval_id}: {line(one.tool)} {line(compact(redacted(one.args)))}" for one in asked]
    return [Text(text, style="bold", no_wrap=True, overflow="ellipsis") for text in words]


def _headline(seen: Snapshot, seconds: float) -> Text:
    from rich.text import Text

    state = seen.state
    cap = state.cap("max_iterations")
    count = f"{state.iteration_number:,}" + (f" of {cap:,.0f}" if cap is not None else "")
    doing = f"waiting for {state.waiting_for}" if state.waiting_for is not None else _DOING[seen.phase]
    return Text.assemble("iteration    ", (count, "bold"), f" \u00b7 {doing} \u00b7 {clock(seconds)}")


def _found(best: Best, criterion: MetricThreshold) -> str:
    """The best feasible value, and the number of calls of a mean; or the best value, marked as infeasible."""
    point = best.point or best.infeasible
    value = "" if point is None else figure(point.value, criterion.target)
    if best.point is None:
        return f"{value}, infeasible"
    return value if best.point.times == 1 else f"{value}, mean of {best.point.times} calls"


def clock(seconds: float) -> str:
    """A mission's wall-clock time in whole seconds, to avoid flicker."""
    return f"{seconds:.0f} s" if seconds < 60 else span(seconds)


def _met(state: MissionState) -> int:
    return sum(result.status == "met" for result in state.results.values())


def _left(state: MissionState, seconds: float | None = None) -> str:
    return ", ".join(
        f"{one.left} {one.label.lower()}" for one in gauges(budget_use(state, seconds)) if one.left is not None
    )

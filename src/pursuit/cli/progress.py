"""A mission while it runs: a panel that changes in place, or one line for each iteration.

A terminal is redrawn at most ten times a second, however fast the mission is.
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

from pursuit.cli.console import MARKS, STYLES, Screen, budget_parts, counted, line
from pursuit.cli.show import best_words
from pursuit.core.audit import redacted
from pursuit.core.best import Best, BestPoint
from pursuit.core.budgets import budget_use
from pursuit.core.criteria import AnyCriterion, Check, EventSeen, MetricThreshold, ToolCallSucceeded, describe
from pursuit.core.report import iso
from pursuit.core.state import MissionState
from pursuit.engine.context import Observer, Phase
from pursuit.reports.wording import compact, figure, moment, sign, span, stated

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.text import Text

REDRAW_SECONDS = 0.1
MOST_CRITERIA = 12
MOST_WARNINGS = 3
MOST_QUESTIONS = 3
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
    """What was last seen of a mission."""

    mission_id: str
    phase: Phase
    state: MissionState


@asynccontextmanager
async def progress(screen: Screen, live: Path | None = None) -> AsyncGenerator[Observer]:
    """Shows a mission for as long as the block lasts; the observer that it gives must see every phase.

    `live` is the folder with what models say right now.
    """
    if not screen.rich:
        yield lines(screen)
        return
    from rich.live import Live

    seen: list[Snapshot] = []

    def see(mission_id: str, phase: Phase, state: MissionState) -> None:
        seen[:] = [Snapshot(mission_id, phase, state)]

    with Live(console=screen.console, auto_refresh=False, transient=True) as shown:

        def draw() -> None:
            if seen:
                width = min(WIDTH, screen.console.width)
                said = words_of(live, seen[0].mission_id)
                shown.update(panel(seen[0], time.time(), width, said), refresh=True)

        async def redraw() -> None:
            while True:
                draw()
                await anyio.sleep(REDRAW_SECONDS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(redraw)
            yield see
            tasks.cancel_scope.cancel()
        draw()


def words_of(live: Path | None, mission_id: str) -> str:
    """The last words that the model of a mission says right now."""
    try:
        with (live / mission_id).open("rb") if live is not None else BytesIO() as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def lines(screen: Screen) -> Observer:
    """One line on standard error for each iteration that ended, each new warning, and each question of an agent."""
    shown: dict[str, int] = {}
    asked: set[str] = set()
    warned: dict[str, int] = {}
    waits: dict[str, float | None] = {}

    def see(mission_id: str, phase: Phase, state: MissionState) -> None:
        known = warned.setdefault(mission_id, len(state.raised))
        if phase in ("decided", "ended") and state.iteration_count > shown.get(mission_id, -1):
            shown[mission_id] = state.iteration_count
            screen.note(iteration_line(state))
        if phase == "waiting" and state.waiting_for == "model" and state.wait_until != waits.get(mission_id):
            waits[mission_id] = state.wait_until
            why = line(state.wait_detail or "", 300)
            screen.note(f"no model answers; next try {moment(iso(state.wait_until))}: {why}")
        for question in state.approvals.open() if phase == "execute" else ():  # the call that asks is held
            if question.approval_id not in asked:
                asked.add(question.approval_id)
                answer = screen.command("approve", question.approval_id)
                screen.note(f"the agent asks: {line(question.tool)} {line(compact(redacted(question.args)))}; {answer}")
        warned[mission_id] = len(state.raised)
        for warning in state.raised[known:]:
            screen.note(f"warning: {line(warning.message)}")

    return see


def iteration_line(state: MissionState) -> str:
    """The iteration that ended last, in one line."""
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
    """The mission in a frame, with what its model says right now."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    state = seen.state
    last = state.last_ended
    seconds = state.wall_clock_at(now, driven=True)
    found = BestPoint.of(state.best_points.best())
    best = "" if found is None else best_words(msgspec.structs.replace(found, args=_short(found.args)))
    rows = [
        Text(line(state.mission.directive, 2 * width - 20), style="dim"),
        Text(),
        _headline(seen, seconds),
        Text(f"criteria     {_met(state)} of {len(state.mission.criteria)} met"),
        *_criteria(state),
        *([Text(f"best         {line(best, 2 * width - 20)}")] if best else []),
        Text(f"budget left  {_left(state, seconds) or 'no caps'}"),
        Text(f"last verdict {'none yet' if last is None else f'{last.verdict} ({last.reason})'}"),
        *(Text(f"warning: {line(warning)}", style="yellow") for warning in state.standing_warnings[-MOST_WARNINGS:]),
        *_last_call(state),
        *_questions(state),
    ]
    if words := line(said, len(said) + 1):
        rows.append(Text(f"model        {words[-2 * width + 40 :]}"))
    title = Text(f"{seen.mission_id} \u00b7 {state.status}")
    return Panel(Group(*rows), title=title, title_align="left", border_style="dim", width=width, expand=False)


def _short(value: Any) -> Any:
    """Numbers as a moving screen shows them, with seven digits; the status has all of them."""
    match value:
        case float():
            return float(f"{value:.7g}")
        case dict():
            return {name: _short(one) for name, one in cast("dict[str, Any]", value).items()}
        case _:
            return value


def _last_call(state: MissionState) -> list[Text]:
    """The call that was made last, or is being made."""
    from rich.text import Text

    for iteration in (state.open, state.last):
        if iteration is not None and iteration.calls:
            call = list(iteration.calls.values())[-1]
            error = f": {line(call.error, 200)}" if call.error else ""
            args = line(compact(_short(redacted(call.args))))
            words = f"{line(call.tool)} {args} {call.outcome or 'under way'}{error}"
            return [Text(f"last call    {words}", no_wrap=True, overflow="ellipsis")]
    return []


def _questions(state: MissionState) -> list[Text]:
    """The questions that wait for an answer, each with its id."""
    from rich.text import Text

    asked = state.approvals.open()[:MOST_QUESTIONS]
    words = [f"question     {one.approval_id}: {line(one.tool)} {line(compact(redacted(one.args)))}" for one in asked]
    return [Text(text, style="bold", no_wrap=True, overflow="ellipsis") for text in words]


def _headline(seen: Snapshot, seconds: float) -> Text:
    from rich.text import Text

    state = seen.state
    cap = state.cap("max_iterations")
    count = f"{state.iteration_number:,}" + (f" of {cap:,.0f}" if cap is not None else "")
    doing = f"waiting for {state.waiting_for}" if state.waiting_for is not None else _DOING[seen.phase]
    return Text.assemble("iteration    ", (count, "bold"), f" \u00b7 {doing} \u00b7 {clock(seconds)}")


def _criteria(state: MissionState) -> list[Text]:
    from rich.text import Text

    shown = state.mission.criteria[:MOST_CRITERIA]
    wide = max(len(line(criterion.criterion_id, 30)) for criterion in shown)
    rows: list[Text] = []
    for criterion in shown:
        result = state.results.get(criterion.criterion_id)
        status = result.status if result is not None else "inconclusive"
        name = f"{line(criterion.criterion_id, 30):{wide}}  "
        row = Text.assemble(
            (f"  {MARKS[status]} ", STYLES[status]),
            name,
            _standing(state, criterion),
            no_wrap=True,
            overflow="ellipsis",
        )
        if not criterion.required:
            row.append("  (optional)", "dim")
        rows.append(row)
    if more := len(state.mission.criteria) - len(shown):
        rows.append(Text(f"  and {more} more", style="dim"))
    return rows


def _standing(state: MissionState, criterion: AnyCriterion) -> str:
    """The facts of the checkpoint that set a criterion's mark, then what the criterion wants."""
    result = state.results.get(criterion.criterion_id)
    evidence: Any = None if result is None else result.evidence
    facts = cast("dict[str, Any]", evidence) if isinstance(evidence, dict) else {}
    match criterion:
        case MetricThreshold():
            metric, target = line(criterion.metric, 30), criterion.target
            now = figure(facts["value"], target) if "value" in facts else "none yet"
            words = f"{metric} {now}, wanted {sign(criterion.op)} {stated(target)}"
            best = state.best_points.of(criterion.criterion_id)
            if best is None or (best.point is not None and best.point.value == facts.get("value")):
                return words
            return f"{words}, best so far {_found(best, criterion)}"
        case ToolCallSucceeded():
            count = facts.get("count", 0)
            return f"{line(criterion.tool_name, 50)} succeeded {counted(count, 'time')}, wanted {criterion.min_count}"
        case EventSeen():
            return f"{describe(criterion)}{'' if facts.get('count') else ', not seen yet'}"
        case Check(command=[program, *words]):
            return line(f"check {' '.join([Path(program).name, *words])}", 60)
        case _:
            return line(describe(criterion), 60)


def _found(best: Best, criterion: MetricThreshold) -> str:
    """The best value that keeps the other limits, and whether it is a mean; without one, that the value does not."""
    point = best.point or best.infeasible
    value = "" if point is None else figure(point.value, criterion.target)
    if best.point is None:
        return f"{value}, infeasible"
    return value if best.point.times == 1 else f"{value}, mean of {best.point.times} calls"


def clock(seconds: float) -> str:
    """A mission's wall clock, without fractions that would flicker."""
    return f"{seconds:.0f} s" if seconds < 60 else span(seconds)


def _met(state: MissionState) -> int:
    return sum(result.status == "met" for result in state.results.values())


def _left(state: MissionState, seconds: float | None = None) -> str:
    parts = budget_parts(budget_use(state, seconds))
    return ", ".join(
        f"{left} of wall clock" if label == "wall clock" else f"{left} {label}"
        for label, _used, _cap, left in parts
        if left is not None
    )

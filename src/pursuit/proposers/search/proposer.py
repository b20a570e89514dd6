"""The proposer `search`: arguments of one tool, searched towards the mission's metric criteria without a model.

Invariant: trials come only from the ledger, so a new process makes the same proposals as a dead one would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from pursuit.core.confirmation import RETESTS, Remeasure, remeasure
from pursuit.core.criteria import Check, doubled
from pursuit.core.events import (
    AnyEvent,
    CallRefused,
    CallSettled,
    IterationEnded,
    IterationProposed,
    Outcome,
    RunClaimed,
)
from pursuit.core.mission import EverySeconds, Mission, OnEvent, Proposal, ToolCall
from pursuit.core.observe import leaves
from pursuit.core.state import MissionState
from pursuit.errors import BudgetExhausted
from pursuit.proposers.contract import Failed, Past, Proposer, Waiting
from pursuit.proposers.language import OfferedTool
from pursuit.proposers.search.objective import aim_of
from pursuit.proposers.search.settings import SearchProposer

if TYPE_CHECKING:
    from pursuit.proposers.search.samplers import Study

_SPENT = f"{BudgetExhausted.code}: "
"""The beginning of the error of a tool that refuses all further calls."""
UNMADE = frozenset({"skipped", "cancelled"})
"""The outcomes of calls that did not run to their end and tell nothing about their arguments."""
LOST = frozenset({"cancelled", "timed_out", "unknown"})
"""The outcomes of calls that may or may not have had an effect."""
BAD = frozenset({"failed", "timed_out", "unknown"})
"""The outcomes that a search avoids: arguments at which a server dies are among them."""
MAX_LOST = 2
"""The maximum of retries of lost calls of `then`, and of failed repeats of a winner."""
IDLE = 1.0
"""Minimum seconds of an iteration without calls, if the number of iterations is unlimited."""
RECENT = 8
MARGIN = 3
"""The number of slowest recent iterations that must still fit before `then` is called."""
SHARE, LEAST = 0.05, 5.0
"""Fraction of the total time, and minimum seconds, to reserve for `then`, which may start a judge."""


@dataclass(slots=True)
class SearchTrial:
    number: int
    args: Mapping[str, Any]
    outcome: Outcome | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class Trials:
    """Follows the events of one mission and gives the trials of each iteration at its end; measures their durations.

    Trials are numbered in the order of the proposals, not of the results. `checked`: a check of the mission tells if a
    call of `then`, the other tool, had an effect.
    """

    def __init__(self, tool: str, *, checked: bool = False) -> None:
        self.made = 0
        self.answered = 0
        """The number of trials with a result."""
        self.others = 0
        """The number of calls of `then`, without those that were never made and lost ones to retry."""
        self.why: str | None = None
        """Why the last of these calls failed."""
        self.spent: str | None = None
        """The error of a tool whose budget is used up, such as a problem's."""
        self._tool = tool
        self._checked = checked
        self._lost = 0
        self._beside: set[str] = set()
        self._open: dict[str, SearchTrial] = {}
        self._begun: float | None = None
        self._now = self._elapsed = 0.0
        self._took: deque[float] = deque(maxlen=RECENT)

    def advance(self, event: AnyEvent) -> Sequence[SearchTrial]:
        self._now = max(self._now, event.at)
        match event:
            case RunClaimed():
                self._elapsed = 0.0
            case IterationProposed():
                self._begun = event.at if self._begun is None and event.calls else self._begun
                self._open = {}
                self._beside = {call.call_id for call in event.calls if call.tool != self._tool}
                self.others += len(self._beside)
                for call in event.calls:
                    if call.tool == self._tool:
                        self._open[call.call_id] = SearchTrial(self.made, call.args)
                        self.made += 1
            case CallSettled() if event.call_id in self._open:
                trial = self._open[event.call_id]
                trial.outcome, trial.metrics = event.outcome, leaves(event.metrics)
                self.answered += event.outcome == "ok"
                if event.outcome == "failed" and (event.error or "").startswith(_SPENT):
                    self.spent = event.error
            case CallRefused() if event.call_id in self._open:
                self._open[event.call_id].outcome = event.outcome
            case CallSettled() | CallRefused() if event.call_id in self._beside:
                self._other(event)
            case IterationEnded():
                self._took.append(max(0.0, event.elapsed - self._elapsed))
                self._elapsed = event.elapsed
                ended, self._open = list(self._open.values()), {}
                return ended
            case _:
                pass
        return ()

    @property
    def since(self) -> float:
        """Wall-clock seconds since the first trial, including the time while the mission was stopped."""
        return 0.0 if self._begun is None else self._now - self._begun

    def is_late(self, left: float, whole: float) -> bool:
        """True if the remaining seconds are needed for the call of `then`."""
        return left <= min(whole / 2, max(MARGIN * max(self._took, default=0.0), SHARE * whole, LEAST))

    def _other(self, event: CallSettled | CallRefused) -> None:
        """Counts the outcome of a call of `then`."""
        said = event.error if isinstance(event, CallSettled) else event.reason
        self.why = None if event.outcome == "ok" else f"{event.outcome}: {said}"
        again = self._checked and event.outcome in LOST and self._lost < MAX_LOST
        self._lost += again
        if again or event.outcome == "skipped":
            self.others -= 1


def fitting(args: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the schema lists; all of them if it lists none."""
    known: Mapping[str, Any] = schema.get("properties") or args
    return {name: value for name, value in args.items() if name in known}


class Search(Proposer):
    """Gets the next trials from a study, after adding all trials of the ledger to it."""

    def __init__(self, mission: Mission, search: SearchProposer, past: Past, tools: Sequence[OfferedTool] = ()) -> None:
        self._search = search
        self._then: Mapping[str, Any] = next((one.schema for one in tools if one.name == search.then), dict[str, Any]())
        self._cadence = mission.checkpoint_cadence
        self._past = past
        self._aim = aim_of(mission, search, search.tool_name)[0]
        checks = [one for one in mission.criteria if isinstance(one, Check) and one.required]
        checked = search.then is not None and any(one.after == search.then for one in checks)
        self._trials = Trials(search.tool_name, checked=checked)
        self._untold = set(self._aim.metrics)  # the metrics that no trial has reported so far
        self._best: tuple[tuple[float, ...], Mapping[str, Any]] | None = None
        self._seq = 0
        self._study: Study | None = None
        self._again: Mapping[str, Any] | None = None
        self._wanted: Remeasure | None = (
            None  # what a criterion waits for: its `confirm`, or a repeated call of the winner
        )
        self._bad: deque[Mapping[str, Any]] = deque(maxlen=RECENT)  # the arguments of the last trials that failed
        # With `then`, unless results are known to be free of noise: a winner, and its new results.
        self._tested: tuple[Mapping[str, Any], list[Mapping[str, float]]] | None = None
        self._rejected = 0  # the number of winners that their fresh results rejected
        self._shown = False  # true if the current metrics are those of the best trial, which met every threshold
        self._judged = False  # true if there was a checkpoint since `then` was called
        self._planned: tuple[int, list[dict[str, Any]]] = (-1, [])

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The next trial, or a batch of trials; a failure once all trials were made."""
        if reasons:
            return Failed("; ".join(reasons), final=True)
        news = await self._past(self._seq)
        self._wanted = remeasure(state.confirmations.latest.values())
        # In a thread: a model of the metrics takes milliseconds, the first import of Optuna half a second.
        planned = await anyio.to_thread.run_sync(self._advance, news, state)
        if planned is None:
            return await self._idle(state)
        if isinstance(planned, Failed | Proposal):
            return planned
        calls = [ToolCall(tool_name=self._search.tool_name, args=args) for args in planned]
        return Proposal(tool_calls=calls, rationale=self._rationale(len(calls)))

    async def _idle(self, state: MissionState) -> Proposal | Failed:
        """Waits for the checkpoint; the last iteration of a budget is always a checkpoint."""
        if state.budget["max_iterations"] == -1:
            if isinstance(self._cadence, OnEvent):
                reason = f"{self._search.then} was called, but no event {self._cadence.event_name} made a checkpoint"
                return Failed(reason, final=True)
            if isinstance(self._cadence, EverySeconds):
                await anyio.sleep(min(self._cadence.t, IDLE))
        return Proposal(tool_calls=[], rationale=f"{self._search.then} was called; the mission waits for a checkpoint")

    def _must_end(self, state: MissionState, calls: int | None) -> bool:
        """True if the next call must be that of `then`: a budget allows only one more call, or the time is over."""
        iterations = _left(state, "max_iterations", state.iteration_count)
        if any(one is not None and one <= 1 for one in (iterations, calls)):
            return True
        trials, seconds = self._trials, self._search.seconds
        if seconds is not None and trials.is_late(seconds - trials.since, seconds):
            return True
        left = _left(state, "max_wall_clock_seconds", state.wall_clock)
        return left is not None and trials.is_late(left, state.budget["max_wall_clock_seconds"])

    def _advance(
        self, news: Sequence[tuple[int, AnyEvent]], state: MissionState
    ) -> list[dict[str, Any]] | Failed | Proposal | None:
        study = self._study = self._study or self._new_study()
        for seq, event in news:
            ended = self._trials.advance(event)
            if isinstance(event, IterationEnded):
                self._learn(study, ended, checkpoint=event.facts.checkpoint)
                self._judged = self._trials.others > 0 and (self._judged or event.facts.checkpoint)
            self._seq = seq
        if self._search.then is not None:
            return self._planned_then(study, self._search.then, state)
        return self._more(study, None)

    def _planned_then(
        self, study: Study, tool: str, state: MissionState
    ) -> list[dict[str, Any]] | Failed | Proposal | None:
        """Makes trials until one meets every threshold or all were made; then one call of `then`.

        It also stops when the mission's budget is only enough for that call. None after that call: then the search
        waits for the checkpoint.
        """
        if self._trials.others:
            return Failed(self._called(tool), final=True) if self._judged else None
        calls = _calls_left(state)
        room = None if calls is None else max(1, calls - 1)
        over = (self._shown and not self._confirming) or (self._best is not None and self._must_end(state, calls))
        more = Failed("") if over else self._more(study, room)
        if not isinstance(more, Failed):
            return more
        if self._best is None:
            return Failed(f"{more.reason}, and {self._nothing()}", final=True)
        best = self._best[1]
        if study.seen.noisy and not self._shown:  # the best single result may be due to chance
            best = {**self._search.args, **(study.best or best)}
        elif study.seen.noisy and self._tested is not None:
            best = self._tested[0]
        call = ToolCall(tool_name=tool, args=fitting(best, self._then))
        rationale = f"{tool} with the best arguments of {self._trials.made} trials{self._ignored()}"
        return Proposal(tool_calls=[call], rationale=rationale)

    def _nothing(self) -> str:
        if not self._trials.answered:
            return f"{self._search.tool_name} returned a result for none of them"
        names = " and ".join(sorted(self._untold) or self._aim.metrics)
        return f"none of them reported {names}, so none is the best"

    def _ignored(self) -> str:
        """Names the metrics of the objective and the limits that could not be used."""
        return f", without {', '.join(sorted(self._untold))}, which no trial reported" if self._untold else ""

    def _called(self, tool: str) -> str:
        why = self._trials.why
        return f"{tool} was called, but the mission has not ended" if why is None else f"{tool} was called, but {why}"

    def _more(self, study: Study, room: int | None) -> list[dict[str, Any]] | Failed:
        if self._trials.spent is not None:
            return Failed(f"{self._search.tool_name} accepts no more calls: {self._trials.spent}", final=True)
        if self._confirming:
            return self._plan(study, min(self._search.batch, self._wanted.times if self._wanted else 1))
        if self._again is not None:  # the winner runs once more, even if `trials` or the space is used up
            return self._plan(study, 1)
        made, most, left = self._trials.made, self._search.trials, study.left
        if most is not None and made >= most:
            return Failed(f"all {most} trials of the search were made", final=True)
        if left == 0:
            return Failed(f"all {study.size} combinations were tried", final=True)
        rest = (None if most is None else most - made, left, room)
        return self._plan(study, min([self._search.batch, *(one for one in rest if one is not None)]))

    def _new_study(self) -> Study:
        from pursuit.proposers.search.samplers import Study  # noqa: PLC0415 - Optuna loads only for a search
        from pursuit.proposers.search.space import Space  # noqa: PLC0415 - and NumPy with it

        search = self._search
        space = Space(search.parameters)
        return Study(
            space,
            sampler=search.sampler,
            seed=search.seed,
            aimless=self._aim.objective is None,
            noise=search.noise,
            target=self._aim.target,
        )

    @property
    def _confirming(self) -> bool:
        """True if a criterion waits for more results of a trial, unless repeating the trial only fails."""
        wanted = self._wanted
        if wanted is None or wanted.tool != self._search.tool_name:
            return False
        return sum(args == wanted.args for args in self._bad) < MAX_LOST

    def _plan(self, study: Study, count: int) -> list[dict[str, Any]]:
        """The arguments of the next trials; the same list until they are in the ledger."""
        if self._planned[0] == self._trials.made:
            return self._planned[1]
        if self._confirming and self._wanted is not None:
            planned = [study.take(self._wanted.args) for _ in range(count)]
        elif self._again is not None:
            planned = [study.take({name: one for name, one in self._again.items() if name not in self._search.args})]
        else:
            planned = [study.ask() for _ in range(count)]
        self._planned = (self._trials.made, [{**self._search.args, **args} for args in planned])
        return self._planned[1]

    def _learn(self, study: Study, ended: Sequence[SearchTrial], *, checkpoint: bool) -> None:
        """Tells the study the outcomes of an iteration's trials, in the order of their numbers."""
        if not ended:
            return
        if self._planned[0] != ended[0].number:  # another process planned these trials
            for trial in ended:
                study.take(trial.args)
        met: SearchTrial | None = None
        self._notice(ended)
        for trial in ended:
            score = self._aim.score(trial.metrics, self._untold) if trial.outcome == "ok" else None
            study.tell(score, failed=trial.outcome in BAD or trial.outcome == "ok", made=trial.outcome not in UNMADE)
            if trial.outcome in BAD:
                self._bad.append(trial.args)
            if score is None:
                continue
            if self._best is None or score.rank > self._best[0]:
                self._best = score.rank, trial.args
            if score.met:
                met = trial
        if self._again is not None and all(trial.outcome in UNMADE for trial in ended):
            return  # the winner's second call was never made, so it is still needed
        if self._search.then is not None and (study.seen.noisy or not study.seen.settled):
            self._again = self._retested(met, ended)
        else:
            self._again = self._unseen(met, ended[-1], checkpoint=checkpoint)

    def _retested(self, met: SearchTrial | None, ended: Sequence[SearchTrial]) -> Mapping[str, Any] | None:
        """The arguments of a winner, with noise, until it has enough fresh results; their mean decides.

        The result that made it a winner does not count: it was selected for being good.
        """
        self._shown = False
        if self._tested is None:
            self._tested = None if met is None else (met.args, [])
        else:
            args, fresh = self._tested
            fresh += [trial.metrics for trial in ended if trial.outcome == "ok" and trial.args == args]
            score = self._aim.score(_means(fresh), self._untold) if fresh else None
            needed = doubled(RETESTS, self._rejected)
            if score is None or not score.met:
                self._tested = None
                self._rejected += 1
            last = self._aim.score(ended[-1].metrics, self._untold) if ended[-1].outcome == "ok" else None
            # The last result counts for criteria without `confirm`.
            enough = len(fresh) >= needed and last is not None and last.met
            self._shown = self._tested is not None and enough
        return None if self._tested is None or self._shown else self._tested[0]

    def _unseen(self, met: SearchTrial | None, last: SearchTrial, *, checkpoint: bool) -> Mapping[str, Any] | None:
        """The arguments to call once more: a criterion is decided by the last value, at a checkpoint.

        `then` does not change the metrics, so with it only the best trial must be the last one.
        """
        self._shown = False
        if met is None or self._best is None:
            return None
        winner = met.args
        if self._search.then is None:
            unseen = met is not last or not checkpoint
        else:
            winner = self._best[1]
            self._shown = met is last and last.args == winner
            unseen = not self._shown
        return winner if unseen else None

    def _notice(self, ended: Sequence[SearchTrial]) -> None:
        """Records which metrics are ever reported; the first report of one makes earlier trials incomparable."""
        news = {name for trial in ended if trial.outcome == "ok" for name in trial.metrics} & self._untold
        if news:
            self._untold -= news
            self._best = None

    def _rationale(self, count: int) -> str:
        first = self._trials.made + 1
        kind = "" if self._study is None else f" ({self._study.kind}, seed {self._search.seed})"
        if self._confirming:
            return f"trial {first}: repeats the arguments that met a threshold, to confirm it{kind}"
        if self._again is not None:
            return f"trial {first}: repeats the arguments that met every threshold{kind}"
        ignored = self._ignored() if self._trials.answered else ""
        which = f"trial {first}" if count == 1 else f"trials {first} to {first + count - 1}"
        return f"{which}{kind}{ignored}"


def _means(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in results[0] if all(name in one for one in results)]
    return {name: fmean(one[name] for one in results) for name in names}


def _left(state: MissionState, name: str, used: float) -> float | None:
    cap = state.budget.get(name, -1)
    return None if cap == -1 else cap - used - state.lent.get(name, 0)


def _calls_left(state: MissionState) -> int | None:
    """The remaining calls, without those for the checks of an iteration."""
    checks = sum(isinstance(criterion, Check) for criterion in state.mission.criteria)
    left = _left(state, "max_tool_calls", state.tool_calls)
    return None if left is None else int(left) - checks

"""Checks what a cluster left behind: its ledger, the appends that it acknowledged, and the effects of its calls.

Owns: what must hold, whatever happened to the processes. Knows nothing of how the history came about. A file of
acknowledgements has a line for each append that returned: when, by which process, the stream, the number and hash of
its new head, and the epoch of the driver (`-` for an append without a claim).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pursuit.core.events import CallIntended, CallSettled, MissionEnded, decode
from pursuit.ledger.contract import Ledger, StoredEvent, every_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """An append that returned to its caller."""

    at: float
    """On the machine's monotonic clock, which no fault puts wrong."""
    by: str
    """The process that appended."""
    stream: str
    seq: int
    hash: str
    epoch: int | None

    @classmethod
    def read(cls, line: str) -> Append:
        at, by, stream, seq, hash_, epoch = line.split()
        driver = None if epoch == "-" else int(epoch)
        return cls(at=float(at), by=by, stream=stream, seq=int(seq), hash=hash_, epoch=driver)

    def line(self) -> str:
        return f"{self.at} {self.by} {self.stream} {self.seq} {self.hash} {'-' if self.epoch is None else self.epoch}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is left: the events of each stream, the appends that were acknowledged, and the keys of the effects."""

    missions: Sequence[str]
    """Those that were started."""
    events: Mapping[str, Sequence[StoredEvent]]
    appends: Sequence[Append]
    effects: Sequence[str]


async def read_history(ledger: Ledger, missions: Sequence[str], acknowledged: Iterable[Path], effects: Path) -> History:
    """The history of a ledger; each line of `effects` is a kind, a key, and the process that caused it."""
    events = {row.name: await ledger.read(row.name) async for row in every_stream(ledger)}
    # A line that the kill of its process cut is no acknowledgement.
    lines = [
        line for path in acknowledged for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")
    ]
    return History(
        missions=missions,
        events=events,
        appends=[Append.read(line) for line in lines],
        effects=[line.split()[1] for line in effects.read_text().splitlines() if line.startswith("step ")],
    )


def faults_of(history: History) -> list[str]:
    """All that is wrong with a history; nothing if it is sound."""
    return [*_gaps(history), *_lost_appends(history), *_late_drivers(history), *_calls(history), *_unended(history)]


def _gaps(history: History) -> Iterator[str]:
    for stream, events in history.events.items():
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"gap: the events of {stream} have the numbers {[event.seq for event in events]}"


def _lost_appends(history: History) -> Iterator[str]:
    stored = {(stream, event.seq): event.hash.hex() for stream, events in history.events.items() for event in events}
    for one in history.appends:
        if stored.get((one.stream, one.seq)) != one.hash:
            yield f"lost: {one.stream} has another event {one.seq} than the one that was acknowledged, or none"


def _late_drivers(history: History) -> Iterator[str]:
    newest: dict[str, int] = {}
    for one in sorted(history.appends, key=lambda one: one.seq):
        if one.epoch is None:
            continue
        if one.epoch < newest.get(one.stream, 0):
            yield f"fencing: event {one.seq} of {one.stream} is of the driver {one.epoch}, after {newest[one.stream]}"
        newest[one.stream] = max(one.epoch, newest.get(one.stream, 0))


def _calls(history: History) -> Iterator[str]:
    counted = Counter(history.effects)
    for key, times in counted.items():
        if times > 1:
            yield f"repeat: the effect {key} happened {times} times"
    intended: dict[str, str] = {}
    settled: Counter[str] = Counter()
    for events in history.events.values():
        for stored in events:
            event = decode(stored.type, stored.body) if stored.type in ("CallIntended", "CallSettled") else None
            if isinstance(event, CallIntended):
                intended[event.call_id] = str(event.args["key"])
            elif isinstance(event, CallSettled):
                settled[event.call_id] += 1
                if event.outcome == "ok" and not counted[intended[event.call_id]]:
                    yield f"lost: the call {event.call_id} is settled as ok, and its effect did not happen"
    for key in counted.keys() - set(intended.values()):
        yield f"unintended: the effect {key} happened without an intent"
    for call_id in intended:
        if settled[call_id] != 1:
            yield f"unsettled: the call {call_id} is settled {settled[call_id]} times"


def _unended(history: History) -> Iterator[str]:
    for mission in history.missions:
        ends = sum(event.type == MissionEnded.__name__ for event in history.events.get(mission, ()))
        if ends != 1:
            yield f"unended: {mission} has {ends} ends"

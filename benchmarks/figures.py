"""What a benchmark found, beside what is required of it.

Owns: the table and the exit code. Knows nothing of what was measured.
Invariant: with `--check` a figure that misses its limit ends the run with exit code 1; without it none does.

With `--smoke` each benchmark runs the same code at tiny sizes, without peers, and judges no figure: it shows that the
benchmark still works.
"""

from __future__ import annotations

import operator
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

SMOKE = "--smoke" in sys.argv[1:]
HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number; `limit` is None for a number that is only shown."""

    what: str
    value: float
    unit: str
    rule: Literal["<=", ">=", "<"] = "<="
    limit: float | None = None

    @property
    def ok(self) -> bool:
        return self.limit is None or HOLDS[self.rule](self.value, self.limit)

    def row(self) -> tuple[str, str, str, str]:
        required = "" if self.limit is None else f"{self.rule} {self.limit:g}"
        judged = "not judged" if SMOKE else "ok" if self.ok else "MISSED"
        verdict = "" if self.limit is None else judged
        return self.what, f"{self.value:,.2f} {self.unit}", required, verdict


def sized(whole: int, smoke: int) -> int:
    """How large a benchmark is: `smoke` in the form that only shows that it works."""
    return smoke if SMOKE else whole


def ratio_of_rounds(above: Sequence[float], below: Sequence[float]) -> float:
    """The median over the rounds of one number by the other: both of a round met the same weather."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def finish(title: str, figures: Iterable[Figure]) -> None:
    """Prints the table; leaves with 1 if `--check` was asked for and a figure missed its limit."""
    figures = list(figures)
    rows = [("", "measured", "required", ""), *(figure.row() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    print(f"\n{title}")
    for what, value, required, verdict in rows:
        line = f"  {what:<{widths[0]}}  {value:>{widths[1]}}  {required:<{widths[2]}}  {verdict}"
        print(line.rstrip(), flush=True)
    if "--check" in sys.argv[1:] and not SMOKE and not all(figure.ok for figure in figures):
        sys.exit(1)

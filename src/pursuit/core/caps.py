"""The caps of a mission's budget. A cap is one field of `Budget` with its `Cap`; everything else reads `CAPS`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Protocol, Self

from pydantic import field_validator

from pursuit.core.base_model import Broken, Flag, InputModel, Number, Whole

NO_CAP = -1


class Counts(Protocol):
    iteration_count: int
    tool_calls: int
    tokens: int
    cost_usd: float

    @property
    def wall_clock(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """One cap: the amount that the mission itself used, and its names.

    Time passes for all missions at the same time; counts and money are divided among the children of a mission.
    """

    name: str = ""
    unit: Literal["count", "seconds", "usd"]
    own: Callable[[Counts], float]
    of_models: bool = False
    """True if only language models use it; then it is hidden without a cap and without use."""

    @property
    def used(self) -> str:
        """The key of the used amount in JSON."""
        return self.name.removeprefix("max_")

    @property
    def reason(self) -> str:
        return self.name.removesuffix(f"_{self.unit}")

    @property
    def label(self) -> str:
        return self.reason.removeprefix("max_").replace("_", " ").capitalize()

    @property
    def label_with_unit(self) -> str:
        return self.label + {"count": "", "seconds": " (s)", "usd": " (USD)"}[self.unit]

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"


class Budget(InputModel):
    """Caps, each a positive number or -1 for none; one of the first two must be set unless `unbounded`."""

    max_iterations: Annotated[Whole, Cap(unit="count", own=lambda counts: counts.iteration_count)] = NO_CAP
    max_wall_clock_seconds: Annotated[Number, Cap(unit="seconds", own=lambda counts: counts.wall_clock)] = NO_CAP
    max_tool_calls: Annotated[Whole, Cap(unit="count", own=lambda counts: counts.tool_calls)] = NO_CAP
    max_tokens: Annotated[Whole, Cap(unit="count", own=lambda counts: counts.tokens, of_models=True)] = NO_CAP
    max_cost_usd: Annotated[Number, Cap(unit="usd", own=lambda counts: counts.cost_usd, of_models=True)] = NO_CAP
    on_exhausted: Literal["stop", "wait"] = "stop"
    unbounded: Flag = False

    @field_validator("*")
    @classmethod
    def _positive_or_none(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool) and value != NO_CAP and value <= 0:
            raise ValueError("must be a positive number, or -1 for no cap")
        return value

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        open_ended = all(given.get(name, NO_CAP) == NO_CAP for name in tuple(CAPS)[:2])
        if open_ended and not given.get("unbounded"):
            yield Broken("give max_iterations or max_wall_clock_seconds, or set unbounded = true")

    @property
    def caps(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in CAPS}


CAPS = {
    name: replace(cap, name=name)
    for name, field in Budget.model_fields.items()
    for cap in field.metadata
    if isinstance(cap, Cap)
}
BY_REASON = {cap.reason: cap for cap in CAPS.values()}
POOLED = tuple(name for name, cap in CAPS.items() if cap.unit != "seconds")
SHOWN = tuple(sorted(CAPS.values(), key=lambda cap: (cap.of_models, cap.unit != "count")))
"""The caps in display order: counts before time and money; caps that only models use come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUse:
    """A cap with its `limit` (None: no cap) and the amount `used` (None: not known)."""

    cap: Cap
    limit: float | None
    used: float | None

    @property
    def left(self) -> float | None:
        """The remaining amount; None without a limit, or if it is not known."""
        return None if self.limit is None or self.used is None else max(0, self.limit - self.used)

    @property
    def share(self) -> float | None:
        """The used fraction, from 0 to 1; None without a limit, or if it is not known."""
        return None if self.limit is None or self.used is None else min(1.0, self.used / self.limit)


class BudgetUse:
    """The budget of a mission: each cap by its name, with the amount used by the mission and its children.

    It is not a dataclass because `msgspec` would then encode its fields instead of `as_json`.
    """

    __slots__ = ("caps", "on_exhausted")

    def __init__(self, caps: Mapping[str, CapUse], on_exhausted: str) -> None:
        self.caps: Final = caps
        self.on_exhausted: Final = on_exhausted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BudgetUse) and self.as_json() == other.as_json()

    def __hash__(self) -> int:
        return hash(self.on_exhausted)

    def __repr__(self) -> str:
        return f"<BudgetUse {self.as_json()}>"

    def as_json(self) -> dict[str, Any]:
        """The `budget` of a status and of a report."""
        none = {"count": NO_CAP, "seconds": float(NO_CAP), "usd": float(NO_CAP)}
        limits = {name: none[use.cap.unit] if use.limit is None else use.limit for name, use in self.caps.items()}
        used = {use.cap.used: use.used for use in self.caps.values()}
        return {**limits, "on_exhausted": self.on_exhausted, "used": used}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Reads `as_json`, also from a report that an earlier release wrote."""
        caps: dict[str, CapUse] = {}
        for name, cap in CAPS.items():
            limit = row.get(name, NO_CAP)
            caps[name] = CapUse(cap=cap, limit=None if limit == NO_CAP else limit, used=row["used"].get(cap.used, 0))
        return cls(caps=caps, on_exhausted=row["on_exhausted"])

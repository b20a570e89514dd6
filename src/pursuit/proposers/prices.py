"""What language models cost, as data.

Owns: the way from a model's name to dollars. Knows no network: the known prices come with `genai-prices`.
Invariant: a price that is not known is None, and never nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_SAME = {"openai-chat": "openai", "openai-responses": "openai", "google-gla": "google", "google-vertex": "google"}
_PER = 1_000_000


class Used(Protocol):
    """What a request used up."""

    @property
    def input_tokens(self) -> int:
        """Tokens read."""
        ...

    @property
    def output_tokens(self) -> int:
        """Tokens written."""
        ...


class Priced(Protocol):
    """A price."""

    def of(self, used: Used) -> float:
        """Dollars for a request."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for a million tokens, as the operator says."""

    input: float
    output: float

    def of(self, used: Used) -> float:
        """Dollars for a request."""
        return round((used.input_tokens * self.input + used.output_tokens * self.output) / _PER, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A price that `genai-prices` knows, tiers and caches included."""

    provider: str
    model: str

    def of(self, used: Used) -> float:
        from genai_prices import calc_price  # noqa: PLC0415 - its data loads with the first price

        return round(float(calc_price(used, self.model, provider_id=self.provider).total_price), 9)


def price_of(name: str, own: Price | None = None) -> Priced | None:
    """The price of a model by its full name (`provider:model`), or None if nobody knows it."""
    if own is not None:
        return own
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - comes with the extra
    except ImportError:
        return None
    provider, _, model = name.partition(":")
    provider = _SAME.get(provider, provider)
    try:
        calc_price(Usage(input_tokens=0, output_tokens=_PER), model, provider_id=provider)
    except LookupError:
        return None
    return _Known(provider=provider, model=model)

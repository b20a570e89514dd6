"""What a question to a language model may take of a mission's budget.

Owns: whether it is asked at all, and how long its answer may be. Asks nobody. Invariant: the estimate of the question
and the longest answer together fit into what is left of every cap; where they do not, nothing is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pursuit.model.lending import Purse
from pursuit.model.state import MissionState
from pursuit.model.tokens import LEAST_ANSWER, estimate
from pursuit.proposers.language import ModelRequest, OutOfBudget, Terms
from pursuit.proposers.prices import Priced


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    input_tokens: int
    output_tokens: int


def affordable(state: MissionState, request: ModelRequest, terms: Terms | None) -> ModelRequest:
    """The request with an answer no longer than what the question leaves. Raises `OutOfBudget`.

    Without `terms` nobody will tell what an answer used up: then it is bound by what is left, and nothing is estimated.
    """
    left = Purse(state).left
    tokens, cost = left.get("max_tokens"), left.get("max_cost_usd")
    if tokens is not None and tokens <= 0:
        raise OutOfBudget("max_tokens")
    if cost is not None and cost <= 0:
        raise OutOfBudget("max_cost")
    if terms is None:
        return request if tokens is None else replace(request, max_tokens=min(request.max_tokens, int(tokens)))
    longest = max(request.max_tokens, terms.least_answer)
    least = max(min(longest, LEAST_ANSWER), terms.least_answer)
    read = estimate(request.size, state.densest)
    if tokens is not None:
        longest = min(longest, int(tokens) - read)
        if longest < least:
            raise OutOfBudget("max_tokens")
    if cost is not None and terms.price is not None:
        longest = _payable(terms.price, cost, read, longest)
        if longest < least:
            raise OutOfBudget("max_cost")
    return replace(request, max_tokens=longest)


def _payable(price: Priced, cost: float, read: int, longest: int) -> int:
    """The most tokens of an answer, up to the longest, that can be paid for; -1 if the question itself cannot."""
    if price.of(_Use(input_tokens=read, output_tokens=longest)) <= cost:
        return longest
    low, high = -1, longest  # a price may have tiers, so it is looked for and not divided
    while high - low > 1:
        middle = (low + high) // 2
        if price.of(_Use(input_tokens=read, output_tokens=middle)) <= cost:
            low = middle
        else:
            high = middle
    return low

"""Whether a submission has the form that the problem asks for.

Owns: the check of our own `submit_final`. Pure. Invariant: what passes is an object that fits the manifest's schema, or
a text that is not empty after trimming.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.manifest import Manifest
from pursuit.tools.validation import UnusableSchema, compiled

FREE_KEYS = ("answer", "justification")


def checked_submission(problem: Manifest, given: Mapping[str, Any]) -> dict[str, Any]:
    """The submission; raises `ValidationFailed` with everything that is wrong, and then it does not count."""
    reasons = _free(given) if problem.submission is None else _typed(problem.submission, given)
    if reasons:
        faults = [Fault(field="submission", reason=reason) for reason in reasons]
        raise ValidationFailed(faults, "this is no valid submission, and it does not count as one")
    return dict(given)


def _typed(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    try:
        return compiled(schema).faults(given)
    except UnusableSchema as error:
        return [f"the problem's own schema cannot be used: {error}"]


def _free(given: Mapping[str, Any]) -> list[str]:
    reasons = [f"there is no part {key!r}; known: answer, justification" for key in given if key not in FREE_KEYS]
    answer = given.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        reasons.append("answer must be a text that is not empty")
    if not isinstance(given.get("justification", ""), str):
        reasons.append("justification must be a text")
    return reasons

"""Judges a submission by the formulas of the literature."""

from pursuit.demo.designs import evaluate


def score(submission: dict[str, float]) -> dict[str, float]:
    """The cost and the constraints of the submitted design."""
    return evaluate("gear-train", submission)

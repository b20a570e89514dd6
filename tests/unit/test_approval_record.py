"""The events of missions and of gateways are read into one record, and close a question by the same rules."""

from __future__ import annotations

from typing import Any

import pytest

from pursuit.core.approvals import (
    Approval,
    Questions,
    answer_event,
    call_scope,
    expiry_event,
    read_question,
    shown_event,
)
from pursuit.core.events import ApprovalAsked
from pursuit.core.gateway_events import GatewayApprovalAsked, decode_gateway

ID, UNTIL = "approval-0123456789abcdef", 100.0
ASKERS = ("mission", "gateway")


def question(asker: str, **given: Any) -> ApprovalAsked | GatewayApprovalAsked:
    common: dict[str, Any] = {"approval_id": ID, "tool": "w.wipe", "args": {"n": 1}, "description": "?", "reason": "!"}
    common |= {"at": 1.0, "until": UNTIL, **given}
    if asker == "mission":
        return ApprovalAsked(**common, call_id="c", iteration=0, subject="ann")
    scope = call_scope("w.wipe", {"n": 1}, digest=common.get("digest"), client="ann")
    return GatewayApprovalAsked(**common, scope=scope, who="ann", by="ann")


def said(asked: Approval, answer: Any, at: float = 2.0, person: str = "bob") -> Any:
    return answer_event(asked, answer, at=at, by=person, person=person, channel="page", reason="so")


def after(asker: str, *words: tuple[Any, ...], **given: Any) -> Questions:
    """The questions after these answers; one without an answer is the expiry."""
    questions, event = Questions(), question(asker, **given)
    questions.apply(event)
    for word in words:
        asked = read_question(event)
        questions.apply(said(asked, *word) if word[1:] else expiry_event(asked, *word))
    return questions


@pytest.mark.parametrize("asker", ASKERS)
@pytest.mark.parametrize(
    ("words", "require", "outcome"),
    [
        ([("once", 2.0)], 1, ("once", "bob", 2.0)),
        ([("denied", 2.0), ("once", 3.0)], 1, ("denied", "bob", 2.0)),
        ([("once", UNTIL)], 1, (None, None, None)),
        ([(UNTIL,), ("once", 2.0)], 1, ("expired", None, UNTIL)),
        ([("mission", 2.0)], 2, (None, None, None)),
        ([("mission", 2.0), ("once", 3.0)], 2, (None, None, None)),
        ([("mission", 2.0), ("arguments", 3.0, "eve")], 2, ("arguments", "bob and eve", 3.0)),
        ([("mission", 2.0), ("denied", 3.0, "eve")], 2, ("denied", "eve", 3.0)),
    ],
)
def test_both_families_are_closed_by_the_same_rules(
    asker: Any, words: list[tuple[Any, ...]], require: int, outcome: tuple[Any, ...]
) -> None:
    found = after(asker, *words, require=require).asked[ID]
    assert (found.answer, found.by, found.answered_at) == outcome
    assert (found.asker, found.client, found.asked_at, found.until) == (asker, "ann", 1.0, UNTIL)
    assert found.is_about("w.wipe", {"n": 1}) and not found.is_about("w.wipe", {"n": True})
    assert found.is_open(50.0) is (outcome[0] is None) and not found.is_open(UNTIL)


@pytest.mark.parametrize("asker", ASKERS)
@pytest.mark.parametrize(("answer", "same", "other"), [("once", 0, 0), ("arguments", 1, 0), ("mission", 1, 1)])
def test_a_yes_covers_as_much_in_both_families(asker: str, answer: str, same: bool, other: bool) -> None:
    questions = after(asker, (answer, 2.0), digest="d")
    covers = [
        questions.is_granted("approval-of-another-call", "w.wipe", {"n": n}, client=client, digest=digest)
        for n, client, digest in [(1, "ann", "d"), (2, "ann", "d"), (1, "eve", "d"), (1, "ann", "e"), (1, None, "d")]
    ]
    assert covers == [same, other, False, False, False]
    assert not questions.is_granted("x", "w.wipe", {"n": 1}, client="ann", digest="d", require=2)
    assert not questions.is_granted("x", "w.wipe as d", {"n": 1}, client="ann", digest="e"), "it is another tool"


@pytest.mark.parametrize("asker", ASKERS)
def test_who_has_seen_the_arguments_is_in_the_record(asker: str) -> None:
    questions = after(asker, cut=True)
    questions.apply(shown_event(questions.asked[ID], at=2.0, by="bob", person="bob"))
    assert questions.asked[ID].shown == {"bob"}


def test_the_expiry_of_a_gateways_question_is_stored_as_in_earlier_releases() -> None:
    stored = f'{{"type":"GatewayApprovalAnswered","at":2.0,"approval_id":"{ID}","answer":"denied","by":"its expiry"}}'
    late = expiry_event(read_question(question("gateway")), 2.0)
    assert decode_gateway(stored.encode()) == late

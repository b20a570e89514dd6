"""Whose word counts about a tool, and what the first policy makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pursuit.errors import ValidationFailed
from pursuit.tools.contract import Tool, Traits
from pursuit.tools.policy import AllowlistPolicy, parse_mode
from pursuit.tools.server_config import ToolOverride
from pursuit.tools.traits import traits

WORST = Traits()
SAFE = Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False)
maybe = st.none() | st.booleans()
hints = st.dictionaries(
    st.sampled_from(["readOnlyHint", "idempotentHint", "destructiveHint", "openWorldHint"]),
    st.booleans() | st.none() | st.just("true") | st.just(1),
)


def test_nothing_known_is_the_worst() -> None:
    assert traits(None, None) == WORST
    assert traits(ToolOverride(), {}, True) == WORST


def test_read_only_implies_the_rest_and_can_be_narrowed() -> None:
    assert traits(ToolOverride(read_only=True), None) == SAFE
    narrowed = traits(ToolOverride(read_only=True, parallel_safe=False), None)
    assert (narrowed.read_only, narrowed.parallel_safe) == (True, False)


def test_annotations_count_only_with_trust() -> None:
    claims = {"readOnlyHint": True}
    assert traits(None, claims) == WORST
    assert traits(None, claims, True) == SAFE
    assert traits(None, {"idempotentHint": True, "destructiveHint": False}, True) == Traits(
        idempotent=True, destructive=False
    )
    assert traits(None, {"readOnlyHint": "true", "destructiveHint": 0}, True) == WORST


def test_the_operator_wins_over_a_trusted_server() -> None:
    assert traits(ToolOverride(read_only=False), {"readOnlyHint": True}, True) == WORST
    assert traits(ToolOverride(destructive=True), {"readOnlyHint": True}, True) == WORST
    assert traits(ToolOverride(read_only=True), {"readOnlyHint": False, "destructiveHint": True}, True) == SAFE


def test_timeouts() -> None:
    assert traits(ToolOverride(timeout=5), None, timeout=60).timeout == 5
    assert traits(None, None, timeout=60).timeout == 60


@given(maybe, maybe, maybe, maybe, hints)
def test_an_untrusted_annotation_never_changes_anything_for_the_better(
    read_only: bool | None,
    idempotent: bool | None,
    parallel_safe: bool | None,
    destructive: bool | None,
    annotations: dict[str, object],
) -> None:
    override = ToolOverride(
        read_only=read_only, idempotent=idempotent, parallel_safe=parallel_safe, destructive=destructive
    )
    assert traits(override, annotations) == traits(override, None)
    for said, answer in (
        (idempotent, traits(override, annotations, True).idempotent),
        (parallel_safe, traits(override, annotations, True).parallel_safe),
        (destructive, traits(override, annotations, True).destructive),
    ):
        assert said is None or answer is said


def test_the_allowlist_denies_what_is_not_on_it() -> None:
    policy = AllowlistPolicy(frozenset({"a.x"}))
    known = Tool(server="a", name="x", input_schema={}, definition={})
    other = Tool(server="b", name="x", input_schema={}, definition={})
    assert policy.decide(known, {}).decision == "allow"
    ruling = policy.decide(other, {})
    assert ruling.decision == "deny"
    assert "b.x" in ruling.reason


def test_modes() -> None:
    assert parse_mode("auto") == "auto"
    for mode, words in (("ask", "not there yet"), ("never", "not there yet"), ("atuo", "did you mean 'auto'")):
        with pytest.raises(ValidationFailed) as caught:
            parse_mode(mode)
        assert words in caught.value.faults[0].reason

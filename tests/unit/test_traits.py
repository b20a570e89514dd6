"""Whose word counts about a tool, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pursuit.core.tools import ToolOverride, Traits
from pursuit.policy.traits import (
    DOUBTED,
    MISSION_FILE,
    MISSION_FILE_IGNORED,
    OPERATOR,
    READS,
    TIGHTENS,
    TRUSTED,
    UNKNOWN,
    traits,
)

WORST = Traits()
SAFE = Traits(read_only=True, idempotent=True, parallel_safe=True, destructive=False)
maybe = st.none() | st.booleans()
hints = st.dictionaries(
    st.sampled_from(["readOnlyHint", "idempotentHint", "destructiveHint", "openWorldHint"]),
    st.booleans() | st.none() | st.just("true") | st.just(1),
)


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


READER = ToolOverride(read_only=True, idempotent=True, parallel_safe=True, destructive=False)
WRITER = ToolOverride(read_only=False, idempotent=True, parallel_safe=False, destructive=False)
rows = st.sampled_from([READER, WRITER, ToolOverride(read_only=False, idempotent=False, destructive=True)])


CLAIMS = {"readOnlyHint": True}
WORSE = {"readOnlyHint": False, "destructiveHint": True}
QUIET = Traits(idempotent=True, destructive=False)


@pytest.mark.parametrize(
    ("override", "annotations", "more", "expected"),
    [
        (None, None, {}, WORST),
        (ToolOverride(), {}, {"trusted": True}, WORST),
        (ToolOverride(read_only=True), None, {}, SAFE),
        (ToolOverride(read_only=True, parallel_safe=False), None, {}, replace(SAFE, parallel_safe=False)),
        (None, CLAIMS, {}, WORST),
        (None, CLAIMS, {"trusted": True}, SAFE),
        (None, {"idempotentHint": True, "destructiveHint": False}, {"trusted": True}, QUIET),
        (None, {"readOnlyHint": "true", "destructiveHint": 0}, {"trusted": True}, WORST),
        (ToolOverride(read_only=False), CLAIMS, {"trusted": True}, WORST),
        (ToolOverride(destructive=True), CLAIMS, {"trusted": True}, WORST),
        (ToolOverride(read_only=True), WORSE, {"trusted": True}, SAFE),
        (ToolOverride(timeout=5), None, {"timeout": 60}, replace(WORST, timeout=5)),
        (None, None, {"timeout": 60}, replace(WORST, timeout=60)),
        # The table counts where the operator is silent; who contradicts a row's main answer sets all of it aside.
        (None, None, {"curated": READER}, SAFE),
        (None, None, {"curated": WRITER}, QUIET),
        (ToolOverride(parallel_safe=False), None, {"curated": READER}, replace(SAFE, parallel_safe=False)),
        (None, {"readOnlyHint": False}, {"curated": READER}, WORST),
        (None, {"destructiveHint": True}, {"curated": READER}, WORST),
        (None, {"readOnlyHint": True, "destructiveHint": True}, {"curated": READER}, SAFE),
        (ToolOverride(read_only=False), None, {"curated": READER}, WORST),
        (ToolOverride(destructive=True), None, {"curated": READER}, WORST),
        (ToolOverride(read_only=True), None, {"curated": WRITER}, SAFE),
        (None, {"readOnlyHint": True, "idempotentHint": True}, {"curated": WRITER, "trusted": True}, QUIET),
    ],
)
def test_whose_answer_counts(
    override: ToolOverride | None, annotations: dict[str, object] | None, more: dict[str, Any], expected: Traits
) -> None:
    assert traits(override, annotations, **more) == expected


def test_an_annotation_tightens_the_table_and_never_loosens_it() -> None:
    tightened = traits(None, {"idempotentHint": False, "destructiveHint": True}, curated=WRITER)
    assert tightened == WORST
    assert tightened.why["destructive"] == tightened.why["idempotent"] == TIGHTENS


def test_each_answer_says_where_it_came_from() -> None:
    assert traits(ToolOverride(read_only=True), None).why == {
        "read_only": OPERATOR, "idempotent": READS, "parallel_safe": READS, "destructive": READS
    }  # fmt: skip
    assert set(traits(None, None).why.values()) == {UNKNOWN}
    claims = {"readOnlyHint": True}
    assert traits(None, claims).why["read_only"] == DOUBTED
    assert traits(None, claims, True).why["read_only"] == TRUSTED
    assert traits(None, None, curated=READER, table="known").why["read_only"] == "known"
    assert traits(ToolOverride(destructive=True), claims, True, speaker="me").why["read_only"] == "me"


@given(st.builds(ToolOverride, read_only=maybe, idempotent=maybe, parallel_safe=maybe, destructive=maybe), hints, rows)
def test_a_mission_files_word_never_makes_its_own_server_look_safer(
    said: ToolOverride, annotations: dict[str, object], row: ToolOverride
) -> None:
    found = traits(said, annotations, True, curated=row, table="known", operators=False)
    assert found == WORST
    assert set(found.why.values()) <= {MISSION_FILE_IGNORED, MISSION_FILE}


@given(hints, rows)
def test_an_untrusted_annotation_never_makes_a_row_look_safer(
    annotations: dict[str, object], row: ToolOverride
) -> None:
    alone, annotated = traits(None, None, curated=row), traits(None, annotations, curated=row)
    assert annotated.read_only <= alone.read_only
    assert annotated.idempotent <= alone.idempotent
    assert annotated.parallel_safe <= alone.parallel_safe
    assert annotated.destructive >= alone.destructive

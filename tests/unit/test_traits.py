"""Whose word counts about a tool, and why."""

from __future__ import annotations

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


READER = ToolOverride(read_only=True, idempotent=True, parallel_safe=True, destructive=False)
WRITER = ToolOverride(read_only=False, idempotent=True, parallel_safe=False, destructive=False)
rows = st.sampled_from([READER, WRITER, ToolOverride(read_only=False, idempotent=False, destructive=True)])


def test_the_table_counts_where_the_operator_is_silent() -> None:
    assert traits(None, None, curated=READER, table="known") == SAFE
    assert traits(None, None, curated=WRITER) == Traits(idempotent=True, destructive=False)
    assert traits(ToolOverride(parallel_safe=False), None, curated=READER).parallel_safe is False


def test_whoever_contradicts_a_rows_main_answer_sets_all_of_it_aside() -> None:
    for worse in ({"readOnlyHint": False}, {"destructiveHint": True}):
        assert traits(None, worse, curated=READER) == WORST
    assert traits(None, {"readOnlyHint": True, "destructiveHint": True}, curated=READER) == SAFE
    assert traits(ToolOverride(read_only=False), None, curated=READER) == WORST
    assert traits(ToolOverride(destructive=True), None, curated=READER) == WORST
    assert traits(ToolOverride(read_only=True), None, curated=WRITER) == SAFE


def test_an_annotation_tightens_the_table_and_never_loosens_it() -> None:
    tightened = traits(None, {"idempotentHint": False, "destructiveHint": True}, curated=WRITER)
    assert tightened == WORST
    assert tightened.why["destructive"] == tightened.why["idempotent"] == TIGHTENS
    assert traits(None, {"readOnlyHint": True, "idempotentHint": True}, True, curated=WRITER) == Traits(
        idempotent=True, destructive=False
    )


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

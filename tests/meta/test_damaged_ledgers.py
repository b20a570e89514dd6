"""The tests that may leave a ledger behind that does not verify: they are few, and they are listed here."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
DAMAGED = """
chaos/test_torture.py::test_readers_miss_nothing_and_see_nothing_twice
contract/test_ledger.py::test_forgetting_keeps_shared_blobs_a_tombstone_and_earlier_roots
contract/test_ledger_roots.py::test_a_root_holds_when_a_stream_grows_and_is_then_forgotten
contract/test_ledger_roots.py::test_a_root_holds_while_the_ledger_grows_and_when_an_ended_stream_is_forgotten
contract/test_ledger_search.py::test_a_forgotten_stream_is_not_found_and_its_words_are_gone
contract/test_ledgers_alike.py::test_a_copy_that_is_interrupted_anywhere_goes_on
contract/test_ledgers_alike.py::test_the_same_operations_leave_the_same_ledger
security/test_tampering.py::test_an_edit_of_the_ledger_is_found
surface/test_cli_looks.py::test_tampering_is_exit_code_1
surface/test_mcp_one_mission.py::test_a_mission_that_is_not_there_or_is_a_child_is_not_served
surface/test_mcp_resources.py::test_a_ledger_that_cannot_be_read_is_named_and_not_hidden
surface/test_problem_rude.py::test_a_damaged_attempt_is_named
unit/test_ledger_archive.py::test_a_changed_export_is_found_out
unit/test_ledger_archive.py::test_an_export_cut_at_any_byte_is_found_out
unit/test_ledger_archive.py::test_an_export_is_whole_private_and_verifies
unit/test_ledger_archive.py::test_other_formats_versions_and_missing_files_are_refused
unit/test_ledger_sqlite.py::test_a_careful_cut_is_found_by_the_root_before_it
unit/test_ledger_sqlite.py::test_a_ledger_too_damaged_to_open_is_named
unit/test_ledger_sqlite.py::test_a_row_of_the_wrong_types_is_left_out_of_the_root
unit/test_ledger_sqlite.py::test_damage_is_told_by_verify_and_by_whoever_reads_it
unit/test_ledger_sqlite.py::test_forgotten_bytes_are_gone_from_the_disk
unit/test_ledger_sqlite.py::test_one_changed_event_is_one_fault
unit/test_ledger_sqlite.py::test_verify_finds_what_was_changed
unit/test_ledger_sqlite.py::test_what_stays_of_a_forgotten_stream_is_checked
unit/test_ledger_sqlite.py::test_words_that_every_text_has_are_looked_for_among_the_newest_only
unit/test_service.py::test_the_root_in_a_report_holds_while_the_ledger_grows_and_finds_a_cut_tail
"""


def marked() -> list[str]:
    """The functions with the mark `damaged_ledger`."""
    found: list[str] = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.damaged_ledger" in text and path != Path(__file__):
            assert (
                "pytestmark" not in text or "damaged_ledger" not in text.partition("pytestmark")[2].partition("\n")[0]
            )
            found += [
                f"{path.relative_to(TESTS)}::{node.name}"
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and any("mark.damaged_ledger" in ast.unparse(mark) for mark in node.decorator_list)
            ]
    return found


def test_the_tests_that_damage_a_ledger_are_these() -> None:
    assert sorted(marked()) == sorted(DAMAGED.split())

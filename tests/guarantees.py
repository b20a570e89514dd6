"""What Pursuit promises, one line each, and the tests that keep each promise.

`tests/meta/test_guarantees.py` holds this list and the marks in the tests equal, both ways.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guarantee:
    """A promise to people, and the tests that keep it."""

    promise: str
    tests: tuple[str, ...]


GUARANTEES = {
    "lessons-are-found": Guarantee(
        "An ended mission is found by the words of its goal, its tools and its lessons, in any English form.",
        (
            "contract/test_ledger_search.py::test_a_stream_is_found_by_the_words_of_its_text_in_any_form",
            "unit/test_lessons.py::test_an_ended_mission_is_found_by_its_goal_its_tools_and_its_lessons",
        ),
    ),
    "lessons-are-forgotten": Guarantee(
        "A forgotten mission is not found any more, and none of its words is left in the file.",
        ("contract/test_ledger_search.py::test_a_forgotten_stream_is_not_found_and_its_words_are_gone",),
    ),
    "any-text-is-a-safe-search": Guarantee(
        "Any text can be searched for: nothing in it is an operator, and none is a wrong query.",
        ("contract/test_ledger_search.py::test_any_text_is_a_safe_search",),
    ),
    "lessons-are-data": Guarantee(
        "A language model is told the lessons of similar missions of the same ledger, as quoted data.",
        ("unit/test_lessons.py::test_a_language_model_is_told_the_lessons_of_similar_missions_as_quoted_data",),
    ),
    "drafts-are-missions": Guarantee(
        "A drafted mission is a file that is read back as the same mission, whatever its directive holds.",
        (
            "unit/test_scaffold.py::test_a_template_is_a_mission_file_that_lists_at_its_top_what_to_fill_in",
            "unit/test_scaffold.py::test_whatever_stands_in_a_directive_its_draft_is_read_back_as_the_same_mission",
        ),
    ),
    "vacuous-drafts-are-refused": Guarantee(
        "An expression that a model drafts and that is always or never true is refused, with the reason.",
        ("unit/test_scaffold.py::test_an_expression_that_decides_nothing_is_refused_with_the_reason",),
    ),
    "models-draft-no-commands": Guarantee(
        "No command that a model drafts gets into a mission.",
        ("unit/test_scaffold.py::test_a_model_cannot_draft_a_command_or_a_mission_that_is_done_at_once",),
    ),
    "scaffold-starts-nothing": Guarantee(
        "Drafting a mission calls no tool, starts nothing, and makes no ledger.",
        ("surface/test_cli_scaffold.py::test_a_draft_is_printed_written_and_told_in_json_and_nothing_is_started",),
    ),
    "crash-at-every-write": Guarantee(
        "A crash before or after any write of the ledger loses no finished call and repeats none silently.",
        ("fault/test_crash_at_every_write.py::test_nothing_is_lost_and_nothing_runs_twice",),
    ),
    "no-effect-without-intent": Guarantee(
        "A disk that refuses to write stops the mission before the next effect, and nothing is lost.",
        ("fault/test_crash_at_every_write.py::test_a_full_disk_stops_before_the_next_effect",),
    ),
    "a-dead-driver-is-shown": Guarantee(
        "A mission whose driver has died is shown as interrupted, with the command that resumes it.",
        (
            "surface/test_cli_missions.py::test_a_mission_whose_driver_was_killed_is_interrupted_everywhere",
            "unit/test_ledger_locks.py::test_a_claim_is_seen_by_those_who_ask_and_never_refused_because_of_them",
        ),
    ),
    "survives-kill-nine": Guarantee(
        "After kill -9 at any moment a mission goes on at the same call, and no process is left behind.",
        ("fault/test_kill_nine.py::test_killed_at_random_moments_it_goes_on_at_the_same_call",),
    ),
    "search-goes-on-where-it-was": Guarantee(
        "The same seed gives the same trials of a search, also across a crash.",
        (
            "fault/test_search_kill.py::test_killed_at_random_points_it_makes_the_same_trials",
            "unit/test_search.py::test_one_that_is_interrupted_makes_the_trials_of_one_that_is_not",
            "unit/test_search_ends.py::test_a_small_space_is_tried_without_repeats_also_when_interrupted",
        ),
    ),
    "the-operator-wins": Guarantee(
        "Pause, abort and complete take effect within half a second, whoever drives and whatever runs.",
        ("fault/test_races.py::test_the_operators_word_wins_whenever_it_comes",),
    ),
    "cascade-determinism": Guarantee(
        "The same facts give the same verdict.",
        (
            "property/test_cascade.py::test_the_same_facts_give_the_same_known_verdict",
            "property/test_cascade.py::test_the_same_events_give_the_same_verdicts",
        ),
    ),
    "exactly-n-iterations": Guarantee(
        "max_iterations = N runs exactly N iterations unless the mission ends earlier.",
        ("property/test_cascade.py::test_max_iterations_runs_exactly_n_unless_it_ends_earlier",),
    ),
    "success-on-last-iteration": Guarantee(
        "Success on the last budgeted iteration is success.",
        (
            "property/test_cascade.py::test_success_on_the_last_budgeted_iteration_is_success",
            "unit/test_cadence_and_progress.py::test_an_iteration_that_reaches_a_cap_is_a_checkpoint",
        ),
    ),
    "adjust-never-postpones-no-progress": Guarantee(
        "An adjust never postpones the end for lack of progress.",
        (
            "property/test_cascade.py::test_what_makes_for_adjust_decides_nothing_that_ends_a_mission",
            "property/test_cascade.py::test_a_mission_that_is_told_to_adjust_ends_no_later",
        ),
    ),
    "optional-never-blocks": Guarantee(
        "An optional criterion never blocks the end.",
        (
            "property/test_cascade.py::test_an_optional_criterion_never_blocks",
            "unit/test_criteria.py::test_required_met_asks_required_criteria_only",
        ),
    ),
    "every-reason": Guarantee(
        "Every reason of a verdict is reached, and the earlier rule wins.",
        (
            "unit/test_decide.py::test_each_rule_alone",
            "unit/test_decide.py::test_when_two_rules_hold_the_earlier_wins",
            "unit/test_decide.py::test_a_simulated_mission_reaches_every_reason",
        ),
    ),
    "fold-words-commute": Guarantee(
        "An operator's word gives the same state wherever it falls among a driver's events.",
        (
            "property/test_fold.py::test_every_word_commutes_with_every_event_of_the_driver",
            "property/test_fold.py::test_words_commute_with_what_the_driver_writes",
            "property/test_fold.py::test_a_word_may_fall_anywhere_in_an_open_iteration",
        ),
    ),
    "bounded-state": Guarantee(
        "The state of a mission does not grow without bound.",
        ("property/test_fold.py::test_a_long_mission_stays_small",),
    ),
    "all-faults-at-once": Guarantee(
        "A wrong input is refused with all its faults at once.",
        (
            "unit/test_mission_input.py::test_every_fault_is_told_and_none_hides_another",
            "unit/test_mission_input.py::test_faults_of_a_file_name_the_file_and_its_servers",
        ),
    ),
    "source-counts": Guarantee(
        "A criterion with a source believes that source alone.",
        (
            "unit/test_criteria.py::test_source_says_whose_word_counts",
            "unit/test_criteria.py::test_another_source_neither_meets_nor_hides_a_value",
            "unit/test_criteria.py::test_a_flood_from_one_source_does_not_push_out_anothers_points",
        ),
    ),
    "claimed-never-counts": Guarantee(
        "What a proposed script merely claims never meets a criterion.",
        (
            "unit/test_criteria.py::test_what_a_proposed_script_claims_meets_nothing",
            "unit/test_criteria.py::test_the_operators_own_script_counts_under_its_own_name",
        ),
    ),
    "parallel-only-when-all-safe": Guarantee(
        "Calls run side by side exactly when all of them are parallel-safe.",
        (
            "unit/test_engine_calls.py::test_calls_that_are_all_parallel_safe_run_together",
            "unit/test_engine_calls.py::test_one_unsafe_call_puts_the_whole_batch_in_order",
        ),
    ),
    "timeout-cancels-upstream": Guarantee(
        "A call that times out is cancelled upstream.",
        (
            "unit/test_engine_calls.py::test_a_call_past_its_timeout_is_cancelled_and_the_next_one_runs",
            "unit/test_engine_calls.py::test_progress_resets_the_timeout_up_to_the_ceiling",
        ),
    ),
    "budget-reserves": Guarantee(
        "A cap on calls is reserved before a call; the rest of a batch is skipped.",
        ("unit/test_engine_budget.py::test_the_rest_of_a_batch_that_does_not_fit_is_skipped",),
    ),
    "extend-after-budget": Guarantee(
        "A mission that ended by budget can be extended and resumed.",
        (
            "unit/test_engine_budget.py::test_a_mission_that_waits_for_budget_goes_on_when_it_is_extended",
            "unit/test_engine_budget.py::test_a_mission_that_ended_by_budget_is_extended_and_resumed_to_its_goal",
            "unit/test_engine_budget.py::test_a_mission_that_the_wall_clock_ended_can_be_extended",
        ),
    ),
    "pause-resumes-at-the-same-call": Guarantee(
        "A paused mission goes on in the same iteration at the next call.",
        (
            "unit/test_engine_lifecycle.py::test_resume_goes_on_with_the_same_iteration_at_the_next_call",
            "unit/test_engine_lifecycle.py::test_a_paused_script_goes_on_in_mid_script_with_the_same_chance",
        ),
    ),
    "one-driver": Guarantee(
        "At most one process drives a mission; a second one gets a conflict at once.",
        ("unit/test_engine_lifecycle.py::test_a_second_driver_gets_conflict_at_once_and_changes_nothing",),
    ),
    "loop-guard": Guarantee(
        "The third identical call in a row is refused while nothing changes.",
        (
            "unit/test_engine_loop_guard.py::test_the_third_identical_call_in_a_row_is_refused_until_something_changes",
            "unit/test_engine_loop_guard.py::test_a_call_whose_result_changes_is_never_refused",
            "unit/test_engine_loop_guard.py::test_the_runtimes_own_checks_do_not_hide_a_loop",
            "unit/test_engine_loop_guard.py::test_the_loop_guard_leaves_the_operators_own_proposers_and_replays_alone",
            "unit/test_engine_loop_guard.py::test_the_loop_guard_watches_scripts_that_others_propose",
            "unit/test_engine_loop_guard.py::test_the_loop_guard_watches_scripts_in_a_replay_and_does_not_count_its_calls",
        ),
    ),
    "check-is-a-recorded-call": Guarantee(
        "A check is a recorded call with intent, settlement, timeout and budget.",
        (
            "unit/test_engine_checks.py::test_a_check_runs_only_when_all_else_is_met_and_is_recorded_like_any_call",
            "unit/test_engine_checks.py::test_a_check_for_every_checkpoint_runs_at_checkpoints_and_nowhere_else",
            "unit/test_engine_checks.py::test_a_check_counts_into_max_tool_calls",
            "unit/test_engine_checks.py::"
            "test_a_repeatable_check_that_a_pause_cut_off_runs_again_when_the_mission_goes_on",
        ),
    ),
    "bad-proposal-counts-nothing": Guarantee(
        "A bad proposal of a client is an error to the client and counts nothing.",
        ("unit/test_engine_proposers.py::test_a_bad_proposal_of_a_client_is_its_error_and_stores_nothing",),
    ),
    "failed-is-resumable": Guarantee(
        "A fault of our own is recorded with its trace, and the mission can be resumed.",
        (
            "unit/test_engine_lifecycle.py::test_an_exception_in_our_own_code_fails_the_mission_and_resume_goes_on",
            "unit/test_engine_lifecycle.py::test_a_failure_says_what_broke_and_not_what_it_was_wrapped_in",
            "unit/test_engine_lifecycle.py::test_a_proposer_that_breaks_fails_the_mission_before_anything_runs",
        ),
    ),
    "root-survives-growth": Guarantee(
        "A root that was written down stays checkable while the ledger grows, and shows a cut tail.",
        ("unit/test_service.py::test_the_root_in_a_report_holds_while_the_ledger_grows_and_finds_a_cut_tail",),
    ),
    "ledger-gone-stops-the-driver": Guarantee(
        "A ledger file that is deleted, moved or replaced under a running driver stops it before its next effect.",
        ("fault/test_ledger_gone.py::test_a_ledger_that_is_gone_stops_the_driver_before_its_next_effect",),
    ),
    "old-ledgers": Guarantee(
        "A ledger that an earlier release wrote is read with nothing lost.",
        ("contract/test_old_ledgers.py::test_a_ledger_of_an_earlier_release_says_what_it_said_then",),
    ),
    "no-approval-by-elicitation-over-http": Guarantee(
        "Over HTTP no client answers an approval: it is not asked, and an answer that it brings is not taken.",
        (
            "surface/test_http_elicitation.py::test_a_client_of_missions_approves_nothing",
            "surface/test_http_elicitation.py::test_a_client_of_the_gateway_approves_nothing",
            "surface/test_http_elicitation.py::test_a_client_of_a_problem_approves_nothing",
            "surface/test_http_elicitation.py::test_the_question_of_a_task_that_was_begun_over_stdio_is_not_answered_over_http",
        ),
    ),
    "policy-only-tightens": Guarantee(
        "No mission and no caller loosens the operator's policy: each layer may only tighten the ones before it.",
        (
            "property/test_policy_layers.py::test_a_further_layer_never_loosens",
            "property/test_policy_layers.py::test_a_missions_own_policy_never_loosens_the_operators",
        ),
    ),
    "control-calls-are-audited": Guarantee(
        "Every control call is in the audit, with who asked and over which way, before it changes anything.",
        ("unit/test_audit.py::test_each_verb_leaves_a_line_with_who_asked_and_a_refusal_says_why",),
    ),
    "a-lost-answer-is-repeated": Guarantee(
        "A caller that says what it knows gets a lost answer again, and nothing runs twice.",
        ("unit/test_background.py::test_a_lost_answer_is_repeated_and_nothing_runs_twice",),
    ),
    "front-door-journey": Guarantee(
        "Clients of both eras and of the 1.x SDK can do all that a mission needs, over stdio and HTTP alike.",
        ("e2e/test_front_door.py::test_every_client_goes_the_whole_way",),
    ),
    "progress-to-who-asked": Guarantee(
        "Progress goes to the one who asked for it and to nobody else, and its numbers rise.",
        ("e2e/test_front_door_together.py::test_progress_goes_only_to_the_one_who_asked",),
    ),
    "one-mission-for-all": Guarantee(
        "All clients and the terminal see the same mission, and a pause from any of them holds within half a second.",
        (
            "e2e/test_front_door_together.py"
            "::test_two_clients_and_the_terminal_see_one_mission_and_the_terminal_stops_it",
        ),
    ),
    "killed-client-continues": Guarantee(
        "A client that is killed in the middle of a call leaves a mission that another client goes on with.",
        ("fault/test_front_door_clients.py::test_a_killed_client_leaves_a_mission_that_another_continues",),
    ),
    "background-survives-kill": Guarantee(
        "A background run goes on by itself when its server was killed: served again, or by another server at once.",
        (
            "fault/test_front_door_servers.py::test_a_background_run_goes_on_when_it_is_served_again",
            "fault/test_front_door_servers.py::test_another_server_on_the_same_ledger_takes_over",
        ),
    ),
    "wrong-input-stores-nothing": Guarantee(
        "Wrong input to any tool is refused with the field that is wrong, nothing is stored, and the server lives.",
        (
            "surface/test_mcp_wrong_input.py::test_wrong_input_to_every_tool_is_refused_by_name_and_stores_nothing",
            "surface/test_mcp_malformed.py::test_malformed_lines_are_refused_and_the_server_lives",
        ),
    ),
    "many-clients": Guarantee(
        "Many clients at once get their own answers and nothing runs twice; who cannot drive gets a conflict.",
        (
            "e2e/test_many_clients.py::test_twenty_clients_on_twenty_missions_get_their_own_answers",
            "e2e/test_many_clients.py::test_twenty_clients_on_one_mission_drive_it_one_at_a_time",
            "e2e/test_many_clients.py::test_twenty_clients_that_know_as_much_begin_one_iteration_between_them",
            "e2e/test_many_clients.py::test_twenty_clients_that_poll_one_mission_run_each_poll_once",
            "e2e/test_many_clients.py::test_processes_that_serve_the_same_ledger_drive_a_mission_one_at_a_time",
        ),
    ),
    "required-servers-are-there": Guarantee(
        "A gateway does not start without a server that its operator marked as required, and says which one it is.",
        ("e2e/test_gateway.py::test_a_gateway_does_not_start_without_a_required_server",),
    ),
    "asks-before-it-writes": Guarantee(
        "A call that policy asks about waits durably for a person's answer, and is honoured whoever drives then.",
        ("unit/test_approvals.py::test_a_call_that_policy_asks_about_waits_durably_and_goes_on_at_a_yes",),
    ),
    "network-asks": Guarantee(
        "Nothing is called at a host that the network rules ask about before a person has said yes.",
        (
            "surface/test_network_asks.py"
            "::test_the_gateway_asks_before_a_host_is_called_that_the_network_rules_ask_about",
            "surface/test_network_asks.py::test_a_mission_waits_for_a_yes_before_such_a_host_is_called",
        ),
    ),
    "a-yes-covers-what-was-said": Guarantee(
        "A yes covers this call, these arguments or this tool in this mission, as it was said, and nothing else.",
        (
            "unit/test_approvals.py::test_a_yes_reaches_as_far_as_was_said_and_no_further",
            "surface/test_gateway_policy.py::test_a_yes_for_one_call_is_no_yes_for_the_next_however_it_is_worded",
        ),
    ),
    "only-who-was-asked-answers": Guarantee(
        "A client can answer only the questions that it was asked itself, in the call that it was asked in.",
        (
            "surface/test_mcp_asking.py::test_nobody_answers_a_question_that_it_was_not_asked",
            "surface/test_mcp_sampling_rounds.py::test_only_who_was_asked_answers_for_its_model",
        ),
    ),
    "an-ended-task-never-changes": Guarantee(
        "An ended task never changes: what comes too late is dropped, recorded, and harms nobody.",
        ("unit/test_task_store.py::test_whatever_comes_after_the_end_is_dropped_and_recorded",),
    ),
    "every-waiter-wakes": Guarantee(
        "Everybody who waits for a task wakes when it ends.",
        ("unit/test_task_store.py::test_every_waiter_wakes",),
    ),
    "tasks-have-limits": Guarantee(
        "There are no more tasks at once than the operator allows, for each requestor and in all.",
        (
            "unit/test_task_store.py::test_more_tasks_than_allowed_are_refused_until_one_ends",
            "unit/test_task_store.py::test_of_many_that_come_at_once_no_more_than_allowed_are_taken",
        ),
    ),
    "work-from-any-process": Guarantee(
        "A task can be worked at from any process; one that dies leaves a failed task with the reason.",
        (
            "fault/test_task_worker.py::test_a_worker_that_is_killed_leaves_a_failed_task_with_the_reason",
            "fault/test_task_worker.py::test_a_worker_in_another_process_completes_a_task",
            "fault/test_task_worker.py::test_a_worker_in_another_process_that_raises_fails_the_task",
        ),
    ),
    "tasks-of-servers": Guarantee(
        "A server that makes tasks of its calls, in either generation, gives a mission the result of a plain call.",
        (
            "e2e/test_upstream_tasks.py::test_a_mission_gets_the_result_of_a_first_generation_task",
            "e2e/test_upstream_tasks.py::test_a_mission_gets_the_results_of_second_generation_tasks",
        ),
    ),
    "missions-wait-durably-for-tasks": Guarantee(
        "A mission that is killed while it waits for a task goes on with it, and begins it only once.",
        ("e2e/test_upstream_tasks.py::test_a_mission_that_was_killed_while_it_waited_picks_the_servers_task_up",),
    ),
    "tasks-never-kill-a-session": Guarantee(
        "Whatever comes too late (work, an answer, the end of a time to live) leaves the session and the record alone.",
        (
            "surface/test_mcp_tasks_defects.py::test_work_that_finishes_after_cancel",
            "surface/test_mcp_tasks_defects.py::test_a_time_to_live_that_ends_while_working",
            "surface/test_mcp_tasks_defects.py::test_a_late_answer_to_a_cancelled_question",
            "surface/test_gateway_tasks.py::test_words_and_numbers_that_are_none_harm_no_other_task",
        ),
    ),
    "every-mcp-waiter-wakes": Guarantee(
        "Everybody who waits for a task gets its end, also while a question is before them.",
        (
            "surface/test_mcp_tasks_defects.py::test_three_waiters",
            "surface/test_mcp_tasks_defects.py::test_a_task_that_completes_while_a_queued_message_is_delivered",
        ),
    ),
    "tasks-outlive-connections": Guarantee(
        "A task belongs to its requestor: it goes on when a connection ends, and any other one of theirs finds it.",
        (
            "surface/test_mcp_tasks_defects.py::test_a_task_is_reached_after_a_reconnect",
            "surface/test_mcp_tasks_defects.py::test_two_sessions_of_which_one_ends",
        ),
    ),
    "wrong-input-starts-nothing": Guarantee(
        "A wrong time to live, a bogus cursor and an id of somebody else are each a clear error, and nothing starts.",
        (
            "surface/test_mcp_tasks_defects.py::test_a_bogus_cursor",
            "surface/test_mcp_tasks_generations.py::test_a_wrong_time_to_live_starts_nothing",
            "surface/test_mcp_tasks_generations.py::test_ids_that_are_none_and_methods_of_the_other_generation",
            "surface/test_mcp_tasks_http.py::test_an_id_of_somebody_else_is_as_unknown_as_one_that_never_was",
        ),
    ),
    "tasks-are-limited": Guarantee(
        "One requestor cannot have any number of tasks: one too many is refused and says which setting it is.",
        ("surface/test_mcp_tasks_defects.py::test_two_thousand_tasks_from_one_client_are_not_all_accepted",),
    ),
    "a-failed-command-tells-all": Guarantee(
        "A command that fails tells its exit code, its units, its failure lines, the end of stderr and its disclaimer.",
        ("unit/test_process_commands.py::test_a_command_that_fails_tells_all_that_is_needed",),
    ),
    "no-secret-in-output": Guarantee(
        "A known secret is in nothing that is kept or told of a command that has ended.",
        ("unit/test_process_commands.py::test_secrets_are_blanked_in_output_arguments_and_results",),
    ),
    "too-much-unread-is-a-gap": Guarantee(
        "A command is never slowed down by who reads it: what there is no room for is a gap of a recorded size.",
        ("unit/test_process_files.py::test_more_unread_output_than_may_wait_is_a_recorded_gap",),
    ),
    "commands-survive-us": Guarantee(
        "A command outlives kill -9 of us: read on without a line lost or doubled, and its real exit code recorded.",
        (
            "fault/test_process_kill.py::test_every_line_counts_once_across_three_kills",
            "fault/test_process_kill.py::test_killed_at_random_moments_nothing_is_lost_and_nothing_runs_twice",
        ),
    ),
    "cancel-ends-the-tree": Guarantee(
        "Cancel ends every process of a command within its grace and a second, whatever they ignore or leave.",
        (
            "fault/test_process_cancel.py::test_a_tree_that_ignores_everything_is_gone_within_grace_and_a_second",
            "surface/test_cli_tasks.py::test_cancel_ends_a_daemon_without_an_environment",
        ),
    ),
    "tasks-without-the-server": Guarantee(
        "A client that knows tasks has them through the gateway, also if the server behind it has never heard of them.",
        (
            "conformance/test_gateway_conformance.py::"
            "test_every_scenario_about_tasks_passes_in_front_of_a_server_that_knows_none",
        ),
    ),
    "commands-never-more-than-meant": Guarantee(
        "A value given to a configured command stays within its word, and no word appears that was not meant.",
        ("unit/test_command_config.py::test_no_word_that_was_not_meant",),
    ),
    "no-climbing-arguments": Guarantee(
        "An argument of a command with a `..` segment is refused unless its definition allows it.",
        ("unit/test_command_config.py::test_an_argument_that_climbs_is_refused",),
    ),
    "the-commands-own-exit-code": Guarantee(
        "The exit code of a command that was run as a task is the command's own.",
        ("surface/test_cli_tasks.py::test_the_exit_code_is_the_commands_own",),
    ),
    "wrong-tasks-start-nothing": Guarantee(
        "A wrong command, wrong arguments or wrong options are refused with every fault, and nothing is started.",
        ("surface/test_cli_tasks.py::test_what_is_wrong_starts_nothing",),
    ),
    "a-task-goes-on-alone": Guarantee(
        "A command goes on when whoever started it leaves or is killed, and its real exit code is recorded.",
        (
            "surface/test_cli_tasks.py::test_a_detached_command_is_found_again_with_its_real_exit_code",
            "surface/test_cli_tasks.py::test_killed_the_command_goes_on_and_ends_as_it_ends",
        ),
    ),
    "model-proposes": Guarantee(
        "A model's tool calls are the calls of an iteration; what is wrong with them goes back with the reasons.",
        (
            "e2e/test_models.py::test_several_calls_of_one_answer_are_made_and_counted",
            "e2e/test_models.py::test_bad_arguments_are_mended_after_the_reasons_came_back",
        ),
    ),
    "model-retries": Guarantee(
        "A provider that is busy, broken or cuts the line is asked again after a pause; one that refuses is not.",
        (
            "e2e/test_models.py::test_a_provider_that_is_busy_or_broken_is_asked_again",
            "e2e/test_models.py::test_a_provider_that_refuses_is_not_asked_again",
        ),
    ),
    "model-within-time": Guarantee(
        "A question to a model ends with its own time, with the mission's wall clock, and with the operator's word.",
        (
            "e2e/test_models.py::test_a_provider_that_hangs_is_given_up",
            "e2e/test_models.py::test_the_wall_clock_cuts_a_question",
            "e2e/test_models.py::test_the_operators_word_gives_up_a_question",
        ),
    ),
    "clients-name-no-model-of-their-own": Guarantee(
        "An MCP client and the children that it starts spend the operator's key on no model that nobody let them name.",
        (
            "e2e/test_client_models.py::test_a_client_names_only_the_models_that_the_operator_lets_it",
            "e2e/test_client_models.py::test_nor_does_a_child_that_a_client_starts",
        ),
    ),
    "tokens-never-over-the-cap": Guarantee(
        "A model that counts no more than was estimated and keeps to its limit never makes a mission pass its caps on "
        "tokens and money; what does not fit is not asked.",
        (
            "property/test_affording.py::test_no_sequence_of_questions_uses_more_than_the_caps",
            "e2e/test_model_budget.py::test_a_question_that_does_not_fit_is_not_asked",
            "e2e/test_model_budget.py::test_a_model_that_writes_as_much_as_it_may_stays_within_its_cap",
            "e2e/test_model_fleet.py::test_children_that_write_as_much_as_they_may_stay_within_their_parents_pool",
        ),
    ),
    "tokens-are-counted": Guarantee(
        "Tokens and cost count into the budget, and a budget that is spent to the last token ends the mission there.",
        (
            "e2e/test_model_budget.py::test_tokens_that_end_the_budget_exactly_end_the_mission",
            "e2e/test_model_budget.py::test_a_provider_that_counts_more_than_was_thought_is_believed_and_ends_the_mission",
            "e2e/test_model_budget.py::test_success_on_the_last_token_is_success",
            "e2e/test_model_budget.py::test_there_is_no_mending_on_credit",
            "e2e/test_model_budget.py::test_a_mission_that_waits_for_tokens_goes_on_with_the_answer_it_has",
        ),
    ),
    "model-checked-at-start": Guarantee(
        "A model that cannot be asked, or whose price nobody knows though a cap needs it, is refused at the start.",
        (
            "e2e/test_models.py::test_what_cannot_be_asked_is_refused_at_the_start",
            "e2e/test_models.py::test_a_mission_resumed_without_its_key_is_left_as_it_is",
        ),
    ),
    "model-loop-guard": Guarantee(
        "A model's third identical call in a row, while nothing changed, is denied.",
        ("e2e/test_models.py::test_the_third_identical_call_in_a_row_is_denied",),
    ),
    "prompt-fences-hold": Guarantee(
        "No text of a tool or a lesson leaves its fence in a prompt, and obeying one gets nobody past policy.",
        (
            "e2e/test_models.py::test_a_model_that_obeys_an_injection_gets_neither_past_policy_nor_past_the_criteria",
            "property/test_prompt.py::test_no_text_of_a_corpus_of_injections_leaves_its_fence",
            "property/test_prompt.py::test_nothing_that_anybody_says_leaves_its_fence",
        ),
    ),
    "prompt-is-deterministic": Guarantee(
        "Equal states give byte-identical prompts.",
        (
            "property/test_prompt.py::test_equal_states_give_equal_bytes",
            "property/test_prompt.py::test_another_process_asks_the_same_bytes",
        ),
    ),
    "operators-words-are-whole": Guarantee(
        "A model is told the goal, the instructions and every criterion whole wherever they fit.",
        ("property/test_prompt.py::test_goal_instructions_and_every_criterion_are_whole_wherever_they_fit",),
    ),
    "prompt-is-bounded": Guarantee(
        "A prompt is never longer than its limit, whatever the history.",
        (
            "property/test_prompt.py::test_a_prompt_is_never_longer_than_its_limit",
            "property/test_prompt.py::test_a_long_history_is_told_from_its_end",
            "e2e/test_models.py::test_tools_that_there_is_no_room_for_are_left_off_and_named",
        ),
    ),
    "tool-names-map-back": Guarantee(
        "Every tool has one name that providers accept, and it means that tool alone.",
        ("property/test_prompt.py::test_every_tool_has_one_name_that_providers_accept",),
    ),
    "answers-are-paid-once": Guarantee(
        "A model's answer that is in the ledger is never asked for again, also after kill -9.",
        (
            "fault/test_model_crash.py::test_an_answer_in_the_ledger_is_never_asked_for_again",
            "fault/test_model_crash.py::test_killed_between_answer_and_execution_it_asks_no_second_time",
            "fault/test_model_crash.py::test_killed_while_a_mended_answer_is_awaited_it_asks_for_that_one_alone",
        ),
    ),
    "plan-runs-nothing": Guarantee(
        "pursuit run --plan shows the first proposal and policy's word, calls no tool and writes no ledger.",
        (
            "surface/test_cli_plan.py::test_a_models_first_proposal_is_shown_with_policys_word",
            "surface/test_cli_plan.py::test_plans_of_proposers_that_need_no_model",
        ),
    ),
    "clients-model-proposes": Guarantee(
        "The model of a connected client completes a mission, in both eras, with tools or with words alone.",
        (
            "surface/test_mcp_sampling.py::test_the_clients_model_completes_a_mission",
            "e2e/test_sampling.py::test_the_model_of_every_client_completes_a_mission",
        ),
    ),
    "sampling-in-words": Guarantee(
        "Calls that a model writes are its whole answer or the last code block of it, never what it quotes or thinks; "
        "what it is told of tools is bounded and whole.",
        (
            "unit/test_in_words.py::test_what_is_quoted_or_empty_is_no_call",
            "unit/test_in_words.py::test_tools_are_told_whole_and_within_their_room",
        ),
    ),
    "sampled-once": Guarantee(
        "What a client's model answers is used once, however often it is sent and whoever is killed in between.",
        (
            "surface/test_mcp_sampling_rounds.py::test_a_repeated_a_contradicting_and_a_simultaneous_answer_change_nothing",
            "e2e/test_sampling.py::test_killed_between_the_question_and_the_answer_it_goes_on_at_the_same_iteration",
        ),
    ),
    "failing-sampler-ends": Guarantee(
        "A client's model that refuses, fails or talks nonsense ends the mission as proposer_failed.",
        (
            "surface/test_mcp_sampling.py::test_a_failing_sampler_ends_in_proposer_failed",
            "surface/test_mcp_sampling_rounds.py::test_a_task_whose_clients_model_fails_ends_its_mission_and_not_itself",
        ),
    ),
    "models-may-read": Guarantee(
        "A model reads a server's resources and prompts as tools: recorded calls, under allowlist and policy.",
        (
            "e2e/test_model_reads.py::test_resources_and_prompts_are_read_as_recorded_calls",
            "e2e/test_model_reads.py::test_the_allowlist_and_policy_hold_for_reading_too",
        ),
    ),
    "both-generations": Guarantee(
        "Real clients of both generations of MCP tasks drive the same tool as a task, over several connections.",
        ("e2e/test_task_clients.py::test_real_clients_drive_the_same_tool_as_a_task_each_in_its_own_generation",),
    ),
    "mission-tasks-survive-kill-nine": Guarantee(
        "A mission's run that is a task goes on after kill -9 of its server, and drives what was asked, no more.",
        ("fault/test_task_kill.py::test_killed_while_it_drove_a_task_the_next_server_drives_it_to_its_end",),
    ),
    "a-caller-that-goes-stops-its-command": Guarantee(
        "A client that goes away in the middle of a plain call stops the command that it had started.",
        ("e2e/test_commands.py::test_a_client_that_is_killed_stops_its_command",),
    ),
    "a-server-that-goes-leaves-its-commands": Guarantee(
        "A server that is stopped or killed leaves its commands running, and the next one goes on with them.",
        ("e2e/test_commands.py::test_a_server_that_ends_leaves_its_commands_to_the_next",),
    ),
    "fleet-never-over-spends": Guarantee(
        "A mission and its children never use more than its caps, whatever is spawned, aborted, crashed or restarted.",
        (
            "property/test_lending.py::test_the_pool_is_never_over_spent_whatever_the_order",
            "fault/test_fleet_crash.py::test_the_budget_holds_and_every_child_ends_whenever_the_process_dies",
            "unit/test_fleet.py::test_the_rest_of_a_batch_that_does_not_fit_the_budget_is_skipped",
            "e2e/test_model_fleet.py::"
            "test_a_models_child_is_asked_for_by_the_same_model_and_its_tokens_are_its_parents",
            "unit/test_fleet_lifecycle.py::"
            "test_a_childs_budget_is_never_extended_and_an_ended_parents_child_never_driven",
        ),
    ),
    "fleet-survives-crashes": Guarantee(
        "After a crash or kill -9 the parent's resume goes on with each child at the same call; a spawn has one child.",
        (
            "fault/test_fleet_crash.py::test_the_budget_holds_and_every_child_ends_whenever_the_process_dies",
            "fault/test_fleet_kill.py::test_killed_with_children_at_work_the_parents_resume_goes_on_with_them",
        ),
    ),
    "fleet-limits": Guarantee(
        "A fleet has no more children, no more at once and no deeper ones than its mission says.",
        (
            "unit/test_fleet.py::test_children_run_side_by_side_up_to_at_once",
            "unit/test_fleet.py::test_there_are_no_more_children_than_max_children",
            "unit/test_fleet.py::test_a_grandchilds_use_is_its_grandparents_use_too",
        ),
    ),
    "children-are-no-looser": Guarantee(
        "A child has no tool, policy or word that counts which its parent has not, and shares no writing tool unasked.",
        (
            "unit/test_fleet.py::test_a_child_that_may_not_be_is_denied_with_the_reason",
            "unit/test_fleet.py::test_no_two_children_write_through_one_tool",
            "unit/test_fleet.py::test_the_parents_policy_holds_for_its_children_and_their_questions_are_asked_as_usual",
            "unit/test_fleet.py::test_what_a_model_writes_of_a_child_is_never_the_operators_word",
            "unit/test_fleet.py::test_a_child_is_never_looser_than_its_parent",
        ),
    ),
    "a-parents-end-is-its-childrens": Guarantee(
        "Aborting or completing a mission ends its children, whoever drives them, also after kill -9.",
        (
            "unit/test_fleet_lifecycle.py::test_the_end_of_a_parent_is_the_end_of_its_children",
            "unit/test_fleet_lifecycle.py::test_a_parent_that_another_process_aborts_takes_its_children_with_it",
            "unit/test_fleet_lifecycle.py::test_a_parent_aborted_after_its_process_died_takes_its_children_with_it",
            "unit/test_fleet_lifecycle.py::test_a_parent_aborted_while_a_child_is_being_made_ends_that_child",
            "fault/test_fleet_kill.py::test_killed_with_children_at_work_an_abort_ends_them_all",
        ),
    ),
    "a-parents-pause-is-its-childrens": Guarantee(
        "Pausing a mission pauses its children, and they go on when it does.",
        ("unit/test_fleet_lifecycle.py::test_a_paused_parent_pauses_its_children_and_wakes_them_again",),
    ),
    "tasks-are-their-requestors-own": Guarantee(
        "The tools about tasks show a caller its own tasks; somebody else's id is as unknown as one that never was.",
        ("surface/test_mcp_commands.py::test_somebody_elses_task_is_as_unknown_as_none",),
    ),
    "callers-only-tighten": Guarantee(
        "What the operator's policy says for a token's holder tightens their calls and the missions that they start.",
        (
            "surface/test_caller_policy.py::test_through_the_gateway_a_callers_layer_holds_for_that_caller_alone",
            "surface/test_caller_policy.py::test_a_mission_keeps_the_layer_of_whoever_started_it",
        ),
    ),
    "tasks-of-servers-survive-the-gateway": Guarantee(
        "A task that a server works at outlives kill -9 of the gateway in front of it: the next one gets its result.",
        ("fault/test_task_kill.py::test_killed_while_a_server_worked_at_a_task_the_next_gateway_gets_its_result",),
    ),
    "wrong-manifests-say-everything": Guarantee(
        "A wrong problem.toml is told with every fault at once, each with file, field and reason, and nothing is run.",
        (
            "unit/test_problem_manifests.py::test_a_wrong_manifest_says_file_field_and_reason",
            "property/test_manifests_of_any_kind.py::test_a_shipped_manifest_with_something_else_in_it",
        ),
    ),
    "the-brief-is-the-same-everywhere": Guarantee(
        "The brief that is shown is the one that agents are served; a server that is not asked keeps its own word.",
        ("surface/test_problem_briefs.py::test_the_brief_that_is_shown_is_the_brief_that_is_served",),
    ),
    "what-the-judge-reads-is-no-asset": Guarantee(
        "The manifest, the judge's program, its declared files and the baseline are never an asset or in an answer.",
        (
            "unit/test_problem_secrecy.py::test_a_file_of_the_judge_or_the_baseline_is_never_an_asset",
            "e2e/test_problem_exports.py::test_files_of_the_judge_are_no_resource_and_in_no_answer",
        ),
    ),
    "an-exact-secret-is-a-warning": Guarantee(
        "A target, a best value or the baseline's answer, exactly as it is in a text for agents, is a warning.",
        ("unit/test_problem_secrecy.py::test_an_exact_value_in_a_text_for_agents_is_a_warning",),
    ),
    "declared-files-are-of-the-version": Guarantee(
        "The version of a judge changes with each file that the manifest names for it or declares in scorer.files.",
        ("unit/test_problem_versions.py::test_a_file_counts_if_the_manifest_names_it",),
    ),
    "a-duplicate-problem-names-both-files": Guarantee(
        "Two problems with one id are a fault that names both files.",
        ("unit/test_problem_manifests.py::test_a_duplicate_id_names_both_files",),
    ),
    "a-problems-tools-are-the-upstreams-own": Guarantee(
        "A problem that is served offers the tools of its server exactly as they are, in both protocol eras.",
        ("surface/test_problem_server.py::test_the_upstreams_tools_pass_exactly",),
    ),
    "one-attempt-one-submission": Guarantee(
        "An attempt has one submission: the first valid one is recorded and scored, a second one gets its receipt.",
        (
            "surface/test_problem_server.py::test_a_typed_submission_is_taken_once_and_scored",
            "surface/test_problem_tasks.py::test_a_submission_that_takes_long_is_the_one_also_as_a_task",
        ),
    ),
    "of-racing-submissions-one-counts": Guarantee(
        "Of submissions that race for one attempt exactly one is taken, and all others get its receipt.",
        (
            "surface/test_problem_server.py::test_of_submissions_that_race_exactly_one_is_taken",
            "e2e/test_problem_front_door.py::test_of_submissions_that_race_in_two_processes_exactly_one_is_taken",
        ),
    ),
    "a-spent-budget-is-named": Guarantee(
        "A problem's budget of calls, evaluations or time is enforced, and the error names it.",
        ("surface/test_problem_server.py::test_a_spent_budget_is_named_in_the_error",),
    ),
    "a-judge-never-speaks-to-an-agent": Guarantee(
        "A server's tool that judges can neither tell an agent anything nor ask it, in both eras, whatever the mode.",
        ("surface/test_problem_judges.py::test_a_judge_that_talks_is_heard_by_nobody_and_believes_nobody",),
    ),
    "a-problems-stderr-is-the-operators": Guarantee(
        "What a problem's server writes to stderr, and why it failed, is told to no agent.",
        ("surface/test_problem_judges.py::test_what_a_server_writes_to_stderr_is_told_to_no_agent",),
    ),
    "a-leg-is-its-own-call-alone": Guarantee(
        "A requestState goes on with the call that it was given for, and passes no budget and no end of an attempt.",
        ("surface/test_problem_judges.py::test_a_call_goes_on_only_as_itself_and_only_while_there_is_time",),
    ),
    "a-submission-and-its-question-are-one": Guarantee(
        "A submission about which its server or the operator's policy asks first is one with its answer, in both eras.",
        (
            "surface/test_problem_asked.py::"
            "test_a_submission_and_what_is_asked_about_it_are_one_also_after_the_last_call",
        ),
    ),
    "no-silent-repeat-when-a-server-dies": Guarantee(
        "A call that was sent and whose server died is `unknown`, and one that was not sent is `failed`: what repeats "
        "only what failed repeats no effect.",
        (
            "fault/test_unknown_outcomes.py::test_a_call_of_a_mission",
            "fault/test_unknown_outcomes.py::test_a_script_that_repeats_only_what_failed_repeats_no_effect",
        ),
    ),
    "an-unknown-submission-is-the-one": Guarantee(
        "A submission that a problem's server may have taken, whoever died meanwhile, is never followed by another.",
        (
            "surface/test_problem_submitting.py::test_a_server_that_dies_in_its_own_submit_final_may_have_taken_it",
            "surface/test_problem_tasks.py::test_a_submission_whose_task_is_cut_may_have_been_taken",
            "surface/test_problem_parked.py::test_while_a_submission_waits_for_an_answer_nobody_else_submits",
        ),
    ),
    "an-unsent-submission-costs-nothing": Guarantee(
        "A submission that never reached its problem's own server costs no call and closes no attempt.",
        ("surface/test_problem_unsent.py::test_a_submission_to_a_server_that_is_down_costs_nothing",),
    ),
    "no-call-outlives-the-time": Guarantee(
        "At the end of wall_seconds no call of the attempt is under way, also none that waits for its client's answer.",
        ("surface/test_problem_parked.py::test_at_the_end_of_the_time_nothing_waits_for_an_answer_any_more",),
    ),
    "an-attempts-form-never-changes": Guarantee(
        "Which submit_final an attempt has is decided once; while its server is down no other form is taken.",
        ("surface/test_problem_submitting.py::test_while_the_server_is_down_no_other_form_is_taken",),
    ),
    "what-was-submitted-is-scored-after-kill-nine": Guarantee(
        "A submission that was taken and not judged when its process was killed is judged at the next opening.",
        (
            "surface/test_problem_submitting.py"
            "::test_a_submission_that_was_taken_and_not_judged_is_judged_at_the_next_opening",
        ),
    ),
    "an-attempt-crashes-at-every-write": Guarantee(
        "A crash before or after any write of an attempt makes no call over budget, no second submission, and no loss.",
        ("fault/test_attempt_crash.py::test_no_call_over_budget_and_no_second_submission",),
    ),
    "attempts-hold-under-any-order": Guarantee(
        "Under any order of calls, submissions, races and crashes an attempt has one submission and keeps its budget.",
        ("property/test_attempts.py::test_attempts_hold_under_any_order",),
    ),
    "clients-of-a-problem-share-nothing": Guarantee(
        "Over HTTP each client of a problem, in both eras, has an attempt and a server process of its own.",
        ("surface/test_problem_http.py::test_each_client_has_an_attempt_and_a_server_of_its_own",),
    ),
    "open-desks-are-bounded": Guarantee(
        "The clients at a problem over HTTP are bounded; idle ones make room and come back to their attempt.",
        ("surface/test_problem_http.py::test_desks_are_bounded_and_idle_ones_make_room",),
    ),
    "the-problem-that-was-named-judges": Guarantee(
        "An attempt is judged by the problem that was named, also if another one has its id.",
        ("e2e/test_problem_attempts.py::test_the_problem_that_was_named_judges_and_not_its_namesake",),
    ),
    "out-of-reach-ends-at-once": Guarantee(
        "A mission whose required check says that it can never be met any more ends in that iteration, for good.",
        ("unit/test_engine_checks.py::test_a_check_that_can_never_be_met_any_more_ends_the_mission_at_once",),
    ),
    "an-unsolved-submission-is-the-end": Guarantee(
        "The mission of an attempt ends with a submission that solves nothing: nobody is asked or runs again.",
        (
            "e2e/test_attempt_ends.py::test_a_script_is_not_run_again_after_a_submission_that_solves_nothing",
            "e2e/test_attempt_ends.py::test_a_model_is_asked_no_more_after_a_submission_that_solves_nothing",
            "e2e/test_attempt_ends.py::test_an_agent_over_mcp_cannot_act_any_more_when_it_could_know",
        ),
    ),
    "a-search-hands-in-what-it-found": Guarantee(
        "A search at a problem hands in the best that it found, whichever budget is spent first.",
        (
            "e2e/test_attempt_ends.py::test_a_search_that_misses_its_target_hands_in_its_best_before_the_last_iteration",
            "e2e/test_attempt_ends.py::test_a_search_hands_in_its_best_when_the_budget_of_the_problem_is_spent",
            "e2e/test_search_hands_in.py::test_a_limit_that_the_tool_does_not_tell_is_left_out_of_account_and_named",
            "e2e/test_search_hands_in.py::test_a_tool_that_tells_nothing_leaves_nothing_to_hand_in_and_that_is_said",
            "e2e/test_search_hands_in.py::"
            "test_it_hands_in_before_the_time_of_the_problem_is_over_whatever_the_mission_has",
            "e2e/test_search_hands_in.py::test_the_time_of_the_problem_runs_while_nobody_drives",
            "e2e/test_search_hands_in.py::test_what_the_search_was_told_to_keep_fixed_is_no_part_of_the_answer",
            "e2e/test_search_hands_in.py::test_why_it_could_not_hand_in_is_said",
            "e2e/test_search_hands_in.py::"
            "test_of_targets_that_exclude_each_other_the_last_is_kept_and_then_the_primary_metric_counts",
            "unit/test_search_ends.py::test_what_was_found_is_handed_on_before_a_cap_of_the_mission_is_reached",
        ),
    ),
    "an-attempt-is-told-no-lessons": Guarantee(
        "A model that tries a problem is not told what the baseline or another attempt learned, also after a resume.",
        (
            "e2e/test_problems.py::test_a_model_is_not_told_what_the_baseline_found",
            "unit/test_lessons.py::test_a_mission_that_wants_none_is_told_none_also_when_it_is_resumed",
        ),
    ),
    "a-missions-agent-never-reads-its-score": Guarantee(
        "An agent that proposes in a mission on a problem reads no score of it, whatever of the mission it reads.",
        ("e2e/test_problem_attempts.py::test_an_agent_that_proposes_over_mcp_submits_and_never_reads_its_score",),
    ),
    "an-attempt-replays-to-the-same-score": Guarantee(
        "An attempt's log is judged again without its server, and another score than the recorded one is found out.",
        (
            "unit/test_problem_scoring.py::test_an_attempt_is_judged_again_without_its_server",
            "e2e/test_problem_front_door.py::"
            "test_judges_of_a_servers_own_last_word_are_told_the_call_and_replay_without_the_server",
        ),
    ),
    "a-baseline-solves-each-problem": Guarantee(
        "Each shipped problem has a baseline whose mission meets the target, and whose score replays.",
        ("e2e/test_problems.py::test_the_baseline_meets_its_target_and_replays",),
    ),
    "agents-see-no-scoring-data": Guarantee(
        "Nothing that an agent can see of a shipped problem holds its target, best value, judge or baseline.",
        ("e2e/test_problem_exports.py::test_what_agents_see_holds_no_scoring_data_and_is_the_same_taken_in_again",),
    ),
    "export-ingest-export-is-a-fixed-point": Guarantee(
        "A problem that is served, taken in as a server and served again offers what it offered before.",
        ("e2e/test_problem_exports.py::test_what_agents_see_holds_no_scoring_data_and_is_the_same_taken_in_again",),
    ),
    "an-attempt-survives-kill-nine": Guarantee(
        "After kill -9 an attempt goes on as the same attempt with its mission, to one submission and one score.",
        ("e2e/test_problems.py::test_killed_in_the_middle_an_attempt_goes_on_with_what_was_printed",),
    ),
    "a-mission-killed-at-its-submission-ends-as-its-attempt": Guarantee(
        "Ended at any instant of its submission and gone on with, a mission has the status that its attempt says.",
        (
            "fault/test_attempt_kill.py::test_killed_at_any_instant_of_its_submission_it_ends_as_its_attempt",
            "fault/test_attempt_kill.py::test_killed_while_the_server_of_the_problem_is_asked_it_ends_as_its_attempt",
            "fault/test_attempt_kill.py::test_killed_before_a_tool_judged_it_ends_as_its_attempt",
            "fault/test_attempt_kill.py::test_stopped_at_its_submission_it_ends_as_its_attempt",
            "fault/test_attempt_kill.py::test_what_was_taken_and_solves_nothing_ends_it_after_a_kill_too",
            "fault/test_attempt_kill.py::"
            "test_killed_before_the_attempt_was_opened_it_is_the_same_mission_with_the_same_name",
        ),
    ),
    "an-attempt-goes-on-with-what-is-printed": Guarantee(
        "What is printed after an attempt goes on with it as it stands, and for an agent with it alone.",
        (
            "e2e/test_problem_attempts.py::"
            "test_the_server_that_the_hint_names_goes_on_with_its_attempt_alone_and_asks_nobody",
        ),
    ),
    "one-served-mission-hides-the-others": Guarantee(
        "To a client of `serve --mission ID` others are as unknown as ones that never were, and it begins none.",
        (
            "surface/test_mcp_one_mission.py::test_another_mission_is_as_unknown_to_every_tool_as_one_that_never_was",
            "surface/test_mcp_one_mission.py::test_no_resource_prompt_or_completion_tells_of_another_mission",
            "surface/test_mcp_one_mission.py::test_nobody_can_subscribe_to_another_mission",
            "surface/test_mcp_one_mission.py::test_tasks_of_others_are_not_there_and_its_own_are",
            "surface/test_mcp_one_mission.py::test_the_command_serves_it_over_http_and_says_what_is_wrong_at_once",
        ),
    ),
}

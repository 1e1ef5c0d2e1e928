"""The scenario table of the design as data: 80 rows, each with the test that shows it or among those still to be built."""

from __future__ import annotations

from typing import Final, NamedTuple


class Row(NamedTuple):
    """One scenario: what happens, the test that shows the answer, and what of the answer that test leaves open."""

    scenario: str
    test: str | None = None
    open: str = ""


_HERE: Final = "tests/core/test_semantics.py::"

ROWS: Final[dict[int, Row]] = {
    1: Row(
        "A map inside a block whose guard says no is skipped, and stays a skipped map to everybody who reads it.",
        "tests/language/test_maps.py::test_row_1_map_in_a_block_not_taken",
    ),
    2: Row(
        "A map over a list that was skipped or failed is skipped.",
        "tests/language/test_maps.py::test_row_2_map_over_a_failed_list",
    ),
    3: Row(
        "A map over something that turns out to be no list fails, naming path and type.",
        "tests/language/test_maps.py::test_row_3_map_over_no_list",
    ),
    4: Row(
        "A map over an empty list completes with an empty list in the same decision, without tasks.",
        "tests/language/test_maps.py::test_row_4_empty_maps_complete_at_once",
    ),
    5: Row(
        "either() over two maps takes the whole list of the one that was taken.",
        "tests/language/test_maps.py::test_row_5_either_of_two_maps",
    ),
    6: Row(
        "either() over two branches that both completed takes the first, if it was declared that both can.",
        _HERE + "test_row_6_either_of_two_takes_the_first",
        "that undeclared ones are refused is the definition's",
    ),
    7: Row(
        "either() with a failed branch is skipped, and the run fails by that branch.",
        _HERE + "test_row_7_either_is_no_fallback",
    ),
    8: Row("either() over nothing but skipped branches is skipped.", _HERE + "test_row_8_either_of_nothing_is_skipped"),
    9: Row("settled() over a child gives its value or its first failure, and the parent does not fail by it."),
    10: Row(
        "settled() over a map gives an outcome an item, in index order, and no item stops another.",
        "tests/language/test_maps.py::test_row_10_every_item_has_an_outcome",
    ),
    11: Row(
        "A failure whose only settled() reader lies in a block not taken fails the run.",
        _HERE + "test_row_11_reader_in_a_block_not_taken",
    ),
    12: Row(
        "A failed node that is read plainly and through settled() skips one reader, runs the other and fails the run.",
        _HERE + "test_row_12_plain_reading_is_not_handling",
    ),
    13: Row(
        "A node merely after another runs when that one was skipped, and not when it failed, unless that is settled().",
        _HERE + "test_row_13_after_is_order_only",
    ),
    14: Row(
        "A node can be data for two blocks: each guard is a node of its own.",
        _HERE + "test_row_14_data_for_two_blocks",
    ),
    15: Row(
        "A block inside a block is taken only when both guards say yes.",
        _HERE + "test_row_15_blocks_inside_blocks",
    ),
    16: Row(
        "otherwise() negates the last closed block of its level, and only that.",
        _HERE + "test_row_16_otherwise_is_the_other_answer",
        "which block it belongs to, and that there is one, is the definition's",
    ),
    17: Row(
        "A guard that reads a skipped value is skipped, with its block and its otherwise().",
        _HERE + "test_row_17_guard_over_a_skipped_value",
    ),
    18: Row(
        "What reads a failed node without settled() is skipped with all that hangs on it, and the run fails by that node.",
        _HERE + "test_row_18_readers_of_a_failed_node_are_skipped",
    ),
    19: Row("A step that returns None has completed with null, which is not being skipped.", _HERE + "test_row_19_null_is_a_value"),
    20: Row(
        "A wait that times out without an answer for it fails with code event-timeout.",
        "tests/language/test_waits.py::test_row_20_wait_without_an_answer_fails",
    ),
    21: Row(
        "The answer given for a timeout is checked against the event's type, and can be told from a real one.",
        "tests/language/test_waits.py::test_row_21_timeout_is_told_from_an_answer",
    ),
    22: Row(
        "A signal that came early is taken by the wait in the transition that starts it.",
        "tests/language/test_waits.py::test_row_22_early_signal_is_kept",
    ),
    23: Row(
        "Two nodes that wait for one name get one signal each, in the order they began to wait.",
        "tests/language/test_waits.py::test_row_23_one_signal_one_wait",
    ),
    24: Row(
        "A signal with a known dedupe id is answered as the first time and not stored.",
        "tests/contract/test_wait_races.py::test_repeated_dedupe_id_is_stored_once",
    ),
    25: Row(
        "A signal of the wrong shape is refused where it is sent, and nothing is stored.",
        "tests/cases/test_c21.py::test_event_of_the_wrong_shape_is_refused_where_it_is_sent",
    ),
    26: Row(
        "A signal to a run that ended, that does not exist or that knows no such name says which.",
        "tests/cases/test_c21.py::test_event_that_nobody_will_take_is_refused",
    ),
    27: Row(
        "Of a signal and a timeout at once the first commit wins, and a signal that lost is kept.",
        "tests/language/test_waits.py::test_row_27_signal_that_lost_is_for_the_next",
        "both orders of one moment are forced in the contract suite",
    ),
    28: Row(
        "A deadline during a sleep or wait stops the run, drops the timers and undoes what completed.",
        "tests/language/test_waits.py::test_row_28_deadline_ends_a_sleep",
        "without compensation",
    ),
    29: Row(
        "A deadline while steps run stops the run with code deadline, and every open task with it.",
        _HERE + "test_row_29_deadline_stops_open_tasks",
        "without compensation; that the body hears of it is the worker's",
    ),
    30: Row("A child's deadline is its own or what its parent has left, fixed when it starts."),
    31: Row("A deadline goes on during a pause, unless the resume extends it."),
    32: Row(
        "A run's output is null, a constant or a template filled in at the end.",
        _HERE + "test_row_32_output_is_a_template",
        "the check against the return annotation is the definition's",
    ),
    33: Row(
        "An output that can be skipped is refused at definition, or fails the run with code no-output.",
        _HERE + "test_row_33_no_branch_no_output",
        "what is refused is the definition's",
    ),
    34: Row(
        "An output read through settled() is a value even of a failure, and the run completes.",
        _HERE + "test_row_34_outcome_as_output",
    ),
    35: Row(
        "A payload over the limit fails its step, or is refused before anything is stored.",
        "tests/language/test_limits.py::test_row_35_payloads_over_the_limit",
        "that arguments put together from many results are limited too",
    ),
    36: Row(
        "A run input far too big is refused in the client and never sent.",
        "tests/runtime/test_worker.py::test_what_is_wrong_with_a_call_is_said_before_anything_is_stored",
    ),
    37: Row(
        "A cancel stops a running run at once, and a second one changes nothing.",
        _HERE + "test_row_37_cancel_of_a_running_run",
        "without compensation; the handle's answer is the client's",
    ),
    38: Row("A cancel during compensation is noted and stops no undo."),
    39: Row("A cancel of a run that has ended changes nothing.", _HERE + "test_row_39_cancel_of_an_ended_run"),
    40: Row("A cancel of a scheduled run ends it before anything ran.", _HERE + "test_row_40_cancel_of_a_scheduled_run"),
    41: Row("A cancel of a parent tells every open child in the same transition."),
    42: Row("A child that an operator cancels fails its parent's node with code child-cancelled."),
    43: Row("A retry policy on a child starts a new run an attempt, the old one linked."),
    44: Row(
        "A retry of a half-failed map keeps the finished items and runs the others.",
        "tests/contract/test_map_items.py::test_retry_keeps_finished_items",
    ),
    45: Row("A retry of a parent retries its failed child in place."),
    46: Row(
        "A retry after a change takes the newest options of the same shape, and never another shape.",
        "tests/runtime/test_worker.py::test_a_retry_adopts_corrected_options",
    ),
    47: Row(
        "Only a failed run can be retried; any other says what it is.",
        _HERE + "test_row_47_retry_is_for_failed_runs",
        "the client raises RunNotRetryable from this reason",
    ),
    48: Row(
        "A retry of a run that failed by its deadline counts a new one from now.",
        _HERE + "test_row_48_retry_restarts_the_deadline",
        "the moment is stamped by the store; timeout= is not built",
    ),
    49: Row(
        "Of two retries at once one wins, and the other finds the run running.",
        _HERE + "test_row_49_one_of_two_retries_wins",
        "with the model store",
    ),
    50: Row("A crash costs no attempt: one crash more, and again after the policy's delay.", _HERE + "test_row_50_crash_is_no_failure"),
    51: Row("A crash during an undo is counted for the undo alone."),
    52: Row("An undo that spent its budget leaves the run failed, and can be resumed."),
    53: Row(
        "A snooze costs nothing but a delivery, and keeps the checkpoint.",
        _HERE + "test_row_53_snooze_costs_nothing",
        "max_snooze and limit slots are not built",
    ),
    54: Row("A checkpoint outlives failures, crashes and drains, and is cleared by a retry of the run."),
    55: Row(
        "A thread that does not end keeps its slot, though its attempt has ended.",
        "tests/runtime/test_worker.py::test_a_thread_that_is_too_slow_keeps_its_slot_until_it_returns",
    ),
    56: Row("A paused run hands nothing out, and takes in what still runs."),
    57: Row(
        "A task given back by a worker that shuts down is ready at once and costs nothing.",
        _HERE + "test_row_57_released_task_is_ready_at_once",
        "that the body is cancelled first is the worker's",
    ),
    58: Row(
        "A run that starts later is scheduled, runs nothing, and its deadline counts from the real start.",
        _HERE + "test_row_58_scheduled_run_waits",
        "that the key is taken is the store's",
    ),
    59: Row(
        "The same key with the same input is the run that has it, in any state.",
        "tests/runtime/test_worker.py::test_the_same_key_is_the_same_run",
    ),
    60: Row(
        "The same key with other input is a conflict that names the run.",
        "tests/runtime/test_worker.py::test_the_same_key_is_the_same_run",
    ),
    61: Row(
        "The same key after a failure is still that run.",
        "tests/runtime/test_worker.py::test_the_same_key_is_the_same_run",
    ),
    62: Row("A key lives as long as its run, or longer if asked."),
    63: Row("A database clock that jumps makes things early or late, never wrong."),
    64: Row(
        "A moment without a zone is refused where it is given.",
        "tests/language/test_waits.py::test_row_64_moments_have_a_zone",
        "schedules are not built",
    ),
    65: Row(
        "A sleep of nothing is over at once, one of nonsense is refused.",
        "tests/language/test_waits.py::test_row_65_odd_sleeps",
        "that a past moment needs no timer: the core is told no time, so a coordinator fires it at once",
    ),
    66: Row("A plan has a largest size, refused with the advice to map or nest."),
    67: Row("A changed plan is a new one; runs keep theirs."),
    68: Row("A worker leaves tasks alone whose arguments its code cannot take."),
    69: Row(
        "A stored argument that no longer fits fails the step for good, and a retry after a fix works.",
        "tests/cases/test_c10.py::test_one_unreadable_input_fails_alone",
    ),
    70: Row("Eager hand-over stops while more important work waits."),
    71: Row("A step with a limit is never handed over eagerly."),
    72: Row("A larger priority is sooner, and children and undos inherit it."),
    73: Row(
        "Of two commits for branches of one run the loser decides again on what the winner left.",
        _HERE + "test_row_73_loser_decides_again",
        "with the model store; batches and serialised workers are apply.py's",
    ),
    74: Row(
        "A report that was applied changes nothing when it comes again, and one of an older delivery is stale.",
        _HERE + "test_row_74_duplicates_and_stale_reports",
        "what the worker is told is apply.py's",
    ),
    75: Row("A run that cannot be decided is quarantined, and the others of its batch are committed."),
    76: Row("Children go 32 deep and no deeper."),
    77: Row("A loop fails as its body does, or with max-iterations and the last value."),
    78: Row(
        "A step that raises SystemExit has a failed attempt of that type, and is retried as any other.",
        _HERE + "test_row_78_any_exception_is_a_failed_attempt",
        "that the worker goes on is shown by case C32",
    ),
    79: Row(
        "An exception is stored as type name and text, whatever is in them.",
        _HERE + "test_row_79_any_text_can_be_stored",
        "best effort on text that cannot be made is shown by case C32",
    ),
    80: Row("By default there are no retries, no timeouts and no deadline, and three crashes.", _HERE + "test_row_80_defaults"),
}  # fmt: skip

NOT_BUILT_YET: Final = frozenset(
    {
        9, 30, 31, 38, 41, 42, 43, 45, 51, 52, 54, 56, 62, 63, 66, 67, 68, *range(70, 73), 75, 76, 77,
    }
)  # fmt: skip
"""Rows without a test. It only ever shrinks; some of them hold already, and wait for the suite that can show them."""

"""A short run of the exactness suites within each set of instructions that this processor has."""

from __future__ import annotations

import pytest

from .instruction_sets import available, run

TESTS = (
    "model/test_rows.py::test_the_check_of_the_embedded_target_holds",
    "model/test_paged_model.py::test_logits_do_not_depend_on_the_cut[0]",
    "model/test_paged_model.py::test_logits_do_not_depend_on_who_else_is_in_the_pass[0]",
    "model/test_partial_sums.py::test_passes_of_two_rows_and_more_give_the_same_bits",
    "model/test_partial_sums.py::test_passes_of_two_rows_and_more_of_a_model_in_parts_give_the_same_bits",
    "model/test_exactness.py::test_the_answer_is_that_of_the_slow_reference_decoder[100]",
    "model/test_exactness.py::test_prompts_of_every_length_around_a_border[514]",
)


@pytest.mark.parametrize("name", available())
def test_the_promise_holds_within_a_set_of_instructions(name):
    """The first is run on all processors, since the promise holds with any number of threads, and the others on those
    of this process: tests that run at the same time would take several times as long."""
    ended = run(name, TESTS, on_all_processors=name == available()[0])
    assert ended.returncode == 0, ended.stdout
    assert "8 passed" in ended.stdout, "the suites were not run"

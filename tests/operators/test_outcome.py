from __future__ import annotations

import pytest
from tests.builders.jobs import job_view

from emep.triggers.outcome import outcome_of

RESULT = {"status": "done", "metrics": {"batches": [[0, 1], [2]], "best": None}, "outputs": {}}


def test_a_success_is_the_result():
    outcome = outcome_of(job_view("completed", result=RESULT))
    assert outcome.succeeded
    assert outcome.value == RESULT


def test_a_part_of_the_result_can_be_asked_for():
    assert outcome_of(job_view("completed", result=RESULT), "metrics.batches").value == [[0, 1], [2]]
    assert outcome_of(job_view("completed", result=RESULT), "metrics.best").value is None


@pytest.mark.parametrize("field", ["metrics.bathces", "metrics.batches.0", "nothing"])
def test_a_part_that_is_missing_fails_for_good(field):
    outcome = outcome_of(job_view("completed", result=RESULT), field)
    assert not outcome.succeeded
    assert not outcome.retry
    assert field in outcome.sentence


def test_a_success_without_a_result_is_empty():
    assert outcome_of(job_view("completed")).value == {}


@pytest.mark.parametrize(
    ("state", "exit_code", "retry"),
    [
        ("failed", 1, True),
        ("failed", 86, True),
        ("failed", None, True),
        ("failed", 65, False),
        ("cancelled", None, False),
        ("rejected", None, False),
        ("expired", None, False),
        ("dead", 1, False),
    ],
)
def test_only_a_failure_of_the_work_is_tried_again(state, exit_code, retry):
    outcome = outcome_of(job_view(state, exit_code=exit_code, reason="because"))
    assert not outcome.succeeded
    assert outcome.retry is retry
    assert "because" in outcome.sentence
    assert "job-1" in outcome.sentence


def test_a_task_whose_time_was_over_while_its_job_waited_is_tried_again():
    ended = job_view("cancelled", reason="execution_timeout: 10m", reason_code="execution_timeout")
    assert outcome_of(ended).retry
    assert "execution_timeout: 10m" in outcome_of(ended).sentence
    assert not outcome_of(job_view("dead", reason_code="execution_timeout")).retry


def test_the_engine_s_sentence_names_file_and_field():
    error = {
        "code": "bad_input",
        "message": "unknown method 'linaer'; did you mean 'linear'?",
        "file": "r.yaml",
        "field": "merge_method",
    }
    sentence = outcome_of(
        job_view("failed", exit_code=65, reason="exit 65", result={"error": error})
    ).sentence
    assert sentence == "r.yaml: merge_method: unknown method 'linaer'; did you mean 'linear'?"


def test_file_and_field_are_not_said_twice():
    error = {"message": "r.yaml: merge_method is missing", "file": "r.yaml", "field": "merge_method"}
    assert (
        outcome_of(job_view("failed", result={"error": error})).sentence == "r.yaml: merge_method is missing"
    )


def test_without_any_reason_the_state_is_said():
    assert outcome_of(job_view("dead")).sentence == "job job-1 dead: the job is dead"


TOLD = {"code": "preempted", "message": "the control plane says checkpoint_and_exit"}


@pytest.mark.parametrize(
    ("state", "code", "reason"),
    [
        ("failed", "time_limit", "max_duration: this run has taken its 12h"),
        ("failed", "execution_timeout", "execution_timeout: the task's 1h are over"),
        ("cancelled", "cancel", "cancelled by alice"),
        ("dead", "killed", "requeued 5 times for lost infrastructure; the last: ended by SIGKILL"),
    ],
)
def test_what_ended_a_job_from_outside_is_said_and_not_what_the_engine_saw_of_it(state, code, reason):
    ended = job_view(state, exit_code=75, reason=reason, reason_code=code, result={"error": TOLD})
    assert outcome_of(ended).sentence == f"job job-1 {state}: {reason}"


def test_an_engine_s_own_end_is_said_in_its_words_and_with_what_emep_adds():
    error = {"code": "gpu_out_of_memory", "message": "20 GiB are missing"}
    ended = job_view(
        "failed",
        exit_code=86,
        reason="20 GiB are missing (out of GPU memory, promoted to the CPU before)",
        reason_code="exit_86",
        result={"error": error},
    )
    assert outcome_of(ended).sentence == "20 GiB are missing (out of GPU memory, promoted to the CPU before)"

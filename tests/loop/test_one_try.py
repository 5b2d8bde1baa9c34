"""Preempted, killed, failed: what is requeued in the same try, and what spends one of Airflow's."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def endings(loop):
    """Runs whose engines end in different ways, side by side."""
    works = {
        "crash": loop.trigger(ends=[1]),
        "bad input": loop.trigger(ends=[65]),
        "killed": loop.trigger(ends=[137]),
    }
    for work in works.values():
        work.run.ended()
    return works


def test_a_job_makes_room_and_goes_on_from_its_checkpoint_in_the_same_try(loop):
    full = [loop.trigger(steps=6, step_seconds=0.2, gpu_count=4, priority="low", held=True) for _ in range(2)]
    for work in full:
        loop.wait(lambda work=work: work.is_at_its_last_step and work.run.states()["job"] == "deferred")
    jobs = [work.run.job() for work in full]
    preemptor = loop.trigger(priority="critical", gpu_count=4, held=True)
    loop.wait(lambda: preemptor.run.job_is("running"))
    (number,) = [number for number, work in enumerate(full) if work.said("yield")]
    victim, before = full[number], jobs[number]
    back = victim.run.job()
    assert back["state"] == "pending"
    assert back["preempted"] is True
    assert back["submitted_at"] == before["submitted_at"]
    assert back["queued_at"] > before["queued_at"]
    assert back["id"] == before["id"]
    assert victim.run.states()["job"] == "deferred"
    for work in (*full, preemptor):
        work.let_it_end()
    preemptor.succeeded_in_one_try()
    victim.succeeded_in_one_try()
    (after,) = victim.run.jobs()
    assert after["epoch"] == 2
    assert after["requeues"] == 0
    (yielded_before,) = victim.said("yield")
    assert victim.said("start") == [0, yielded_before]
    assert after["result"]["resumed_from"] == yielded_before
    log = victim.run.log("job")
    assert "is yielding" in log
    assert "(epoch 2)" in log


def test_an_engine_that_fails_spends_a_retry_and_resumes(endings):
    work = endings["crash"]
    assert work.run.state == "success"
    assert work.run.tasks()["job"]["try_number"] == 2
    assert [job["state"] for job in work.run.jobs()] == ["completed", "failed"]
    work.was_done_once()


def test_bad_input_is_not_retried(endings):
    work = endings["bad input"]
    assert work.run.state == "failed"
    assert work.run.tasks()["job"]["try_number"] == 1
    assert "this can never work" in work.run.sentence("job")


def test_an_engine_that_is_killed_is_requeued_without_a_retry(endings):
    work = endings["killed"]
    work.succeeded_in_one_try()
    (job,) = work.run.jobs()
    assert (job["requeues"], job["preempted"]) == (1, False)
    assert len(work.said("start")) == 2

"""Whatever ends a deferred task, its GPUs come back: by hand, by a time limit, with its run."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.airflow

WAYS = {
    "marked failed": lambda run: run.set_task("job", "failed"),
    "marked success": lambda run: run.set_task("job", "success"),
    "cleared": lambda run: run.clear("job"),
    "run marked failed": lambda run: run.set_state("failed"),
    "run deleted": lambda run: run.delete(),
    "DAG deleted": lambda run: run.delete_dag(),
}


@pytest.fixture(scope="module")
def works(loop):
    """A deferred task with a running job for each way to end it, and those that end by a limit."""
    works = {
        way: loop.trigger("loop_to_delete" if way == "DAG deleted" else "loop_job", held=True) for way in WAYS
    }
    for work in works.values():
        loop.wait(lambda work=work: work.run.states().get("job") == "deferred" and work.is_at_its_last_step)
    return works


@pytest.mark.parametrize("way", WAYS)
def test_the_gpus_of_a_task_that_is_ended_by_hand_come_back(loop, works, way):
    work = works[way]
    jobs = {job["id"] for job in work.run.jobs()}
    assert len(jobs) == 1
    began = time.monotonic()
    WAYS[way](work.run)
    (job_id,) = jobs
    job = loop.wait(
        lambda: (found := loop.airflow.job(job_id))["state"] not in ("running", "yielding") and found
    )
    print(f"{way}: the job was over after {time.monotonic() - began:.1f} s")
    assert job["state"] == "cancelled"
    assert not [gpu for node in loop.airflow._nodes() for gpu in node.gpus if gpu.job_id == job_id]
    assert work.said("end") == []


def test_a_cleared_task_begins_another_try_that_resumes(loop, works):
    work = works["cleared"]
    loop.wait(lambda: len(work.run.jobs()) == 2 and work.run.job_is("running"))
    work.let_it_end()
    assert work.run.ended() == "success"
    assert work.run.tasks()["job"]["try_number"] == 2
    work.was_done_once()


LIMITS = {"loop_task_limit": "execution_timeout", "loop_run_limit": "ended"}


@pytest.fixture(scope="module")
def limited(loop, works):
    """A run for each limit, side by side: both limits pass while one is waited for."""
    return {dag_id: loop.trigger(dag_id, held=True, steps=1) for dag_id in LIMITS}


@pytest.mark.parametrize("dag_id", LIMITS)
def test_a_time_limit_holds_while_the_task_is_deferred(loop, limited, dag_id):
    work = limited[dag_id]
    assert work.run.ended() == "failed"
    job = loop.wait(lambda: (found := work.run.job())["state"] in ("cancelled", "failed", "dead") and found)
    assert LIMITS[dag_id] in job["reason"]
    # What had not reported yet when it was called off holds its GPUs until its agent says that it is gone.
    loop.wait(lambda: loop.held_by(work) == 0)
    assert work.said("end") == []

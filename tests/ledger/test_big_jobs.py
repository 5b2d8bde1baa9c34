"""Big work beside a churn of small work: in an Airflow pool it starves, in EMEP's queue it does not."""

from __future__ import annotations

import pytest
from tests.builders.airflow_queue import AirflowQueue
from tests.builders.ledger import Bench

from emep.wire.jobs import JobView

SLOTS, SMALL = 8, 20


def test_in_a_pool_of_airflow_s_the_big_task_comes_last_whatever_its_priority(engine):
    """What EMEP is for: the same shape, decided by Airflow's own scheduler."""
    airflow = AirflowQueue(engine)
    airflow.upsert_pool(SLOTS, "slots")
    small = [airflow.task(2, pool="slots") for _ in range(SMALL)]
    started = airflow.queue()
    assert len(started) == 4
    big = airflow.task(SLOTS, pool="slots", priority_weight=1000)
    running = list(started)
    while running:
        airflow.move(running.pop(0), "success")
        new = airflow.queue()
        running += new
        started += new
    assert started[-1] == big
    assert sorted(started[:-1]) == sorted(small)


def churn(bench: Bench) -> tuple[list[JobView], list[JobView]]:
    """Twenty small jobs on eight GPUs: those that run, and those that wait."""
    bench.node(gpus=SLOTS)
    jobs = [bench.submit(gpu_count=2, priority="low") for _ in range(SMALL)]
    bench.plan()
    jobs = [bench.job(job) for job in jobs]
    running = [job for job in jobs if job.state.value == "starting"]
    for job in running:
        bench.poll("n0", *running)
        bench.beat(job)
    assert len(running) == 4
    return [bench.job(job) for job in running], [job for job in jobs if job.state.value == "pending"]


@pytest.mark.parametrize(("priority", "roles"), [("high", ()), ("critical", ("Op",))])
def test_a_big_job_that_may_preempt_starts_when_those_that_ran_have_made_room(bench, priority, roles):
    running, waiting = churn(bench)
    big = bench.submit(gpu_count=SLOTS, priority=priority, roles=roles, by="bob")
    bench.plan()
    for job in running:
        assert bench.job(job).state.value == "yielding"
        bench.complete(bench.job(job), exit_code=75)
        bench.plan()
    assert bench.job(big).state.value == "starting"
    assert {bench.job(job).state.value for job in waiting} == {"pending"}, "nobody slipped in"
    assert {bench.job(job).state.value for job in running} == {"pending"}, "back to their places"


def test_a_big_job_that_may_not_preempt_starts_when_those_that_ran_have_ended(bench):
    running, waiting = churn(bench)
    big = bench.submit(gpu_count=SLOTS, priority="normal", by="bob")
    bench.plan()
    for done, job in enumerate(running, start=1):
        bench.alive(20.0, *running[done - 1 :])
        assert bench.job(big).state.value == "pending"
        bench.complete(job)
        bench.plan()
    assert bench.job(big).state.value == "starting"
    assert {bench.job(job).state.value for job in waiting} == {"pending"}, "nobody slipped in"

"""None of Airflow's own gates holds a request back: a critical job preempts while hundreds wait, deferred."""

from __future__ import annotations

import os
import time
from datetime import datetime

import pytest

pytestmark = pytest.mark.airflow
WAITING = int(os.environ.get("EMEP_TEST_WAITING_TASKS", "24"))


@pytest.fixture
def crowd(loop):
    """A cluster that is full, and a run whose tasks all wait, deferred; at the end nothing of it is left."""
    full = [loop.trigger(gpu_count=4, held=True) for _ in range(2)]
    for work in full:
        loop.wait(lambda work=work: work.is_at_its_last_step)
    many = loop.trigger("loop_many", inputs=[{"steps": 1}] * WAITING)

    def deferred() -> int:
        return list(many.run.states().values()).count("deferred")

    # Hundreds of tasks are many pages: looking at them all the time would itself be load.
    loop.wait(lambda: deferred() == WAITING, 120 + 20 * WAITING, pause=3.0)
    yield full, many
    for work in full:
        work.let_it_end()
    many.run.set_state("failed")
    assert [work.run.ended() for work in full] == ["success", "success"]
    loop.wait(lambda: not loop.airflow.held_gpus(), pause=2.0)


def test_a_critical_job_preempts_before_any_of_those_that_wait(loop, crowd):
    full, many = crowd
    began = time.time()
    # As large as what makes room for it: otherwise the rest of that room is rightly given to those that wait.
    critical = loop.trigger(priority="critical", gpu_count=4)
    job = loop.wait(critical.run.job)
    submitted = datetime.fromisoformat(job["submitted_at"]).timestamp()
    loop.wait(lambda: critical.run.job_is("completed"))
    started = datetime.fromisoformat(critical.run.job()["started_at"])
    print(
        f"{WAITING} waiting: in the ledger {submitted - began:.1f} s after its trigger, "
        f"running after {started.timestamp() - began:.1f} s"
    )
    assert [work.run.job()["preempted"] for work in full].count(True) == 1
    jobs = loop.airflow.jobs(many.run)
    assert len(jobs) == WAITING
    for waiting in jobs:
        assert waiting["started_at"] is None or datetime.fromisoformat(waiting["started_at"]) > started
    critical.succeeded_in_one_try()

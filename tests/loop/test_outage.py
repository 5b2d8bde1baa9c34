"""The API server, which is Airflow's and EMEP's in one, is killed in a task's first seconds and stays away.

Whatever its task was at then (waiting for a worker, asking, watching, deferring), it needs one try, and the
work is done once.
"""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.airflow
OUTAGE_SECONDS = 65.0
"""Longer than Airflow's own defaults bear."""


@pytest.fixture(scope="module")
def works(loop):
    """Three tasks in different moments of their first seconds; the server is away and back."""
    watched = loop.trigger("loop_in_worker", steps=12, step_seconds=1.0)
    loop.wait(lambda: watched.run.job_is("running"), pause=0.2)
    deferring = loop.trigger(steps=12, step_seconds=1.0)
    loop.wait(lambda: deferring.run.job_is("running"), pause=0.2)
    asking = loop.trigger(steps=3)
    loop.wait(lambda: asking.run.states().get("job") in ("scheduled", "queued", "running"), pause=0.1)
    loop.airflow.kill("api-server")
    time.sleep(OUTAGE_SECONDS)  # what is tried is an outage of this length
    loop.airflow.start("api-server")
    return {"watched": watched, "deferring": deferring, "asking": asking}


@pytest.mark.parametrize("name", ["watched", "deferring", "asking"])
def test_an_outage_in_its_first_seconds_costs_a_task_no_try_and_no_work(works, name):
    works[name].succeeded_in_one_try()


def test_what_ended_while_the_server_was_away_was_not_told_to_yield(works):
    for work in works.values():
        (job,) = work.run.jobs()
        assert (job["state"], job["requeues"], job["epoch"]) == ("completed", 0, 1)
        assert not work.said("yield")

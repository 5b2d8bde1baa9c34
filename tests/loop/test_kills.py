"""SIGKILL for each of Airflow's processes while a job runs: work goes on, ends once, the task succeeds."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from emep.demo.keeper import descendants

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def survivor(loop):
    """A job that sees every one of the kills, and ends after the last."""
    work = loop.trigger(held=True, steps=4)
    loop.wait(lambda: work.run.states().get("job") == "deferred" and work.is_at_its_last_step)
    return work


@pytest.mark.parametrize("name", ["api-server", "scheduler"])
def test_what_runs_does_not_notice_that_a_process_of_airflow_is_killed(loop, survivor, name):
    pids = {line["pid"] for line in survivor.lines}
    other = loop.trigger(held=True)
    loop.wait(lambda: other.run.states().get("job") == "deferred" and other.is_at_its_last_step)
    loop.airflow.kill(name)
    other.let_it_end()
    loop.airflow.start(name)
    other.succeeded_in_one_try()
    assert survivor.run.job_is("running")
    assert survivor.run.job()["epoch"] == 1
    assert {line["pid"] for line in survivor.lines} == pids


def test_gpus_come_back_when_a_task_is_marked_while_no_triggerer_lives(loop, survivor):
    marked, ends = loop.trigger(held=True), loop.trigger(held=True)
    for work in (marked, ends):
        loop.wait(lambda work=work: work.run.states().get("job") == "deferred" and work.is_at_its_last_step)
    loop.airflow.kill("triggerer")
    began = time.monotonic()
    marked.run.set_task("job", "failed")
    loop.wait(lambda: loop.held_by(marked) == 0)
    print(f"without a triggerer: GPUs back after {time.monotonic() - began:.1f} s")
    assert marked.run.job()["state"] == "cancelled"
    ends.let_it_end()
    loop.wait(lambda: ends.run.job_is("completed"))
    assert loop.held_by(ends) == 0
    assert ends.run.states()["job"] == "deferred"
    loop.airflow.start("triggerer")
    ends.succeeded_in_one_try()


def test_the_survivor_ends_once_in_its_first_try(loop, survivor):
    survivor.let_it_end()
    survivor.succeeded_in_one_try()
    assert loop.held_by(survivor) == 0


def test_a_task_s_process_that_is_killed_beside_its_job_costs_a_try_and_no_step(loop):
    work = loop.trigger("loop_in_worker", held=True)
    loop.wait(lambda: work.is_at_its_last_step)
    assert work.run.states()["job"] == "running"
    # The executor's workers are the scheduler's children, a task's process is the child of one.
    for worker in descendants(loop.airflow.stack.processes.pid("scheduler")):
        for task in descendants(worker):
            with suppress(ProcessLookupError):
                os.kill(task, signal.SIGKILL)
    loop.wait(lambda: work.run.jobs()[0]["airflow"]["try_number"] == 2)
    work.let_it_end()
    assert work.run.ended() == "success", work.run.states()
    # The next try has taken the job over: nothing of its work noticed.
    (job,) = work.run.jobs()
    assert (job["state"], job["epoch"], job["requeues"]) == ("completed", 1, 0)
    assert not work.said("yield")
    work.was_done_once()
    assert loop.held_by(work) == 0


def test_each_line_of_a_job_s_log_is_shown_once_when_its_triggerer_is_killed(loop):
    work = loop.trigger(steps=60, step_seconds=0.5)
    loop.wait(lambda: work.run.log("job").count("steps ") >= 5)
    loop.airflow.kill("triggerer")
    loop.airflow.start("triggerer")
    assert work.run.ended() == "success", work.run.states()
    shown = [line for line in work.run.log("job").splitlines() if line.startswith("steps ")]
    assert len(shown) > 10
    assert len(shown) == len(set(shown)), sorted(line for line in set(shown) if shown.count(line) > 1)
    assert shown[-1] == "steps 60/60"

"""Jobs against Airflow's own tables, moved by Airflow's own code where it has some."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select
from tests.builders.airflow_queue import DAG, AirflowQueue
from tests.builders.ledger import Bench, events, holders

from emep.ledger.housekeeping.reconcile import EVERY_SECONDS, GRACE_SECONDS, MAY_ASK, WANTS, why_unwanted
from emep.wire.base import JobState
from emep.wire.jobs import JobView

ENDED = ["success", "failed", "skipped", "upstream_failed", "removed"]
LIVE = (JobState.PENDING, JobState.STARTING, JobState.RUNNING)


@pytest.fixture
def airflow(bench: Bench) -> AirflowQueue:
    """Airflow's tables in the ledger's database."""
    bench.node(gpus=8)
    return AirflowQueue(bench.engine)


def asked(task_id: str, try_number: int = 1, **fields: Any) -> dict[str, Any]:
    return {"dag_id": DAG, "run_id": "r", "task_id": task_id, "try_number": try_number, **fields}


def job_of(bench: Bench, airflow: AirflowQueue, state: str = "deferred", **fields: Any) -> JobView:
    """A running job and its task instance, in its first try."""
    task_id = airflow.task(pool="emep", state=state, try_number=1, max_tries=3)
    return bench.running(airflow=asked(task_id), **fields)


def task_of(session: Any, job: JobView) -> Any:
    from airflow.models.taskinstance import TaskInstance

    return session.scalars(select(TaskInstance).where(TaskInstance.task_id == job.airflow.task_id)).one()


def look(bench: Bench, *running: JobView) -> None:
    """Two looks of the tick, with heartbeats in between."""
    bench.alive(2 * EVERY_SECONDS + GRACE_SECONDS, *running, step=1.0)


# ---- the judgement ---------------------------------------------------------------------------------------


def test_every_state_that_airflow_has_is_judged() -> None:
    from airflow.utils.state import TaskInstanceState

    wanted = {state.value for state in TaskInstanceState if why_unwanted(2, 2, state.value) is None}
    assert wanted == set(WANTS)
    for state in [None, *(state.value for state in TaskInstanceState)]:
        assert (why_unwanted(2, 3, state) is None) is (state in MAY_ASK), "another try is about to ask"
        assert why_unwanted(2, 1, state) is not None, "the run was made anew"
        assert why_unwanted(2, None, state) is not None, "there is no such task"


@pytest.mark.parametrize("state", sorted(WANTS - {"awaiting_input"}))
def test_a_task_that_is_still_in_its_try_keeps_its_job(
    bench: Bench, airflow: AirflowQueue, state: str
) -> None:
    job = job_of(bench, airflow, state)
    look(bench, job)
    assert bench.job(job).state is JobState.RUNNING


@pytest.mark.parametrize("state", ENDED)
def test_a_task_that_has_ended_gives_its_gpus_back(bench: Bench, airflow: AirflowQueue, state: str) -> None:
    job = job_of(bench, airflow)
    airflow.move(job.airflow.task_id, state)
    look(bench, job)
    told = bench.job(job)
    assert told.state is JobState.YIELDING
    assert state.replace("_", " ") in told.reason
    ended = bench.complete(told, 75)
    assert (ended.state, holders(bench)) == (JobState.CANCELLED, {})


def test_a_job_that_waits_ends_at_once(bench: Bench, airflow: AirflowQueue) -> None:
    task_id = airflow.task(pool="emep", state="failed", try_number=1)
    blocker = bench.running(gpu_count=8)
    job = bench.submit(airflow=asked(task_id))
    look(bench, blocker)
    ended = bench.job(job)
    assert ended.state is JobState.CANCELLED
    assert "its Airflow task has ended: it is failed" in ended.reason
    assert ("cancelled", "") in events(bench, job)
    assert bench.job(blocker).state is JobState.RUNNING, "a job that no task asked for is nobody's"


# ---- as Airflow does it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["deferred", "running"])
def test_clearing_a_task_calls_its_job_off(bench: Bench, airflow: AirflowQueue, state: str) -> None:
    from airflow.models.taskinstance import clear_task_instances

    job = job_of(bench, airflow, state)
    with airflow.sessions.begin() as session:
        clear_task_instances([task_of(session, job)], session)
    look(bench, job)
    told = bench.job(job)
    assert told.state is JobState.YIELDING
    assert "was cleared" in told.reason


def test_the_try_after_clearing_has_a_job_of_its_own(bench: Bench, airflow: AirflowQueue) -> None:
    from airflow.models.taskinstance import clear_task_instances

    first = job_of(bench, airflow)
    with airflow.sessions.begin() as session:
        clear_task_instances([task_of(session, first)], session)
    look(bench, first)
    with airflow.sessions.begin() as session:
        task = task_of(session, first)
        # What the scheduler's UPDATE does when it schedules a task again.
        task.try_number, task.state = task.try_number + 1, "running"
    second = bench.submit(airflow=asked(first.airflow.task_id, try_number=2))
    bench.plan()
    look(bench, first)
    told = bench.job(first)
    assert told.state is JobState.YIELDING
    assert "was cleared" in told.reason
    waiting = bench.job(second)
    assert (waiting.reason_code, waiting.state) == ("backing_off", JobState.PENDING)
    assert f"waits until job {first.id} of try 1, from which it resumes, has ended" in waiting.reason
    bench.complete(told, 75)
    bench.plan()
    assert bench.job(second).state is JobState.STARTING


def test_a_worker_that_the_scheduler_finds_dead_leaves_its_job_to_the_next_try(
    bench: Bench, airflow: AirflowQueue
) -> None:
    from airflow.models.taskinstance import TaskInstance

    job = job_of(bench, airflow, "running")
    with airflow.sessions.begin() as session:
        task = task_of(session, job)
        TaskInstance.fetch_handle_failure_context(ti=task, error="no heartbeat", session=session)
    look(bench, job)
    assert bench.job(job).state is JobState.RUNNING
    for state in ("scheduled", "queued", "running"):
        with airflow.sessions.begin() as session:
            task = task_of(session, job)
            task.try_number, task.state = 2, state
        look(bench, job)
        assert bench.job(job).state is JobState.RUNNING, f"try 2 is {state} and has not asked yet"
    airflow.move(job.airflow.task_id, "deferred")
    look(bench, job)
    told = bench.job(job)
    assert told.state is JobState.YIELDING, "try 2 has asked, and follows another job"
    assert "begun try 2" in told.reason


def test_a_worker_that_is_lost_in_the_last_try_ends_its_job(bench: Bench, airflow: AirflowQueue) -> None:
    from airflow.models.taskinstance import TaskInstance

    job = job_of(bench, airflow, "running")
    with airflow.sessions.begin() as session:
        task = task_of(session, job)
        task.max_tries = 0
        session.flush()
        TaskInstance.fetch_handle_failure_context(ti=task, error="no heartbeat", session=session)
    look(bench, job)
    assert bench.job(job).state is JobState.YIELDING


def test_a_deleted_run_takes_its_jobs_along(bench: Bench, airflow: AirflowQueue) -> None:
    from airflow.models.dagrun import DagRun

    jobs = [job_of(bench, airflow) for _ in range(3)]
    with airflow.sessions.begin() as session:
        session.delete(session.scalars(select(DagRun)).one())
    look(bench, *jobs)
    for job in jobs:
        assert bench.job(job).state is JobState.YIELDING
        assert "the run or the DAG was deleted" in bench.job(job).reason


def test_mapped_tasks_are_told_apart(bench: Bench, airflow: AirflowQueue) -> None:
    task_id = airflow.task(pool="emep", state="deferred", try_number=1, map_index=0)
    kept = bench.running(airflow=asked(task_id, map_index=0))
    gone = bench.running(airflow=asked(task_id, map_index=1))
    look(bench, kept, gone)
    assert bench.job(kept).state is JobState.RUNNING
    assert bench.job(gone).state is JobState.YIELDING


# ---- how ---------------------------------------------------------------------------------------------------


def test_what_is_found_once_is_looked_at_again_before_anything_is_done(
    bench: Bench, airflow: AirflowQueue
) -> None:
    job = job_of(bench, airflow)
    for state in ("failed", "running", "failed"):
        airflow.move(job.airflow.task_id, state)
        assert bench.ledger.tasks.reconcile(grace=GRACE_SECONDS) == []
        bench.clock.advance(GRACE_SECONDS - 1)
    bench.clock.advance(1)
    assert bench.ledger.tasks.reconcile(grace=GRACE_SECONDS) == [job.id]


def test_a_job_is_called_off_within_a_look_and_the_grace(bench: Bench, airflow: AirflowQueue) -> None:
    job = job_of(bench, airflow)
    look(bench, job)
    airflow.move(job.airflow.task_id, "success")
    bench.alive(EVERY_SECONDS + GRACE_SECONDS + 2, job, step=1.0)
    assert bench.job(job).state is JobState.YIELDING


def test_a_job_that_is_being_cancelled_is_not_told_twice(bench: Bench, airflow: AirflowQueue) -> None:
    job = job_of(bench, airflow)
    bench.ledger.jobs.cancel(job.id, actor="alice", reason="by hand")
    airflow.move(job.airflow.task_id, "failed")
    look(bench, job)
    assert bench.job(job).reason == "by hand"
    assert [name for name, _ in events(bench, job)].count("told_to_yield") == 1


def test_one_statement_looks_at_all_jobs(bench: Bench, airflow: AirflowQueue) -> None:
    for _ in range(12):
        bench.submit(airflow=asked(airflow.task(pool="emep", state="deferred", try_number=1)), gpu_count=8)
    bench.ledger.tasks.reconcile()
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(bench.engine, "before_cursor_execute", note)
    assert bench.ledger.tasks.reconcile() == []
    event.remove(bench.engine, "before_cursor_execute", note)
    assert len(statements) == 1


def test_one_run_alone_can_be_looked_at_and_then_at_once(bench: Bench, airflow: AirflowQueue) -> None:
    job, other = job_of(bench, airflow), job_of(bench, airflow)
    for one in (job, other):
        airflow.move(one.airflow.task_id, "skipped")
    assert bench.ledger.tasks.reconcile(run=("another", "r")) == []
    assert sorted(bench.ledger.tasks.reconcile(run=(DAG, "r"))) == sorted([job.id, other.id])
    assert bench.job(job).state is JobState.YIELDING


def test_several_servers_may_look_at_once(bench: Bench, airflow: AirflowQueue) -> None:
    from emep.ledger.service import LedgerService

    job = job_of(bench, airflow)
    airflow.move(job.airflow.task_id, "failed")
    others = [
        LedgerService(bench.database, lambda: bench.policy, bench.ledger.context.settings) for _ in range(3)
    ]
    assert [bool(ledger.tasks.reconcile()) for ledger in others] == [True, False, False]
    assert bench.job(job).state is JobState.YIELDING


def test_without_airflow_in_the_database_nothing_is_held_against_anybody(bench: Bench) -> None:
    bench.node()
    job = bench.running(airflow=asked("t"))
    look(bench, job)
    assert bench.job(job).state is JobState.RUNNING
    assert bench.ledger.tasks.reconcile() == []

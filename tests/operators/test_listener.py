"""Jobs of tasks that ended without their worker: the hooks, on a real ledger."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from sqlalchemy import text
from tests.builders.ledger import SPEC
from tests.builders.real_api import real_api

from emep.airflow import listener
from emep.operators.fair_share import FairShareGpuOperator
from emep.wire.base import JobState
from emep.wire.jobs import AirflowTask, JobRequest

TASK = {"dag_id": "emep_merge", "run_id": "run 1", "task_id": "merge"}
ENDING = (JobState.CANCELLED, JobState.YIELDING)


@pytest.fixture
def api(tmp_path, monkeypatch):
    with real_api(tmp_path) as served:
        monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", served.connection())
        monkeypatch.setattr(listener, "_ledger", lambda: served.runtime.ledger)
        monkeypatch.setattr(listener, "LOOKS", (0.01, 0.02))
        served.node()
        yield served


def submit(api, **task) -> str:
    return api.user.submit_job(JobRequest(spec=SPEC, airflow=AirflowTask(**{**TASK, **task}))).id


def ended_task(**fields) -> SimpleNamespace:
    return SimpleNamespace(**{**TASK, "map_index": -1, "try_number": 1, "operator": "MyOperator", **fields})


HOOKS = {
    "failed": lambda task: listener.on_task_instance_failed(None, task, None),
    "success": lambda task: listener.on_task_instance_success(None, task),
    "skipped": lambda task: listener.on_task_instance_skipped(None, task),
}


@pytest.mark.parametrize("state", HOOKS)
def test_a_task_marked_by_hand_gives_its_gpus_back_whatever_its_operator_is(api, state):
    job_id = submit(api)
    HOOKS[state](ended_task())
    assert listener.settled()
    job = api.user.job(job_id)
    assert job.state in ENDING
    assert "Airflow task" in job.reason


def test_other_tasks_and_later_tries_keep_theirs(api):
    kept = [
        submit(api, task_id="other"),
        submit(api, map_index=3),
        submit(api, run_id="run 2"),
        submit(api, try_number=2),
    ]
    HOOKS["failed"](ended_task())
    assert listener.settled()
    assert not {api.user.job(job_id).state for job_id in kept} & set(ENDING)


def test_a_worker_s_own_end_is_none_of_its_business(api):
    class RuntimeTaskInstance(SimpleNamespace):
        pass

    job_id = submit(api)
    HOOKS["failed"](RuntimeTaskInstance(**{**TASK, "map_index": -1, "try_number": 1}))
    assert listener.settled()
    assert api.user.job(job_id).state not in ENDING


def test_a_run_that_ends_takes_its_ended_tasks_jobs_along_and_leaves_its_teardown_s(api):
    skipped, teardown, other = submit(api), submit(api, task_id="teardown"), submit(api, run_id="run 2")
    with api.runtime.ledger.context.database.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE task_instance (dag_id TEXT, run_id TEXT, task_id TEXT, map_index INTEGER, "
                "try_number INTEGER, state TEXT)"
            )
        )
        for run_id, task_id, state in (
            ("run 1", "merge", "skipped"),
            ("run 1", "teardown", "running"),
            ("run 2", "merge", "deferred"),
        ):
            connection.execute(
                text("INSERT INTO task_instance VALUES ('emep_merge', :run, :task, -1, 1, :state)"),
                {"run": run_id, "task": task_id, "state": state},
            )
    listener.on_dag_run_failed(SimpleNamespace(dag_id="emep_merge", run_id="run 1"), "timed_out")
    assert listener.settled()
    assert api.user.job(skipped).state in ENDING
    assert "skipped" in api.user.job(skipped).reason
    assert not {api.user.job(job_id).state for job_id in (teardown, other)} & set(ENDING)


def test_a_ledger_that_is_away_neither_raises_nor_holds_anybody_up(monkeypatch):
    def broken():
        raise RuntimeError("no database")

    monkeypatch.setattr(listener, "_ledger", broken)
    monkeypatch.setattr(listener, "LOOKS", (0.0,))
    HOOKS["failed"](ended_task())
    listener.on_dag_run_success(SimpleNamespace(dag_id="d", run_id="r"), "success")
    monkeypatch.setattr(listener, "_ledger", object)
    assert listener.settled()


def test_the_caller_does_not_wait_for_the_ledger(monkeypatch):
    held, called_from = threading.Event(), []
    monkeypatch.setattr(listener, "_ledger", lambda: called_from.append(threading.current_thread()))
    monkeypatch.setattr(listener, "LOOKS", (0.0,))
    listener._desk.put(0.0, lambda ledger: held.wait(20))
    HOOKS["failed"](ended_task())
    held.set()
    assert listener.settled()
    assert threading.current_thread() not in called_from


def test_what_cannot_be_read_is_left_alone():
    HOOKS["failed"](object())
    listener.on_dag_run_failed(object(), "")


def test_a_retry_ends_the_job_that_a_killed_worker_left_behind_where_it_asks_for_other_work(api):
    left = submit(api)
    with DAG("emep_merge", schedule=None):
        task = FairShareGpuOperator(task_id="merge", engine="merge", output_uri="o", inline_wait=0)
    ti = SimpleNamespace(**TASK, map_index=-1, try_number=2, max_tries=3)
    run = SimpleNamespace(run_id="run 1", triggering_user_name="alice")
    with pytest.raises(TaskDeferred):
        task.execute({"ti": ti, "dag_run": run})
    assert api.user.job(left).state in ENDING


def test_a_task_that_has_lost_its_worker_and_is_tried_again_keeps_its_job(api):
    job_id = submit(api)
    HOOKS["failed"](ended_task(state="up_for_retry"))
    assert listener.settled()
    assert api.user.job(job_id).state not in ENDING


@pytest.mark.parametrize(("before", "kept"), [("running", True), ("restarting", False)])
def test_airflow_s_own_word_on_a_lost_worker_tells_a_retry_from_a_task_that_was_cleared(
    api, tmp_path, before, kept
):
    """The scheduler's own function, on Airflow's own tables."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import create_engine, select
    from tests.builders.airflow_queue import AirflowQueue

    airflow = AirflowQueue(create_engine(f"sqlite:///{tmp_path}/airflow.db"))
    task_id = airflow.task(pool="emep", state=before, try_number=1, max_tries=3)
    with airflow.sessions.begin() as session:
        ti = session.scalars(select(TaskInstance).where(TaskInstance.task_id == task_id)).one()
        job_id = submit(api, dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id)
        seen = TaskInstance.fetch_handle_failure_context(ti=ti, error="no heartbeat", session=session)
        assert seen.state == TaskInstanceState.UP_FOR_RETRY
        listener.on_task_instance_failed(None, seen, None)
    assert listener.settled()
    assert (api.user.job(job_id).state not in ENDING) is kept

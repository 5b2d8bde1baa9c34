"""Jobs of tasks that ended without their worker, over HTTP against EMEP's own API."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from tests.builders.ledger import SPEC
from tests.builders.real_api import real_api

from emep import listener
from emep.api.schemas import AirflowTask, JobRequest, JobState
from emep.operators.fair_share import FairShareGpuOperator

TASK = {"dag_id": "emep_merge", "run_id": "run 1", "task_id": "merge"}
ENDING = (JobState.CANCELLED, JobState.YIELDING)


@pytest.fixture
def api(tmp_path, monkeypatch):
    with real_api(tmp_path) as served:
        monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", served.connection())
        served.node()
        yield served


def submit(api, **task) -> str:
    return api.user.submit_job(JobRequest(spec=SPEC, airflow=AirflowTask(**{**TASK, **task}))).id


def ended_task(**fields) -> SimpleNamespace:
    return SimpleNamespace(
        **{**TASK, "map_index": -1, "try_number": 1, "operator": "FairShareGpuOperator", **fields}
    )


def in_threads(call) -> None:
    """Run a hook and wait for what it started."""
    call()
    for thread in threading.enumerate():
        if thread.name == "emep release":
            thread.join(20)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_task_marked_by_hand_gives_its_gpus_back(api, state):
    job_id = submit(api)
    task = ended_task()
    if state == "failed":
        in_threads(lambda: listener.on_task_instance_failed(None, task, None))
    else:
        in_threads(lambda: listener.on_task_instance_success(None, task))
    assert api.user.job(job_id).state in ENDING


def test_other_tasks_and_later_tries_keep_theirs(api):
    kept = [
        submit(api, task_id="other"),
        submit(api, map_index=3),
        submit(api, run_id="run 2"),
        submit(api, try_number=2),
    ]
    in_threads(lambda: listener.on_task_instance_failed(None, ended_task(), None))
    assert not {api.user.job(job_id).state for job_id in kept} & set(ENDING)


def test_tasks_of_other_operators_are_none_of_its_business(api):
    job_id = submit(api)
    in_threads(lambda: listener.on_task_instance_failed(None, ended_task(operator="BashOperator"), None))
    assert api.user.job(job_id).state not in ENDING


def test_an_api_that_is_away_is_no_reason_to_raise(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", '{"conn_type": "http", "host": "127.0.0.1", "port": 9}')
    listener.release(("d", "r", "t", -1), 1)


def test_a_retry_ends_the_job_that_a_killed_worker_left_behind(api):
    left = submit(api)
    with DAG("emep_merge", schedule=None):
        task = FairShareGpuOperator(
            task_id="merge", engine="merge", output_uri="file:///tmp/o", inline_wait=0
        )
    ti = SimpleNamespace(**TASK, map_index=-1, try_number=2, max_tries=3)
    run = SimpleNamespace(run_id="run 1", triggering_user_name="alice")
    with pytest.raises(TaskDeferred):
        task.execute({"ti": ti, "dag_run": run})
    assert api.user.job(left).state in ENDING

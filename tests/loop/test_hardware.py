"""GPUs that fail and nodes that are lost, and the health DAG that says so."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.airflow
HEALTH = "emep_gpu_health"


def findings(loop) -> list[dict[str, object]]:
    """What all runs of the health DAG have returned."""
    runs = loop.airflow.call("GET", f"/dags/{HEALTH}/dagRuns", order_by="run_after", limit=100)["dag_runs"]
    batches = [
        loop.airflow.api.result(HEALTH, run["dag_run_id"], "watch")
        for run in runs
        if run["state"] == "success"
    ]
    return [finding for batch in batches if batch for finding in batch["findings"]]


def said_of(loop, job, field: str) -> set[object]:
    """A field of all findings about a job."""
    return {finding[field] for finding in findings(loop) if finding["job_id"] == job["id"]}


@pytest.fixture
def paused(loop):
    """The health DAG does nothing while the test runs."""
    loop.airflow.call("PATCH", f"/dags/{HEALTH}", {"is_paused": True})
    path = f"/dags/{HEALTH}/dagRuns"

    def none_is_left() -> bool:
        # The next run of a DAG that runs on and on may have been made in the moment before the pause.
        left = loop.airflow.call("GET", path, state=["running", "queued"])["dag_runs"]
        for run in left:
            loop.airflow.call("PATCH", f"{path}/{run['dag_run_id']}", {"state": "failed"})
        return not left

    loop.wait(none_is_left)
    yield
    loop.airflow.call("PATCH", f"/dags/{HEALTH}", {"is_paused": False})


def moved_by_a_bad_gpu(loop):
    """A job whose GPU is made bad, runs on another, and ends; the GPU that was bad, and well again."""
    work = loop.trigger(held=True)
    loop.wait(lambda: work.is_at_its_last_step)
    (bad,) = work.run.job()["gpus"]
    loop.airflow.break_gpus(bad["node"], {str(bad["index"]): {"xid": 79}})
    loop.wait(lambda: work.run.job()["epoch"] == 2 and work.run.job_is("running"))
    job = work.run.job()
    assert job["gpus"] != [bad]
    assert (job["requeues"], job["preempted"]) == (1, False)
    gpu = loop.airflow.node(bad["node"]).gpus[bad["index"]]
    assert gpu.state == "unhealthy"
    assert "Xid 79" in gpu.state_reason
    loop.airflow.break_gpus(bad["node"], {})
    loop.wait(lambda: loop.airflow.node(bad["node"]).gpus[bad["index"]].state == "healthy")
    work.let_it_end()
    work.succeeded_in_one_try()
    return job, bad


def test_the_job_of_a_gpu_that_goes_bad_moves_to_another_in_one_try_and_the_dag_says_so(loop):
    job, bad = moved_by_a_bad_gpu(loop)
    # On a busy machine they are the findings of two runs of the DAG.
    loop.wait(lambda: said_of(loop, job, "code") >= {"unhealthy", "unhealthy_gpu"})
    found = [finding for finding in findings(loop) if finding["event"] == "gpu_unhealthy"]
    assert [bad["node"]] in [finding["nodes"] for finding in found if finding["gpu_index"] == bad["index"]]


def test_the_same_happens_while_the_health_dag_is_paused(loop, paused):
    moved_by_a_bad_gpu(loop)


def test_an_agent_that_is_killed_costs_nothing_while_its_work_lives(loop):
    work = loop.trigger(held=True)
    loop.wait(lambda: work.is_at_its_last_step)
    (gpu,) = work.run.job()["gpus"]
    loop.airflow.kill_agent(gpu["node"])
    loop.airflow.start_agent(gpu["node"])
    loop.wait(lambda: loop.airflow.node(gpu["node"]).alive)
    work.let_it_end()
    work.succeeded_in_one_try()
    assert work.run.job()["epoch"] == 1


def test_the_job_of_a_node_that_is_lost_goes_on_elsewhere_in_one_try(loop):
    work = loop.trigger(held=True)
    loop.wait(lambda: work.is_at_its_last_step)
    (gpu,) = work.run.job()["gpus"]
    loop.airflow.kill_node(gpu["node"])
    loop.wait(lambda: work.run.job()["epoch"] == 2 and work.run.job_is("running"))
    (after,) = work.run.job()["gpus"]
    assert after["node"] != gpu["node"]
    work.let_it_end()
    work.succeeded_in_one_try()
    job = work.run.job()
    assert (job["requeues"], job["preempted"]) == (1, False)
    loop.airflow.start_agent(gpu["node"])
    loop.wait(lambda: all(one.state == "healthy" for one in loop.airflow.node(gpu["node"]).gpus))
    # Those of the lost node come back with the first poll of its agent.
    loop.wait(lambda: loop.held_by(work) == 0)
    loop.wait(lambda: said_of(loop, job, "event") >= {"allocation_lost", "requeued"})

"""A pod's life on a real cluster: started, renewed, logged, ended, cleared away."""

from __future__ import annotations

import asyncio

from airflow.triggers.base import TaskSuccessEvent
from tests.builders.pods import event_of


async def test_a_pod_of_any_image_runs_and_its_result_is_the_xcom(bench, inbox):
    job_id = bench.submit()
    lines = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done; printf ende"
    command = lines + """; echo '{"a": [1]}' > /airflow/xcom/return.json"""
    plan = bench.plan(command, result_as_message=True)
    event = await event_of(bench.trigger(job_id, plan, return_field="return_value"))
    assert isinstance(event, TaskSuccessEvent)
    assert inbox.value() == {"a": [1]}
    job = bench.job(job_id)
    assert (job.state.value, job.requeues, job.epoch, job.exit_code) == ("completed", 0, 1, 0)
    assert bench.log(job) == "".join(f"line {i}\n" for i in range(40)) + "ende"
    await bench.until(lambda: not bench.kubectl.pods(job_id) and not bench.kubectl.secrets(job_id))
    assert bench.held() == []


async def test_a_result_that_is_no_json_ends_the_job_with_that_sentence(bench, inbox):
    job_id = bench.submit()
    plan = bench.plan("""echo '{"loss": NaN}' > /airflow/xcom/return.json""", result_as_message=True)
    await event_of(bench.trigger(job_id, plan, return_field="return_value"))
    job = bench.job(job_id)
    assert (job.state.value, job.requeues, job.epoch, job.exit_code) == ("failed", 0, 1, 65)
    assert "has NaN, which is no number in JSON" in job.reason
    await bench.until(lambda: not bench.kubectl.pods(job_id))


async def test_the_lease_of_an_image_without_a_supervisor_is_renewed_while_its_pod_runs(bench, inbox):
    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, bench.plan("sleep 22"))))
    running = await bench.state(job_id, "running")
    pod = bench.kubectl.pods(job_id)[0]
    assert pod.spec.node_name == running.nodes[0]
    assert pod.metadata.labels["mine"] == "yes"
    assert isinstance(await task, TaskSuccessEvent)
    # Longer than a lease lasts.
    assert bench.job(job_id).requeues == 0


async def test_a_supervisor_that_ends_between_its_result_and_its_report_has_completed(bench, inbox):
    job_id = bench.submit()
    result = """{"status": "done", "exit_code": 0, "epoch": '$EMEP_LEASE_EPOCH', "metrics": {"n": 7}}"""
    plan = bench.plan(f"echo '{result}' > $EMEP_TERMINATION_LOG; exit 137", supervised=True)
    event = await event_of(bench.trigger(job_id, plan, return_field="metrics.n"))
    assert isinstance(event, TaskSuccessEvent)
    assert inbox.value() == 7
    job = bench.job(job_id)
    assert (job.state.value, job.requeues, job.epoch, job.exit_code) == ("completed", 0, 1, 0)


async def test_a_pod_s_supervisor_is_given_the_policy_s_lease_times(bench, inbox):
    job_id = bench.submit()
    times = "heartbeat $EMEP_HEARTBEAT_SECONDS silence $EMEP_MAX_SILENCE_SECONDS end $EMEP_COMPLETE_SECONDS"
    plan = bench.plan(f"""echo {times}; echo 1 > /airflow/xcom/return.json""", result_as_message=True)
    assert isinstance(await event_of(bench.trigger(job_id, plan)), TaskSuccessEvent)
    assert bench.log(bench.job(job_id)) == "heartbeat 2 silence 600 end 600\n"

"""``emep-engine`` in pods: it renews its own lease, is told by it, resumes where it was, on another node."""

from __future__ import annotations

import asyncio

import pytest
from airflow.triggers.base import TaskSuccessEvent
from pydantic import ValidationError
from tests.builders.pods import event_of
from tests.cluster.settings import PROJECT

SITE = PROJECT / "tests" / "builders" / "chaos_site"


@pytest.fixture(autouse=True)
def seen_by_nodes(cluster):
    if not cluster.host_root:
        pytest.skip("The nodes of this cluster do not see this machine's Python.")


def work(bench, name: str, **fields):
    """SPEC and pod of an engine that goes through numbered steps and keeps a checkpoint of each."""
    input = {"steps": 3, "step_seconds": 0.3, "checkpoint_every": 1, **fields}
    spec = {"schema_version": 1, "engine": "chaos_steps", "input": input, "device": "cpu", "output_uri": name}
    folder = bench.server.folder / name
    more = {"CHAOS_FOLDER": str(folder), "CHAOS_NODE": name}
    return spec, bench.engine_plan(SITE, more)


async def test_an_engine_renews_its_own_lease_and_reports_its_own_result(bench, inbox):
    spec, plan = work(bench, "result", steps=60)
    job_id = bench.submit(gpu_count=2, spec=spec)
    event = await event_of(bench.trigger(job_id, plan))
    assert isinstance(event, TaskSuccessEvent), bench.job(job_id)
    assert inbox.value()["metrics"] == {"epoch": 1, "steps": 60}
    job = bench.job(job_id)
    # Longer than a lease lasts.
    assert job.requeues == 0
    assert "steps" in bench.log(job)
    await bench.until(lambda: not bench.kubectl.pods(job_id) and not bench.kubectl.secrets(job_id))
    assert bench.held() == []


async def test_a_preempted_engine_checkpoints_and_resumes_on_the_other_node_in_one_try(bench, inbox):
    # Long enough that it is told to go long before its end, on a slow machine too.
    spec, plan = work(bench, "moved", steps=40)
    job_id = bench.submit(gpu_count=2, priority="low", spec=spec)
    task = asyncio.create_task(event_of(bench.trigger(job_id, plan)))
    first = await bench.state(job_id, "running")
    await bench.until(lambda: bench.job(job_id).last_checkpoint)
    # A job that must have that very node, and keeps it until the first one runs elsewhere.
    there = {"affinity": {"own": first.nodes[0]}}
    other = bench.submit(gpu_count=2, priority="high", topology=there)
    blocking = asyncio.create_task(event_of(bench.trigger(other, bench.plan("sleep 25"))))
    assert isinstance(await task, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.preempted, job.requeues, job.epoch) == ("completed", True, 0, 2)
    assert job.try_number == 1
    assert job.nodes != first.nodes
    assert job.result["resumed_from"] >= 1
    assert "checkpoint and exit" in bench.log(job, 1)
    assert "[EMEP: " not in bench.log(job, 1) + bench.log(job, 2)
    assert isinstance(await blocking, TaskSuccessEvent)


async def test_a_spec_that_no_pod_can_be_given_is_refused_before_it_is_a_job(bench, inbox):
    spec, _ = work(bench, "large", filler="x" * 1_100_000)
    with pytest.raises(ValidationError, match="bytes as JSON, and a SPEC may have 262,144"):
        bench.submit(spec=spec)

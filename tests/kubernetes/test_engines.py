"""``emep-engine`` in pods: it renews its own lease, is told by it, resumes where it was, on another node."""

from __future__ import annotations

import asyncio

import pytest
from airflow.triggers.base import TaskSuccessEvent
from tests.builders.pods import event_of
from tests.cluster.settings import PROJECT

SITE = PROJECT / "tests" / "builders" / "engine_site"


@pytest.fixture(autouse=True)
def seen_by_nodes(cluster):
    if not cluster.host_root:
        pytest.skip("The nodes of this cluster do not see this machine's Python.")


def spec(bench, name: str, **fields):
    """The SPEC of a stepping engine that takes the place of ``compare`` in these pods."""
    uri = (bench.server.folder / "artifact" / name).as_uri()
    return {"schema_version": 1, "engine": "compare", "input": fields, "device": "cpu", "output_uri": uri}


def engine_plan(bench, **fields):
    plan = bench.engine_plan(**fields)
    for entry in plan.pod["spec"]["containers"][0]["env"]:
        if entry["name"] == "PYTHONPATH":
            entry["value"] = f"{SITE}:{PROJECT}:{entry['value']}"
    return plan


async def test_an_engine_reports_its_own_result(bench, inbox):
    job_id = bench.submit(gpu_count=2, spec=spec(bench, "result", steps=3))
    event = await event_of(bench.trigger(job_id, engine_plan(bench)))
    assert isinstance(event, TaskSuccessEvent), bench.job(job_id)
    assert inbox.value()["metrics"]["counts"]["steps"] == 3
    started = list((bench.server.folder / "artifact" / "result").glob("started-*.json"))
    assert len(started) == 1
    assert '"token":false' in started[0].read_text().replace(" ", "")
    await bench.until(lambda: not bench.kubectl.pods(job_id) and not bench.kubectl.secrets(job_id))
    assert bench.held() == []


async def test_a_preempted_engine_checkpoints_and_resumes_on_the_other_node_in_one_try(bench, inbox):
    fields = {"steps": 4, "at": 2, "then": "wait", "gate": str(bench.server.folder / "gate")}
    job_id = bench.submit(gpu_count=2, priority="low", spec=spec(bench, "moved", **fields))
    task = asyncio.create_task(event_of(bench.trigger(job_id, engine_plan(bench))))
    first = await bench.state(job_id, "running")
    # A job that must have that very node, for as long as the first needs to go on elsewhere.
    labels = {"affinity": {"own": first.nodes[0]}}
    await bench.until(lambda: bench.job(job_id).last_checkpoint or "step" in bench.log(bench.job(job_id)))
    other = bench.submit(gpu_count=2, priority="high", topology=labels)
    blocking = asyncio.create_task(event_of(bench.trigger(other, bench.plan("sleep 20"))))
    await bench.state(job_id, "starting", "running", epoch=2)
    (bench.server.folder / "gate").touch()
    assert isinstance(await task, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.preempted, job.requeues, job.epoch, job.try_number) == (
        "completed", True, 0, 2, 1,
    )  # fmt: skip
    assert job.nodes != first.nodes
    assert job.result["resumed_from"] == 2
    assert isinstance(await blocking, TaskSuccessEvent)

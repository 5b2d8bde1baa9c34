"""Nodes that die under pods, and a cluster whose API is away."""

from __future__ import annotations

import asyncio

from airflow.triggers.base import TaskSuccessEvent
from tests.builders.pods import event_of

from .test_loss import begun, once


async def test_a_pod_on_a_dead_node_runs_again_on_another_in_the_same_try(bench, inbox, local_cluster):
    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "frozen")), seconds=240))
    first = await bench.state(job_id, "running")
    await begun(bench, "frozen")
    node = local_cluster.node(first.nodes[0])
    node.freeze_kubelet()
    try:
        assert isinstance(await task, TaskSuccessEvent)
        job = bench.job(job_id)
        assert (job.state.value, job.epoch, job.requeues, job.try_number) == ("completed", 2, 1, 1)
        assert job.nodes != first.nodes
        ready = {view["name"]: view["ready"] for view in bench.user.nodes().items}
        assert not ready[first.nodes[0]]
        # Whether anything runs there nobody knows: the GPU is not offered, and the log says what is missing.
        assert bench.held() == [(first.nodes[0], first.gpus[0].index)]
        assert bench.log(job, 1).startswith("first\n[EMEP: the rest of the log of pod ")
        assert bench.log(job, 2) == "again\n"
    finally:
        node.thaw_kubelet()
    local_cluster.wait_node(first.nodes[0], ready=True)
    # As long as a trigger lives, its watch sees the old pod leave, and the node come back.
    other = bench.submit()
    watching = asyncio.create_task(event_of(bench.trigger(other, once(bench, "watching", code=0))))
    await begun(bench, "watching")

    def is_back() -> bool:
        ready = {view["name"]: view["ready"] for view in bench.user.nodes().items}
        return ready[first.nodes[0]] and (first.nodes[0], first.gpus[0].index) not in bench.held()

    await bench.until(is_back, 120)
    bench.user.cancel(other, "it has watched long enough")
    await watching
    await bench.until(lambda: not bench.held())


async def test_a_restarted_api_of_the_cluster_costs_nothing_but_time(bench, inbox, local_cluster):
    job_id = bench.submit()
    lines = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo line $i; sleep 1; done"
    task = asyncio.create_task(event_of(bench.trigger(job_id, bench.plan(lines))))
    await bench.state(job_id, "running")
    await bench.until(lambda: "line 2" in bench.log(bench.job(job_id)))
    await asyncio.to_thread(local_cluster.restart_api_server)
    assert isinstance(await task, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.epoch, job.requeues) == ("completed", 1, 0)
    assert bench.log(job) == "".join(f"line {i}\n" for i in range(1, 21))

"""What a cluster does to pods: the job goes back in the same try, with one sentence, and never runs twice."""

from __future__ import annotations

import asyncio

import pytest
from airflow.triggers.base import TaskSuccessEvent
from tests.builders.pods import event_of

SLEEPS_ONCE = """\
if [ -e {folder}/{name} ]; then echo again; exit 0; fi
trap 'echo told; exit {code}' TERM; echo first; touch {folder}/{name}
i=0; while [ $i -lt 600 ]; do sleep 0.2; i=$((i+1)); done
"""


def once(bench, name: str, code: int = 143):
    """A pod that waits to be ended the first time, and is done the second. It leaves a mark in a folder that
    both nodes see."""
    folder = bench.server.folder
    volumes = {"volumes": [{"name": "marks", "hostPath": {"path": str(folder)}}]}
    plan = bench.plan(SLEEPS_ONCE.format(folder=folder, name=name, code=code), spec=volumes)
    mount = {"name": "marks", "mountPath": str(folder)}
    plan.pod["spec"]["containers"][0]["volumeMounts"] = [mount]
    return plan


async def ended_by_a_person(task, trigger) -> None:
    """As the triggerer ends a trigger whose task somebody has cleared, marked or deleted."""
    task.cancel("__airflow_user_action__")
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    # By this word the triggerer knows that it is not itself being stopped.
    assert caught.value.args == ("__airflow_user_action__",)
    async with asyncio.timeout(30):
        await trigger.on_kill()


async def begun(bench, name: str) -> None:
    await bench.until((bench.server.folder / name).exists)


async def test_a_preempted_pod_gets_sigterm_and_runs_again_in_the_same_try(bench, inbox):
    job_id = bench.submit(gpu_count=2, priority="low", queue="merge")
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "preempted", code=75))))
    first = await bench.state(job_id, "running")
    await begun(bench, "preempted")
    # All other GPUs, and then more than are left: the first must make room.
    others = [bench.submit(gpu_count=2, priority="high") for _ in bench.nodes]
    tasks = [asyncio.create_task(event_of(bench.trigger(one, bench.plan("sleep 3")))) for one in others]
    assert isinstance(await task, TaskSuccessEvent)
    for other in tasks:
        assert isinstance(await other, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.preempted, job.requeues, job.epoch) == ("completed", True, 0, 2)
    assert bench.log(job, 1) == "first\ntold\n"
    assert bench.log(job, 2) == "again\n"
    assert first.epoch == 1


async def test_a_pod_that_is_deleted_by_hand_goes_back_in_the_same_try(bench, inbox):
    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "deleted"))))
    await bench.state(job_id, "running")
    await begun(bench, "deleted")
    name = bench.kubectl.pods(job_id)[0].metadata.name
    await asyncio.to_thread(bench.kubectl.delete, name, 2)
    assert isinstance(await task, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.epoch, job.requeues, job.try_number) == ("completed", 2, 1, 1)
    assert "requeued" in bench.events(job_id)
    assert bench.held() == []


async def test_an_evicted_pod_goes_back_in_the_same_try(bench, inbox):
    from kubernetes import client

    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "evicted"))))
    await bench.state(job_id, "running")
    await begun(bench, "evicted")
    name = bench.kubectl.pods(job_id)[0].metadata.name
    eviction = client.V1Eviction(
        metadata=client.V1ObjectMeta(name=name, namespace=bench.kubectl.namespace),
        delete_options=client.V1DeleteOptions(grace_period_seconds=2),
    )
    await asyncio.to_thread(
        bench.kubectl.core.create_namespaced_pod_eviction, name, bench.kubectl.namespace, eviction
    )
    assert isinstance(await task, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.epoch, job.requeues) == ("completed", 2, 1)


async def test_a_killed_triggerer_costs_nothing_but_time(bench, inbox):
    job_id = bench.submit()
    folder = bench.server.folder
    plan = bench.plan("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; sleep 1; done")
    killed = asyncio.create_task(event_of(bench.trigger(job_id, plan)))
    await bench.state(job_id, "running")
    await bench.until(lambda: "line 2" in bench.log(bench.job(job_id)))
    uid = bench.kubectl.pods(job_id)[0].metadata.uid
    # As a killed process: nothing of the trigger's own is asked to tidy up in the cluster or the ledger.
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    await asyncio.sleep(3)
    assert isinstance(await event_of(bench.trigger(job_id, plan)), TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.epoch, job.requeues) == ("completed", 1, 0)
    assert bench.log(job) == "".join(f"line {i}\n" for i in range(1, 13))
    assert uid
    assert folder.exists()


async def test_a_pod_that_was_lost_while_no_triggerer_lived_is_not_created_again_in_its_epoch(bench, inbox):
    job_id = bench.submit()
    plan = once(bench, "unwatched")
    killed = asyncio.create_task(event_of(bench.trigger(job_id, plan)))
    await bench.state(job_id, "running")
    await begun(bench, "unwatched")
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    name = bench.kubectl.pods(job_id)[0].metadata.name
    await asyncio.to_thread(bench.kubectl.delete, name, 0)
    await bench.until(lambda: not bench.kubectl.pods(job_id))
    assert isinstance(await event_of(bench.trigger(job_id, plan)), TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.epoch, job.requeues) == ("completed", 2, 1)
    assert bench.held() == []


async def test_a_restarted_api_of_emeps_costs_nothing_but_time(bench, inbox):
    job_id = bench.submit()
    plan = bench.plan("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo line $i; sleep 1; done")
    task = asyncio.create_task(event_of(bench.trigger(job_id, plan)))
    await bench.state(job_id, "running")
    await asyncio.to_thread(bench.restart)
    assert isinstance(await task, TaskSuccessEvent)
    job = bench.job(job_id)
    assert (job.state.value, job.epoch, job.requeues) == ("completed", 1, 0)
    assert bench.log(job) == "".join(f"line {i}\n" for i in range(1, 16))


async def test_a_task_that_a_person_ends_leaves_nothing_within_half_a_minute(bench, inbox):
    job_id = bench.submit()
    trigger = bench.trigger(job_id, once(bench, "killed"))
    task = asyncio.create_task(event_of(trigger))
    await bench.state(job_id, "running")
    await begun(bench, "killed")
    await ended_by_a_person(task, trigger)
    assert bench.job(job_id).state.value == "cancelled"
    assert bench.kubectl.pods(job_id) == []
    assert bench.held() == []


async def test_a_pod_whose_lease_is_over_is_swept_by_whichever_trigger_lives(bench, inbox):
    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "swept"))))
    await bench.state(job_id, "running")
    await begun(bench, "swept")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    bench.user.cancel(job_id, "marked failed while no triggerer lived")
    await bench.state(job_id, "cancelled", seconds=60)
    other = bench.submit()
    assert isinstance(await event_of(bench.trigger(other, bench.plan("sleep 1"))), TaskSuccessEvent)
    await bench.until(lambda: not bench.kubectl.pods(job_id))


@pytest.mark.parametrize("epochs", [2])
async def test_no_two_pods_of_one_epoch_are_ever_created(bench, inbox, epochs):
    """Two triggers of one job at once, as when a triggerer that was believed dead goes on."""
    job_id = bench.submit()
    plan = bench.plan("sleep 4")
    seen: set[tuple[str, str]] = set()
    triggers = [bench.trigger(job_id, plan) for _ in range(epochs)]
    tasks = [asyncio.create_task(event_of(trigger)) for trigger in triggers]
    while not all(task.done() for task in tasks):
        for pod in await asyncio.to_thread(bench.kubectl.pods, job_id):
            seen.add((pod.metadata.labels["emep/epoch"], pod.metadata.uid))
        await asyncio.sleep(0.2)
    assert len(seen) == 1
    assert bench.job(job_id).requeues == 0


async def test_a_task_that_a_person_ends_takes_a_deaf_pod_along_that_was_told_before(bench, inbox):
    """As when a listener has cancelled the job before the triggerer hears of it."""
    job_id = bench.submit()
    trigger = bench.trigger(job_id, bench.plan("while true; do sleep 1; done"))
    task = asyncio.create_task(event_of(trigger))
    await bench.state(job_id, "running")
    bench.user.cancel(job_id, "marked failed")
    await bench.until(lambda: [p for p in bench.kubectl.pods(job_id) if p.metadata.deletion_timestamp])
    await ended_by_a_person(task, trigger)
    assert bench.job(job_id).state.value == "cancelled"
    assert bench.held() == []

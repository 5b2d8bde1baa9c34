"""Logs of pods: whatever a container has said is kept, however it ended and whoever looked at it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from airflow.triggers.base import TaskSuccessEvent
from tests.builders.pods import event_of

from emep.client import EmepClient, lease_token
from emep.kubernetes.watch import PodHub
from emep.wire.allocations import Completion, Heartbeat

from .test_loss import begun, ended_by_a_person, once


class Watch:
    """The cluster's watch, which tells nothing of pods while it is held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tell, self._kept, self._held = PodHub._pod_event, [], False
        watch = self

        def tell(hub: PodHub, kind: str, pod: dict) -> None:
            if watch._held:
                watch._kept.append((hub, kind, pod))
            else:
                watch._tell(hub, kind, pod)

        monkeypatch.setattr(PodHub, "_pod_event", tell)

    def hold(self) -> None:
        self._held = True

    def go_on(self) -> None:
        self._held = False
        for hub, kind, pod in self._kept:
            self._tell(hub, kind, pod)
        self._kept.clear()


@pytest.fixture
def watch(monkeypatch) -> Watch:
    return Watch(monkeypatch)


@contextlib.contextmanager
def holder(bench, job):
    """The ledger's client of the work itself, which has said that it runs."""
    token = bench.user.lease(job.allocation_id).lease_token
    with EmepClient(bench.server.url, lease_token(token)) as work:
        work.heartbeat(job.allocation_id, Heartbeat(epoch=1))
        yield work


def phase(bench, job_id: str, *wanted: str):
    return bench.until(lambda: [p for p in bench.kubectl.pods(job_id) if p.status.phase in wanted])


@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (65, "failed"), (75, "pending")])
async def test_work_that_has_reported_its_end_before_the_watch_tells_that_it_runs(
    bench, inbox, watch, code, state
):
    """As an engine does that ends in its first second, by itself or because it was preempted at once."""
    job_id = bench.submit()
    watch.hold()
    plan = bench.plan("echo said; sleep 1", supervised=True)
    task = asyncio.create_task(event_of(bench.trigger(job_id, plan, push_result=False)))
    await phase(bench, job_id, "Running", "Succeeded")
    job = bench.job(job_id)
    result = {"metrics": {}} if code == 0 else None
    with holder(bench, job) as work:
        work.complete(job.allocation_id, Completion(epoch=1, exit_code=code, result=result))
    await bench.until(lambda: bench.job(job_id).state.value != "running")
    watch.go_on()
    await bench.until(lambda: bench.log(job, 1))
    assert bench.log(job, 1) == "said\n"
    if state == "pending":
        bench.user.cancel(job_id, "its first epoch was all that was wanted")
    await task
    assert bench.log(job, 1) == "said\n"
    await bench.until(lambda: not bench.kubectl.pods(job_id))


async def test_work_that_ended_while_no_triggerer_lived(bench, inbox):
    """Its lease is over when the next trigger comes: the pod's own Secret still lets its log be kept."""
    job_id = bench.submit()
    plan = bench.plan("echo first; sleep 6; echo last", supervised=True)
    killed = asyncio.create_task(event_of(bench.trigger(job_id, plan, push_result=False)))
    await phase(bench, job_id, "Running")
    job = bench.job(job_id)
    with holder(bench, job) as work:
        await bench.until(lambda: "first" in bench.log(job))
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        await phase(bench, job_id, "Succeeded")
        work.complete(job.allocation_id, Completion(epoch=1, exit_code=0, result={"metrics": {}}))
    assert isinstance(await event_of(bench.trigger(job_id, plan, push_result=False)), TaskSuccessEvent)
    assert bench.log(job) == "first\nlast\n"


async def test_the_last_words_of_a_pod_whose_task_a_person_ends(bench, inbox):
    job_id = bench.submit()
    trigger = bench.trigger(job_id, once(bench, "last-words"))
    task = asyncio.create_task(event_of(trigger))
    await bench.state(job_id, "running")
    await begun(bench, "last-words")
    await ended_by_a_person(task, trigger)
    assert bench.log(bench.job(job_id)) == "first\ntold\n"


async def test_the_last_words_of_a_pod_that_is_swept(bench, inbox):
    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "swept-words"))))
    await bench.state(job_id, "running")
    await begun(bench, "swept-words")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    bench.user.cancel(job_id, "marked failed while no triggerer lived")
    job = await bench.state(job_id, "cancelled", seconds=60)
    other = bench.submit()
    assert isinstance(await event_of(bench.trigger(other, bench.plan("sleep 12"))), TaskSuccessEvent)
    await bench.until(lambda: not bench.kubectl.pods(job_id))
    assert bench.log(job, 1) == "first\ntold\n"


async def test_the_last_words_of_a_job_that_is_cancelled(bench, inbox):
    job_id = bench.submit()
    task = asyncio.create_task(event_of(bench.trigger(job_id, once(bench, "cancelled-words", code=75))))
    await bench.state(job_id, "running")
    await begun(bench, "cancelled-words")
    bench.user.cancel(job_id, "not wanted any more")
    await task
    job = bench.job(job_id)
    assert job.state.value == "cancelled"
    assert bench.log(job) == "first\ntold\n"


async def test_a_container_that_is_killed_for_its_memory(bench, inbox):
    job_id = bench.submit()
    # A line without an end, all of which must be kept.
    plan = bench.plan("echo first; exec tail /dev/zero")
    plan.pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "24Mi"}}
    await event_of(bench.trigger(job_id, plan))
    job = bench.job(job_id)
    assert job.state.value in ("failed", "dead")
    assert "memory limit" in job.reason
    assert bench.log(job, 1) == "first\n"


async def test_a_log_that_cannot_be_read_says_so(bench, inbox, watch):
    """The pod is forced away before anybody could read: its log is not empty without a word."""
    job_id = bench.submit()
    watch.hold()
    plan = bench.plan("echo said; sleep 30", supervised=True)
    task = asyncio.create_task(event_of(bench.trigger(job_id, plan, push_result=False)))
    await phase(bench, job_id, "Running")
    job = bench.job(job_id)
    with holder(bench, job):
        pass
    name = bench.kubectl.pods(job_id)[0].metadata.name
    await asyncio.to_thread(bench.kubectl.delete, name, 0)
    await bench.until(lambda: not bench.kubectl.pods(job_id))
    watch.go_on()
    await bench.until(lambda: bench.log(job, 1))
    log = bench.log(job, 1)

    assert log.startswith(f"[EMEP: the log of pod {name} could not be read: "), log
    bench.user.cancel(job_id, "its first epoch was all that was wanted")
    await task

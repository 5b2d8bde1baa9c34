"""Deletes pods that must not run any more: those of earlier epochs, and all pods of an ended job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.log_shipping import LogShipping
from emep.kubernetes.manifest import PodPlan
from emep.kubernetes.status import Phase
from emep.kubernetes.sweep import confirm_gone, is_active

if TYPE_CHECKING:
    from emep.kubernetes.watch import PodHub
    from emep.wire.jobs import JobView

OVER_GRACE = 5.0
"""Grace period in seconds for a pod whose lease is over: nothing that it still does counts."""
LEAVE_SECONDS = 40.0
"""How long the end of a task waits for the end of its pods."""
OWN_END_SECONDS = 3.0
"""Seconds for a pod to end by itself after its work has reported its end."""
LIVE = ("starting", "running", "yielding")

LogOf = Callable[[dict[str, Any]], Awaitable[LogShipping | None]]
"""The shipping of a pod's log; None where it is not kept."""


async def clear_older(pods: PodHub, plan: PodPlan, log_of: LogOf, job: JobView) -> bool:
    """Delete pods of leases that are over.

    True while one of them may still run on a node that is alive: the next epoch's pod waits for its end.
    """
    live = job.epoch if job.state.value in LIVE else -1
    blocked = False
    for pod in pods.store.of_job(job.id):
        epoch = status.identity(pod)[2]
        if epoch == live:
            continue
        ended = status.read(pod, plan.base_container).phase in (Phase.FINISHED, Phase.LOST)
        await _delete(pods, pod, log_of)
        blocked = blocked or not (ended or pods.node_trouble(pod))
    return blocked


async def clear_all(pods: PodHub, plan: PodPlan, log_of: LogOf, job: JobView) -> None:
    """Delete the pods of a job that has ended, and wait until nothing of them runs and their logs are read.

    Finished ones stay if the operator's ``on_finish_action`` keeps them.
    """
    keep = plan.keep
    deletes = keep == "delete_pod" or (keep == "delete_succeeded_pod" and job.state.value == "completed")
    reported = job.state.value in ("completed", "failed", "dead")
    began = time.monotonic()
    while time.monotonic() - began < LEAVE_SECONDS:
        here = pods.store.of_job(job.id)
        active = [pod for pod in here if is_active(pod, plan.base_container)]
        patient = reported and time.monotonic() - began < OWN_END_SECONDS
        for pod in here:
            if (pod in active and not patient) or (pod not in active and deletes):
                await _delete(pods, pod, log_of)
        # A pod that reports no end frees its GPUs when it goes. Without this trigger no watch would see that.
        going = active if reported else [pod for pod in here if pod in active or deletes or _is_going(pod)]
        if not any(not pods.node_trouble(pod) for pod in going):
            break
        await asyncio.sleep(0.2)
    await confirm_departed(pods, job)


def _is_going(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


async def confirm_departed(pods: PodHub, job: JobView) -> None:
    """Confirm allocations of the job that are over and whose pods have left, watched or not."""
    if job.epoch == 0:
        return
    here = {status.identity(pod)[1] for pod in pods.store.of_job(job.id)}
    for left in (await (await pods.ledger.client()).leaving()).items:
        if left["job_id"] == job.id and left["id"] not in here:
            await confirm_gone(pods.ledger, left["id"])


async def _delete(pods: PodHub, pod: dict[str, Any], log_of: LogOf) -> None:
    metadata = pod["metadata"]
    shipping = await log_of(pod)
    # Told to end with a longer grace while its lease lived: that is over.
    late = (metadata.get("deletionGracePeriodSeconds") or 0) > OVER_GRACE
    if late or not _is_going(pod):
        if shipping is not None and not pods.node_trouble(pod):
            await shipping.before_end()
        client = await pods.client()
        await client.delete(f"{pods.path}/{metadata['name']}", OVER_GRACE, metadata["uid"])

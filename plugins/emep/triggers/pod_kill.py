"""What happens to a job's pods when a person clears, marks or deletes its task.

By then the trigger's own watch and clients are closed, so everything is opened anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from emep.runtime.kubernetes.client import Cluster, KubeClient, open_client
from emep.runtime.kubernetes.manifest import JOB

GRACE = 8.0
"""Seconds for a checkpoint that nobody asks for any more."""
SECONDS = 150.0
"""How long the end of the pods is waited for; the trigger itself has 30 s, this goes on without it."""
REASON = "the Airflow task was ended by a user"


async def kill(conn_id: str, cluster: Cluster, namespace: str, job_id: str) -> None:
    """Cancel the job, end its pods, and give the GPUs back once they are gone.

    Raises EmepError, KubeError, KubeUnreachableError or ConnectionUnusableError where that cannot be done;
    the job is cancelled first, so then its lease runs out.
    """
    from emep.api.schemas import Loss
    from emep.hooks.emep import async_client

    async with await async_client(conn_id) as api:
        await _unless_ended(api.cancel(job_id, REASON))
        job = await api.job(job_id)
        client = await open_client(cluster)
        try:
            gone = await _end_pods(client, namespace, job_id)
        finally:
            await client.aclose()
        if gone and job.allocation_id is not None:
            loss = Loss(epoch=job.epoch, code="pod_deleted", reason=REASON, gone=True)
            await _unless_ended(api.lost(job.allocation_id, loss))


async def _end_pods(client: KubeClient, namespace: str, job_id: str) -> bool:
    """Delete a job's pods; True once they are gone."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    until, told = time.monotonic() + SECONDS, set[str]()
    while time.monotonic() < until:
        pods = (await client.get(path, labelSelector=f"{JOB}={job_id}")).get("items") or []
        if not pods:
            return True
        for pod in pods:
            # Also one that is ending already: its grace may be as long as a preemption's.
            if (name := pod["metadata"]["name"]) not in told:
                told.add(name)
                await client.delete(f"{path}/{name}", GRACE)
        await asyncio.sleep(0.3)
    return False


async def _unless_ended(call: Awaitable[Any]) -> None:
    """Await a call that is too late where the job has ended already."""
    from emep.client import EmepApiError

    try:
        await call
    except EmepApiError as error:
        if error.status != 409:
            raise

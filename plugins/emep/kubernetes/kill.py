"""Ends a job's pods when a person clears, marks or deletes its task.

By then the trigger's own watch and clients are closed, so this opens its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.client import Cluster, KubeClient, open_client
from emep.kubernetes.log_shipping import LogShipping, adopted
from emep.kubernetes.manifest import JOB
from emep.kubernetes.status import PodState

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient

GRACE = 8.0
"""Grace period in seconds; it is short, because no later try needs the checkpoint."""
SECONDS = 150.0
"""Seconds to wait for the end of the pods; Airflow gives the trigger 30 s, but this continues without it."""
LOG_SECONDS = 3.0
"""For what is left of their logs once they are gone."""
REASON = "the Airflow task was ended by a user"


async def kill(conn_id: str, cluster: Cluster, namespace: str, job_id: str) -> None:
    """Cancel the job, end its pods, and give the GPUs back once they are gone.

    Raises EmepError, KubeError, KubeUnreachableError or ConnectionUnusableError if that fails. The job is
    cancelled first, so its lease then runs out.
    """
    from emep.hooks.emep import async_client
    from emep.wire.leases import Loss

    async with await async_client(conn_id) as api:
        await _unless_ended(api.cancel(job_id, REASON))
        job = await api.job(job_id)
        client = await open_client(cluster)
        try:
            gone = await _Pods(client, namespace, job_id, api).end()
        finally:
            await client.aclose()
        if gone and job.allocation_id is not None:
            loss = Loss(epoch=job.epoch, code="pod_deleted", reason=REASON, gone=True)
            await _unless_ended(api.lost(job.allocation_id, loss))


class _Pods:
    """A job's pods, without a watch."""

    def __init__(self, client: KubeClient, namespace: str, job_id: str, api: AsyncEmepClient) -> None:
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self._client, self._job_id, self._api = client, job_id, api
        self._here: dict[str, dict[str, Any]] = {}
        self._logs: dict[str, LogShipping | None] = {}

    async def client(self) -> KubeClient:
        """The cluster's API."""
        return self._client

    async def _ledger(self) -> AsyncEmepClient:
        return self._api

    async def end(self) -> bool:
        """Delete them; True once they are gone. What they say last is kept."""
        until = time.monotonic() + SECONDS
        try:
            while time.monotonic() < until:
                found = await self._client.get(self.path, labelSelector=f"{JOB}={self._job_id}")
                self._here = {pod["metadata"]["name"]: pod for pod in found.get("items") or []}
                for log in filter(None, self._logs.values()):
                    log.wake()
                if not self._here:
                    return True
                for name, pod in self._here.items():
                    # Also one that is ending already: its grace may be as long as a preemption's.
                    if name not in self._logs:
                        await self._end(name, pod)
                await asyncio.sleep(0.3)
            return False
        finally:
            for log in filter(None, self._logs.values()):
                await log.finish(LOG_SECONDS, "its pod is gone" if not self._here else "its pod does not end")

    async def _end(self, name: str, pod: dict[str, Any]) -> None:
        def state(container: str) -> PodState | None:
            now = self._here.get(name)
            return None if now is None else status.read(now, container)

        log = self._logs[name] = await adopted(self, pod, self._ledger, state)
        if log is not None:
            await log.before_end()
        await self._client.delete(f"{self.path}/{name}", GRACE)


async def _unless_ended(call: Awaitable[Any]) -> None:
    """Await a call that is too late where the job has ended already."""
    from emep.client import EmepApiError

    try:
        await call
    except EmepApiError as error:
        if error.status != 409:
            raise

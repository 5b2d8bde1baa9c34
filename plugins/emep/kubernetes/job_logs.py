"""The logs of all pods of one job: those that its trigger runs, and those that existed before it came."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.log_shipping import LogShipping, adopted
from emep.kubernetes.manifest import PodPlan
from emep.kubernetes.pod_lifecycle import PodRun
from emep.kubernetes.status import PodState

if TYPE_CHECKING:
    from emep.kubernetes.watch import PodHub

LEFT_SECONDS = 3.0
"""Seconds before the log of a pod that has ended, or is gone, is closed with a note."""


class JobLogs:
    """``runs`` are the epochs that the trigger knows; the leases of other pods were over before it came."""

    def __init__(self, pods: PodHub, plan: PodPlan, job_id: str, runs: Mapping[int, PodRun]) -> None:
        self._pods, self._plan, self._job_id, self._runs = pods, plan, job_id, runs
        self._others: dict[str, LogShipping | None] = {}
        """None: it cannot be kept, which has been said once."""

    async def of(self, pod: dict[str, Any]) -> LogShipping | None:
        """The shipping of a pod's log, which has begun; None where it is not kept."""
        name, run = pod["metadata"]["name"], self._runs.get(status.identity(pod)[2])
        if run is not None and run.name == name:
            run.log.start(wanted=self._plan.get_logs)
            return run.log
        if name not in self._others and self._plan.get_logs:

            def state(container: str) -> PodState | None:
                now = self._pods.store.pods.get(name)
                return None if now is None else status.read(now, container)

            found = await adopted(self._pods, pod, self._pods.ledger.client, state)
            self._others[name] = found
            if found is not None:
                self._pods.join(self._job_id, found.wake)
        return self._others.get(name)

    async def finish(self) -> None:
        """Finish all logs because the task ends; incomplete ones are closed soon, with a note."""
        why = "it had not come when the task ended"
        logs = [run.log for run in self._runs.values()] + list(filter(None, self._others.values()))
        await asyncio.gather(*(one.finish(LEFT_SECONDS, why) for one in logs))

    async def close(self) -> None:
        """Stop the shipping of logs that the runs do not stop themselves."""
        others, self._others = self._others, {}
        for other in filter(None, others.values()):
            await self._pods.leave(self._job_id, other.wake)
            await other.close()

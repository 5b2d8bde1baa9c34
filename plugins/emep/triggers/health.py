"""The trigger behind the health DAG: follows the hardware through ``POST /nodes:check``, as an operator may.

Each call makes the control plane check now (missing reports, leases that ran out) and waits for the first
finding, so the DAG reports at once what the scheduler's own tick would find later. While the DAG is paused,
the tick still does the same, but no task logs it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from emep.wire.units import count_of

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient
    from emep.wire.health import Checkup, HealthFinding

POLL_SECONDS = 20.0
EARLIEST_WORKER_LEG = 20.0
"""Seconds after the deferral before which no worker leg may come (see ``emep.triggers.job``)."""
KEPT_FINDINGS = 500
"""Of one batch; the log has every one."""
RETRY_SECONDS = (1.0, 15.0)
CURSOR_KEY = "cursor"
DRAIN_REASON = "emep_gpu_health: reported bad; resume it when it is repaired"


class GpuHealthTrigger(BaseTrigger):
    """Watches until ``until`` (seconds since 1970), or until ``settle`` seconds after the first finding.

    ``since`` is the cursor of the watch before (None: from now on). With ``drain_unhealthy`` a GPU that is
    reported bad is drained, so that it stays out until a person resumes it.
    """

    def __init__(
        self,
        *,
        conn_id: str,
        since: int | None,
        deferred_at: float,
        until: float,
        settle: float = 10.0,
        drain_unhealthy: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.since = since
        self.deferred_at = deferred_at
        self.until = until
        self.settle = settle
        self.drain_unhealthy = drain_unhealthy
        self._condition = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which a triggerer makes the trigger anew."""
        names = ("conn_id", "since", "deferred_at", "until", "settle", "drain_unhealthy")
        return "emep.triggers.health.GpuHealthTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch, then fire once."""
        try:
            batch = await self._watch()
            await self._push(batch)
        except Exception as error:
            await asyncio.sleep(max(0.0, self.deferred_at + EARLIEST_WORKER_LEG - time.time()))
            yield TriggerEvent({"error": str(error)})  # type: ignore[no-untyped-call]
        else:
            yield TaskSuccessEvent()

    async def _watch(self) -> dict[str, Any]:
        """Wait for a batch of findings. Raises EmepApiError if the connection's user may not check nodes."""
        await asyncio.to_thread(_import_heavy_modules)
        from emep.hooks.emep import async_client

        cursor, until = self.since, self.until
        found: list[HealthFinding] = []
        checkup: Checkup | None = None
        async with await async_client(self.conn_id) as client:
            while (left := until - time.time()) > 0 or checkup is None:
                checkup = await self._check(client, cursor, min(POLL_SECONDS, max(0.0, left)))
                self._say_condition(checkup)
                for finding in checkup.findings:
                    self.log.info(describe(finding))
                    await self._act(client, finding)
                if checkup.findings and not found:
                    until = min(until, time.time() + self.settle)
                found += checkup.findings
                cursor = checkup.cursor
        return batch_of(found, checkup)

    async def _check(self, client: AsyncEmepClient, cursor: int | None, seconds: float) -> Checkup:
        """One call; an outage of the API costs a growing pause, nothing else."""
        pause = RETRY_SECONDS[0]
        while True:
            try:
                return await client.check_nodes(cursor, seconds)
            except Exception as error:
                if _refused(error):
                    raise
                self.log.warning("The hardware cannot be watched now (%s); again in %.0f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(RETRY_SECONDS[1], 2 * pause)

    async def _act(self, client: AsyncEmepClient, finding: HealthFinding) -> None:
        """Drain a GPU that was reported bad, if the run asks for that; a refusal is only logged."""
        bad = (
            finding.event == "gpu_unhealthy" and finding.code == "reported" and finding.gpu_index is not None
        )
        if not (self.drain_unhealthy and bad):
            return
        try:
            await client.drain(finding.nodes[0], finding.gpu_index, reason=DRAIN_REASON)
        except Exception as error:
            self.log.warning("%s:%s cannot be drained: %s", finding.nodes[0], finding.gpu_index, error)

    def _say_condition(self, checkup: Checkup) -> None:
        """Log the hardware's condition whenever it has changed."""
        condition = condition_of(checkup)
        if condition != self._condition:
            self._condition = condition
            self.log.info(condition)

    async def _push(self, batch: dict[str, Any]) -> None:
        """Push the batch as the task's XCom, with the cursor for the next run."""
        task = self.task_instance
        if task is None:
            return
        from airflow.sdk.execution_time.xcom import XCom

        key = {
            "dag_id": task.dag_id,
            "run_id": task.run_id,
            "task_id": task.task_id,
            "map_index": task.map_index,
        }
        await asyncio.to_thread(XCom.set, key="return_value", value=batch, **key)
        await asyncio.to_thread(XCom.set, key=CURSOR_KEY, value=batch["cursor"], **key)


def describe(finding: HealthFinding) -> str:
    """A finding as one line of the log."""
    what = finding.event.replace("_", " ")
    place = ", ".join(finding.nodes)
    if finding.gpu_index is not None:
        place = f"{place}:{finding.gpu_index}"
    subject = " ".join(filter(None, [place, f"job {finding.job_id}" if finding.job_id else ""]))
    reason = f": {finding.reason}" if finding.reason else ""
    return f"{what} [{subject or 'control plane'}]{reason}"


def condition_of(checkup: Checkup) -> str:
    """The hardware as it is, in one sentence."""
    pools = "; ".join(
        f"pool {pool}: " + ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        for pool, states in sorted(checkup.gpus.items())
    )
    silent = f"; silent: {', '.join(checkup.silent_nodes)}" if checkup.silent_nodes else ""
    return f"{count_of(checkup.nodes, 'node')}, GPUs: {pools or 'none'}{silent}"


def batch_of(found: list[HealthFinding], checkup: Checkup) -> dict[str, Any]:
    """What a watch returns: its findings, the cursor for the next one, and the condition at its end."""
    return {
        "findings": [finding.model_dump(mode="json") for finding in found[:KEPT_FINDINGS]],
        "left_out": max(0, len(found) - KEPT_FINDINGS),
        "cursor": checkup.cursor,
        "silent_nodes": checkup.silent_nodes,
        "gpus": checkup.gpus,
    }


def _refused(error: Exception) -> bool:
    """An answer that trying again cannot change: not allowed, or no such route."""
    return getattr(error, "status", None) in (400, 403, 404, 405, 422)


def _import_heavy_modules() -> None:
    for name in ("emep.client", "emep.wire.documents"):
        import_module(name)

"""The trigger that follows a pod's job through its whole life (docs/architecture.md).

Like ``JobTrigger`` it is level-triggered: the ledger's row and the pod alone decide. On a grant it creates
the pod, named by job and epoch, or adopts the existing one. It reports how the pod ended, tells it to end
when its job must yield, and deletes pods whose lease is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.clear import clear_all, clear_older, confirm_departed
from emep.kubernetes.client import (
    Cluster,
    ConnectionUnusableError,
    KubeError,
    KubeUnreachableError,
)
from emep.kubernetes.job_logs import JobLogs
from emep.kubernetes.log_shipping import REST_SECONDS
from emep.kubernetes.manifest import PodPlan
from emep.kubernetes.pod_lifecycle import CannotStartError, PodRun
from emep.kubernetes.status import EXIT_BAD_INPUT, EXIT_KILLED, Phase, PodState
from emep.triggers.job import JobTrigger

if TYPE_CHECKING:
    from emep.hooks.job_watch import Hub, Subscription
    from emep.kubernetes.watch import PodHub
    from emep.wire.jobs import JobView

RETRY_SECONDS = 5.0
_killing: set[asyncio.Task[None]] = set()
"""Tasks that continue after their trigger has left."""


class PodTrigger(JobTrigger):
    """``JobTrigger`` whose job's work is a pod. ``plan`` is the rendered pod, ``cluster`` says where."""

    def __init__(self, *, plan: dict[str, Any], cluster: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan, self.cluster = plan, cluster
        self._plan, self._cluster = PodPlan(**plan), Cluster(**cluster)
        self._runs: dict[int, PodRun] = {}
        self._pods: PodHub | None = None
        self._logs: JobLogs | None = None
        self._wake: Callable[[], None] = lambda: None
        self._pod_said = ""
        self._looked_back = False
        self._timers: set[asyncio.TimerHandle] = set()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which a triggerer makes the trigger anew."""
        _, arguments = super().serialize()
        return "emep.triggers.pod.PodTrigger", arguments | {"plan": self.plan, "cluster": self.cluster}

    async def _follow(self, hub: Hub, subscription: Subscription) -> JobView:
        from emep.kubernetes.watch import PodHub

        self._wake = subscription.wake
        self._pods = await PodHub.get(self._cluster, self._plan.namespace, hub)
        self._pods.join(self.job_id, self._wake)
        self._logs = JobLogs(self._pods, self._plan, self.job_id, self._runs)
        try:
            return await super()._follow(hub, subscription)
        finally:
            for timer in self._timers:
                timer.cancel()
            for run in self._runs.values():
                await run.close()
            self._runs = {}
            await self._logs.close()
            await self._pods.leave(self.job_id, self._wake)

    # ---- what the job's state asks for ---------------------------------------------------------------------

    async def act(self, hub: Hub, job: JobView) -> None:
        """Bring the cluster in line with the ledger, or the ledger with the cluster."""
        from emep.client import EmepError

        assert self._pods is not None  # noqa: S101
        assert self._logs is not None  # noqa: S101
        try:
            await self._pods.synced()
        except (ConnectionUnusableError, KubeError) as error:
            await self._refuse_all(hub, job, error)
            return
        try:
            await self._look_back(job)
            blocked = await clear_older(self._pods, self._plan, self._logs.of, job)
            if job.state.value in ("starting", "running", "yielding"):
                await self._tend(hub, job, blocked)
        except CannotStartError as error:
            await self._runs[job.epoch].refuse(error)
        except (EmepError, KubeError, KubeUnreachableError) as error:
            self.log.warning("%s; trying again", error)
            self._again(RETRY_SECONDS)

    async def _tend(self, hub: Hub, job: JobView, blocked: bool) -> None:
        run = await self._run(hub, job)
        if run is None:
            return
        if run.pod is None:
            if run.lease.started and not await run.exists():
                words = f"pod {run.name} is gone, and EMEP has not deleted it"
                await run.lost("pod_deleted", words, gone=True)
                return
            may = run.pod is None and not blocked and job.state.value == "starting"
            if may and not await run.create():
                self._again(RETRY_SECONDS)
            if run.pod is None:
                return
        run.attend()
        state = run.state
        if state is not None:
            self._say_pod(run, state)
            await self._judge(hub, job, run, state)

    async def _run(self, hub: Hub, job: JobView) -> PodRun | None:
        """The pod of the present epoch; None if its lease is over by now."""
        from emep.client import EmepApiError

        known = self._runs.get(job.epoch)
        if known is not None or job.allocation_id is None:
            return known
        client = await hub.client()
        try:
            lease = await client.lease(job.allocation_id)
        except EmepApiError as error:
            if error.status == 409:
                return None
            raise
        assert self._pods is not None  # noqa: S101
        run = PodRun(self._plan, self.job_id, job.allocation_id, lease, self._pods)
        self._runs[job.epoch] = run
        return run

    async def _judge(self, hub: Hub, job: JobView, run: PodRun, state: PodState) -> None:
        """Act on the state of a pod whose job is active in the ledger."""
        if state.phase is Phase.FINISHED:
            await self._finished(hub, job, run, state)
        elif state.phase is Phase.LOST:
            words = f"pod {run.name} was taken away: {state.reason}"
            await run.lost("pod_evicted", words, gone=run.is_dead)
        elif not run.is_there:
            await self._vanished(hub, job, run)
        elif state.phase is Phase.BROKEN:
            await run.complete(EXIT_BAD_INPUT if state.refused else 1, f"pod {run.name}: {state.reason}")
            await run.delete(0)
        elif (trouble := run.node_trouble) and job.state.value != "starting":
            # What was granted and has not reported is taken back by the ledger itself.
            node = job.nodes[0] if job.nodes else "its node"
            await run.lost("node_lost", f"node {node} of pod {run.name} is not ready: {trouble}", gone=False)
        elif job.state.value == "yielding" and not run.told and not state.deleting:
            await self._tell(hub, run)
        elif state.phase is Phase.WAITING:
            await self._late(run, state)

    async def _finished(self, hub: Hub, job: JobView, run: PodRun, state: PodState) -> None:
        """Report the container's end. An ``emep-engine`` has reported it by itself a moment ago."""
        now = await hub.job(self.job_id)
        if now.epoch != job.epoch or now.state.value not in ("starting", "running", "yielding"):
            return
        if run.plan.supervised and (result := status.finished_result(state.message, run.epoch)):
            # It was ended between its Result and its report of that.
            await run.complete(0, "", result)
            return
        code = EXIT_KILLED if state.exit_code is None else state.exit_code
        killed = code in (137, 143)
        if killed and state.deleting and not run.told and now.state.value != "yielding":
            await run.lost("pod_deleted", f"pod {run.name} was deleted, and not by EMEP", gone=True)
        elif run.plan.supervised and code == 0:
            # Its result never arrived, and without one there is nothing to go on with.
            await run.lost(
                "pod_lost", f"pod {run.name} has ended without its result being reported", gone=True
            )
        else:
            await self._complete(run, code, state)

    async def _complete(self, run: PodRun, code: int, state: PodState) -> None:
        words = state.reason or ("" if run.plan.result_as_message else state.message.strip()[-1000:])
        result = None
        if run.plan.result_as_message and code == 0 and state.message:
            try:
                result = {"return_value": status.result_of(state.message)}
            except ValueError as error:
                code, words = EXIT_BAD_INPUT, f"pod {run.name}: {error}"
        # At once: the GPUs are free, the rest of the log can still come.
        await run.complete(code, words or (f"pod {run.name} exited with {code}" if code else ""), result)

    async def _vanished(self, hub: Hub, job: JobView, run: PodRun) -> None:
        """Handle a pod object that is gone, and whose last status does not say how the container ended."""
        now = await hub.job(self.job_id)
        if now.epoch != job.epoch or now.state.value not in ("starting", "running", "yielding"):
            return
        if run.told or now.state.value == "yielding":
            await run.lost("pod_deleted", f"pod {run.name} has ended, as it was told", gone=True)
        else:
            await run.lost("pod_deleted", f"pod {run.name} was deleted, and not by EMEP", gone=True)

    async def _tell(self, hub: Hub, run: PodRun) -> None:
        """Send SIGTERM now, and SIGKILL after the grace; an engine gets the directive by heartbeat too."""
        lease = await (await hub.client()).lease(run.allocation_id)
        grace = run.lease.grace if lease.grace_left is None else lease.grace_left
        self.log.info("Pod %s is told to checkpoint and end within %.0f s", run.name, grace)
        await run.delete(max(1.0, grace))

    async def _late(self, run: PodRun, state: PodState) -> None:
        """Requeue the job of a pod that does not start within ``startup_timeout_seconds`` of its creation."""
        limit = self._plan.startup_timeout
        if limit is None:
            return
        left = limit - run.age()
        if left > 0:
            self._again(left + 0.1)
            return
        why = state.reason or "Kubernetes says no reason"
        await run.lost(
            "start_deadline", f"pod {run.name} has not started within {limit:g} s: {why}", gone=False
        )
        await run.delete(0)

    # ---- what must not run any more ------------------------------------------------------------------------

    async def _look_back(self, job: JobView) -> None:
        """Confirm, once, the pods that left before this trigger began to watch."""
        if not self._looked_back and self._pods is not None:
            await confirm_departed(self._pods, job)
            self._looked_back = True

    async def _refuse_all(self, hub: Hub, job: JobView, error: Exception) -> None:
        """End the job with this error, because the cluster cannot be used and so no pod of it can exist."""
        words = f"{error}" if isinstance(error, ConnectionUnusableError) else (
            f"{self._cluster.words} is not accepted by the cluster ({error}): "
            "its credentials are wrong or have expired, or lack the rights of docs/operate.md"
        )  # fmt: skip
        started = job.state.value in ("running", "yielding")
        if not started and job.state.value == "starting":
            run = await self._run(hub, job)
            if run is None:
                return
            started = run.lease.started
            if not started:
                await run.complete(EXIT_BAD_INPUT, words)
                return
        if started:
            # Its pod is out there and goes on; the connection may be corrected meanwhile.
            self.log.warning("%s; the pod is not watched meanwhile", words)
            self._again(RETRY_SECONDS)
            return
        await (await hub.client()).cancel(self.job_id, words[:1000])

    # ---- words, logs, timers -------------------------------------------------------------------------------

    def _say_pod(self, run: PodRun, state: PodState) -> None:
        sentence = f"Pod {run.name} {state.phase.value}{f': {state.reason}' if state.reason else ''}"
        if state.phase in (Phase.WAITING, Phase.RUNNING) and sentence != self._pod_said:
            self._pod_said = sentence
            self.log.info(sentence)

    def _again(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._wake)
        self._timers = {other for other in self._timers if other.when() > time.monotonic()} | {timer}

    async def _read_log(self, hub: Hub, job: JobView) -> bool:
        """As in ``JobTrigger``, but first the rest of the log of the epoch before."""
        before = self._stream.allocation_id
        if before is not None and before != job.allocation_id and not self._stream.complete:
            until = time.monotonic() + REST_SECONDS
            old = job.model_copy(update={"allocation_id": before})
            while not self._stream.complete and time.monotonic() < until:
                if not await super()._read_log(hub, old):
                    await asyncio.sleep(0.2)
        return await super()._read_log(hub, job)

    async def _last_lines(self, hub: Hub, job: JobView) -> None:
        """Show the rest of the log, then end the pods, wait for them, and show their last lines too."""
        run = self._runs.get(job.epoch)
        if run is not None and job.state.value in ("completed", "failed", "dead"):
            await run.log.shipped(REST_SECONDS)
        try:
            if self._pods is not None and self._logs is not None:
                await clear_all(self._pods, self._plan, self._logs.of, job)
        except Exception as error:
            # If this fails, the hub's sweep or the pod's own deadline ends the pod: the task need not wait.
            self.log.warning("Pods of job %s are not cleared away yet: %s", self.job_id, error)
        if self._logs is not None:
            await self._logs.finish()
        await super()._last_lines(hub, job)

    async def on_kill(self) -> None:
        """Cancel the job because a person ended its task, end its pods, then free the GPUs."""
        from emep.kubernetes.kill import kill

        # The triggerer may cancel a second time, in the middle of this: a pod's grace is long.
        work = asyncio.create_task(kill(self.conn_id, self._cluster, self._plan.namespace, self.job_id))
        _killing.add(work)
        work.add_done_callback(_killing.discard)
        await asyncio.shield(work)
        self.log.info("Job %s is cancelled and its pods are deleted", self.job_id)

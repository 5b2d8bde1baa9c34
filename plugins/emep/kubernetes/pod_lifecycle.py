"""One epoch of a job: creates its pod, ships its log, renews its lease, and reports its end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.client import KubeClient, KubeError
from emep.kubernetes.log_shipping import LogShipping
from emep.kubernetes.manifest import (
    ALLOCATION,
    PodPlan,
    build_pod,
    build_secret,
    is_gated,
    labels,
    pod_name,
    ungated,
)
from emep.kubernetes.status import EXIT_BAD_INPUT, EXIT_FAILED, Phase, PodState

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient
    from emep.kubernetes.watch import PodHub
    from emep.wire.leases import LeaseAnswer

log = logging.getLogger(__name__)

REFUSALS = (400, 401, 403, 404, 422)
"""Refusals of a creation that would be the same if it were repeated."""
REFUSED_DOCUMENTS = (400, 413, 422)
"""EMEP's refusals of a document that it can never accept."""
RETRIED = ("exceeded quota",)
"""But these may be otherwise in a moment."""


class CannotStartError(Exception):
    """The pod cannot be created, with the reason; ``retry``: another try of the task may succeed."""

    def __init__(self, sentence: str, *, retry: bool = False) -> None:
        super().__init__(sentence)
        self.retry = retry


class PodRun:
    """The pod of one epoch. All its methods may be called repeatedly."""

    def __init__(
        self, plan: PodPlan, job_id: str, allocation_id: str, lease: LeaseAnswer, pods: PodHub
    ) -> None:
        self.plan, self.job_id, self.allocation_id, self.lease = plan, job_id, allocation_id, lease
        self.epoch = lease.epoch
        self.name = pod_name(plan, job_id, lease.epoch)
        self.told = False
        """It was told to end, by EMEP."""
        self.created_at: float | None = None
        self._pods = pods
        self._renewing: asyncio.Task[None] | None = None
        self.log = LogShipping(
            pods,
            self.name,
            plan.base_container,
            self._holder,
            allocation_id,
            lambda: self.state if self.is_there else None,
        )
        pods.join(job_id, self.log.wake)

    async def _asker(self) -> AsyncEmepClient:
        """The ledger's client of the account that asked. The hub opens a new one after an outage."""
        return await self._pods.ledger.client()

    async def _holder(self) -> AsyncEmepClient:
        """The same with the lease's own token."""
        from emep.client import lease_token

        return (await self._asker()).as_caller(lease_token(self.lease.lease_token))

    # ---- what is there -------------------------------------------------------------------------------------

    @property
    def pod(self) -> dict[str, Any] | None:
        """The pod as it is, or as it was when it left; None where there was none."""
        return self._pods.store.pods.get(self.name) or self._pods.store.departed.get(self.name)

    @property
    def is_there(self) -> bool:
        """Whether the pod object exists."""
        return self.name in self._pods.store.pods

    @property
    def is_dead(self) -> bool:
        """Whether the kubelet says that nothing of it runs any more."""
        pod = self.pod or {}
        return not self.is_there or (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")

    @property
    def node_trouble(self) -> str:
        """Why its node is not ready; empty if it is, or if that is unknown."""
        return self._pods.node_trouble(self.pod) if self.pod else ""

    @property
    def state(self) -> PodState | None:
        """What the pod's status means."""
        pod = self.pod
        return None if pod is None else status.read(pod, self.plan.base_container)

    def age(self) -> float:
        """Seconds since the pod was created, as far as this triggerer knows."""
        if self.created_at is None:
            self.created_at = time.monotonic()
        return time.monotonic() - self.created_at

    # ---- start ---------------------------------------------------------------------------------------------

    async def create(self) -> bool:
        """Create the pod and its Secret and let it be scheduled, or adopt what exists; False: try again.

        The pod comes first, behind a scheduling gate. So its Secret has an owner from the beginning, and if
        this process dies at any point, everything it created is deleted with the pod. Raises CannotStartError
        if the cluster refuses for good.
        """
        client = await self._pods.client()
        made: dict[str, Any] | None = None
        try:
            pod = build_pod(self.plan, self.job_id, self.allocation_id, self.lease)
            build_secret(self.plan, self.job_id, self.allocation_id, self.lease, "")
        except ValueError as error:
            raise CannotStartError(str(error)) from error
        try:
            made = await _unless_there(client.create(self._pods.path, pod))
            if made is None:
                made = await client.get(f"{self._pods.path}/{self.name}")
                self._check_own(made)
            await self._give_secret(client, made)
            if is_gated(made):
                made = await client.patch(f"{self._pods.path}/{self.name}", ungated(made))
        except KubeError as error:
            words = error.message.lower()
            if error.status in REFUSALS and not any(word in words for word in RETRIED):
                if made is not None:
                    await client.delete(f"{self._pods.path}/{self.name}", 0)
                raise self._refusal(error) from error
            log.warning("pod %s cannot be created now: %s", self.name, error)
            return False
        self.created_at = self.created_at or time.monotonic()
        self._pods.store.add(made)
        await (await self._asker()).lease(self.allocation_id, started=True)
        return True

    async def _give_secret(self, client: KubeClient, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        secret = build_secret(self.plan, self.job_id, self.allocation_id, self.lease, uid)
        path = f"/api/v1/namespaces/{self.plan.namespace}/secrets"
        if await _unless_there(client.create(path, secret)) is not None:
            return
        there = await client.get(f"{path}/{self.name}")
        if uid not in [owner.get("uid") for owner in there["metadata"].get("ownerReferences") or []]:
            # Of a pod of this name that is gone: it is about to go too.
            await client.delete(f"{path}/{self.name}")
            await client.create(path, secret)

    def _check_own(self, pod: dict[str, Any]) -> None:
        found = (pod["metadata"].get("labels") or {}).get(ALLOCATION)
        if found != labels(self.job_id, self.allocation_id, self.epoch)[ALLOCATION]:
            raise CannotStartError(
                f"pod {self.name} in {self.plan.namespace} exists already and is not EMEP's: delete it"
            )

    def _refusal(self, error: KubeError) -> CannotStartError:
        where = f"pod {self.name} cannot be created in namespace {self.plan.namespace}"
        if error.status == 401:
            return CannotStartError(
                f"{where}: {self._pods.cluster.words} is not accepted by the cluster (401 Unauthorized): "
                "its credentials are wrong or have expired"
            )
        return CannotStartError(f"{where}: {error.message or error}")

    async def exists(self) -> bool:
        """Ask the cluster itself whether the pod is there."""
        try:
            self._pods.store.add(await (await self._pods.client()).get(f"{self._pods.path}/{self.name}"))
        except KubeError as error:
            if error.status != 404:
                raise
            return False
        return True

    # ---- while it runs -------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Ship the log, and renew the lease of an image that does not do so itself.

        The log is shipped from the beginning, because work may be over before the watch reports that it runs.
        """
        self.log.start(wanted=self.plan.get_logs)
        state = self.state
        wanted = state is not None and state.phase is Phase.RUNNING and not self.plan.supervised
        if wanted and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renew(), context=contextvars.Context())

    async def _renew(self) -> None:
        """Renew the lease while the watch sees the pod run.

        A watch that has heard nothing for ``lease.max_silence`` counts as blind.
        """
        from emep.client import EmepApiError, EmepError
        from emep.wire.allocations import Heartbeat
        from emep.wire.base import Directive

        while (state := self.state) is not None and state.phase is Phase.RUNNING and self.is_there:
            if time.monotonic() - self._pods.seen_at < self.lease.max_silence:
                try:
                    beat = Heartbeat(epoch=self.epoch, watched=True)
                    answer = await (await self._holder()).heartbeat(self.allocation_id, beat)
                    if answer.directive is Directive.ABORT:
                        await self.delete(0)
                except EmepApiError as error:
                    if error.status in (409, 410):
                        return
                    log.warning("the lease of %s is not renewed: %s", self.name, error)
                except (EmepError, RuntimeError) as error:
                    # RuntimeError: the client was closed meanwhile, because its connection was opened anew.
                    log.debug("the lease of %s is not renewed: %s", self.name, error)
            await asyncio.sleep(self.lease.heartbeat)

    # ---- ends ----------------------------------------------------------------------------------------------

    async def delete(self, grace: float | None = None) -> None:
        """Delete the pod: SIGTERM at once, SIGKILL after ``grace`` seconds."""
        self.told = True
        await self.log.before_end()
        await (await self._pods.client()).delete(f"{self._pods.path}/{self.name}", grace)

    async def complete(self, exit_code: int, message: str, result: dict[str, Any] | None = None) -> None:
        """Report how the work ended; repeating that is no error.

        If the API refuses the result as a document, the job ends with that error, because sending it again
        would not help.
        """
        from pydantic import ValidationError

        from emep.client import EmepApiError
        from emep.wire.allocations import Completion

        try:
            end = Completion(
                epoch=self.epoch,
                exit_code=max(-255, min(255, exit_code)),
                message=message.replace("\0", "")[:4096] or None,
                result=result,
            )
            await (await self._holder()).complete(self.allocation_id, end)
        except EmepApiError as error:
            if error.status in REFUSED_DOCUMENTS and result is not None:
                await self._complete_refused(str(error))
            elif error.status == 409:
                log.debug("%s has ended already: %s", self.allocation_id, error)
            else:
                raise
        except ValidationError as error:
            if result is None:
                raise
            await self._complete_refused(str(error.errors()[0]["msg"]))

    async def _complete_refused(self, why: str) -> None:
        await self.complete(EXIT_BAD_INPUT, f"pod {self.name}: its result was refused: {why}")

    async def refuse(self, error: CannotStartError) -> None:
        """End the job with the reason why its pod cannot start."""
        await self.complete(EXIT_FAILED if error.retry else EXIT_BAD_INPUT, str(error))

    async def lost(self, code: Any, reason: str, *, gone: bool) -> None:
        """Report that the cluster took the pod away: the job is requeued in the same try."""
        from emep.client import EmepApiError
        from emep.wire.leases import Loss

        try:
            loss = Loss(epoch=self.epoch, code=code, reason=reason[:2000], gone=gone)
            await (await self._asker()).lost(self.allocation_id, loss)
        except EmepApiError as error:
            if error.status != 409:
                raise

    async def close(self) -> None:
        """Stop shipping and renewing; the pod itself stays as it is."""
        await self._pods.leave(self.job_id, self.log.wake)
        await self.log.close()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)


async def _unless_there(creation: Any) -> dict[str, Any] | None:
    """What was created; None where an object of that name is there already."""
    try:
        return dict(await creation)
    except KubeError as error:
        if error.status != 409:
            raise
        return None

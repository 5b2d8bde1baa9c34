"""Reports nodes' readiness and departed pods to the ledger, and deletes pods whose lease is over.

Their Secrets are deleted with them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from emep.kubernetes import status
from emep.kubernetes.log_shipping import REST_SECONDS, adopted
from emep.kubernetes.status import Phase, PodState

if TYPE_CHECKING:
    from emep.hooks.job_watch import Hub
    from emep.kubernetes.watch import PodHub

log = logging.getLogger(__name__)

OVER = ("released", "lost")
LEFT_GRACE = 5.0
"""Grace period in seconds for a pod whose lease is over: nothing that it still does counts."""


class NodeReports:
    """The readiness of the cluster's nodes, and how much of it has been reported to the ledger."""

    def __init__(self, ledger: Hub) -> None:
        self._ledger = ledger
        self._now: dict[str, tuple[bool, str]] = {}
        self._told: dict[str, tuple[bool, str]] = {}
        self._busy = asyncio.Lock()

    def note(self, kind: str, node: dict[str, Any]) -> bool:
        """Take a node from the watch; True if its readiness has changed."""
        name = str(node["metadata"]["name"])
        gone = (False, "it was removed from the cluster")
        said = gone if kind == "DELETED" else status.is_ready(node)
        is_news = self._now.get(name, (None, ""))[0] != said[0]
        self._now[name] = said
        return is_news

    def trouble(self, name: str) -> str:
        """Why a node is not ready; empty if it is, or if that is unknown."""
        ready, reason = self._now.get(name, (True, ""))
        return "" if ready else reason

    async def report(self) -> None:
        """Report changes to the ledger, but only of nodes that are EMEP's."""
        from emep.client import EmepApiError, EmepError
        from emep.wire.leases import NodeReadiness

        async with self._busy:
            for name, said in list(self._now.items()):
                if self._told.get(name) == said or (
                    name not in self._told and name not in await self._known()
                ):
                    continue
                try:
                    client = await self._ledger.client()
                    await client.readiness(name, NodeReadiness(ready=said[0], reason=said[1]))
                    self._told[name] = said
                except EmepApiError as error:
                    self._told[name] = said
                    if error.status != 404:
                        log.warning("the readiness of node %s is not taken: %s", name, error)
                except EmepError as error:
                    log.warning("the readiness of node %s cannot be told: %s", name, error)

    async def _known(self) -> set[str]:
        """Names of EMEP's own nodes."""
        from emep.client import EmepError

        try:
            page = await (await self._ledger.client()).nodes()
        except EmepError:
            return set()
        return {str(node["name"] if isinstance(node, dict) else node.name) for node in page.items}


async def confirm_gone(ledger: Hub, allocation_id: str) -> None:
    """Confirm that nothing of an allocation runs; while its lease is alive, its trigger reports the end."""
    from emep.client import EmepError

    try:
        await (await ledger.client()).gone(allocation_id)
    except EmepError as error:
        log.debug("%s is not confirmed gone: %s", allocation_id, error)


async def sweep(hub: PodHub, followed: set[str]) -> None:
    """Delete pods whose lease is over and that no trigger here looks after; their logs are kept."""
    over = []
    for pod in list(hub.store.pods.values()):
        job_id, allocation_id, _ = status.identity(pod)
        if job_id in followed or pod["metadata"].get("deletionTimestamp"):
            continue
        if not await _is_over(hub.ledger, allocation_id) or _is_kept(pod):
            continue
        over.append(pod)
    await asyncio.gather(*(_end(hub, pod) for pod in over))


async def _end(hub: PodHub, pod: dict[str, Any]) -> None:
    name = pod["metadata"]["name"]

    def state(container: str) -> PodState | None:
        now = hub.store.pods.get(name)
        return None if now is None else status.read(now, container)

    shipping = await adopted(hub, pod, hub.ledger.client, state)
    try:
        if shipping is not None:
            await shipping.before_end()
        log.warning("pod %s is deleted: its lease is over", name)
        await (await hub.client()).delete(f"{hub.path}/{name}", LEFT_GRACE, pod["metadata"]["uid"])
        if shipping is not None:
            await shipping.finish(LEFT_GRACE + REST_SECONDS, "its pod has been deleted")
    finally:
        if shipping is not None:
            await shipping.close()


async def _is_over(ledger: Hub, allocation_id: str) -> bool:
    """Whether the ledger says that a lease is over; an unknown one may belong to another EMEP."""
    from emep.client import EmepApiError, calls

    try:
        found = await (await ledger.client()).raw(calls.allocation(allocation_id))
    except EmepApiError as error:
        if error.status == 404:
            return False
        raise
    return found["state"] in OVER


def _is_kept(pod: dict[str, Any]) -> bool:
    """Whether it is a finished pod that the user wants to keep; it holds no GPUs any more."""
    wish = (pod["metadata"].get("annotations") or {}).get("emep/on-finish", "")
    return bool(wish) and (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_active(pod: dict[str, Any], base: str) -> bool:
    """Whether anything of its work may still run."""
    return status.read(pod, base).phase in (Phase.WAITING, Phase.BROKEN, Phase.RUNNING)

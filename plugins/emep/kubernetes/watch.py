"""One watch of a namespace's pods and one of the cluster's nodes, for all triggers of a triggerer.

There is one hub for each event loop, cluster and namespace. A watch continues from its last resource version,
and lists anew if that is too old. The hub also deletes pods whose lease is over, and confirms each pod that
leaves to the ledger, so that its GPUs are offered again. Its tasks run in an empty context, because the
triggerer finds a trigger's log by its context and the hub belongs to no trigger.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from emep.kubernetes import status
from emep.kubernetes.client import Cluster, KubeClient, KubeError, KubeUnreachableError, open_client
from emep.kubernetes.manifest import JOB
from emep.kubernetes.pod_store import PodStore
from emep.kubernetes.sweep import NodeReports, confirm_gone, sweep

if TYPE_CHECKING:
    from emep.hooks.job_watch import Hub

log = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
SWEEP_SECONDS = 60.0
MAX_BACKOFF = 10.0


class PodHub:
    """The shared watch of one namespace; get it with ``PodHub.get``, leave it with ``leave``."""

    _hubs: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], PodHub]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, cluster: Cluster, namespace: str, ledger: Hub) -> None:
        self.cluster, self.namespace, self.ledger = cluster, namespace, ledger
        self.store = PodStore()
        self.seen_at = 0.0
        """When the watch last heard of the cluster (monotonic)."""
        self._client: KubeClient | None = None
        self._opening = asyncio.Lock()
        self._wakers: dict[str, set[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._synced = asyncio.Event()
        self._problem: Exception | None = None
        self._nodes = NodeReports(ledger)

    @classmethod
    async def get(cls, cluster: Cluster, namespace: str, ledger: Hub) -> PodHub:
        """The hub of the running loop. Heavy modules are imported in a thread, once."""
        await asyncio.to_thread(_import_heavy_modules)
        hubs = cls._hubs.setdefault(asyncio.get_running_loop(), {})
        key = (cluster, namespace, ledger.conn_id)
        if key not in hubs:
            hubs[key] = cls(cluster, namespace, ledger)
        hubs[key].ledger = ledger
        return hubs[key]

    # ---- who watches ---------------------------------------------------------------------------------------

    def join(self, job_id: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever a pod of the job, or any node, has changed."""
        self._wakers.setdefault(job_id, set()).add(wake)
        if not self._tasks:
            self._synced.clear()
            self._problem = None
            for work in (self._watch_pods(), self._watch_nodes(), self._sweep()):
                self._spawn(work)

    async def leave(self, job_id: str, wake: Callable[[], None]) -> None:
        """Stop calling ``wake``; the last trigger that leaves closes the client."""
        group = self._wakers.get(job_id, set())
        group.discard(wake)
        if not group:
            self._wakers.pop(job_id, None)
        if self._wakers:
            return
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def synced(self) -> None:
        """Wait until the pods are known.

        Raises ConnectionUnusableError or KubeError (401, 403) if waiting does not help.
        """
        while not self._synced.is_set():
            if self._problem is not None:
                raise self._problem
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._synced.wait()

    # ---- what is known -------------------------------------------------------------------------------------

    async def client(self) -> KubeClient:
        """The one client of this hub. Raises ConnectionUnusableError."""
        async with self._opening:
            if self._client is None:
                self._client = await open_client(self.cluster)
            return self._client

    def node_trouble(self, pod: dict[str, Any]) -> str:
        """Why the node of a pod is not ready; empty if it is, or if that is unknown."""
        return self._nodes.trouble(str((pod.get("spec") or {}).get("nodeName") or ""))

    @property
    def path(self) -> str:
        """Path of the namespace's pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    # ---- watches -------------------------------------------------------------------------------------------

    async def _watch_pods(self) -> None:
        await self._for_ever(
            "pods", self.path, {"labelSelector": JOB}, self._pods_listed, self._pod_event, vital=True
        )

    async def _watch_nodes(self) -> None:
        await self._for_ever("nodes", "/api/v1/nodes", {}, self._nodes_listed, self._node_event, vital=False)

    async def _for_ever(
        self,
        what: str,
        path: str,
        query: dict[str, str | None],
        listed: Callable[[list[dict[str, Any]]], None],
        changed: Callable[[str, dict[str, Any]], None],
        *,
        vital: bool,
    ) -> None:
        """List, then watch, for ever; after an outage it tries again, with growing pauses."""
        version, failures = "", 0
        while True:
            try:
                client = await self.client()
                if not version:
                    found = await client.get(path, **{**query, "resourceVersion": None})
                    listed(found.get("items") or [])
                    version = found["metadata"]["resourceVersion"]
                    self._heard(vital)
                failures = 0
                async for event in client.watch(
                    path, seconds=WATCH_SECONDS, resourceVersion=version, **query
                ):
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._heard(vital)
                    if event["type"] != "BOOKMARK":
                        changed(event["type"], event["object"])
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures += 1
                if isinstance(error, KubeError) and error.status in (410, 500):
                    version = ""
                    if error.status == 410:
                        continue
                pause = min(MAX_BACKOFF, 0.5 * 2 ** min(failures, 5)) * random.uniform(0.5, 1.0)
                await self._troubled(what, error, failures, pause, vital)
                await asyncio.sleep(pause)

    def _heard(self, vital: bool) -> None:
        if vital:
            self.seen_at, self._problem = time.monotonic(), None
            self._synced.set()

    async def _troubled(self, what: str, error: Exception, failures: int, pause: float, vital: bool) -> None:
        """Log the error; if waiting does not help, raise it in triggers that have no pod yet."""
        log.log(
            logging.WARNING if failures == 1 else logging.DEBUG,
            "%s of %s in %s cannot be watched (%s); again in %.1f s",
            what, self.cluster.words, self.namespace, error, pause,
        )  # fmt: skip
        transient = isinstance(error, KubeUnreachableError) or (
            isinstance(error, KubeError) and error.status not in (401, 403)
        )
        if vital and not transient and not isinstance(error, (ValueError, KeyError)):
            self._problem = error
        if isinstance(error, KubeError) and error.status == 401:
            await self._forget_client()

    async def _forget_client(self) -> None:
        """Open a new client next time, because the connection may have been corrected."""
        async with self._opening:
            client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _wake(self, job_id: str | None = None) -> None:
        groups = self._wakers.values() if job_id is None else [self._wakers.get(job_id, set())]
        for group in list(groups):
            for wake in list(group):
                wake()

    def _pods_listed(self, pods: list[dict[str, Any]]) -> None:
        for pod in self.store.replace(pods):
            self._departs(pod)
        self._wake()

    def _pod_event(self, kind: str, pod: dict[str, Any]) -> None:
        if kind == "DELETED":
            self.store.remove(pod)
            self._departs(pod)
        else:
            self.store.put(pod)
        self._wake(status.identity(pod)[0])

    def _departs(self, pod: dict[str, Any]) -> None:
        """Confirm to the ledger that a pod is gone, so that its GPUs are offered again."""
        allocation = status.identity(pod)[1]
        if allocation:
            self._spawn(confirm_gone(self.ledger, allocation))

    def _nodes_listed(self, nodes: list[dict[str, Any]]) -> None:
        for node in nodes:
            self._node_event("MODIFIED", node)

    def _node_event(self, kind: str, node: dict[str, Any]) -> None:
        if self._nodes.note(kind, node):
            self._spawn(self._nodes.report())
            self._wake()

    # ---- what is left behind -------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        await self._synced.wait()
        while True:
            try:
                await sweep(self, set(self._wakers))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("what is left in %s could not be looked for: %s", self.namespace, error)
            await asyncio.sleep(SWEEP_SECONDS)


def _import_heavy_modules() -> None:
    from importlib import import_module

    # Seconds of imports, which would hold up every other trigger.
    for name in ("hooks.kubernetes", "kube_client"):
        import_module(f"airflow.providers.cncf.kubernetes.{name}")
    import_module("emep.wire.documents")

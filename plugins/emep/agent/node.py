"""Registers the agent's node with the API, and reports the health of its GPUs every ten seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from emep.agent.folders import read_json, takes_files, write_atomically
from emep.agent.settings import AgentSettings, AgentStartError
from emep.agent.telemetry import Telemetry
from emep.agent.telemetry.xids import XidRules
from emep.client import AsyncEmepClient, EmepApiError, EmepConnectionError, EmepError, calls
from emep.wire.nodes import GpuHealth, HealthReport, NodeRequest

log = logging.getLogger(__name__)


class NodeReporter:
    """Registers one node and reports its health."""

    def __init__(self, settings: AgentSettings, telemetry: Telemetry, client: AsyncEmepClient) -> None:
        self._settings, self._telemetry, self._client = settings, telemetry, client
        self._mark = settings.state_dir / "registered.json"
        self.gpus = {gpu.index: gpu for gpu in telemetry.describe()}
        self._unsent_restarts: dict[int, int] = {}
        """GPU index -> an Xid that asks for a restart, and that no report has delivered yet."""
        self.cannot_start: str | None = None
        """Why no work can be started on this node, since an order could not be carried out for it."""

    def description(self) -> NodeRequest:
        """The node as it registers."""
        settings = self._settings
        return NodeRequest(
            name=settings.name,
            pool=settings.pool,
            rack=settings.rack,
            block=settings.block,
            labels=dict(settings.labels),
            cpu=settings.cpu,
            memory=settings.memory,
            network_bandwidth_gbps=settings.bandwidth_gbps,
            gpus=list(self.gpus.values()),
        )

    async def register(self) -> EmepError | None:
        """Register the node; returns an error if another try may succeed, else None.

        Raises AgentStartError where the API refuses the secret or the description for good, and where another
        agent serves a node of this name.
        """
        try:
            await self._check_alone()
            await self._client.raw(calls.register_node(self.description()))
        except EmepApiError as error:
            api = self._client.api_url
            if error.status in (401, 403):
                raise AgentStartError(
                    f"the API at {api} refuses this agent's secret (EMEP_AGENT_TOKEN): {error}"
                ) from error
            if error.status < 500 and error.status not in (408, 425, 429):
                raise AgentStartError(f"the API at {api} refuses this node: {error}") from error
            return error
        except EmepConnectionError as error:
            return error
        self._note_registered()
        log.info(
            "node %s offers %d GPUs (%s) and %g CPUs to %s",
            self._settings.name,
            len(self.gpus),
            self._telemetry.kind,
            self._settings.cpu,
            self._client.api_url,
        )
        return None

    async def _check_alone(self) -> None:
        """Check that no other agent serves a node of this name.

        Two agents of one name, on two hosts, would both start the same granted work. They share no state
        folder, so an agent that has never registered from its own folder must not find the node alive. Raises
        AgentStartError, or EmepError if the API cannot be asked.
        """
        name = self._settings.name
        if self._settings.report_only or read_json(self._mark) == name:
            return
        try:
            node = await self._client.raw(calls.node(name))
        except EmepApiError as error:
            if error.status == 404:
                return
            raise
        if node["alive"]:
            raise AgentStartError(
                f"--name: an agent of node {name} is alive already, with another state folder than "
                f"{self._settings.state_dir}: give each agent a name of its own, stop the other one, or wait "
                "until it has been silent for the policy's lease.expiry"
            )

    def _note_registered(self) -> None:
        """Record in the state folder that it belongs to the registered node."""
        try:
            write_atomically(self._mark, json.dumps(self._settings.name))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._mark, error)

    async def register_if_unknown(self, error: EmepError) -> None:
        """Register again with an API that has lost the node or some of its GPUs.

        This happens after its database was restored from an older copy.
        """
        if isinstance(error, EmepApiError) and (
            error.status == 404 or (error.status == 422 and error.field == "gpus")
        ):
            with suppress(EmepError):
                await self._client.raw(calls.register_node(self.description()))

    async def report_for_ever(self, sessions: Callable[[], Mapping[int, int]]) -> None:
        """Report every ten seconds, counted from the last report's planned time, until cancelled.

        ``sessions`` says which GPU is held by the work in which session.
        """
        due = time.monotonic()
        while True:
            try:
                held = sessions()
                gpus = await asyncio.to_thread(self._telemetry.sample, held)
                if self.cannot_start is not None:
                    gpus = await asyncio.to_thread(self._without_free, gpus, held)
                await self._report(gpus)
            except EmepError as error:
                log.warning("health report: %s", error)
                await self.register_if_unknown(error)
            except Exception:
                # A driver that fails in a new way must not end the work; the missing report shows the
                # failure.
                log.exception("the GPUs' health could not be read")
            due = max(due + self._settings.report_every, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _report(self, gpus: Sequence[GpuHealth]) -> None:
        """Send a report, and apply the policy's rules for Xids. A one-time event is sent until it arrives."""
        self._unsent_restarts |= {gpu.index: gpu.restart_xid for gpu in gpus if gpu.restart_xid is not None}
        whole = [
            gpu.model_copy(update={"restart_xid": self._unsent_restarts[gpu.index]})
            if gpu.index in self._unsent_restarts
            else gpu
            for gpu in gpus
        ]
        answer = await self._client.raw(calls.report_health(self._settings.name, HealthReport(gpus=whole)))
        self._unsent_restarts.clear()
        # An API of an earlier release says nothing of Xids.
        xids = (answer or {}).get("xids") or {}
        try:
            self._telemetry.xid_rules = XidRules({int(xid): action for xid, action in xids.items()})
        except ValueError as error:
            log.warning("what the API says of Xids is not understood, the rules stay as they are: %s", error)

    def _without_free(self, gpus: Sequence[GpuHealth], held: Collection[int]) -> list[GpuHealth]:
        """The report of a node that cannot start work: running work goes on, but free GPUs count as bad.

        Otherwise each job sent here would wait until its start deadline, again and again.
        """
        if takes_files(self._settings.state_dir / "runs"):
            log.info("work can be started again")
            self.cannot_start = None
            return list(gpus)
        bad = {"healthy": False, "reason": self.cannot_start}
        return [gpu if gpu.index in held or not gpu.healthy else gpu.model_copy(update=bad) for gpu in gpus]

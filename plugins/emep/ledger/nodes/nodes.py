"""Nodes: registration, health reports, and the end of a node."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy import delete, func, select

from emep.ledger.context import LedgerContext
from emep.ledger.jobs.outcomes import JobOutcomes
from emep.ledger.lifecycle.allocation import AllocationLifecycle
from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState, YieldCause
from emep.ledger.store.database import Transaction
from emep.ledger.store.findings import run_safely
from emep.ledger.store.node_rows import PATCHABLE
from emep.ledger.store.repository import get_allocation, get_job, get_node, node_allocations
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Gpu, Node
from emep.ledger.store.views import node_views
from emep.scheduling.model import GpuState
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, InvalidError
from emep.wire.jobs import Page
from emep.wire.nodes import GpuHealth, GpuReport, HealthReport, NodeRequest, NodeView, ReportAnswer
from emep.wire.units import count_of

REPORTED, NO_REPORT = "reported", "no_report"
"""Why a GPU is unhealthy."""


class Nodes:
    """Keeps the nodes, their GPUs and what is reported of them."""

    def __init__(self, context: LedgerContext, lifecycle: AllocationLifecycle, outcomes: JobOutcomes) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._outcomes = outcomes

    def views(self, name: str | None = None) -> list[NodeView]:
        """All nodes, or the one named."""
        with self._context.database.read() as session:
            if name is not None:
                get_node(session, name)
            return node_views(session, self._context.now, self._context.alive_for(), name)

    def page(self, after: str | None = None, limit: int = 1000) -> Page:
        """A page of nodes by name; ``after`` is the last one of the page before."""
        names = select(Node.name).order_by(Node.name).limit(limit + 1)
        if after is not None:
            names = names.where(Node.name > after)
        with self._context.database.read() as session:
            total = session.scalar(select(func.count()).select_from(Node)) or 0
            found = list(session.scalars(names))
            page = found[:limit]
            span = (page[0], page[-1]) if page else None
            views = (
                node_views(session, self._context.now, self._context.alive_for(), span=span) if span else []
            )
        return Page(items=views, total=total, next=page[-1] if len(found) > limit else None)

    # ---- registration --------------------------------------------------------------------------------------

    def register(self, request: NodeRequest) -> NodeView:
        """Take a node in, or its new description; what is known of its GPUs' health is kept.

        Raises InvalidError where an index or UUID comes twice, ConflictError where a GPU belongs to another
        node that is alive, or one that is to go is held by a job.
        """
        _check_gpus(request.gpus)
        self._context.database.write(lambda tx: self._register(tx, request), holds=True)
        self._context.known_nodes.forget()
        return self.views(request.name)[0]

    def _register(self, tx: Transaction, request: NodeRequest) -> None:
        node = tx.session.get(Node, request.name, with_for_update=True)
        is_new = node is None
        if node is None:
            node = Node(name=request.name, registrations=0, registered_at=tx.now, drain=False)
            tx.session.add(node)
        node.cpu, node.memory = request.cpu, request.memory
        _describe(node, request)
        node.registrations += 1
        node.last_report_at = node.last_check_at = tx.now
        node.has_left = False
        tx.session.flush()
        self._take_from_dead_nodes(tx, request)
        known = {
            gpu.gpu_index: gpu for gpu in tx.session.scalars(select(Gpu).where(Gpu.node == request.name))
        }
        self._remove_gpus(tx, request, known)
        tx.changes_holds()
        for report in request.gpus:
            self._describe_gpu(tx, request.name, report, known.get(report.index))
        tx.session.flush()
        tx.emit(
            "node_registered" if is_new else "node_registered_again",
            node=request.name,
            actor="agent",
            reason=f"{count_of(len(request.gpus), 'GPU')} in pool {node.pool}",
            gpus=[report.model_dump() for report in request.gpus],
        )

    def _take_from_dead_nodes(self, tx: Transaction, request: NodeRequest) -> None:
        """Take GPUs that the agent lists away from nodes that are gone: a GPU is where its agent says."""
        uuids = [report.uuid for report in request.gpus]
        elsewhere = tx.session.execute(
            select(Gpu, Node)
            .join(Node, Node.name == Gpu.node)
            .where(Gpu.uuid.in_(uuids), Gpu.node != request.name)
        ).all()
        for gpu, node in elsewhere:
            held = tx.session.get(AllocationGpu, (gpu.node, gpu.gpu_index))
            if held is not None or tx.now - node.last_report_at <= self._context.policy.lease.expiry:
                raise ConflictError(
                    f"gpus: {gpu.uuid} belongs to node {gpu.node}, which is alive or holds work on it; "
                    "two agents must not offer one GPU",
                    field="gpus",
                )
            tx.session.delete(gpu)
            tx.emit(
                "gpu_moved",
                node=gpu.node,
                actor="agent",
                reason=f"{gpu.uuid} is offered by {request.name} now",
                gpu_index=gpu.gpu_index,
            )
        tx.session.flush()

    def _remove_gpus(self, tx: Transaction, request: NodeRequest, known: dict[int, Gpu]) -> None:
        described = {report.index: report.uuid for report in request.gpus}
        for index, gpu in known.items():
            if described.get(index) == gpu.uuid:
                continue
            if tx.session.get(AllocationGpu, (request.name, index)) is not None:
                raise ConflictError(
                    f"gpus: GPU {index} ({gpu.uuid}) of {request.name} is held by a job; it can be removed "
                    "or exchanged once the agent's poll no longer lists that work",
                    field="gpus",
                )
            tx.session.delete(gpu)
        tx.session.flush()

    @staticmethod
    def _describe_gpu(tx: Transaction, node: str, report: GpuReport, before: Gpu | None) -> None:
        gpu = before
        if gpu is None or gpu.uuid != report.uuid:
            gpu = Gpu(node=node, gpu_index=report.index, uuid=report.uuid, state=GpuState.HEALTHY.value)
            gpu.state_reason, gpu.bad_checks, gpu.good_checks, gpu.drain = "", 0, 0, False
            if before is not None:
                # Exchanged while drained: the operator who drained it says when its slot is used again.
                gpu.drain, gpu.drain_reason = before.drain, before.drain_reason
            tx.session.add(gpu)
        gpu.gpu_type, gpu.memory, gpu.nvlink_group = (
            report.gpu_type,
            report.gpu_memory,
            report.nvlink_group_id,
        )

    # ---- health --------------------------------------------------------------------------------------------

    def report_health(self, name: str, report: HealthReport) -> ReportAnswer:
        """Count one check for each GPU of the node; one that the report leaves out has failed it.

        After ``failed_checks`` failures in a row a GPU is unhealthy and its jobs are told to yield, after
        ``good_checks`` good ones it is back.
        """
        seen: set[int] = set()
        for entry in report.gpus:
            if entry.index in seen:
                raise InvalidError(f"gpus: index {entry.index} comes twice", field="gpus")
            seen.add(entry.index)
        self._context.database.write(
            lambda tx: self._report(tx, name, {entry.index: entry for entry in report.gpus})
        )
        return ReportAnswer(**dict(self.views(name)[0]), xids=dict(self._context.policy.xids))

    def _report(self, tx: Transaction, name: str, entries: dict[int, GpuHealth]) -> None:
        node = get_node(tx.session, name, lock=True)
        gpus = {gpu.gpu_index: gpu for gpu in tx.session.scalars(select(Gpu).where(Gpu.node == name))}
        unknown = sorted(set(entries) - set(gpus))
        if unknown:
            raise InvalidError(
                f"gpus: node {name} has no GPU {unknown[0]}; register it with POST /nodes first", field="gpus"
            )
        was_silent = tx.now - node.last_report_at > self._context.alive_for()
        node.last_report_at = node.last_check_at = tx.now
        for index, gpu in gpus.items():
            entry = entries.get(index)
            if entry is None:
                self.failed_check(tx, gpu, NO_REPORT, f"no report of GPU {index}")
                continue
            if entry.restart_xid is not None:
                self._restart_work(tx, gpu, entry.restart_xid)
            gpu.utilization, gpu.temperature_c = entry.utilization, entry.temperature_c
            gpu.memory_used, gpu.reported_at = entry.memory_used, tx.now
            if entry.healthy:
                self._good_check(tx, gpu)
            else:
                self.failed_check(tx, gpu, REPORTED, entry.reason or "reported unhealthy")
        if was_silent:
            tx.changes_holds()
            tx.emit("node_back", node=name, actor="agent", reason="its agent reports again")

    def failed_check(self, tx: Transaction, gpu: Gpu, kind: str, reason: str) -> None:
        """One failed check; enough of them in a row make the GPU unhealthy (reported or no_report)."""
        health = self._context.policy.health
        gpu.good_checks = 0
        gpu.bad_checks = min(gpu.bad_checks + 1, 1_000_000)
        if gpu.bad_checks < health.failed_checks:
            return
        already = gpu.state == GpuState.UNHEALTHY.value and gpu.state_reason.startswith(kind)
        if already:
            return
        gpu.state, gpu.state_reason = GpuState.UNHEALTHY.value, f"{kind}: {reason}"[:2000]
        tx.changes_holds()
        sentence = (
            f"GPU {gpu.node}:{gpu.gpu_index} is unhealthy after {count_of(gpu.bad_checks, 'failed check')}: "
            f"{reason}"
        )
        tx.emit("gpu_unhealthy", node=gpu.node, code=kind, reason=sentence, gpu_index=gpu.gpu_index)
        if kind == REPORTED:
            self._yield_gpu(tx, gpu, sentence)

    def _good_check(self, tx: Transaction, gpu: Gpu) -> None:
        gpu.bad_checks = 0
        gpu.good_checks = min(gpu.good_checks + 1, 1_000_000)
        if (
            gpu.state == GpuState.UNHEALTHY.value
            and gpu.good_checks >= self._context.policy.health.good_checks
        ):
            gpu.state, gpu.state_reason = GpuState.HEALTHY.value, ""
            tx.changes_holds()
            checks = count_of(gpu.good_checks, "good check")
            reason = f"GPU {gpu.node}:{gpu.gpu_index} is healthy again after {checks}"
            tx.emit("gpu_healthy", node=gpu.node, reason=reason, gpu_index=gpu.gpu_index)

    def _restart_work(self, tx: Transaction, gpu: Gpu, xid: int) -> None:
        """Requeue the work on a GPU because an Xid asks for its restart; the GPU stays in service.

        Only work that ran there before the last report is requeued; else another job may have caused the Xid.
        """
        sentence = f"Xid {xid} on GPU {gpu.node}:{gpu.gpu_index} asks for its work to be restarted"
        tx.emit("gpu_xid", node=gpu.node, code=f"xid_{xid}", reason=sentence, gpu_index=gpu.gpu_index)
        if gpu.reported_at is not None:
            self._yield_gpu(tx, gpu, sentence, before=gpu.reported_at)

    def _yield_gpu(self, tx: Transaction, gpu: Gpu, reason: str, before: float = math.inf) -> None:
        """Tell the job on a GPU that was reported bad to yield, if it began ``before`` then."""
        held = tx.session.get(AllocationGpu, (gpu.node, gpu.gpu_index))
        if held is None:
            return
        allocation = tx.session.get(Allocation, held.allocation_id)
        if allocation is None or allocation.state != AllocationState.ACTIVE.value:
            return
        if (allocation.first_heartbeat_at or allocation.granted_at) > before:
            return
        job = get_job(tx.session, allocation.job_id)
        if JobState(job.state) is JobState.RUNNING:
            self._lifecycle.tell_to_yield(tx, job, allocation, YieldCause.UNHEALTHY, reason)

    # ---- readiness ---------------------------------------------------------------------------------------

    def set_readiness(self, name: str, *, ready: bool, reason: str, actor: str) -> NodeView:
        """Record whether the cluster manager calls a node ready.

        A node that is not ready gets no work, and work that has not reported from it yet is requeued at once.
        """

        def work(tx: Transaction) -> None:
            node = get_node(tx.session, name, lock=True)
            if node.is_ready == ready and node.ready_reason == reason:
                return
            changed, node.is_ready, node.ready_reason = node.is_ready != ready, ready, reason
            tx.session.flush()
            if changed:
                event = "node_ready" if ready else "node_not_ready"
                tx.emit(event, node=name, actor=actor, reason=reason)

        self._context.database.write(work)
        if not ready:
            for allocation_id in self._not_begun(name):
                run_safely(self._lose_on_unready, allocation_id, name, reason)
        return self.views(name)[0]

    def _not_begun(self, node: str) -> Sequence[str]:
        query = (
            select(Allocation.id)
            .join(AllocationNode, AllocationNode.allocation_id == Allocation.id)
            .where(AllocationNode.node == node, Allocation.state == AllocationState.GRANTED.value)
        )
        with self._context.database.read() as session:
            return list(session.scalars(query))

    def _lose_on_unready(self, allocation_id: str, node: str, reason: str) -> None:
        def work(tx: Transaction) -> None:
            job = get_job(tx.session, get_allocation(tx.session, allocation_id).job_id, lock=True)
            allocation = get_allocation(tx.session, allocation_id, lock=True)
            if allocation.state == AllocationState.GRANTED.value:
                self._outcomes.lose(
                    tx, job, allocation, "node_not_ready", f"node {node} is not ready: {reason}"
                )

        self._context.database.write(work)

    # ---- the end -------------------------------------------------------------------------------------------

    def remove(self, name: str, *, actor: str) -> None:
        """Forget a node that is gone for good. Raises ConflictError while it is alive or runs work."""

        def work(tx: Transaction) -> None:
            node = get_node(tx.session, name, lock=True)
            rows = node_allocations(tx.session, name)
            if not node.has_left and tx.now - node.last_report_at <= self._context.alive_for():
                raise ConflictError(f"node {name} is alive: stop its agent first")
            if any(AllocationState(allocation.state) in LIVE_ALLOCATION_STATES for _, allocation in rows):
                raise ConflictError(f"node {name} still holds work: wait for its leases to run out")
            for _, allocation in rows:
                self._lifecycle.confirm_gone(tx, allocation, name)
            tx.session.execute(delete(AllocationNode).where(AllocationNode.node == name))
            tx.session.execute(delete(Gpu).where(Gpu.node == name))
            tx.session.execute(delete(Node).where(Node.name == name))
            tx.emit("node_removed", node=name, actor=actor)

        self._context.database.write(work)
        self._context.known_nodes.forget()


def _describe(node: Node, request: NodeRequest) -> None:
    """Copy the agent's description to the node, except for fields that an operator has set."""
    patched = {field: dict(entry) for field, entry in (node.patched or {}).items()}
    for field in PATCHABLE:
        said = getattr(request, field)
        if field in patched:
            patched[field]["agent"] = said
        setattr(node, field, patched[field]["set"] if field in patched else said)
    node.patched = patched


def _check_gpus(gpus: Sequence[GpuReport]) -> None:
    indices: set[int] = set()
    uuids: set[str] = set()
    for position, gpu in enumerate(gpus):
        if gpu.index in indices:
            raise InvalidError(
                f"gpus[{position}].index: {gpu.index} comes twice", field=f"gpus[{position}].index"
            )
        if gpu.uuid in uuids:
            raise InvalidError(
                f"gpus[{position}].uuid: {gpu.uuid} comes twice", field=f"gpus[{position}].uuid"
            )
        indices.add(gpu.index)
        uuids.add(gpu.uuid)

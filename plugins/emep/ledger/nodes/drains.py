"""Drains: takes nodes and GPUs out of service for an operator, and applies his corrections to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from emep.ledger.context import LedgerContext
from emep.ledger.failing_nodes.failure_checks import clear_checks
from emep.ledger.jobs.evictions import Evictions
from emep.ledger.states import LIVE_ALLOCATION_STATES, YieldCause
from emep.ledger.store.database import LostRaceError, Transaction
from emep.ledger.store.node_rows import PATCHABLE
from emep.ledger.store.repository import current_allocation, get_job, get_node
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Gpu, Job, Node
from emep.ledger.store.views import node_views
from emep.wire.errors import InvalidError, NotFoundError
from emep.wire.nodes import NodeView
from emep.wire.operations import NodePatch

_LIVE = [state.value for state in LIVE_ALLOCATION_STATES]


class Drains:
    """Takes nodes out of service, brings them back, and corrects their descriptions."""

    def __init__(self, context: LedgerContext, evictions: Evictions) -> None:
        self._context = context
        self._evictions = evictions

    def drain(
        self, name: str, gpu: int | None = None, *, now: bool = False, reason: str = "", actor: str
    ) -> NodeView:
        """Give a node, or one GPU of it, no new work; what runs may finish, or with ``now`` is told to yield.

        Repeating the call changes only the reason. Raises NotFoundError for an unknown node or GPU.
        """

        def work(tx: Transaction) -> None:
            # Jobs are locked first, as everywhere; the planner locks the GPUs' rows before it grants.
            get_node(tx.session, name)
            leaving = self._lock_work(tx, name, gpu) if now else []
            node, rows = self._lock_hardware(tx, name, gpu)
            target = node if gpu is None else rows[0]
            if not target.drain or (reason and target.drain_reason != reason):
                target.drain, target.drain_reason = True, reason
                tx.session.flush()
                tx.changes_holds()
                self._emit(tx, "drained", name, gpu, actor, reason, now=now)
            if now and {job.id for job, _ in leaving} != set(self._work_on(tx, name, gpu)):
                raise LostRaceError(f"work of {name} has come or gone meanwhile")
            why = f"{_where(name, gpu)} is drained" + (f": {reason}" if reason else "")
            for job, allocation in leaving:
                self._evictions.take_back(tx, job, allocation, YieldCause.DRAIN, why, actor)

        self._context.database.write(work, holds=True)
        return self._view(name)

    def resume(self, name: str, gpu: int | None = None, *, reason: str = "", actor: str) -> NodeView:
        """Let a node, or one GPU of it, take work again, also a node that was taken out for failing its jobs.

        A GPU that was drained by itself stays so when its node is resumed, and one whose node is drained when
        it is resumed itself.
        """

        def work(tx: Transaction) -> None:
            node, rows = self._lock_hardware(tx, name, gpu)
            target = node if gpu is None else rows[0]
            is_checked = target is node and node.check_state != ""
            if is_checked:
                clear_checks(node)
            if target.drain or is_checked:
                target.drain, target.drain_reason = False, ""
                tx.session.flush()
                tx.changes_holds()
                self._emit(tx, "resumed", name, gpu, actor, reason)

        self._context.database.write(work, holds=True)
        return self._view(name)

    def patch_node(self, name: str, patch: NodePatch, *, reason: str = "", actor: str) -> NodeView:
        """Set fields of a node over what its agent says of it, also when that registers again.

        A field that is null goes back to the agent's word. Raises InvalidError where no field is given.
        """
        given = {field: getattr(patch, field) for field in PATCHABLE if field in patch.model_fields_set}
        if not given:
            raise InvalidError(f"name at least one field to change: {', '.join(PATCHABLE)}", field="body")

        def work(tx: Transaction) -> None:
            node = get_node(tx.session, name, lock=True)
            patched = dict(node.patched or {})
            before = {field: getattr(node, field) for field in given}
            for field, value in given.items():
                own = patched.get(field, {"agent": getattr(node, field)})["agent"]
                patched.pop(field, None)
                if value is not None:
                    patched[field] = {"set": value, "agent": own}
                setattr(node, field, own if value is None else value)
            node.patched = patched
            # Which jobs can never run depends on nodes: caches of them must be read again.
            node.registrations += 1
            tx.session.flush()
            tx.changes_holds()
            sets = {field: getattr(node, field) for field in given}
            tx.emit("node_changed", node=name, actor=actor, reason=reason, before=before, after=sets)

        self._context.database.write(work, holds=True)
        self._context.known_nodes.forget()
        return self._view(name)

    # ---- helpers -------------------------------------------------------------------------------------------

    def _view(self, name: str) -> NodeView:
        with self._context.database.read() as session:
            return node_views(session, self._context.now, self._context.alive_for(), name)[0]

    @staticmethod
    def _lock_hardware(tx: Transaction, name: str, gpu: int | None) -> tuple[Node, Sequence[Gpu]]:
        """The node and its GPUs (or the one), locked in the order in which reports lock them."""
        node = get_node(tx.session, name, lock=True)
        query = select(Gpu).where(Gpu.node == name).order_by(Gpu.gpu_index)
        if gpu is not None:
            query = query.where(Gpu.gpu_index == gpu)
        query = query.with_for_update().execution_options(populate_existing=True)
        rows = tx.session.scalars(query).all()
        if gpu is not None and not rows:
            raise NotFoundError(f"node {name} has no GPU {gpu}: `emep nodes {name}` lists them", field="gpu")
        return node, rows

    @staticmethod
    def _work_on(tx: Transaction, name: str, gpu: int | None) -> list[str]:
        """Jobs whose live allocation has a part on the node, or holds the GPU."""
        place = AllocationNode if gpu is None else AllocationGpu
        where = [place.node == name, Allocation.state.in_(_LIVE)]
        if gpu is not None:
            where.append(AllocationGpu.gpu_index == gpu)
        query = (
            select(Allocation.job_id)
            .join(place, place.allocation_id == Allocation.id)
            .where(*where)
            .order_by(Allocation.job_id)
        )
        return list(tx.session.scalars(query))

    def _lock_work(self, tx: Transaction, name: str, gpu: int | None) -> list[tuple[Job, Allocation]]:
        jobs = [get_job(tx.session, job_id, lock=True) for job_id in self._work_on(tx, name, gpu)]
        held = [(job, current_allocation(tx.session, job, lock=True)) for job in jobs]
        return [(job, allocation) for job, allocation in held if allocation is not None]

    @staticmethod
    def _emit(
        tx: Transaction, what: str, name: str, gpu: int | None, actor: str, reason: str, **data: Any
    ) -> None:
        kind = "node" if gpu is None else "gpu"
        tx.emit(f"{kind}_{what}", node=name, actor=actor, reason=reason, gpu_index=gpu, **data)


def _where(name: str, gpu: int | None) -> str:
    return f"node {name}" if gpu is None else f"GPU {name}:{gpu}"

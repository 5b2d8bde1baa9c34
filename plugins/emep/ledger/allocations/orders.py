"""Answers to agents' polls: the work to start on a node, and the work to stop there."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from emep.ledger.allocations.environment import engine_environment
from emep.ledger.context import LedgerContext
from emep.ledger.lifecycle.allocation import AllocationLifecycle
from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.store.database import Transaction
from emep.ledger.store.ids import lease_token
from emep.ledger.store.repository import chunks, get_job, get_node, node_allocations
from emep.ledger.store.tables import Allocation, AllocationNode, Job
from emep.wire.base import Directive
from emep.wire.jobs import GpuRef
from emep.wire.nodes import PollAnswer, RunningAllocation, StartOrder, StopOrder

LEAVE_SECONDS = 30.0
"""How long work that has completed may still be listed by its agent before it is told to abort."""


class Orders:
    """Answers the polls of agents."""

    def __init__(self, context: LedgerContext, lifecycle: AllocationLifecycle) -> None:
        self._context = context
        self._lifecycle = lifecycle

    def check_in(self, name: str, running: Sequence[RunningAllocation], *, leaving: bool = False) -> None:
        """An agent's poll arrives: it is alive, and what it does not list does not run there (any more).

        GPUs of allocations that are over are offered again from here on; what it lists has been started. An
        agent that is ``leaving`` gets nothing more until it registers again.
        """
        asked_at = self._context.now
        with self._context.database.read() as session:
            node = get_node(session, name)
            rows = node_allocations(session, name)
            listed = {entry.allocation_id for entry in running}
            is_news = any(
                (
                    _is_over(allocation)
                    and allocation.runtime == "agent"
                    and on_node.allocation_id not in listed
                )
                or (not on_node.started and on_node.allocation_id in listed)
                for on_node, allocation in rows
            )
            is_fresh = self._context.now - node.last_report_at < self._context.policy.health.report_every / 2
        if is_news or leaving or not is_fresh:
            self._context.database.write(lambda tx: self._check_in(tx, name, listed, leaving, asked_at))

    def _check_in(self, tx: Transaction, name: str, listed: set[str], leaving: bool, asked_at: float) -> None:
        node = get_node(tx.session, name, lock=True)
        was_silent = tx.now - node.last_report_at > self._context.alive_for()
        node.last_report_at = tx.now
        for on_node, allocation in node_allocations(tx.session, name):
            if allocation.id in listed:
                if not on_node.started:
                    self._note_started_on(tx, allocation.id, name)
            elif (
                _is_over(allocation)
                and allocation.runtime == "agent"
                # The agent made its list before the end: it cannot include what a later poll started.
                and (allocation.ended_at or 0.0) <= asked_at
            ):
                self._lifecycle.confirm_gone(tx, allocation, name)
        if was_silent or (leaving and not node.has_left):
            tx.changes_holds()
        if leaving and not node.has_left:
            node.has_left = True
            tx.session.flush()
            tx.emit("node_left", node=name, actor="agent", reason="its agent has ended")
        elif was_silent:
            tx.emit("node_back", node=name, actor="agent", reason="its agent polls again")

    @staticmethod
    def _note_started_on(tx: Transaction, allocation_id: str, node: str) -> None:
        """Its agent lists it; the row may be gone in this moment, where the work has ended already."""
        tx.session.execute(
            update(AllocationNode)
            .where(AllocationNode.allocation_id == allocation_id, AllocationNode.node == node)
            .values(started=True)
            .execution_options(synchronize_session=False)
        )

    def due(self, name: str, running: Sequence[RunningAllocation]) -> tuple[PollAnswer, bool]:
        """What the agent is to start and to stop now, and whether GPUs wait for its next poll.

        If they do, the caller answers at once instead of holding the poll.
        """
        listed = {entry.allocation_id: entry.epoch for entry in running}
        now = self._context.now
        orders: list[StartOrder | StopOrder] = []
        wants_confirmation = False
        with self._context.database.read() as session:
            rows = node_allocations(session, name)
            known = {allocation.id for _, allocation in rows}
            strangers = [name for name in listed if name not in known]
            ended = {a.id: a for a in _allocations(session, strangers)}
            for on_node, allocation in rows:
                if allocation.runtime != "agent":
                    continue
                if allocation.id in listed:
                    stop = self._stop_order(allocation, listed[allocation.id], now)
                    orders.extend([stop] if stop else [])
                elif _is_over(allocation):
                    wants_confirmation = True
                elif allocation.state == AllocationState.GRANTED.value or (
                    allocation.state == AllocationState.ACTIVE.value
                    and not on_node.started
                    and len(allocation.nodes) > 1
                ):
                    orders.append(self._start_order(get_job(session, allocation.job_id), allocation, name))
        for stranger in strangers:
            if not _may_still_leave(ended.get(stranger), now):
                orders.append(_abort(stranger, listed[stranger]))
        return PollAnswer(orders=orders), wants_confirmation

    @staticmethod
    def _stop_order(allocation: Allocation, epoch: int, now: float) -> StopOrder | None:
        if _is_over(allocation) or epoch != allocation.epoch:
            return _abort(allocation.id, epoch)
        if allocation.state != AllocationState.YIELDING.value or allocation.yield_deadline is None:
            return None
        left = allocation.yield_deadline - now
        if left <= 0:
            return _abort(allocation.id, epoch)
        return StopOrder(
            allocation_id=allocation.id,
            epoch=epoch,
            directive=Directive.CHECKPOINT_AND_EXIT,
            grace_seconds=left,
        )

    def _start_order(self, job: Job, allocation: Allocation, node: str) -> StartOrder:
        share = len(allocation.nodes)
        return StartOrder(
            allocation_id=allocation.id,
            job_id=job.id,
            trace_id=job.trace_id,
            experiment_id=job.experiment_id,
            job_type=job.job_type,
            epoch=allocation.epoch,
            lease_token=lease_token(self._context.settings.secret_key, allocation.id, allocation.epoch),
            gpus=[
                GpuRef(node=name, index=index, uuid=uuid)
                for name, index, uuid in allocation.gpus
                if name == node
            ],
            spec=job.spec or {},
            environment=engine_environment(
                job,
                allocation,
                node,
                self._context.settings,
                self._context.policy.lease,
                self._context.policy.roots,
            ),
            cpu=job.cpu / share,
            memory=job.memory // share,
        )


def _is_over(allocation: Allocation) -> bool:
    return AllocationState(allocation.state) not in LIVE_ALLOCATION_STATES


def _may_still_leave(allocation: Allocation | None, now: float) -> bool:
    """Whether the work completed a moment ago, so that its process may still exit by itself."""
    if allocation is None or allocation.state != AllocationState.RELEASED.value:
        return False
    return now - (allocation.ended_at or 0.0) < LEAVE_SECONDS


def _allocations(session: Session, ids: Sequence[str]) -> list[Allocation]:
    found: list[Allocation] = []
    for part in chunks(ids):
        found.extend(session.scalars(select(Allocation).where(Allocation.id.in_(part))))
    return found


def _abort(allocation_id: str, epoch: int) -> StopOrder:
    return StopOrder(allocation_id=allocation_id, epoch=epoch, directive=Directive.ABORT, grace_seconds=0)

"""The state of the hardware: findings since a cursor, and when to look again.

A check-up first runs the tick's checks and then reads the audit. It decides nothing that the tick would not
decide by itself a moment later, so calling it is optional: it makes findings prompt and visible.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session

from emep.ledger.context import LedgerContext
from emep.ledger.states import LIVE_ALLOCATION_STATES, YieldCause
from emep.ledger.store.repository import clock_row
from emep.ledger.store.tables import Allocation, AllocationGpu, Event, Gpu, Node
from emep.scheduling.model import GpuState
from emep.wire.health import Checkup, HealthFinding

ALWAYS = (
    "gpu_unhealthy",
    "gpu_healthy",
    "node_left",
    "node_back",
    "node_removed",
    "node_drained",
    "node_resumed",
    "node_taken_out",
    "node_on_probation",
    "node_proved",
    "gpu_drained",
    "gpu_resumed",
    "allocation_lost",
    "requeued",
    "control_plane_back",
)
"""Events that are findings whatever their reason."""
YIELDS = ("told_to_yield", "yielded")
HARDWARE_CAUSES = (YieldCause.UNHEALTHY.value, YieldCause.DRAIN.value)
"""Of those that make room, the ones that leave hardware; a preemption is the queue's business."""
USED_UP = "requeues_used_up"
PAGE = 500


def check_up(context: LedgerContext, since: int | None, limit: int = PAGE) -> Checkup:
    """What the hardware's watch has found after the event ``since`` (None: from now on), oldest first."""
    policy, now = context.policy, context.now
    with context.database.read() as session:
        newest = clock_row(session)[0]
        after = newest if since is None or since > newest else since
        rows = session.scalars(_findings(after, newest).limit(limit)).all()
        cursor = rows[-1].id if len(rows) == limit else newest
        silent_before = now - context.alive_for()
        silent = select(Node.name).where(or_(Node.has_left, Node.last_report_at < silent_before))
        return Checkup(
            findings=[_finding(row) for row in rows],
            cursor=cursor,
            due_seconds=_due(session, now, policy.health.report_every),
            nodes=session.scalar(select(func.count()).select_from(Node)) or 0,
            silent_nodes=sorted(session.scalars(silent)),
            gpus=_gpus(session),
        )


def _findings(after: int, until: int) -> Select[Any]:
    interesting = or_(
        Event.event.in_(ALWAYS),
        and_(Event.event.in_(YIELDS), Event.reason_code.in_(HARDWARE_CAUSES)),
        and_(Event.event == "dead", Event.reason_code == USED_UP),
    )
    return select(Event).where(Event.id > after, Event.id <= until, interesting).order_by(Event.id)


def _finding(row: Event) -> HealthFinding:
    nodes = [row.node] if row.node else [str(name) for name in row.data.get("nodes") or ()]
    index = row.data.get("gpu_index")
    return HealthFinding(
        id=row.id,
        time=datetime.fromtimestamp(row.time, UTC),
        event=row.event,
        nodes=nodes,
        gpu_index=index if isinstance(index, int) else None,
        job_id=row.job_id,
        allocation_id=row.allocation_id,
        code=row.reason_code,
        reason=row.reason,
        actor=row.actor,
    )


def _gpus(session: Session) -> dict[str, dict[str, int]]:
    """GPUs of each pool by the state that ``gpu_state`` gives them, counted by the database."""
    counts: dict[str, dict[str, int]] = {}
    drains, is_held = or_(Gpu.drain, Node.drain), AllocationGpu.allocation_id.is_not(None)
    on_gpu = and_(AllocationGpu.node == Gpu.node, AllocationGpu.gpu_index == Gpu.gpu_index)
    query = (
        select(Node.pool, Gpu.state, drains, is_held, func.count())
        .join(Gpu, Gpu.node == Node.name)
        .outerjoin(AllocationGpu, on_gpu)
        .group_by(Node.pool, Gpu.state, drains, is_held)
    )
    for pool, state, is_drained, held, number in session.execute(query):
        shown = str(state)
        if is_drained and state == GpuState.HEALTHY.value:
            shown = (GpuState.DRAINING if held else GpuState.DRAINED).value
        of_pool = counts.setdefault(str(pool), {})
        of_pool[shown] = of_pool.get(shown, 0) + int(number)
    return counts


def _due(session: Session, now: float, report_every: float) -> float | None:
    """Seconds until the next lease or report runs out; None where nothing can."""
    live = [state.value for state in LIVE_ALLOCATION_STATES]
    lease = session.scalar(select(func.min(Allocation.deadline)).where(Allocation.state.in_(live)))
    report = session.scalar(select(func.min(Node.last_check_at)))
    times = [lease] if lease is not None else []
    if report is not None:
        times.append(report + 1.5 * report_every)
    return max(0.0, min(times) - now) if times else None

"""Reads what holds GPUs for the scheduling core: live leases, allocations that are leaving, reservations."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.store.job_rows import JOB_WIDTH, as_text, job_columns, job_of_row
from emep.ledger.store.repository import only
from emep.ledger.store.tables import Allocation, AllocationGpu, Gpu, Job
from emep.policy.model import Policy
from emep.scheduling import model

_ALLOCATION_COLUMNS = (
    Allocation.id.label("allocation_id"),
    Allocation.state.label("allocation_state"),
    as_text(Allocation.gpus),
    as_text(Allocation.nodes),
    Allocation.granted_at,
    Allocation.billing_rate,
    Allocation.first_heartbeat_at,
    Allocation.last_checkpoint_at,
    Allocation.yield_deadline,
    Allocation.held_for,
)


class Live(NamedTuple):
    """An allocation that is not over, and what its usage follows from."""

    allocation: model.Allocation
    granted_at: float
    billing_rate: float


def read_live(session: Session, policy: Policy, ids: Collection[str] | None = None) -> dict[str, Live]:
    """Allocations that are not over (of those named), by id."""
    query = (
        select(*job_columns(), *_ALLOCATION_COLUMNS)
        .join(Job, Job.id == Allocation.job_id)
        .where(Allocation.state.in_([state.value for state in LIVE_ALLOCATION_STATES]))
    )
    return dict(
        _live(row, policy)
        for part in only(query, Allocation.id, ids)
        for row in session.connection().execute(part)
    )


def _live(row: Any, policy: Policy) -> tuple[str, Live]:
    (
        allocation_id,
        state,
        gpus,
        nodes,
        granted_at,
        billing_rate,
        first_heartbeat_at,
        last_checkpoint_at,
        yield_deadline,
        held_for,
    ) = row[JOB_WIDTH:]
    yielding = state == AllocationState.YIELDING.value
    allocation = model.Allocation(
        job=job_of_row(row, policy),
        gpus=tuple(model.GpuId(node, index) for node, index, _ in json.loads(gpus)),
        # Before the first heartbeat no work is done, and max_duration does not run yet.
        start_time=first_heartbeat_at or granted_at,
        nodes=tuple(json.loads(nodes)),
        last_checkpoint=last_checkpoint_at,
        yielding=yielding,
        held_for=held_for if yielding else None,
        releases_at=yield_deadline if yielding else None,
    )
    return allocation_id, Live(allocation, granted_at, billing_rate)


def read_leaving(
    session: Session, policy: Policy, ids: Collection[str] | None = None
) -> dict[str, model.Allocation]:
    """Allocations that are over but hold GPUs until an agent confirms that their work is gone.

    They appear as allocations that are about to end, so that the core counts their GPUs as coming free.
    """
    query = (
        select(*job_columns(), *_ALLOCATION_COLUMNS, AllocationGpu.node, AllocationGpu.gpu_index)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(Allocation.state.in_([AllocationState.LOST.value, AllocationState.RELEASED.value]))
        .order_by(AllocationGpu.node, AllocationGpu.gpu_index)
    )
    gpus: dict[str, list[model.GpuId]] = defaultdict(list)
    rows: dict[str, Any] = {}
    for part in only(query, Allocation.id, ids):
        for row in session.execute(part):
            gpus[row.allocation_id].append(model.GpuId(row.node, row.gpu_index))
            rows[row.allocation_id] = row
    return {
        name: model.Allocation(
            job=replace(
                job_of_row(row, policy), id=f"leaving:{name}", gpu_count=len(gpus[name]), preemptible=False
            ),
            gpus=tuple(gpus[name]),
            start_time=row.granted_at,
            nodes=tuple(dict.fromkeys(gpu.node for gpu in gpus[name])),
            yielding=True,
            held_for=row.held_for,
        )
        for name, row in rows.items()
    }


def read_holds(session: Session, pending: Collection[str]) -> tuple[model.Hold, ...]:
    """Reservations of earlier plans for jobs that still wait."""
    held: dict[str | None, list[model.GpuId]] = defaultdict(list)
    query = select(Gpu.node, Gpu.gpu_index, Gpu.held_for).where(Gpu.held_for.is_not(None))
    for node, index, job_id in session.execute(query.order_by(Gpu.node, Gpu.gpu_index)):
        if job_id in pending:
            held[job_id].append(model.GpuId(node, index))
    return tuple(model.Hold(job_id, tuple(held[job_id])) for job_id in sorted(filter(None, held)))

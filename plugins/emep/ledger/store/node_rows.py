"""Rows of nodes and their GPUs as the scheduling core sees them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from emep.ledger.states import CheckState
from emep.ledger.store.job_rows import as_text
from emep.ledger.store.repository import only
from emep.ledger.store.tables import Allocation, AllocationNode, Gpu, Node
from emep.scheduling import model

PATCHABLE = ("pool", "rack", "block", "labels", "network_bandwidth_gbps")
"""Fields of a node that an operator may set over what its agent says."""

_GPU_STATES = {state.value: state for state in model.GpuState}
_NODE_COLUMNS = (
    Node.name,
    Node.pool,
    Node.rack,
    Node.block,
    as_text(Node.labels),
    Node.cpu,
    Node.memory,
    Node.network_bandwidth_gbps,
)


def takes_work(alive_since: float) -> ColumnElement[bool]:
    """Whether a node's row is one that new work may be placed on."""
    return and_(
        Node.is_ready,
        ~Node.drain,
        ~Node.has_left,
        Node.last_report_at >= alive_since,
        or_(
            Node.check_state.in_(["", CheckState.WATCHED.value]),
            and_(Node.check_state == CheckState.PROBATION.value, ~_on_trial()),
        ),
    )


def _on_trial() -> ColumnElement[bool]:
    """Whether a node has the one job that it gets while it is on probation."""
    return (
        select(AllocationNode.node)
        .join(Allocation, Allocation.id == AllocationNode.allocation_id)
        .where(AllocationNode.node == Node.name, Allocation.granted_at >= Node.check_until)
        .correlate(Node)
        .exists()
    )


def read_nodes(
    session: Session, alive_since: float, names: Collection[str] | None = None
) -> tuple[model.Node, ...]:
    """All nodes (or those named) with their GPUs, by name.

    Those not heard of since ``alive_since`` are not schedulable.
    """
    gpus: dict[str, list[model.Gpu]] = defaultdict(list)
    columns = (Gpu.node, Gpu.gpu_index, Gpu.gpu_type, Gpu.memory, Gpu.nvlink_group, Gpu.state, Gpu.drain)
    for part in only(select(*columns).order_by(Gpu.node, Gpu.gpu_index), Gpu.node, names):
        # Not through the ORM's session: of tens of thousands of rows its share is a quarter.
        for node, index, gpu_type, memory, group, state, drain in session.connection().execute(part):
            is_drained = drain and state == model.GpuState.HEALTHY.value
            shown = model.GpuState.DRAINING if is_drained else _GPU_STATES[state]
            gpus[node].append(model.Gpu(index, gpu_type, memory, group, shown))
    of_nodes = select(*_NODE_COLUMNS, takes_work(alive_since)).order_by(Node.name)
    labels_of: dict[str, dict[str, str]] = {}
    """By their text: most nodes of a rack carry the same."""
    found: list[model.Node] = []
    for part in only(of_nodes, Node.name, names):
        for name, pool, rack, block, text, cpu, memory, bandwidth, fit in session.execute(part):
            labels = labels_of.get(text)
            if labels is None:
                labels = labels_of[text] = dict(json.loads(text) or {})
            mine = tuple(gpus[name])
            found.append(model.Node(name, mine, pool, rack, block, labels, cpu, memory, bandwidth, bool(fit)))
    return tuple(found)


def read_unschedulable(session: Session, alive_since: float) -> set[str]:
    """Names of the nodes that take no new work; time alone can add to them, without an event."""
    return set(session.scalars(select(Node.name).where(~takes_work(alive_since))))

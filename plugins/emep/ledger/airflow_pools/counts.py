"""How many GPUs of a pool of nodes are usable and held, and what Airflow's own tasks have of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Engine,
    Integer,
    String,
    and_,
    case,
    column,
    func,
    inspect,
    or_,
    select,
    table,
)
from sqlalchemy.orm import Session

from emep.ledger.states import CheckState
from emep.ledger.store.repository import chunks
from emep.ledger.store.tables import AllocationGpu, Gpu, Node
from emep.scheduling import model
from emep.wire.units import count_of

PREFIX = "gpu_"
"""Airflow's pool of the nodes' pool ``default`` is ``gpu_default``."""
KEPT = "Kept by EMEP: what is entered here is undone."
"""End of every description."""
SLOTS = table(
    "slot_pool",
    column("id", Integer),
    column("pool", String),
    column("slots", Integer),
    column("description", String),
    column("include_deferred", Boolean),
)
"""Airflow's pools."""
_TASKS = table(
    "task_instance",
    column("pool", String),
    column("state", String),
    column("pool_slots", Integer),
    column("next_method", String),
)
_HOLDING = ("queued", "running", "restarting", "deferred")
_WAITING = "scheduled"
_HAS_POOLS: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class PoolCount:
    """GPUs of one pool of nodes."""

    total: int
    usable: int
    """Healthy and undrained, on nodes that are alive."""
    allocated: int
    """Usable ones that a job holds."""
    held: int
    """Usable ones that a job holds or that are promised to one."""
    held_in_all: int
    """As ``held``, the unusable ones among them too."""

    @property
    def slots(self) -> int:
        """What tasks of Airflow's pool may use, those counted that use some already."""
        return self.usable - self.held

    @property
    def description(self) -> str:
        """The rest in words."""
        broken = self.total - self.held_in_all - self.slots
        total = count_of(self.total, "GPU")
        return f"{total}, {self.held_in_all} held by EMEP, {broken} unhealthy, drained or out. {KEPT}"


@dataclass(frozen=True)
class PlainTasks:
    """What Airflow's tasks have of one ``gpu_`` pool, in slots."""

    held: int = 0
    """Queued, running or deferred, or on their way back from a deferral."""
    waiting: int = 0
    """Scheduled: Airflow's scheduler may be about to queue them."""


def count_gpus(session: Session, alive_since: float) -> dict[str, PoolCount]:
    """All pools of nodes; a node that was not heard of since ``alive_since`` is not alive."""
    usable = and_(
        Gpu.state == model.GpuState.HEALTHY.value,
        ~Gpu.drain,
        ~Node.drain,
        ~Node.has_left,
        Node.is_ready,
        Node.check_state != CheckState.OUT.value,
        Node.last_report_at >= alive_since,
    )
    allocated = AllocationGpu.allocation_id.is_not(None)
    held = or_(allocated, Gpu.held_for.is_not(None))

    def number(what: ColumnElement[bool]) -> ColumnElement[int]:
        return func.coalesce(func.sum(case((what, 1), else_=0)), 0)

    query = (
        select(
            Node.pool,
            func.count(Gpu.uuid),
            number(usable),
            number(and_(usable, allocated)),
            number(and_(usable, held)),
            number(held),
        )
        .select_from(Node)
        .outerjoin(Gpu, Gpu.node == Node.name)
        .outerjoin(
            AllocationGpu, and_(AllocationGpu.node == Gpu.node, AllocationGpu.gpu_index == Gpu.gpu_index)
        )
        .group_by(Node.pool)
    )
    return {pool: PoolCount(*map(int, numbers)) for pool, *numbers in session.execute(query)}


def read_plain_tasks(session: Session, pools: Collection[str]) -> dict[str, PlainTasks]:
    """What Airflow's tasks hold and wait for, by pool of nodes; pools without such tasks are left out.

    A task that comes back from a deferral is ``scheduled`` for a moment: it has a method to go on with, and
    counts as holding, because its work may still be on the GPU.
    """
    found: dict[str, PlainTasks] = {}
    goes_on = _TASKS.c.next_method.is_not(None)
    for part in chunks(sorted(pools)):
        query = (
            select(_TASKS.c.pool, _TASKS.c.state, goes_on, func.sum(_TASKS.c.pool_slots))
            .where(_TASKS.c.pool.in_([PREFIX + name for name in part]))
            .where(_TASKS.c.state.in_([*_HOLDING, _WAITING]))
            .group_by(_TASKS.c.pool, _TASKS.c.state, goes_on)
        )
        for name, state, resumed, slots in session.execute(query):
            pool = name.removeprefix(PREFIX)
            before, more = found.get(pool, PlainTasks()), int(slots or 0)
            if state == _WAITING and not resumed:
                found[pool] = replace(before, waiting=before.waiting + more)
            else:
                found[pool] = replace(before, held=before.held + more)
    return found


def has_pools(session: Session) -> bool:
    """Whether this database is Airflow's, with pools to keep; looked up once for each."""
    engine = session.get_bind().engine
    if engine not in _HAS_POOLS:
        tables = inspect(session.connection())
        _HAS_POOLS[engine] = tables.has_table("slot_pool") and tables.has_table("task_instance")
    return _HAS_POOLS[engine]


def less_plain_tasks(
    session: Session,
    nodes: tuple[model.Node, ...],
    allocations: Iterable[model.Allocation],
    holds: Iterable[model.Hold] = (),
) -> tuple[model.Node, ...]:
    """The nodes with as many free GPUs marked as used outside EMEP as plain tasks hold in each pool.

    Airflow does not say which GPUs a slot stands for, so this chooses. The same rows always give the same
    GPUs: those of the fullest nodes first, so that empty nodes stay empty, and promised GPUs last.
    """
    if not has_pools(session):
        return nodes
    plain = read_plain_tasks(session, {node.pool for node in nodes})
    if not any(one.held for one in plain.values()):
        return nodes
    taken = {gpu for allocation in allocations for gpu in allocation.gpus}
    promised = {gpu for hold in holds for gpu in hold.gpus}
    free: dict[str, list[tuple[bool, int, str, int]]] = {pool: [] for pool in plain}
    for node in nodes:
        if node.pool in free and node.schedulable:
            own = _free_gpus(node, taken)
            free[node.pool] += [(gpu in promised, len(own), *gpu) for gpu in own]
    marked: dict[str, set[int]] = {}
    for pool, tasks in plain.items():
        for _, _, name, index in sorted(free[pool])[: tasks.held]:
            marked.setdefault(name, set()).add(index)
    return tuple(_mark(node, marked[node.name]) if node.name in marked else node for node in nodes)


def _free_gpus(node: model.Node, taken: Collection[model.GpuId]) -> list[model.GpuId]:
    healthy = (gpu.index for gpu in node.gpus if gpu.state is model.GpuState.HEALTHY and not gpu.foreign)
    return [gpu for index in healthy if (gpu := model.GpuId(node.name, index)) not in taken]


def _mark(node: model.Node, indices: set[int]) -> model.Node:
    gpus = tuple(replace(gpu, foreign=True) if gpu.index in indices else gpu for gpu in node.gpus)
    return replace(node, gpus=gpus)

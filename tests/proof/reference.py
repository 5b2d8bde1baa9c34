"""The contract once more, slowly: brute force over every set of GPUs, of times and of victims.

Written from the sentences of the contract (order, placement, backfill, preemption) and from nothing else, so
that two readings meet where the core is compared with it. For small clusters only: all subsets are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations

from emep.policy import Policy
from emep.scheduling.model import Allocation, Gpu, GpuId, GpuState, Job, Node

Key = tuple[object, ...]


# ---- the cluster ----


@dataclass(frozen=True, eq=False)
class Place:
    """One GPU and everything that placement asks about it; the same GPU is the same object."""

    id: GpuId
    group: str
    """Its NVLink group; a GPU without one is a group by itself."""
    linked: bool
    rack: tuple[str, str]
    """A rack is known by its block too."""
    block: str
    bandwidth: float
    memory: int
    gpu_type: str
    labels: Mapping[str, str]
    pool: str


def places(nodes: Iterable[Node]) -> dict[GpuId, Place]:
    """All GPUs that may be given to anybody: healthy, on nodes that take work, not used by others."""
    return {
        GpuId(node.name, gpu.index): Place(
            id=GpuId(node.name, gpu.index),
            group=gpu.nvlink_group or f"alone {node.name}:{gpu.index}",
            linked=gpu.nvlink_group is not None,
            rack=(node.block, node.rack),
            block=node.block,
            bandwidth=node.network_bandwidth_gbps,
            memory=gpu.memory,
            gpu_type=gpu.gpu_type,
            labels=node.labels,
            pool=node.pool,
        )
        for node in nodes
        for gpu in node.gpus
        if _usable(node, gpu)
    }


def places_when_healthy(nodes: Iterable[Node]) -> dict[GpuId, Place]:
    """All GPUs as if each were healthy and given to nobody: what decides between waiting and rejection."""
    return places(
        replace(
            node,
            schedulable=True,
            gpus=tuple(replace(gpu, state=GpuState.HEALTHY, foreign=False) for gpu in node.gpus),
        )
        for node in nodes
    )


def _usable(node: Node, gpu: Gpu) -> bool:
    return node.schedulable and gpu.state is GpuState.HEALTHY and not gpu.foreign


# ---- placement ----


def fits_job(place: Place, job: Job, policy: Policy) -> bool:
    """Whether one GPU is of the kind the job asks for."""
    pools = policy.queues[job.queue].pools
    return (
        (pools is None or place.pool in pools)
        and place.memory >= job.gpu_memory_min
        and (not job.gpu_type or place.gpu_type == job.gpu_type)
        and all(place.labels.get(term.key) == term.value for term in job.affinity)
        and all(place.labels.get(term.key) != term.value for term in job.anti_affinity)
    )


def within(chosen: Sequence[Place], level: str | None) -> bool:
    """Whether one domain of the level holds them all."""
    if level is None:
        return True
    if level == "nvlink":
        return len({place.group for place in chosen}) == 1 and all(place.linked for place in chosen)
    name = {"node": "node", "rack": "rack", "block": "block"}[level]
    if name == "node":
        return len({place.id.node for place in chosen}) == 1
    return len({getattr(place, name) for place in chosen}) == 1


def is_valid(chosen: Sequence[Place], job: Job) -> bool:
    """Whether a set of GPUs, each of the right kind, is a placement of the job."""
    if len({place.pool for place in chosen}) != 1:
        return False
    if job.nvlink_required and not within(chosen, "nvlink"):
        return False
    if not within(chosen, job.topology_required):
        return False
    if job.node_count is None:
        return True
    counts: dict[str, int] = {}
    for place in chosen:
        counts[place.id.node] = counts.get(place.id.node, 0) + 1
    return len(counts) == job.node_count and len(set(counts.values())) == 1


def placements(job: Job, offered: Iterable[Place], policy: Policy) -> Iterator[tuple[Place, ...]]:
    """Every placement of the job on the GPUs offered."""
    fitting = [place for place in offered if fits_job(place, job, policy)]
    for chosen in combinations(sorted(fitting, key=lambda place: place.id), job.gpu_count):
        if is_valid(chosen, job):
            yield chosen


def can_place(job: Job, offered: Iterable[Place], policy: Policy) -> bool:
    return next(placements(job, offered, policy), None) is not None


def placement_key(chosen: Sequence[Place], job: Job, free: Iterable[Place], policy: Policy) -> Key:
    """Section 5's order; the least comes first. ``free``: all GPUs that are free, for pack and spread."""
    groups = {place.group for place in chosen}
    nodes = {place.id.node for place in chosen}
    rest = [place for place in free if place not in set(chosen)]
    left_in_groups = sum(1 for place in rest if place.group in groups)
    left_on_nodes = sum(1 for place in rest if place.id.node in nodes)
    spread = (job.placement or policy.queues[job.queue].placement) == "spread"
    sign = -1 if spread else 1
    return (
        not within(chosen, job.topology_preferred),
        len(groups) > 1,
        len({place.block for place in chosen}),
        len({place.rack for place in chosen}),
        len(groups),
        len(nodes),
        -min(place.bandwidth for place in chosen),
        sum(place.memory for place in chosen),
        sign * left_in_groups,
        sign * left_on_nodes,
    )


def best_key(job: Job, offered: Iterable[Place], free: Sequence[Place], policy: Policy) -> Key | None:
    """The key of the first placement in order; None where there is no placement."""
    return min(
        (placement_key(one, job, free, policy) for one in placements(job, offered, policy)), default=None
    )


# ---- backfill ----


@dataclass
class Promise:
    """A reservation."""

    job: Job
    at: float
    gpus: frozenset[GpuId]

    @property
    def end(self) -> float:
        return self.at + limit_of(self.job)


def limit_of(job: Job) -> float:
    return math.inf if job.max_duration is None else job.max_duration


@dataclass
class Board:
    """What is free now, what comes free when, and what is promised."""

    offered: dict[GpuId, Place]
    now: float
    busy_until: dict[GpuId, float] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)

    def free(self) -> list[Place]:
        return [place for gpu, place in self.offered.items() if gpu not in self.busy_until]

    def allowed(self, job: Job) -> list[Place]:
        """Free GPUs that no reservation needs before the job would have ended."""
        return self.open_at(self.now, job)

    def open_at(self, time: float, job: Job) -> list[Place]:
        """GPUs that are free from ``time`` on for as long as the job may run."""
        end = time + limit_of(job)
        taken = {
            gpu
            for promise in self.promises
            if promise.at < end and promise.end > time
            for gpu in promise.gpus
        }
        return [
            place
            for gpu, place in self.offered.items()
            if gpu not in taken and self.busy_until.get(gpu, -math.inf) <= time
        ]

    def earliest(self, job: Job, policy: Policy) -> float | None:
        """The first time at which the job fits; None where it fits at no time that is known."""
        times = {self.now, *self.busy_until.values(), *(promise.end for promise in self.promises)}
        for time in sorted(time for time in times if self.now <= time < math.inf):
            if can_place(job, self.open_at(time, job), policy):
                return time
        return None

    def is_sparing(self, promise: Promise, policy: Policy) -> bool:
        """Whether no placement at its time, beside earlier promises, takes fewer GPUs that are free now."""
        before = self.promises[: self.promises.index(promise)] if promise in self.promises else self.promises
        board = Board(self.offered, self.now, self.busy_until, before)
        fewest = min(
            sum(1 for place in chosen if place.id not in self.busy_until)
            for chosen in placements(promise.job, board.open_at(promise.at, promise.job), policy)
        )
        return sum(1 for gpu in promise.gpus if gpu not in self.busy_until) == fewest


# ---- preemption ----


def work_lost(victim: Allocation, now: float) -> float:
    """GPU-seconds since the last checkpoint; a job that saves only when told loses nothing."""
    if victim.job.checkpoint_interval is None:
        return 0.0
    saved = victim.start_time if victim.last_checkpoint is None else victim.last_checkpoint
    return len(victim.gpus) * (now - saved)


def may_be_victim(job: Job, victim: Allocation, policy: Policy, now: float) -> bool:
    """Whether class, own consent and age allow it."""
    own = victim.job.preemptible
    preemptible = policy.queues[victim.job.queue].preemptible if own is None else own
    return (
        preemptible
        and not victim.yielding
        and now - victim.start_time >= policy.preemption.min_runtime
        and policy.may_preempt(job.queue, job.priority, victim.job.queue, victim.job.priority)
    )


def minimal_sets(
    job: Job,
    free: Sequence[Place],
    candidates: Sequence[Allocation],
    offered: Mapping[GpuId, Place],
    policy: Policy,
) -> Iterator[tuple[Allocation, ...]]:
    """Every set of candidates that makes a placement, and that makes none without any one of its members."""

    def makes_room(chosen: Sequence[Allocation]) -> bool:
        freed = [offered[gpu] for victim in chosen for gpu in victim.gpus if gpu in offered]
        return can_place(job, [*free, *freed], policy)

    feasible: dict[frozenset[int], bool] = {}
    for size in range(len(candidates) + 1):
        for numbers in combinations(range(len(candidates)), size):
            chosen = frozenset(numbers)
            smaller = [chosen - {number} for number in chosen]
            if any(feasible[one] for one in smaller):
                feasible[chosen] = True  # More room than enough: feasible, and not minimal.
                continue
            feasible[chosen] = makes_room([candidates[number] for number in numbers])
            if feasible[chosen]:
                yield tuple(candidates[number] for number in numbers)


def victim_key(chosen: Sequence[Allocation], policy: Policy, now: float) -> Key:
    """Section 7's order of minimal sets; the least comes first."""
    values = [policy.class_value(victim.job.priority) for victim in chosen]
    lost = {
        value: sum(work_lost(victim, now) for victim, own in zip(chosen, values, strict=True) if own == value)
        for value in values
    }
    from_the_top = [lost.get(value, 0.0) for value in sorted(policy.classes.values(), reverse=True)]
    return (
        max(values),
        from_the_top,
        len(chosen),
        sum(len(victim.gpus) for victim in chosen),
        sorted(-victim.start_time for victim in chosen),
        sorted(victim.job.id for victim in chosen),
    )


# ---- order ----


@dataclass
class Entity:
    """A queue, project or user with exact numbers."""

    name: str
    weight: Fraction = Fraction(1)
    used: Fraction = Fraction(0)
    children: dict[str, Entity] = field(default_factory=dict)

    def child(self, name: str, weight: float) -> Entity:
        return self.children.setdefault(name, Entity(name, Fraction(weight)))


def deficits(siblings: Iterable[Entity]) -> dict[str, Fraction | float]:
    """(target - consumed) / target of each; the weightless after everybody."""
    siblings = list(siblings)
    consumed = sum((one.used for one in siblings), Fraction(0))
    weights = sum((one.weight for one in siblings), Fraction(0))
    found: dict[str, Fraction | float] = {}
    for one in siblings:
        if not one.weight:
            found[one.name] = -math.inf
        elif not consumed:
            found[one.name] = Fraction(0)
        else:
            target = one.weight / weights * consumed
            found[one.name] = (target - one.used) / target
    return found


def ranked(tied: Sequence[Entity]) -> list[set[str]]:
    """Leaves below parents that tie, best first; each set holds leaves that tie to the end."""
    value_of: dict[str, Fraction | float] = {}
    for parent in tied:
        value_of |= deficits(parent.children.values())
    children = [child for parent in tied for child in parent.children.values()]
    result: list[set[str]] = []
    for value in sorted(set(value_of.values()), reverse=True):
        group = [child for child in children if value_of[child.name] == value]
        below = ranked([child for child in group if child.children]) if any(c.children for c in group) else []
        ends = {child.name for child in group if not child.children}
        if ends:
            below = [ends | (below[0] if below else set()), *below[1:]]
        result += below
    return result

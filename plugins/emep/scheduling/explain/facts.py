"""The numbers of an explanation: which GPUs, cores or memory a request lacks now, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray
from emep.scheduling.explain.view import CycleView
from emep.scheduling.model import Reason, ReasonCode
from emep.scheduling.placement.feasibility import fits
from emep.scheduling.request import Request
from emep.scheduling.reservations.cpu import nodes_for, nodes_with_room
from emep.wire.units import count_of, is_or_are


@dataclass(slots=True)
class Facts:
    """Facts about a request in the best of its pools, shared by all jobs with an equal request."""

    pool: str = ""
    free: int = 0
    reasons: list[Reason] = field(default_factory=list)
    short: bool = False
    """Whether it does not fit, reservations apart."""


class FactFinder:
    """The facts of each request, found once in a cycle."""

    def __init__(self, cycle: CycleView) -> None:
        self._cycle = cycle
        self._facts: dict[Request, Facts] = {}

    def of(self, request: Request) -> Facts:
        """What is true of a request in the best of its pools; its cores and memory where it has no GPUs."""
        return self._gpu_facts(request) if request.gpus else self._cpu_facts(request)

    def _gpu_facts(self, request: Request) -> Facts:
        found = self._facts.get(request)
        if found is None:
            every = [self._facts_in(request, pool) for pool in request.pools]
            if every:
                found = max(every, key=lambda facts: (not facts.short, facts.free))
            else:
                found = Facts(reasons=[Reason(ReasonCode.QUEUE_CLOSED, "its queue has no pools")], short=True)
            self._facts[request] = found
        return found

    def _facts_in(self, request: Request, pool: str) -> Facts:
        state, index = self._cycle.state, self._cycle.index
        eligible = index.eligible_cells(request.filter_for(pool))
        if not eligible.any():
            text = f"pool {pool} has no node yet that the job could use"
            return Facts(pool, 0, [Reason(ReasonCode.QUEUE_CLOSED, text)], short=True)
        free = np.where(eligible, state.counts.by_cell, 0)
        facts = Facts(pool, int(free.sum()))
        if fits(request, index, free):
            self._host_shortage(request, facts, free)
            return facts
        facts.short = True
        self._gpu_shortage(request, facts, free)
        self._out_of_service(facts, eligible[index.gpu_cell])
        return facts

    def _gpu_shortage(self, request: Request, facts: Facts, free: np.ndarray) -> None:
        index, need = self._cycle.index, request.gpus
        if facts.free < need:
            text = f"needs {count_of(need, 'GPU')}, {facts.free} free in pool {facts.pool}"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_GPUS, text))
        if request.nvlink:
            most = int(index.domains(True, request.level).sums(free).max(initial=0))
            if most < need:
                text = f"needs {count_of(need, 'GPU')} in one NVLink group, largest free {most} of {need}"
                facts.reasons.append(Reason(ReasonCode.NO_FREE_NVLINK_GROUP, text))
        if request.level:
            most = int(index.domains(False, request.level).sums(free).max(initial=0))
            if most < need:
                needed = f"needs {count_of(need, 'GPU')} in one {request.level}"
                text = f"{needed}, the {request.level} with most free has {most}"
                facts.reasons.append(Reason(ReasonCode.NO_TOPOLOGY_DOMAIN, text))
        if request.node_count:
            domains = index.domains(request.nvlink, request.level)
            whole = domains.domain_of_part[domains.part_sums(free) >= request.per_node]
            most = int(np.bincount(whole).max()) if len(whole) else 0
            if most < request.node_count:
                each = count_of(request.per_node, "free GPU")
                text = f"needs {count_of(request.node_count, 'node')} with {each} each, {most} fit"
                facts.reasons.append(Reason(ReasonCode.NO_TOPOLOGY_DOMAIN, text))

    def _out_of_service(self, facts: Facts, eligible: np.ndarray) -> None:
        out = np.flatnonzero(eligible & ~self._cycle.index.gpu_usable)
        kinds = self._cycle.index.count_states(out.tolist())
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        if kinds:
            usable, take = count_of(int(eligible.sum()), "GPU"), "takes" if len(out) == 1 else "take"
            text = f"{len(out)} of the {usable} it could use {take} no work: {words}"
            facts.reasons.append(Reason(ReasonCode.UNHEALTHY_GPUS, text))

    def _host_shortage(self, request: Request, facts: Facts, free: np.ndarray) -> None:
        state, index = self._cycle.state, self._cycle.index
        if fits(request, index, state.capped(request, free)):
            return
        facts.short = True
        nodes = np.unique(index.cell_node[free > 0])
        cpu, memory = request.cpu / request.gpus, request.memory / request.gpus
        if float(state.hosts.now.cpu[nodes].min()) < request.cpu:
            most = max(0.0, float(state.hosts.now.cpu[nodes].max()))
            needed = f"needs {count_of(cpu, 'core')} beside each GPU"
            text = f"{needed}, a node with free GPUs has at most {most:g} left"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_CPU, text))
        if float(state.hosts.now.memory[nodes].min()) < request.memory:
            most = max(0.0, float(state.hosts.now.memory[nodes].max()))
            text = (
                f"needs {_gib(memory)} beside each GPU, a node with free GPUs has at most {_gib(most)} left"
            )
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_MEMORY, text))

    def _cpu_facts(self, request: Request) -> Facts:
        found = self._facts.get(request)
        if found is not None:
            return found
        facts = self._facts[request] = Facts(short=True)
        nodes = nodes_for(self._cycle.index, request)
        if not nodes.any():
            text = f"no node of {', '.join(request.pools) or 'its queue'} takes work"
            facts.reasons.append(Reason(ReasonCode.QUEUE_CLOSED, text))
            return facts
        count, room = request.node_count or 1, nodes_with_room(self._cycle.state, request)
        if room >= count:
            facts.short = False
        else:
            self._cpu_shortage(request, facts, nodes, count, room)
        return facts

    def _cpu_shortage(self, request: Request, facts: Facts, nodes: BoolArray, count: int, room: int) -> None:
        left = self._cycle.state.hosts.now
        cpu, memory = request.cpu / count, request.memory / count
        most_cpu, most_memory = float(left.cpu[nodes].max()), float(left.memory[nodes].max())
        cores = count_of(cpu, "core")
        if most_cpu + 1e-9 < cpu:
            most = max(0.0, most_cpu)
            text = f"needs {cores} on a node, at most {most:g} {is_or_are(most)} left on one"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_CPU, text))
        if most_memory + 1e-9 < memory:
            text = f"needs {_gib(memory)} on a node, at most {_gib(max(0.0, most_memory))} are left on one"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_MEMORY, text))
        if not facts.reasons:  # Each is there, but not both on one node, or not on as many nodes as it needs.
            share = f"{cores} and {_gib(memory)} left{' each' if count > 1 else ''}"
            text = f"needs {count_of(count, 'node')} with {share}, {room} {'fits' if room == 1 else 'fit'}"
            facts.reasons.append(Reason(ReasonCode.INSUFFICIENT_CPU, text))


def _gib(size: float) -> str:
    return f"{size / 1024**3:.3g}Gi"

"""Builders for the simulator: jobs in the notation ``(submit, gpus, run)``, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.builders.scheduling import NodeBuilder

from emep.policy import Policy, parse_policy_text
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.model import Allocation, Hold, Job, Node, Plan, Snapshot, UsageRecord
from emep.scheduling.plan import plan
from emep.simulation.read.failures import Failure
from emep.simulation.read.jobs import JobSpec
from emep.simulation.run.recording import Outcome, Recording
from emep.simulation.run.replay import replay


def a_spec(job_id: str, submit: float, gpus: int, run: float, **fields: Any) -> JobSpec:
    """A job as ``JOBS.csv`` would give it; its limit is empty unless given."""
    fields.setdefault("priority", "")
    return JobSpec(Job(id=job_id, submit_time=float(submit), gpu_count=gpus, **fields), float(run))


def simulate(
    nodes: Iterable[NodeBuilder | Node],
    specs: Iterable[JobSpec],
    policy: str | Policy = "{}",
    failures: Iterable[Failure] = (),
) -> Recording:
    """Replay under a policy given as YAML text."""
    built = [node.build() if isinstance(node, NodeBuilder) else node for node in nodes]
    rules = parse_policy_text(policy) if isinstance(policy, str) else policy
    return replay(built, list(specs), rules, list(failures))


def outcomes(recording: Recording) -> dict[str, Outcome]:
    """What became of each job, by id."""
    return {outcome.spec.job.id: outcome for outcome in recording.outcomes}


def starts(recording: Recording) -> dict[str, float | None]:
    """First start of each job."""
    return {job_id: outcome.first_start for job_id, outcome in outcomes(recording).items()}


def events_of(recording: Recording, job_id: str) -> list[tuple[float, str]]:
    """Times and names of a job's events, reservations left out."""
    found = [json.loads(line) for line in recording.events]
    return [(e["time"], e["event"]) for e in found if e["job_id"] == job_id and e["event"] != "reserved"]


class SnapshotScheduler:
    """Plain ``plan`` of a snapshot of everything: what the kept planner must agree with."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._pending: dict[str, Job] = {}
        self._allocations: dict[str, Allocation] = {}
        self._index: ClusterIndex | None = None
        self._holds: tuple[Hold, ...] = ()

    def submit(self, job: Job) -> None:
        self._pending[job.id] = job

    def leave(self, job_id: str) -> None:
        del self._pending[job_id]

    def start(self, allocation: Allocation) -> None:
        self._allocations[allocation.job.id] = allocation

    change = start

    def end(self, job_id: str) -> None:
        del self._allocations[job_id]

    def plan(self, nodes: tuple[Node, ...], now: float, usage: Sequence[UsageRecord]) -> Plan:
        if self._index is None or self._index.source is not nodes:
            self._index = ClusterIndex(nodes)
        snapshot = Snapshot(
            nodes=nodes,
            pending=tuple(self._pending.values()),
            allocations=tuple(self._allocations.values()),
            usage=tuple(usage),
            holds=self._holds,
        )
        found = plan(snapshot, self._policy, now, self._index, explain=False)
        self._holds = found.holds
        return found

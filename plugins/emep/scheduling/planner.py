"""An incremental ``plan`` for callers that plan often: they report changes, and its decisions are the same.

State that lasts from one plan to the next (what runs where, who holds how much, pending jobs in order) is
kept and changed piece by piece; each plan works on a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.cluster.occupancy import Occupancy
from emep.scheduling.collection import no_collection
from emep.scheduling.cycle import Cycle
from emep.scheduling.explain.reasons import Explainer
from emep.scheduling.intake import PendingJobs, book_of
from emep.scheduling.model import Allocation, Hold, Job, Node, Plan, Reason, UsageRecord
from emep.scheduling.order import AmongEquals, Lines, key_among_equals
from emep.scheduling.pending import PendingJob
from emep.scheduling.quota import Holdings


class IncrementalPlanner:
    """Tell it of jobs that arrive and leave, of allocations that start, change and end, then ask for plans.

    It takes nothing from its own plans: a start that is carried out is reported back by ``leave`` and
    ``start`` like any other. Order of ``usage`` and of starts as in the snapshots that ``plan`` would get.
    """

    def __init__(self, nodes: Iterable[Node] | ClusterIndex, policy: Policy) -> None:
        self.policy = policy
        self._pending: dict[str, Job] = {}
        self._running: dict[str, Allocation] = {}
        self.reset(nodes)

    def reset(self, nodes: Iterable[Node] | ClusterIndex) -> None:
        """Compute everything anew because the nodes have changed (health, drains, use outside EMEP)."""
        self.index = nodes if isinstance(nodes, ClusterIndex) else ClusterIndex(tuple(nodes))
        self._book: PendingJobs = book_of(self.index, self.policy)
        self._occupancy = Occupancy(self.index, self.policy)
        self._holdings = Holdings(self.policy)
        self._occupancy.add_all(self._running.values())
        for allocation in self._running.values():
            self._holdings.add_allocation(allocation, self.index)
        self._entries: dict[str, PendingJob] = {}
        self._keys: dict[str, AmongEquals] = {}
        self._lines = Lines()
        for job in self._pending.values():
            self._enter(job)

    # ---- jobs ----------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """A job is pending, for the first time or again; raises ValueError where one of its id is already."""
        if job.id in self._pending:
            raise ValueError(f"job {job.id} is pending already")
        self._pending[job.id] = job
        self._enter(job)

    def leave(self, job_id: str) -> None:
        """A job is not pending any more: it starts, was rejected, cancelled, or has expired."""
        del self._pending[job_id]
        entry = self._entries.pop(job_id)
        key = self._keys.pop(job_id, None)
        if key is not None:
            lines = self._lines.by_class[entry.value]
            line = lines[entry.leaf]
            line.leave(key)
            if not line:
                del lines[entry.leaf]

    def _enter(self, job: Job) -> None:
        entry = self._entries[job.id] = self._book.make(job)
        if entry.verdict is None and self.policy.starvation_bound is None:
            key = self._keys[job.id] = key_among_equals(job, self.policy, 0.0)
            self._lines.line_of(entry).enter(key, entry)

    # ---- allocations ---------------------------------------------------------------------------------------

    def start(self, allocation: Allocation) -> None:
        """A job has GPUs."""
        self._running[allocation.job.id] = allocation
        self._occupancy.add(allocation)
        self._holdings.add_allocation(allocation, self.index)

    def start_all(self, allocations: Iterable[Allocation]) -> None:
        """Many jobs have GPUs: the same as one by one, in a fraction of the time."""
        started = list(allocations)
        self._running.update((one.job.id, one) for one in started)
        self._occupancy.add_all(started)
        for one in started:
            self._holdings.add_allocation(one, self.index)

    def change(self, allocation: Allocation) -> None:
        """Replace an allocation that must yield, has saved a checkpoint, or has another deadline."""
        before = self._running[allocation.job.id]
        self._running[allocation.job.id] = allocation
        self._occupancy.change(before, allocation)

    def end(self, job_id: str) -> None:
        """A job is gone from its GPUs."""
        allocation = self._running.pop(job_id)
        self._occupancy.drop(job_id)
        self._holdings.add_allocation(allocation, self.index, -1)

    # ---- plans ---------------------------------------------------------------------------------------------

    def plan(self, now: float, usage: Iterable[UsageRecord] = (), holds: Iterable[Hold] = ()) -> Plan:
        """What ``plan(..., explain=False)`` decides of a snapshot of all this."""
        return self._run(now, usage, holds).result()

    def plan_and_say(
        self,
        now: float,
        usage: Iterable[UsageRecord] = (),
        holds: Iterable[Hold] = (),
        asked: Iterable[str] = (),
    ) -> tuple[Plan, Mapping[str, tuple[Reason, ...]]]:
        """A plan, and the reasons of those ``asked`` jobs that it neither starts nor rejects.

        The reasons are those of ``plan``'s ``waiting``; of a few jobs they cost little.
        """
        with no_collection():
            cycle = self._run(now, usage, holds)
            entries = [self._entries[job_id] for job_id in asked]
            started = {start.job_id for start in cycle.starts}
            return cycle.result(), Explainer(cycle).reasons_of(entries, started)

    def _run(self, now: float, usage: Iterable[UsageRecord], holds: Iterable[Hold]) -> Cycle:
        entries = list(self._entries.values())
        lines = self._lines
        if self.policy.starvation_bound is not None:
            lines = Lines.of((entry for entry in entries if entry.verdict is None), self.policy, now)
        holdings = self._holdings.copy()
        cycle = Cycle(
            self._occupancy, holdings, self._book, now, entries, tuple(usage), tuple(holds), explain=False
        )
        cycle.run(lines)
        return cycle

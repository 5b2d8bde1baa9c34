"""The planner that keeps its state decides what ``plan`` decides of a snapshot, step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.builders.replay import Replay
from tests.proof.effort import proof
from tests.proof.worlds import World, worlds

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Allocation, Job, Plan, Snapshot
from emep.scheduling.plan import plan
from emep.scheduling.planner import IncrementalPlanner


class Follower:
    """Tells a planner how each snapshot differs from the last, and compares what the two decide."""

    def __init__(self, world: World, resets: frozenset[int] = frozenset()) -> None:
        self.planner = IncrementalPlanner(world.nodes, world.policy)
        self.pending: dict[str, Job] = {}
        self.running: dict[str, Allocation] = {}
        self.resets, self.plans = resets, 0

    def __call__(self, snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        self._tell(snapshot)
        self.plans += 1
        if self.plans in self.resets:
            self.planner.reset(snapshot.nodes)
        decided = plan(snapshot, policy, now, explain=False)
        kept = self.planner.plan(now, snapshot.usage, snapshot.holds)
        assert kept == decided, f"plan {self.plans}"
        return decided

    def _tell(self, snapshot: Snapshot) -> None:
        pending = {job.id: job for job in snapshot.pending}
        running = {allocation.job.id: allocation for allocation in snapshot.allocations}
        for job_id in set(self.pending) - set(pending):
            self.planner.leave(job_id)
        for job_id in set(self.running) - set(running):
            self.planner.end(job_id)
        for job_id, job in pending.items():
            if job_id in self.pending and self.pending[job_id] != job:
                self.planner.leave(job_id)
            if self.pending.get(job_id) != job:
                self.planner.submit(job)
        for job_id, allocation in running.items():
            before = self.running.get(job_id)
            if before is not None and before.start_time != allocation.start_time:
                self.planner.end(job_id)
                before = None
            if before is None:
                self.planner.start(allocation)
            elif before != allocation:
                self.planner.change(allocation)
        self.pending, self.running = pending, running


@proof
@given(worlds(), st.frozensets(st.integers(1, 30), max_size=3))
def test_a_planner_that_is_told_of_changes_decides_the_same(world: World, resets: frozenset[int]) -> None:
    follower = Follower(world, resets)
    Replay(world.nodes, world.policy, world.works, grace=world.grace, planner=follower).run()
    assert follower.plans


@proof
@given(
    worlds(owners=False),
    st.sampled_from(["shortest", "smallest_area"]),
    st.sampled_from([0, 10, 40]),
    st.sampled_from(["free", "bounded"]),
)
def test_so_it_does_when_jobs_become_starving(world: World, order: str, bound: int, overtaking: str) -> None:
    policy = parse_policy({"order": order, "starvation_bound": bound, "overtaking": overtaking})
    world = World(world.nodes, policy, world.works, world.grace)
    Replay(world.nodes, policy, world.works, grace=world.grace, planner=Follower(world)).run()

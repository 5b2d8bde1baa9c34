"""Whatever happens in whatever order.

No GPU is held twice, epochs only grow, nothing is lost, charges add up.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select
from tests.builders.ledger import Bench, sqlite_engine

from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.store.tables import Allocation, AllocationGpu, Event, Job, Usage
from emep.wire.allocations import Completion, Heartbeat
from emep.wire.base import ENDED_STATES, JobState
from emep.wire.errors import EmepError

NODES = ("n0", "n1")
LIVE = {state.value for state in LIVE_ALLOCATION_STATES}


class LedgerMachine(RuleBasedStateMachine):
    """Users, agents and supervisors act at random, also late, twice and with old epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = sqlite_engine(str(Path(self.folder.name) / "ledger.db"))
        self.bench = Bench(self.engine)
        self.bench.policy = replace(self.bench.policy, half_life=0.0)
        self.epochs: dict[str, int] = {}
        self.starts = 0
        self.really_running: dict[str, set[str]] = {name: set() for name in NODES}
        """What runs on each node, whatever the ledger believes."""

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()

    @initialize()
    def register(self) -> None:
        for name in NODES:
            self.bench.node(name, gpus=2)

    # ---- users -----------------------------------------------------------------------------------------

    @rule(
        gpus=st.integers(0, 4),
        priority=st.sampled_from(["high", "normal", "low"]),
        queue=st.sampled_from(["merge", "eval"]),
        nvlink=st.booleans(),
    )
    def submit(self, gpus: int, priority: str, queue: str, nvlink: bool) -> None:
        with contextlib.suppress(EmepError):
            self.bench.submit(
                gpu_count=gpus,
                priority=priority,
                queue=queue,
                nvlink_required=nvlink and gpus > 0,
                max_duration=200,
            )

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = self.some_job(data)
        if job_id is not None:
            with contextlib.suppress(EmepError):
                self.bench.ledger.jobs.cancel(job_id, actor="alice")

    # ---- the scheduler -----------------------------------------------------------------------------------

    @rule()
    def plan(self) -> None:
        self.bench.planner.cycle()

    @rule(
        seconds=st.sampled_from([70, 40, 70, 10]),
        reporting=st.sampled_from([NODES, NODES, NODES, ("n0",), ()]),
    )
    def pass_time(self, seconds: int, reporting: tuple[str, ...]) -> None:
        self.bench.quiet(seconds, nodes=reporting)
        self.bench.planner.cycle()

    @rule(gpus=st.integers(1, 2))
    def something_runs(self, gpus: int) -> None:
        """A shortcut to where it becomes interesting."""
        self.submit(gpus, "normal", "merge", False)
        self.bench.planner.cycle()
        for name in NODES:
            self.poll(name, True)
            for allocation in sorted(self.really_running[name]):
                with contextlib.suppress(EmepError):
                    epoch = int(allocation.rsplit("-", 1)[1])
                    self.bench.ledger.allocations.heartbeat(allocation, Heartbeat(epoch=epoch))

    @rule()
    def restart_the_server(self) -> None:
        self.bench.ledger.housekeeping.tick(just_started=True)

    # ---- agents ------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NODES), obeys=st.sampled_from([False, False, True]))
    def poll(self, name: str, obeys: bool) -> None:
        from emep.wire.nodes import RunningAllocation, StartOrder

        def running() -> list[RunningAllocation]:
            return [
                RunningAllocation(allocation_id=allocation, epoch=int(allocation.rsplit("-", 1)[1]))
                for allocation in sorted(self.really_running[name])
            ]

        self.bench.ledger.orders.check_in(name, running())
        for order in self.bench.ledger.orders.due(name, running())[0].orders:
            if isinstance(order, StartOrder):
                self.start(name, order)
            elif obeys:
                self.really_running[name].discard(order.allocation_id)

    def start(self, name: str, order: object) -> None:
        """The heart of it: at no time do two processes have one GPU, whatever the ledger's rows say."""
        mine = {gpu.index for gpu in order.gpus}
        self.starts += 1
        with self.bench.database.read() as session:
            for other in self.really_running[name] - {order.allocation_id}:
                held = session.get(Allocation, other)
                theirs = {index for node, index, _ in held.gpus if node == name}
                if held.state == AllocationState.RELEASED.value:
                    continue  # its engine has ended, its process is only leaving
                assert not mine & theirs, (
                    f"{order.allocation_id} is started beside {other} on {mine & theirs}"
                )
        self.really_running[name].add(order.allocation_id)

    @rule(name=st.sampled_from(NODES), bad=st.sampled_from([(), (), (0,), (0, 1)]))
    def report(self, name: str, bad: tuple[int, ...]) -> None:
        self.bench.report(name, bad=bad)

    @rule(name=st.sampled_from(NODES))
    def machine_restarts(self, name: str) -> None:
        self.really_running[name].clear()
        self.bench.node(name, gpus=2)

    # ---- supervisors -------------------------------------------------------------------------------------

    @rule(data=st.data(), stale=st.booleans())
    def heartbeat(self, data: st.DataObject, stale: bool) -> None:
        allocation = self.some_allocation(data)
        if allocation is not None:
            epoch = allocation.epoch + (1 if stale else 0)
            with contextlib.suppress(EmepError):
                self.bench.ledger.allocations.heartbeat(allocation.id, Heartbeat(epoch=epoch))
                assert not stale

    @rule(data=st.data(), exit_code=st.sampled_from([0, 0, 1, 65, 75, 137]))
    def complete(self, data: st.DataObject, exit_code: int) -> None:
        allocation = self.some_allocation(data)
        if allocation is None:
            return
        was_over = allocation.state not in LIVE
        before = self.bench.ledger.jobs.get(allocation.job_id)
        with contextlib.suppress(EmepError):
            self.bench.ledger.allocations.complete(
                allocation.id, Completion(epoch=allocation.epoch, exit_code=exit_code)
            )
        for name in NODES:
            self.really_running[name].discard(allocation.id)
        if was_over:
            assert self.bench.ledger.jobs.get(allocation.job_id) == before, "an old epoch has changed a job"

    # ---- helpers -----------------------------------------------------------------------------------------

    def some_job(self, data: st.DataObject) -> str | None:
        with self.bench.database.read() as session:
            ids = list(session.scalars(select(Job.id).order_by(Job.id)))
        return data.draw(st.sampled_from(ids)) if ids else None

    def some_allocation(self, data: st.DataObject) -> Allocation | None:
        with self.bench.database.read() as session:
            rows = list(session.scalars(select(Allocation).order_by(Allocation.id)))
        return data.draw(st.sampled_from(rows)) if rows else None

    # ---- what always holds -------------------------------------------------------------------------------

    @invariant()
    def rows_agree(self) -> None:
        with self.bench.database.read() as session:
            allocations = {row.id: row for row in session.scalars(select(Allocation))}
            jobs = {row.id: row for row in session.scalars(select(Job))}
            holds: dict[str, set[tuple[str, int]]] = {}
            for row in session.scalars(select(AllocationGpu)):
                holds.setdefault(row.allocation_id, set()).add((row.node, row.gpu_index))
            charged = sum(row.gpu_seconds for row in session.scalars(select(Usage)))
        for allocation in allocations.values():
            listed = {(node, index) for node, index, _ in allocation.gpus}
            if allocation.state in LIVE:
                assert holds.get(allocation.id, set()) == listed
                assert jobs[allocation.job_id].allocation_id == allocation.id
                assert jobs[allocation.job_id].state in {"starting", "running", "yielding"}
            else:
                assert holds.get(allocation.id, set()) <= listed
        for job in jobs.values():
            assert job.epoch >= self.epochs.get(job.id, 0)
            self.epochs[job.id] = job.epoch
            live = [row for row in allocations.values() if row.job_id == job.id and row.state in LIVE]
            assert len(live) == (1 if job.state in {"starting", "running", "yielding"} else 0)
            assert (job.ended_at is not None) == (JobState(job.state) in ENDED_STATES)
            assert job.requeues <= 5
        ended = [row for row in allocations.values() if row.ended_at is not None]
        held = sum(row.gpu_count * (row.ended_at - row.granted_at) for row in ended)
        assert math.isclose(charged, held, abs_tol=1e-6)

    @invariant()
    @precondition(lambda self: len(self.epochs) > 0)
    def the_audit_is_gapless(self) -> None:
        with self.bench.database.read() as session:
            ids = list(session.scalars(select(Event.id).order_by(Event.id)))
        assert ids == list(range(1, len(ids) + 1))


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

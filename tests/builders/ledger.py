"""Ledgers on a real database for tests: a clock that is set by hand, nodes, jobs, and an agent's moves."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Engine, create_engine, event, select

from emep.ledger.jobs.validation import Submitter
from emep.ledger.planning.planner import Cycle, Planner
from emep.ledger.service import LedgerService
from emep.ledger.store.database import Database
from emep.ledger.store.tables import AllocationGpu, Base, Event, Job
from emep.policy import Policy, default_policy
from emep.settings import Settings
from emep.wire.allocations import Completion, Heartbeat
from emep.wire.jobs import JobRequest, JobView
from emep.wire.nodes import (
    GpuHealth,
    GpuReport,
    HealthReport,
    NodeRequest,
    NodeView,
    RunningAllocation,
    StartOrder,
)

START = 1_700_000_000.0
SPEC = {"engine": "merge", "input": {}, "output_uri": "out"}


def spec_for(fields: dict[str, Any]) -> dict[str, Any]:
    """The SPEC of a job with these fields: of an engine that uses as many GPUs as they ask for."""
    asked = [fields.get(name) for name in ("gpu_count", "gpu_per_node")]
    several = any(isinstance(number, int) and number > 1 for number in asked)
    return {**SPEC, "engine": "evolve_candidates"} if several else SPEC


class ManualClock:
    """Seconds since 1970, moved by the test."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def sqlite_engine(path: str) -> Engine:
    """An engine with the settings of Airflow's own SQLite engine."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=OFF")
        cursor.close()

    return engine


def make_settings(**changes: Any) -> Settings:
    """Settings with a fixed key and enrolment token."""
    values = {
        "secret_key": b"k" * 32,
        "agent_token": "enrol",
        "checkpoint_uri": "file:///tmp/checkpoints",
        "artifact_uri": "file:///tmp/artifacts",
        "tracker_uri": "file:///tmp/tracking",
    }
    return Settings(**{**values, **changes})


class Bench:
    """A ledger with its planner, and short words for what agents and supervisors do."""

    def __init__(
        self, engine: Engine, policy: Policy | None = None, settings: Settings | None = None
    ) -> None:
        Base.metadata.create_all(engine)
        self.engine = engine
        self.clock = ManualClock()
        self.policy = policy or default_policy()
        self.database = Database(engine, self.clock)
        self.ledger = LedgerService(self.database, lambda: self.policy, settings or make_settings())
        self.planner = Planner(self.ledger, "test")
        self.database.prepare()
        self.ledger.housekeeping.tick(just_started=True)

    # ---- the cluster -----------------------------------------------------------------------------------

    def node(self, name: str = "n0", gpus: int = 4, **fields: Any) -> NodeView:
        """Register a node with so many GPUs, one NVLink group unless told otherwise."""
        group = fields.pop("nvlink_group_id", f"{name}-g0")
        reports = [
            GpuReport(
                index=i, uuid=f"GPU-{name}-{i}", gpu_type="H100", gpu_memory="80Gi", nvlink_group_id=group
            )
            for i in range(gpus)
        ]
        fields = {"cpu": 32, "memory": "256Gi", **fields}
        return self.ledger.nodes.register(NodeRequest(name=name, gpus=reports, **fields))

    def report(self, name: str, bad: tuple[int, ...] = (), missing: tuple[int, ...] = ()) -> NodeView:
        """The agent's ten-second report."""
        indices = [gpu.index for gpu in self.ledger.nodes.views(name)[0].gpus if gpu.index not in missing]
        return self.ledger.nodes.report_health(
            name, HealthReport(gpus=[GpuHealth(index=i, healthy=i not in bad) for i in indices])
        )

    def poll(self, name: str = "n0", *running: JobView) -> list[Any]:
        """One poll of the agent, with the allocations of these jobs listed as running."""
        listed = [RunningAllocation(allocation_id=job.allocation_id, epoch=job.epoch) for job in running]
        self.ledger.orders.check_in(name, listed)
        return self.ledger.orders.due(name, listed)[0].orders

    # ---- jobs ------------------------------------------------------------------------------------------

    def submit(self, by: str = "alice", **fields: Any) -> JobView:
        """Submit a job for one GPU unless told otherwise."""
        roles = fields.pop("roles", ())
        dag = fields.pop("trusted_dag", None)
        request = JobRequest(**{"spec": spec_for(fields), **fields})
        return self.ledger.submissions.submit(request, Submitter(by, request.user or by, roles, dag))[0]

    def plan(self) -> Cycle:
        """One cycle of the planner."""
        cycle = self.planner.cycle()
        assert cycle is not None
        return cycle

    def job(self, job: JobView) -> JobView:
        """The job as it is now."""
        return self.ledger.jobs.get(job.id)

    def beat(self, job: JobView, **fields: Any) -> Any:
        """A heartbeat of the job's present holder."""
        return self.ledger.allocations.heartbeat(job.allocation_id, Heartbeat(epoch=job.epoch, **fields))

    def complete(self, job: JobView, exit_code: int = 0, **fields: Any) -> JobView:
        """The job's present holder completes."""
        return self.ledger.allocations.complete(
            job.allocation_id, Completion(epoch=job.epoch, exit_code=exit_code, **fields)
        )

    def running(self, by: str = "alice", **fields: Any) -> JobView:
        """A job that is submitted, granted, started on its nodes and has sent its first heartbeat."""
        job = self.submit(by, **fields)
        self.plan()
        job = self.job(job)
        assert job.state.value == "starting", job.reason
        for node in job.nodes:
            orders = self.poll(node)
            assert any(isinstance(o, StartOrder) and o.job_id == job.id for o in orders)
            self.poll(node, job)
        self.beat(job)
        return self.job(job)

    def quiet(self, seconds: float, nodes: tuple[str, ...] = ("n0",)) -> None:
        """Let time pass with reports of ``nodes`` and ticks, and no heartbeat of anybody."""
        self.alive(seconds, nodes=nodes)

    def until_due(self, job: JobView, nodes: tuple[str, ...] = ("n0",)) -> None:
        """Let the backoff of a pending job pass, and a minute more: each ten seconds cost much work."""
        with self.database.read() as session:
            not_before = session.scalars(select(Job.not_before).where(Job.id == job.id)).one()
        # Whole steps, and some of them: a tick that comes later than usual is an absence of the server.
        steps = max(math.ceil((not_before - self.clock.now) / 10.0), 0) + 6
        self.quiet(steps * 10.0, nodes=nodes)

    def alive(
        self, seconds: float, *jobs: JobView, nodes: tuple[str, ...] = ("n0",), step: float = 10.0
    ) -> None:
        """Let time pass with reports, heartbeats of ``jobs`` and ticks as they come in production."""
        left = seconds
        while left > 0:
            self.clock.advance(min(step, left))
            left -= step
            for name in nodes:
                self.report(name)
            for job in jobs:
                self.beat(job)
            self.ledger.housekeeping.tick()


def holders(bench: Bench) -> dict[tuple[str, int], str]:
    """Who holds each GPU now, out of the database."""
    with bench.database.read() as session:
        return {
            (row.node, row.gpu_index): row.allocation_id for row in session.scalars(select(AllocationGpu))
        }


def events(bench: Bench, job: JobView | None = None) -> list[tuple[str, str]]:
    """The audit as (event, reason code), of one job or of all."""
    query = select(Event).order_by(Event.id)
    if job is not None:
        query = query.where(Event.job_id == job.id)
    with bench.database.read() as session:
        return [(row.event, row.reason_code) for row in session.scalars(query)]

"""The planner's memory of the ledger is the ledger, whatever has happened since it was read."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import pytest
from sqlalchemy import update
from tests.builders.ledger import Bench

from emep.ledger.planning.snapshot import LedgerSnapshot, build_snapshot
from emep.ledger.planning.snapshot_cache import Mirror
from emep.ledger.store.tables import Event, Job
from emep.policy import parse_policy_text
from emep.scheduling.plan import plan
from emep.wire.base import JobState
from emep.wire.errors import EmepError
from emep.wire.jobs import JobView

NODES = ("n0", "n1", "n2")
POLICIES = (
    "preemption: {grace_period: 20s}",
    "{preemption: {grace_period: 20s}, queues: {merge: {max_gpus: 6}}}",
    "{order: shortest, starvation_bound: 1h, queues: {merge: {pending_ttl: 10m}}}",
)


def refreshed(bench: Bench, mirror: Mirror) -> LedgerSnapshot:
    """What the mirror sees."""
    ledger = bench.ledger
    with bench.database.read_consistent() as session:
        return mirror.refresh(session, ledger.context.policy, ledger.context.now, ledger.context.alive_for())


def mirrored(bench: Bench, mirror: Mirror) -> LedgerSnapshot:
    """What the mirror sees, compared with a full read of the same moment, and its core with the pure plan."""
    ledger = bench.ledger
    with bench.database.read_consistent() as session:
        seen = mirror.refresh(session, ledger.context.policy, ledger.context.now, ledger.context.alive_for())
        fresh = build_snapshot(session, ledger.context.policy, ledger.context.now, ledger.context.alive_for())
    assert seen == fresh
    snapshot = seen.snapshot
    decided = mirror.core.plan(ledger.context.now, snapshot.usage, snapshot.holds)
    assert decided == plan(snapshot, ledger.context.policy, ledger.context.now, explain=False)
    return seen


class History:
    """Everything that users, agents, operators, time and the planner do, in random order."""

    def __init__(self, bench: Bench, random: Random) -> None:
        self.bench, self.random = bench, random
        for name in NODES[:2]:
            bench.node(name, gpus=random.choice([2, 4]), rack=f"r-{name}")
        self.moves = (
            *(self.submit,) * 6,
            *(self.plan,) * 5,
            *(self.heartbeat,) * 6,
            *(self.complete,) * 4,
            *(self.poll,) * 4,
            self.cancel,
            self.silence,
            self.bad_gpu,
            self.node_again,
            self.node_leaves,
            self.remove_node,
            self.drain,
            self.new_policy,
            self.pass_time,
        )

    def step(self) -> str:
        """One move; refusals are moves too."""
        move = self.random.choice(self.moves)
        self.bench.clock.advance(self.random.choice([0.0, 0.5, 3.0]))
        try:
            move()
        except EmepError as refusal:
            return f"{move.__name__} refused: {refusal}"
        return move.__name__

    def jobs(self, *states: JobState) -> list[JobView]:
        page = self.bench.ledger.jobs.page(states=states, limit=1000)
        return list(page.items)

    def one_of(self, *states: JobState) -> JobView | None:
        found = self.jobs(*states)
        return self.random.choice(found) if found else None

    def submit(self) -> None:
        self.bench.submit(
            by=self.random.choice(["alice", "bob"]),
            gpu_count=self.random.choice([0, 1, 1, 2, 4]),
            priority=self.random.choice(["normal", "normal", "low", "critical"]),
            nvlink_required=self.random.random() < 0.2,
            max_duration=self.random.choice([None, 60, 600]),
            job_type=self.random.choice(["a", "b"]),
        )

    def plan(self) -> None:
        self.bench.plan()

    def heartbeat(self) -> None:
        job = self.one_of(JobState.STARTING, JobState.RUNNING, JobState.YIELDING)
        if job is not None:
            step = self.random.choice([None, {"uri": "file:///c", "step": self.random.random()}])
            self.bench.beat(job, checkpoint=step)

    def complete(self) -> None:
        job = self.one_of(JobState.RUNNING, JobState.YIELDING, JobState.STARTING)
        if job is not None:
            self.bench.complete(job, self.random.choice([0, 0, 0, 1, 75, 86, 137]))

    def poll(self) -> None:
        name = self.random.choice(NODES)
        running = [job for job in self.jobs(JobState.STARTING, JobState.RUNNING) if name in job.nodes]
        listed = [job for job in running if self.random.random() < 0.8]
        self.bench.poll(name, *listed)

    def cancel(self) -> None:
        job = self.one_of(JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.YIELDING)
        if job is not None:
            self.bench.ledger.jobs.cancel(job.id, actor="alice")

    def silence(self) -> None:
        self.bench.clock.advance(self.random.choice([35.0, 70.0, 140.0]))
        self.bench.ledger.housekeeping.tick()

    def bad_gpu(self) -> None:
        name = self.random.choice(NODES)
        bad = self.random.choice([(), (0,), (1,)])
        for _ in range(3):
            self.bench.report(name, bad=bad)

    def node_again(self) -> None:
        name = self.random.choice(NODES)
        self.bench.node(name, gpus=self.random.choice([2, 4]), rack=self.random.choice(["r1", "r2"]))

    def node_leaves(self) -> None:
        self.bench.ledger.orders.check_in(self.random.choice(NODES), [], leaving=True)

    def remove_node(self) -> None:
        self.bench.ledger.nodes.remove(self.random.choice(NODES), actor="op")

    def drain(self) -> None:
        name, ledger = self.random.choice(NODES), self.bench.ledger
        if self.random.random() < 0.5:
            ledger.drains.drain(name, actor="op", now=self.random.random() < 0.5)
        else:
            ledger.drains.resume(name, actor="op")

    def new_policy(self) -> None:
        self.bench.policy = parse_policy_text(self.random.choice(POLICIES), "test")

    def pass_time(self) -> None:
        for _ in range(3):
            self.bench.clock.advance(10)
            for node in self.bench.ledger.nodes.views():
                if node.alive:
                    self.bench.report(node.name)
            self.bench.ledger.housekeeping.tick()


@pytest.mark.parametrize("seed", range(6))
def test_after_any_history_the_mirror_is_what_a_full_read_says(
    bench: Bench, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    history, mirror = History(bench, Random(seed)), Mirror(estimate_every=0.0, check_every=1e9)
    done: list[str] = []
    for number in range(120):
        done.append(history.step())
        if number % 3 == 0:
            try:
                mirrored(bench, mirror)
            except AssertionError as error:
                raise AssertionError(f"after {done[-4:]}") from error
    assert mirror.full_reads < 20, "it lives of what events name"
    assert {"submit", "plan", "heartbeat", "complete"} <= set(done)


def test_only_what_events_name_is_read_again(bench: Bench) -> None:
    bench.node(gpus=2)
    first = bench.submit()
    mirror = Mirror()
    before = mirrored(bench, mirror)
    bench.submit()
    after = mirrored(bench, mirror)
    assert mirror.full_reads == 1
    assert after.snapshot.pending[0] is before.snapshot.pending[0]
    assert after.snapshot.nodes[0] is before.snapshot.nodes[0]
    assert {job.id for job in after.snapshot.pending} > {first.id}


def test_a_gap_in_the_events_is_noticed(bench: Bench) -> None:
    bench.node(gpus=2)
    mirror = Mirror()
    mirrored(bench, mirror)
    bench.submit()
    bench.submit()
    bench.database.write(
        lambda tx: tx.session.execute(Event.__table__.delete().where(Event.__table__.c.event == "submitted"))
    )
    assert len(mirrored(bench, mirror).snapshot.pending) == 2
    assert mirror.full_reads == 2


def test_a_change_that_left_no_event_is_found_and_mended_by_the_check(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.node(gpus=2)
    job, other = bench.submit(), bench.submit()
    mirror = Mirror(check_every=60.0)
    mirrored(bench, mirror)
    bench.database.write(
        lambda tx: tx.session.execute(update(Job).where(Job.id == job.id).values(state="cancelled"))
    )
    assert len(refreshed(bench, mirror).snapshot.pending) == 2, "nobody has said so"
    bench.alive(61.0)
    with caplog.at_level(logging.ERROR, logger="emep.ledger.planning.snapshot_cache"):
        assert [one.id for one in mirrored(bench, mirror).snapshot.pending] == [other.id]
    assert f"pending jobs {job.id}" in caplog.text


def test_a_check_that_finds_nothing_says_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.node(gpus=2)
    done = bench.running(job_type="a")
    mirror = Mirror(check_every=60.0, estimate_every=1e9)
    mirrored(bench, mirror)
    waiting = bench.submit(gpu_count=2, job_type="a")
    bench.alive(30.0, done)
    bench.complete(done)
    refreshed(bench, mirror)
    bench.alive(40.0)
    with caplog.at_level(logging.ERROR, logger="emep.ledger.planning.snapshot_cache"):
        seen = refreshed(bench, mirror)
    assert "differed" not in caplog.text
    assert mirror.full_reads == 2
    assert [job.id for job in seen.snapshot.pending] == [waiting.id]


def test_another_policy_is_another_reading(bench: Bench) -> None:
    bench.node(gpus=2)
    bench.submit()
    mirror = Mirror()
    mirrored(bench, mirror)
    bench.policy = replace(bench.policy, reservations=3)
    mirrored(bench, mirror)
    assert mirror.full_reads == 2
    assert mirror.core.policy == bench.policy


def test_a_refresh_that_fails_half_way_is_made_good(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.node(gpus=2)
    bench.submit(gpu_count=2)
    planner = bench.planner
    planner.read()
    bench.submit()

    def fail(*_: object) -> None:
        raise RuntimeError("the connection is gone")

    monkeypatch.setattr("emep.ledger.planning.snapshot_cache.see", fail)
    with pytest.raises(RuntimeError):
        planner.read()
    monkeypatch.undo()
    assert len(planner.read().snapshot.pending) == 2
    bench.plan()
    assert len(bench.ledger.jobs.page(states=[JobState.STARTING]).items) == 1

"""The control plane was away: nothing of that time is held against anyone."""

from __future__ import annotations

from tests.builders.ledger import Bench

from emep.ledger.service import LedgerService
from emep.wire.base import JobState


def test_after_an_absence_of_the_control_plane_every_lease_gets_one_full_period(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.clock.advance(300)  # nobody could take a heartbeat
    bench.ledger.housekeeping.tick()
    assert bench.job(job).state is JobState.RUNNING
    assert bench.ledger.nodes.views("n0")[0].alive
    for _ in range(5):
        bench.clock.advance(10)
        bench.ledger.housekeeping.tick()
    bench.beat(job)
    assert bench.job(job).state is JobState.RUNNING
    bench.quiet(61)
    assert bench.job(job).state is JobState.PENDING


def test_after_a_start_too(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.quiet(55)
    restarted = LedgerService(bench.database, lambda: bench.policy, bench.ledger.context.settings)
    restarted.housekeeping.tick(just_started=True)
    bench.quiet(55)
    assert bench.job(job).state is JobState.RUNNING
    bench.quiet(10)
    assert bench.job(job).state is JobState.PENDING


def test_an_absence_does_not_bring_nodes_back_that_were_gone_before(bench: Bench) -> None:
    bench.node("n0")
    bench.node("n1")
    bench.quiet(100, nodes=("n1",))
    bench.clock.advance(300)
    bench.ledger.housekeeping.tick()
    assert [node.alive for node in bench.ledger.nodes.views()] == [False, True]

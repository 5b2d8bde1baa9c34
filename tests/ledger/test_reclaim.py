"""Leases, deadlines and reports that run out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.builders.ledger import Bench, events, holders

from emep.wire.base import JobState
from emep.wire.errors import StaleEpochError


def test_sixty_seconds_without_a_heartbeat_lose_the_lease(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.quiet(60)
    assert bench.job(job).state is JobState.RUNNING
    bench.quiet(1)
    back = bench.job(job)
    assert (back.state, back.requeues) == (JobState.PENDING, 1)
    assert "no heartbeat" in back.reason
    assert ("allocation_lost", "lease_expired") in events(bench, job)


def test_heartbeats_keep_a_lease_for_ever(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.alive(600, job)
    assert bench.job(job).state is JobState.RUNNING


def test_a_zombie_is_refused_everywhere_and_told_to_abort(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.quiet(61)
    for call in (lambda: bench.beat(job), lambda: bench.complete(job, 0)):
        with pytest.raises(StaleEpochError) as refused:
            call()
        assert refused.value.extra["directive"] == "abort"
    (stop,) = bench.poll("n0", job)
    assert (stop.directive.value, stop.allocation_id) == ("abort", job.allocation_id)
    assert bench.job(job).state is JobState.PENDING


def test_the_gpus_of_a_lost_lease_are_offered_once_its_agent_no_longer_lists_it(bench: Bench) -> None:
    bench.node(gpus=1)
    lost = bench.running()
    bench.quiet(61)
    other = bench.submit()
    bench.plan()
    bench.poll("n0", lost)
    bench.plan()
    assert bench.job(other).state is JobState.PENDING
    assert list(holders(bench).values()) == [lost.allocation_id]
    bench.poll("n0")
    bench.plan()
    assert bench.job(other).state is JobState.STARTING


def test_a_restarted_agent_that_lists_nothing_confirms_too(bench: Bench) -> None:
    bench.node(gpus=1)
    bench.running()
    bench.quiet(61)
    bench.node(gpus=1)
    assert holders(bench) != {}, "to register says nothing about what runs"
    bench.poll("n0")
    assert holders(bench) == {}


def test_an_agents_restart_in_between_costs_a_running_job_nothing(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.node()
    assert bench.poll("n0") == []
    assert bench.poll("n0", job) == []
    assert bench.job(job).state is JobState.RUNNING


def test_requeues_back_off_and_after_five_the_job_is_dead(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()
    waits = []
    for _ in range(6):
        bench.until_due(job)
        bench.plan()
        running = bench.job(job)
        assert running.state is JobState.STARTING, running.reason
        bench.poll("n0", running)
        bench.beat(running)
        queued = bench.clock.now
        bench.quiet(61)
        bench.poll("n0")
        seen = bench.planner.read().snapshot.pending
        waits.append(round(seen[0].not_before - queued - 61) if seen else None)
    assert waits == [30, 60, 120, 240, 480, None]
    dead = bench.job(job)
    assert (dead.state, dead.requeues) == (JobState.DEAD, 5)
    assert "5 times" in dead.reason


def test_the_start_deadline_requeues(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    for _ in range(60):
        bench.quiet(10)
        bench.poll("n0", bench.job(job))
    assert bench.job(job).state is JobState.STARTING
    bench.quiet(10)
    back = bench.job(job)
    assert back.state is JobState.PENDING
    assert ("requeued", "start_deadline") in events(bench, job)


def test_a_grant_on_a_node_that_falls_silent_is_taken_back_after_a_minute(bench: Bench) -> None:
    bench.node("n0")
    job = bench.submit()
    bench.plan()
    bench.quiet(70, nodes=())
    assert bench.job(job).state is JobState.PENDING
    assert ("requeued", "node_lost") in events(bench, job)


def test_pending_longer_than_its_queue_allows_is_a_dead_letter(bench: Bench) -> None:
    queue = replace(bench.policy.queues["eval"], pending_ttl=100.0)
    bench.policy = replace(bench.policy, queues={**bench.policy.queues, "eval": queue})
    bench.node(gpus=1)
    bench.running(queue="merge")
    waiting = bench.submit(queue="eval")
    bench.plan()
    bench.quiet(50)
    assert bench.job(waiting).state is JobState.PENDING
    bench.quiet(60)
    ended = bench.job(waiting)
    assert ended.state is JobState.EXPIRED
    assert "longer than queue eval allows" in ended.reason


def test_work_whose_end_was_ordered_is_not_requeued_when_its_lease_runs_out(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.jobs.cancel(job.id, actor="alice")
    bench.quiet(61)
    assert bench.job(job).state is JobState.CANCELLED


def test_a_victim_that_falls_silent_returns_as_preempted(bench: Bench) -> None:
    bench.node(gpus=1)
    victim = bench.running()
    bench.submit(priority="high")
    bench.plan()
    bench.quiet(61)
    back = bench.job(victim)
    assert (back.state, back.preempted, back.requeues) == (JobState.PENDING, True, 0)


def test_gpus_of_work_that_no_agent_started_come_back_after_all_silence(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit(runtime="external", spec=None)
    bench.plan()
    bench.beat(bench.job(job))
    bench.quiet(61)
    bench.poll("n0")
    assert bench.job(job).state is JobState.PENDING
    bench.quiet(730)
    assert holders(bench) == {}

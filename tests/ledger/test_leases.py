"""Leases of work that no agent starts, and nodes that a cluster manager speaks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.builders.ledger import Bench

from emep.wire.allocations import Completion, Heartbeat
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, ForbiddenError, StaleEpochError
from emep.wire.jobs import JobView

LABELS = {"emep/runtime": "kubernetes"}


def granted(bench: Bench, **fields) -> tuple[JobView, str]:
    """A pod's job that was granted a node; its allocation."""
    if not bench.ledger.nodes.views():
        bench.node(labels=LABELS)
    asked = bench.submit(runtime="kubernetes", spec=None, **fields)
    bench.plan()
    job = bench.job(asked)
    assert job.allocation_id is not None, job.reason
    return asked, job.allocation_id


def held(bench: Bench) -> list[str]:
    return [gpu.job_id for node in bench.ledger.nodes.views() for gpu in node.gpus if gpu.job_id]


def test_the_token_is_the_holders_and_the_same_again(bench: Bench) -> None:
    _, allocation = granted(bench, gpu_count=2)
    lease = bench.ledger.leases.fetch(allocation)
    bench.ledger.allocations.check_lease(allocation, lease.lease_token)
    assert bench.ledger.leases.fetch(allocation).lease_token == lease.lease_token
    assert (lease.epoch, lease.gpu_count, lease.nodes) == (1, 2, ["n0"])
    assert lease.environment["EMEP_ALLOCATION_ID"] == allocation
    assert lease.lease_token not in str(lease.environment)


def test_a_pod_s_supervisor_is_given_the_policy_s_times_as_an_agent_s_is(bench: Bench) -> None:
    bench.policy = replace(bench.policy, lease=replace(bench.policy.lease, heartbeat=3.0, max_silence=90.0))
    _, allocation = granted(bench)
    environment = bench.ledger.leases.fetch(allocation).environment
    assert environment["EMEP_HEARTBEAT_SECONDS"] == "3"
    assert environment["EMEP_MAX_SILENCE_SECONDS"] == "90"


def test_that_work_was_created_is_remembered(bench: Bench) -> None:
    _, allocation = granted(bench)
    assert not bench.ledger.leases.fetch(allocation).started
    assert not bench.ledger.leases.fetch(allocation, started=True).started
    assert bench.ledger.leases.fetch(allocation).started


def test_there_is_no_lease_of_what_an_agent_starts_or_of_what_is_over(bench: Bench) -> None:
    bench.node("a0")
    asked = bench.submit()
    bench.plan()
    with pytest.raises(ForbiddenError):
        bench.ledger.leases.fetch(bench.job(asked).allocation_id)
    bench.node("n0", labels=LABELS)
    _, allocation = granted(bench)
    epoch = bench.ledger.leases.fetch(allocation).epoch
    bench.ledger.allocations.complete(allocation, Completion(epoch=epoch, exit_code=0))
    with pytest.raises(StaleEpochError):
        bench.ledger.leases.fetch(allocation)


def test_lost_work_goes_back_and_its_gpus_wait_until_it_is_gone(bench: Bench) -> None:
    asked, allocation = granted(bench)
    bench.beat(bench.job(asked))
    for _ in range(2):
        bench.ledger.leases.report_lost(
            allocation, 1, "pod_evicted", "pod p was taken away: Evicted", gone=False
        )
    job = bench.job(asked)
    assert (job.state, job.requeues, job.try_number) == (JobState.PENDING, 1, 1)
    assert "pod p was taken away: Evicted" in job.reason
    assert held(bench) == [asked.id]
    assert [view.id for view in bench.ledger.leases.leaving("kubernetes")] == [allocation]
    for _ in range(2):
        bench.ledger.leases.report_gone(allocation)
    assert held(bench) == []
    assert list(bench.ledger.leases.leaving("kubernetes")) == []


def test_what_is_gone_at_once_is_free_at_once(bench: Bench) -> None:
    asked, allocation = granted(bench)
    bench.ledger.leases.report_lost(allocation, 1, "pod_deleted", "pod p was deleted", gone=True)
    assert held(bench) == []
    assert bench.job(asked).state is JobState.PENDING


def test_a_lease_that_lives_is_not_gone_and_another_epoch_loses_nothing(bench: Bench) -> None:
    asked, allocation = granted(bench)
    with pytest.raises(ConflictError):
        bench.ledger.leases.report_gone(allocation)
    with pytest.raises(StaleEpochError):
        bench.ledger.leases.report_lost(allocation, 2, "pod_lost", "x", gone=True)
    assert bench.job(asked).state is JobState.STARTING


def test_work_that_was_told_to_end_and_is_lost_has_ended(bench: Bench) -> None:
    asked, allocation = granted(bench)
    bench.beat(bench.job(asked))
    bench.ledger.jobs.cancel(asked.id, actor="alice")
    bench.ledger.leases.report_lost(allocation, 1, "pod_deleted", "as it was told", gone=True)
    assert bench.job(asked).state is JobState.CANCELLED


def external(bench: Bench) -> tuple[JobView, str]:
    """A job of four GPUs that its asker starts by itself; its allocation."""
    bench.policy = replace(bench.policy, half_life=0.0)
    bench.node()
    asked = bench.submit(runtime="external", spec=None, gpu_count=4)
    bench.plan()
    job = bench.job(asked)
    assert job.allocation_id is not None
    return asked, job.allocation_id


def used(bench: Bench) -> float:
    return sum(record.gpu_seconds for record in bench.planner.read().snapshot.usage)


def test_work_whose_lease_nobody_has_fetched_is_free_as_soon_as_it_is_cancelled(bench: Bench) -> None:
    asked, _ = external(bench)
    bench.clock.advance(5)
    bench.ledger.jobs.cancel(asked.id, actor="alice")
    assert held(bench) == []
    assert list(bench.ledger.leases.leaving("external")) == []
    assert used(bench) == 4 * 5.0


def test_cancelled_work_that_may_run_somewhere_is_held_listed_and_charged_until_it_is_gone(
    bench: Bench,
) -> None:
    asked, allocation = external(bench)
    bench.ledger.leases.fetch(allocation)
    bench.ledger.jobs.cancel(asked.id, actor="alice")
    assert held(bench) == [asked.id] * 4
    assert [view.id for view in bench.ledger.leases.leaving("external")] == [allocation]
    bench.clock.advance(7)
    for _ in range(2):
        bench.ledger.leases.report_gone(allocation)
    assert held(bench) == []
    assert used(bench) == 4 * 7.0


def test_work_that_never_began_and_of_which_nobody_speaks_is_held_no_longer_than_its_start_deadline(
    bench: Bench,
) -> None:
    asked, allocation = external(bench)
    bench.ledger.leases.fetch(allocation)
    bench.ledger.jobs.cancel(asked.id, actor="alice")
    limit = max(bench.policy.lease.start_deadline, bench.policy.preemption.grace_period)
    bench.quiet(limit - 20)
    assert held(bench) == [asked.id] * 4
    bench.quiet(40)
    assert held(bench) == []
    assert used(bench) == pytest.approx(4 * limit, abs=4 * 20)


def test_an_agents_poll_says_nothing_of_pods(bench: Bench) -> None:
    _, allocation = granted(bench)
    bench.ledger.leases.fetch(allocation)
    bench.ledger.leases.report_lost(allocation, 1, "pod_lost", "x", gone=False)
    bench.poll("n0")
    assert held(bench) != []


def test_a_node_that_is_not_ready_gets_nothing_and_gives_back_what_has_not_begun(bench: Bench) -> None:
    bench.node("n0", labels=LABELS)
    waiting, _ = granted(bench, gpu_count=2)
    running, _ = granted(bench, gpu_count=2)
    bench.beat(bench.job(running))
    view = bench.ledger.nodes.set_readiness(
        "n0", ready=False, reason="no word from its kubelet", actor="emep"
    )
    assert (view.ready, view.ready_reason) == (False, "no word from its kubelet")
    assert bench.job(waiting).state is JobState.PENDING
    assert "node n0 is not ready: no word from its kubelet" in bench.job(waiting).reason
    assert bench.job(running).state is JobState.RUNNING
    bench.ledger.leases.report_gone(f"{waiting.id}-1")
    bench.clock.advance(31)
    bench.report("n0")
    bench.plan()
    assert bench.job(waiting).state is JobState.PENDING
    bench.ledger.nodes.set_readiness("n0", ready=True, reason="", actor="emep")
    bench.plan()
    assert bench.job(waiting).state is JobState.STARTING


def test_pods_go_to_nodes_of_the_cluster_and_other_work_does_not(bench: Bench) -> None:
    bench.node("agent", gpus=2)
    bench.node("cluster", gpus=2, labels=LABELS)
    pod = bench.submit(runtime="kubernetes", spec=None, gpu_count=2)
    plain = bench.submit(gpu_count=2)
    too_many = bench.submit(gpu_count=1)
    bench.plan()
    assert bench.job(pod).nodes == ["cluster"]
    assert bench.job(plain).nodes == ["agent"]
    bench.ledger.allocations.complete(f"{pod.id}-1", Completion(epoch=1, exit_code=0))
    bench.plan()
    assert bench.job(too_many).state is JobState.PENDING


def test_work_that_is_watched_from_outside_outlives_a_restart_of_who_watches(bench: Bench) -> None:
    asked, allocation = granted(bench)
    for _ in range(2):
        bench.ledger.allocations.heartbeat(allocation, Heartbeat(epoch=1, watched=True))
    bench.quiet(300)
    assert bench.job(asked).state is JobState.RUNNING
    bench.quiet(320)
    assert bench.job(asked).state is JobState.PENDING


def test_work_that_is_told_to_end_has_ended_soon_after_its_grace_whoever_watched(bench: Bench) -> None:
    asked, allocation = granted(bench)
    bench.ledger.allocations.heartbeat(allocation, Heartbeat(epoch=1, watched=True))
    bench.ledger.jobs.cancel(asked.id, actor="alice")
    bench.quiet(bench.policy.preemption.grace_period + bench.policy.lease.expiry + 2)
    assert bench.job(asked).state is JobState.CANCELLED

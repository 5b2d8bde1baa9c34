"""Two calls at one moment, brought about on purpose: neither is lost, nothing is given away twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError
from tests.builders.ledger import Bench, events, holders

import emep.ledger.store.database as database_module
from emep.ledger.planning.planner import Planner
from emep.ledger.store.tables import AllocationGpu, AllocationNode, Gpu, Usage
from emep.scheduling.plan import plan
from emep.wire.allocations import Heartbeat
from emep.wire.base import JobState
from emep.wire.errors import StaleEpochError
from emep.wire.nodes import GpuReport, NodeRequest, RunningAllocation


def just_before(bench: Bench, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    """Let something happen between what the next call has read and its write."""
    write = bench.database.write
    left = [happens]

    def delayed(work: Any, **options: Any) -> Any:
        if left:
            left.pop()()
        return write(work, **options)

    monkeypatch.setattr(bench.database, "write", delayed)


def test_work_that_completes_while_its_agent_lists_it_for_the_first_time_disturbs_no_poll(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    job = bench.job(job)
    bench.poll()

    real = bench.ledger.orders._note_started_on

    def late(tx: Any, allocation_id: str, node: str) -> None:
        # As if another transaction had ended the work between this one's look and its write.
        tx.session.execute(delete(AllocationNode))
        real(tx, allocation_id, node)

    monkeypatch.setattr(bench.ledger.orders, "_note_started_on", late)

    bench.ledger.orders.check_in("n0", [RunningAllocation(allocation_id=job.allocation_id, epoch=1)])


def test_a_late_list_does_not_free_gpus_of_work_that_a_newer_poll_was_told_to_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    job = bench.job(job)

    def newer_poll_starts_it_and_it_is_cancelled() -> None:
        bench.clock.advance(1)
        bench.poll("n0")
        bench.poll("n0", job)
        bench.ledger.jobs.cancel(job.id, actor="alice")

    bench.clock.advance(20)
    just_before(bench, monkeypatch, newer_poll_starts_it_and_it_is_cancelled)

    bench.ledger.orders.check_in("n0", [])

    assert list(holders(bench).values()) == [job.allocation_id], "its process may still be there"
    bench.poll("n0")
    assert holders(bench) == {}


def test_heartbeats_with_new_checkpoints_and_orders_to_yield_never_wait_for_each_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node(gpus=8)
    jobs = [bench.running() for _ in range(4)]
    deadlocks: list[str] = []
    worth_retrying = database_module._worth_retrying

    def counted(error: Exception) -> bool:
        if getattr(getattr(error, "orig", None), "pgcode", None) == "40P01":
            deadlocks.append(str(error))
        return worth_retrying(error)

    monkeypatch.setattr(database_module, "_worth_retrying", counted)

    def beat(number: int) -> None:
        for step in range(25):
            job = jobs[number]
            checkpoint = {"step": step, "uri": "file:///tmp/c"}
            bench.ledger.allocations.heartbeat(job.allocation_id, Heartbeat(epoch=1, checkpoint=checkpoint))

    def call(number: int) -> None:
        for _ in range(25):
            bench.ledger.jobs.cancel(jobs[number].id, actor="alice")

    threads = [threading.Thread(target=what, args=(n,)) for n in range(4) for what in (beat, call)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert deadlocks == []
    assert {bench.job(job).state for job in jobs} == {JobState.YIELDING}
    assert {bench.job(job).last_checkpoint["step"] for job in jobs} == {24}


def test_a_gpu_that_goes_to_another_node_is_news_of_both(bench: Bench) -> None:
    bench.node("n0", gpus=1)
    bench.node("n1", gpus=1)
    bench.planner.read()
    bench.clock.advance(100)
    moved = GpuReport(index=1, uuid="GPU-n0-0", gpu_type="H100", gpu_memory="80Gi")
    own = GpuReport(index=0, uuid="GPU-n1-0", gpu_type="H100", gpu_memory="80Gi")
    bench.ledger.nodes.register(NodeRequest(name="n1", gpus=[own, moved]))

    seen = bench.planner.read().snapshot

    assert {node.name: len(node.gpus) for node in seen.nodes} == {"n0": 0, "n1": 2}
    assert ("gpu_moved", "") in events(bench)


def test_a_plan_that_cannot_be_carried_out_is_made_anew_from_what_the_ledger_says(bench: Bench) -> None:
    bench.node(gpus=1)
    first = bench.running()
    bench.complete(first)
    bench.plan()
    second = bench.submit()
    with bench.engine.begin() as connection:  # no event tells the planner of it
        row = {"node": "n0", "gpu_index": 0, "allocation_id": first.allocation_id}
        connection.execute(insert(AllocationGpu).values(**row))
    with pytest.raises(IntegrityError):
        bench.planner.cycle()

    bench.plan()

    assert bench.job(second).state is JobState.PENDING


def test_gpus_are_not_promised_for_ever_to_a_job_that_is_cancelled_while_the_plan_is_made(
    bench: Bench,
) -> None:
    bench.node()
    victims = [bench.running(priority="low", gpu_count=2) for _ in range(2)]
    bench.alive(1200, *victims)
    urgent = bench.submit(priority="high", gpu_count=4)
    promises: list[int] = []

    def plan_while_it_is_cancelled(snapshot: Any, policy: Any, now: float) -> Any:
        decided = plan(snapshot, policy, now)
        promises.extend(len(hold.gpus) for hold in decided.holds)
        bench.ledger.jobs.cancel(urgent.id, actor="alice")
        return decided

    Planner(bench.ledger, "test", plan_while_it_is_cancelled).cycle()

    assert promises == [4]
    with bench.database.read() as session:
        assert set(session.scalars(select(Gpu.held_for))) == {None}


def test_work_that_is_called_off_just_before_it_is_created_is_not_created(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node()
    job = bench.submit(runtime="external")
    bench.plan()
    job = bench.job(job)
    just_before(bench, monkeypatch, lambda: bench.ledger.jobs.cancel(job.id, actor="alice"))

    with pytest.raises(StaleEpochError):
        bench.ledger.leases.fetch(job.allocation_id, started=True)


def test_a_write_whose_row_is_deleted_under_it_is_run_again(bench: Bench) -> None:
    bench.node(gpus=1)
    attempts: list[int] = []

    def work(tx: Any) -> bool:
        gpu = tx.session.get(Gpu, ("n0", 0))
        attempts.append(1)
        if len(attempts) == 1:
            tx.session.execute(delete(Gpu).execution_options(synchronize_session=False))
            gpu.state_reason = "of a row that is gone"
        return gpu is not None

    assert bench.database.write(work)
    assert len(attempts) == 2


def test_the_first_jobs_of_a_user_that_end_at_once_are_all_charged(bench: Bench) -> None:
    bench.node(gpus=8)
    jobs = [bench.running(by="carol") for _ in range(8)]
    bench.clock.advance(10)
    together = threading.Barrier(len(jobs))
    failures: list[Exception] = []

    def complete(job: Any) -> None:
        together.wait()
        try:
            bench.complete(job)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=complete, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    with bench.database.read() as session:
        assert session.scalars(select(Usage.gpu_seconds)).all() == [80.0]

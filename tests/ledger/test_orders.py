"""What an agent is told to start and to stop."""

from __future__ import annotations

from sqlalchemy import update
from tests.builders.ledger import Bench

from emep.ledger.store.tables import Allocation, Job
from emep.wire.base import JobState
from emep.wire.nodes import RunningAllocation, StartOrder


def test_a_start_order_says_everything_the_agent_needs(bench: Bench) -> None:
    bench.node()
    bench.submit(gpu_count=2, cpu=4, memory="8Gi", checkpoint_key="dag/run/task", trace_id="a" * 32)
    bench.plan()
    (order,) = bench.poll("n0")
    assert isinstance(order, StartOrder)
    assert ([gpu.index for gpu in order.gpus], order.cpu, order.memory) == ([0, 1], 4.0, 8 * 1024**3)
    environment = order.environment
    assert environment["EMEP_ALLOCATION_ID"] == order.allocation_id
    assert environment["EMEP_LEASE_EPOCH"] == "1"
    assert environment["EMEP_CHECKPOINT_URI"].startswith("file:///tmp/checkpoints/")
    assert environment["TRACEPARENT"].startswith(f"00-{'a' * 32}-")
    assert order.lease_token.startswith("emep-lease.")
    lease = bench.policy.lease
    assert environment["EMEP_HEARTBEAT_SECONDS"] == f"{lease.heartbeat:g}"
    assert environment["EMEP_MAX_SILENCE_SECONDS"] == f"{lease.max_silence:g}"


def test_a_start_order_is_repeated_until_the_agent_lists_it(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    assert [type(order) for order in bench.poll("n0")] == [StartOrder]
    assert [type(order) for order in bench.poll("n0")] == [StartOrder]
    assert bench.poll("n0", bench.job(job)) == []
    bench.beat(bench.job(job))
    assert bench.poll("n0") == [], "it runs: an agent that does not list it must not start it twice"


def test_checkpoints_are_kept_under_the_same_folder_by_every_try(bench: Bench) -> None:
    bench.node()
    for _ in range(2):
        bench.submit(checkpoint_key="dag/run/task")
    bench.submit(checkpoint_key="dag/run-task")
    bench.plan()
    folders = [order.environment["EMEP_CHECKPOINT_URI"] for order in bench.poll("n0")]
    assert folders[0] == folders[1] != folders[2]


def test_a_gang_over_two_nodes_has_an_order_on_each(bench: Bench) -> None:
    bench.node("n0", gpus=2)
    bench.node("n1", gpus=2)
    job = bench.submit(gpu_count=4, node_count=2, cpu=8, runtime="external")
    bench.plan()
    # No request may ask an agent for this yet; what the ledger hands out for it stands.
    with bench.engine.begin() as connection:
        for table in (Job, Allocation):
            connection.execute(update(table).values(runtime="agent"))
    (first,), (second,) = bench.poll("n0"), bench.poll("n1")
    assert {gpu.node for gpu in first.gpus} == {"n0"}
    assert {gpu.node for gpu in second.gpus} == {"n1"}
    assert (first.environment["NODE_RANK"], second.environment["NODE_RANK"]) == ("0", "1")
    assert first.cpu == 4.0
    bench.beat(bench.job(job))
    assert [type(order) for order in bench.poll("n1")] == [StartOrder], "its other half still has to start"


def test_what_an_agent_runs_that_nobody_ordered_is_stopped(bench: Bench) -> None:
    bench.node()
    listed = [RunningAllocation(allocation_id="ghost-3", epoch=3)]
    bench.ledger.orders.check_in("n0", listed)
    (order,) = bench.ledger.orders.due("n0", listed)[0].orders
    assert (order.kind, order.allocation_id, order.directive.value) == ("stop", "ghost-3", "abort")


def test_work_that_has_completed_may_leave_by_itself(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.complete(job)
    assert bench.poll("n0", job) == []
    bench.clock.advance(31)
    (order,) = bench.poll("n0", job)
    assert order.directive.value == "abort"


def test_a_cpu_job_is_ordered_without_gpus(bench: Bench) -> None:
    bench.node(gpus=0)
    job = bench.submit(gpu_count=0, cpu=2)
    bench.plan()
    (order,) = bench.poll("n0")
    assert order.gpus == []
    bench.poll("n0", bench.job(job))
    bench.beat(bench.job(job))
    assert bench.complete(bench.job(job)).state is JobState.COMPLETED


def test_jobs_of_other_runtimes_are_not_ordered_from_agents(bench: Bench) -> None:
    bench.node()
    job = bench.submit(runtime="external", spec=None)
    bench.plan()
    assert bench.job(job).state is JobState.STARTING
    assert bench.poll("n0") == []


def test_an_engine_is_told_how_often_to_save(bench: Bench) -> None:
    bench.node()
    bench.submit(checkpoint_interval="90s")
    bench.submit()
    bench.plan()
    told, plain = bench.poll("n0")
    assert told.environment["EMEP_CHECKPOINT_SECONDS"] == "90"
    assert "EMEP_CHECKPOINT_SECONDS" not in plain.environment, "the engine's own default"

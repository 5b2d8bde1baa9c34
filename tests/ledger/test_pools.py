"""Airflow's ``gpu_`` pools beside the ledger, on Airflow's own tables, its scheduler's own queueing."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from tests.builders.airflow_queue import AirflowQueue
from tests.builders.ledger import Bench, events, holders

from emep.ledger.airflow_pools import pools
from emep.ledger.airflow_pools.stale_reads import NO_LIMIT, SETTLE_SECONDS, StaleReads
from emep.ledger.planning.planner import Planner
from emep.scheduling.plan import plan


@pytest.fixture
def airflow(engine: Engine) -> AirflowQueue:
    """Airflow's tables, with one DAG that has no tasks yet."""
    return AirflowQueue(engine)


@pytest.fixture(autouse=True)
def a_quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: what is looked for is not left to a later tick."""
    monkeypatch.setattr(pools, "COUNT_QUICK", 1e9)


@pytest.fixture
def bench(airflow: AirflowQueue, engine: Engine) -> Bench:
    """A ledger in Airflow's database."""
    return Bench(engine)


def test_without_airflow_s_tables_there_is_nothing_to_keep(engine):
    bench = Bench(engine)
    bench.node()
    job = bench.running()
    bench.complete(job)
    bench.ledger.housekeeping.tick()
    assert events(bench, job)[-1] == ("completed", "")


def test_a_row_follows_what_is_held_and_says_the_rest_in_words(bench, airflow):
    assert airflow.pool() is None
    bench.node(gpus=8)
    bench.node("p0", gpus=2, pool="tests")
    assert airflow.pool()[:2] == (8, True)
    assert airflow.pool("gpu_tests")[:2] == (2, True)
    job = bench.running(gpu_count=3)
    slots, _, words = airflow.pool()
    assert slots == 5
    assert words.startswith("8 GPUs, 3 held by EMEP, 0 unhealthy, drained or out.")
    assert airflow.pool("gpu_tests")[0] == 2
    bench.complete(job)
    assert airflow.pool()[0] == 8


def test_cpu_jobs_change_no_row(bench, airflow):
    bench.node(gpus=8)
    bench.complete(bench.running(gpu_count=0))
    assert airflow.pool()[0] == 8


def test_bad_gpus_and_nodes_that_are_gone_are_not_in_the_row(bench, airflow):
    bench.node(gpus=8)
    job = bench.running(gpu_count=2)
    for _ in range(bench.policy.health.failed_checks):
        bench.report("n0", bad=(0, 7))
    slots, _, words = airflow.pool()
    assert slots == 5, "two held, one of them bad; one more is bad"
    assert words.startswith("8 GPUs, 2 held by EMEP, 1 unhealthy, drained or out.")
    for _ in range(bench.policy.health.good_checks):
        bench.report("n0")
    assert airflow.pool()[0] == 6
    bench.ledger.orders.check_in("n0", [], leaving=True)
    assert airflow.pool()[0] == 0
    assert job.nodes == ["n0"]


def test_a_node_that_falls_silent_takes_its_slots_along_with_the_next_tick(bench, airflow):
    bench.node(gpus=8)
    bench.clock.advance(4.0)
    bench.ledger.housekeeping.tick()
    assert airflow.pool()[0] == 8
    for _ in range(4):
        bench.clock.advance(9.0)
        bench.ledger.housekeeping.tick()
    assert airflow.pool()[0] == 0
    bench.report("n0")
    for _ in range(bench.policy.health.good_checks):
        bench.report("n0")
    assert airflow.pool()[0] == 8


@pytest.mark.parametrize(
    ("state", "fields"),
    [("queued", {}), ("running", {}), ("deferred", {}), ("scheduled", {"next_method": "go_on"})],
)
def test_what_plain_tasks_hold_is_not_given(bench, airflow, state, fields):
    bench.node(gpus=8)
    airflow.task(3, state=state, **fields)
    large, small = bench.submit(gpu_count=6), bench.submit(gpu_count=5, by="bob")
    bench.plan()
    assert bench.job(large).state.value == "pending"
    assert "used outside EMEP" in bench.job(large).reason
    assert bench.job(small).state.value == "starting"
    assert airflow.pool()[0] == 3, "Airflow subtracts its own tasks by itself"


def test_tasks_of_other_pools_hold_nothing_here(bench, airflow):
    bench.node(gpus=8)
    airflow.task(8, pool="default_pool", state="running")
    airflow.task(8, pool="gpu_elsewhere", state="running")
    job = bench.submit(gpu_count=8)
    bench.plan()
    assert bench.job(job).state.value == "starting"


def test_whole_nodes_stay_whole_beside_plain_tasks(bench, airflow):
    for name in ("n0", "n1"):
        bench.node(name, gpus=8)
    bench.running(gpu_count=4)
    airflow.task(3, state="running")
    job = bench.submit(gpu_count=8, nvlink_required=True)
    bench.plan()
    assert bench.job(job).state.value == "starting"


def test_a_grant_that_a_plain_task_has_overtaken_is_left_out_and_planned_again(bench, airflow):
    bench.node(gpus=8)
    job, other = bench.submit(gpu_count=8), bench.submit(gpu_count=2, by="bob")
    airflow.task(5)

    def queue_meanwhile(snapshot, policy, now):
        decided = plan(snapshot, policy, now)
        assert [start.job_id for start in decided.starts] == [job.id]
        assert airflow.queue() == ["t1"]
        return decided

    Planner(bench.ledger, "late", queue_meanwhile).cycle()
    assert bench.job(job).state.value == "pending"
    assert holders(bench) == {}
    bench.plan()
    assert bench.job(job).state.value == "pending"
    assert bench.job(other).state.value == "starting", "two of the three that are left"
    assert airflow.pool()[0] == 6


def test_airflow_queues_no_more_than_emep_has_left(bench, airflow):
    bench.node(gpus=8)
    bench.running(gpu_count=5)
    for _ in range(6):
        airflow.task(1)
    assert airflow.queue() == ["t1", "t2", "t3"]
    assert airflow.open_slots() == 0


def test_the_gpus_of_a_plain_task_that_ended_are_planned_with_the_next_tick(bench, airflow):
    bench.node(gpus=8)
    task = airflow.task(4, state="running")
    job = bench.submit(gpu_count=8)
    bench.plan()
    bench.ledger.housekeeping.tick()
    assert bench.job(job).state.value == "pending"
    airflow.move(task, "success")
    before = dirty(bench)
    bench.ledger.housekeeping.tick()
    assert dirty(bench) > before
    bench.plan()
    assert bench.job(job).state.value == "starting"


def dirty(bench: Bench) -> int:
    from emep.ledger.store.repository import clock_row

    with bench.database.read() as session:
        return clock_row(session)[1]


def test_a_row_that_somebody_edits_or_deletes_is_put_right_by_the_next_tick(bench, airflow):
    bench.node(gpus=8)
    bench.running(gpu_count=3)
    airflow.upsert_pool(8)
    bench.ledger.housekeeping.tick()
    assert airflow.pool()[:2] == (5, True)
    airflow.delete_pool()
    bench.ledger.housekeeping.tick()
    assert airflow.pool()[:2] == (5, True)
    airflow.upsert_pool(-1)
    bench.complete(bench.running(gpu_count=1))
    assert airflow.pool()[:2] == (5, True), "every commit that changes what is held puts it right too"


def test_right_after_a_reset_emep_gives_nothing_beyond_what_plain_tasks_took(bench, airflow):
    bench.node(gpus=8)
    held = bench.running(gpu_count=6)
    airflow.upsert_pool(8)  # Astro's loader, at a start of its own
    airflow.task(4)
    assert airflow.queue() == ["t1"], "Airflow gives by the row as it was reset"
    more = bench.submit(gpu_count=1)
    bench.plan()
    bench.ledger.housekeeping.tick()
    assert airflow.pool()[:2] == (2, True)
    assert bench.job(more).state.value == "pending"
    assert bench.job(held).state.value == "running", "nothing is taken from it either"
    bench.complete(held)
    bench.plan()
    assert bench.job(more).state.value == "starting"


def test_gpus_promised_to_a_preemptor_are_not_offered_to_airflow(bench, airflow):
    bench.node(gpus=8)
    low = [bench.running(gpu_count=4, priority="low", by=name) for name in ("alice", "bob")]
    high = bench.submit(gpu_count=8, priority="high", by="carol")
    bench.plan()
    assert [bench.job(job).state.value for job in low] == ["yielding", "yielding"]
    bench.complete(bench.job(low[0]), exit_code=75)
    assert airflow.pool()[0] == 0, "four are free, and promised"
    assert airflow.open_slots() == 0
    bench.complete(bench.job(low[1]), exit_code=75)
    bench.plan()
    assert bench.job(high).state.value == "starting"


def test_on_sqlite_gpus_in_doubt_are_claimed_first_and_granted_when_nothing_is_in_doubt(bench, airflow):
    if not bench.database.is_sqlite:
        pytest.skip("PostgreSQL locks the rows")
    bench.node(gpus=8)
    for _ in range(6):
        airflow.task(1)
    job = bench.submit(gpu_count=4)
    bench.plan()
    assert bench.job(job).state.value == "pending", "a scheduler may be queueing six at this moment"
    assert airflow.pool()[0] == 4
    assert airflow.queue() == ["t1", "t2", "t3", "t4"]
    bench.clock.advance(SETTLE_SECONDS)
    before = dirty(bench)
    bench.ledger.housekeeping.tick()
    assert dirty(bench) > before
    bench.plan()
    assert bench.job(job).state.value == "starting"
    assert airflow.pool()[0] == 4, "claimed before, held now"


def test_what_was_claimed_for_a_job_that_is_gone_goes_back_to_airflow(bench, airflow):
    if not bench.database.is_sqlite:
        pytest.skip("PostgreSQL locks the rows")
    bench.node(gpus=8)
    airflow.task(8)
    job = bench.submit(gpu_count=4)
    bench.plan()
    assert airflow.pool()[0] == 4
    bench.ledger.jobs.cancel(job.id, actor="alice")
    for _ in range(4):
        bench.alive(SETTLE_SECONDS, step=SETTLE_SECONDS)
        bench.plan()
    assert airflow.pool()[0] == 8


def test_of_many_gpus_those_that_are_free_again_appear_with_the_next_tick(bench, airflow, monkeypatch):
    monkeypatch.setattr(pools, "MANY_GPUS", 4)
    bench.node(gpus=8)
    job = bench.running(gpu_count=3)
    bench.ledger.housekeeping.tick()
    bench.complete(job)
    assert airflow.pool()[0] == 5, "less than there is, never more"
    bench.clock.advance(1.0)
    bench.ledger.housekeeping.tick()
    assert airflow.pool()[0] == 8


def test_where_counting_is_slow_it_rests_but_an_edited_row_is_put_right_at_once(bench, airflow, monkeypatch):
    monkeypatch.setattr(pools, "COUNT_QUICK", 0.0)
    monkeypatch.setattr(pools, "COUNT_SHARE", 1e-9)
    bench.node(gpus=8)
    bench.ledger.housekeeping.tick()
    bench.clock.advance(1.0)
    airflow.upsert_pool(6)
    bench.ledger.housekeeping.tick()
    assert airflow.pool()[:2] == (8, True)


def test_a_row_without_limit_may_have_been_read_too():
    reads = StaleReads()
    reads.was_visible("default", -1, 10.0)
    assert reads.highest("default", 3, 11.0) == NO_LIMIT
    assert reads.highest("default", 3, 10.0 + SETTLE_SECONDS) == 3

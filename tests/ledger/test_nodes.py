"""Registration, health, and the end of a node."""

from __future__ import annotations

import pytest
from tests.builders.ledger import Bench, events

from emep.policy import parse_policy
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, InvalidError, NotFoundError
from emep.wire.nodes import GpuHealth, GpuReport, HealthReport, NodeRequest


def states(bench: Bench, name: str = "n0") -> list[str]:
    return [gpu.state for gpu in bench.ledger.nodes.views(name)[0].gpus]


def test_a_node_is_known_by_its_description(bench: Bench) -> None:
    view = bench.node("n0", gpus=2, rack="r1", block="b1", labels={"zone": "a"}, network_bandwidth_gbps=400)
    assert (view.rack, view.block, view.labels, view.alive) == ("r1", "b1", {"zone": "a"}, True)
    assert [gpu.nvlink_group_id for gpu in view.gpus] == ["n0-g0", "n0-g0"]
    assert [node.name for node in bench.ledger.nodes.views()] == ["n0"]


def test_the_same_name_again_replaces_the_description_and_keeps_health(bench: Bench) -> None:
    bench.node(gpus=3)
    for _ in range(3):
        bench.report("n0", bad=(1,))
    view = bench.node(gpus=2, rack="other")
    assert view.rack == "other"
    assert states(bench) == ["healthy", "unhealthy"]


def test_a_gpu_that_a_job_holds_cannot_be_described_away(bench: Bench) -> None:
    bench.node(gpus=2)
    bench.running(gpu_count=2)
    with pytest.raises(ConflictError, match="held by a job"):
        bench.node(gpus=1)
    assert len(bench.ledger.nodes.views("n0")[0].gpus) == 2


def test_two_live_nodes_cannot_offer_one_gpu(bench: Bench) -> None:
    bench.node("n0", gpus=1)
    stolen = NodeRequest(name="n1", gpus=[GpuReport(index=0, uuid="GPU-n0-0")])
    with pytest.raises(ConflictError, match="belongs to node n0"):
        bench.ledger.nodes.register(stolen)
    bench.clock.advance(61)
    assert bench.ledger.nodes.register(stolen).gpus[0].uuid == "GPU-n0-0"
    assert bench.ledger.nodes.views("n0")[0].gpus == []


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([{"index": 0, "uuid": "a"}, {"index": 0, "uuid": "b"}], r"gpus\[1\].index"),
        ([{"index": 0, "uuid": "a"}, {"index": 1, "uuid": "a"}], r"gpus\[1\].uuid"),
    ],
)
def test_a_gpu_comes_once(bench: Bench, gpus: list[dict[str, object]], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        bench.ledger.nodes.register(NodeRequest(name="n0", gpus=gpus))
    with pytest.raises(NotFoundError):
        bench.ledger.nodes.views("n0")


# ---- health ----------------------------------------------------------------------------------------------


def test_three_failed_checks_make_a_gpu_unhealthy_and_three_good_ones_bring_it_back(bench: Bench) -> None:
    bench.node(gpus=2)
    seen = []
    for bad in [(1,), (1,), (1,), (), (), ()]:
        bench.report("n0", bad=bad)
        seen.append(states(bench)[1])
    assert seen == ["healthy", "healthy", "unhealthy", "unhealthy", "unhealthy", "healthy"]


def test_a_good_check_between_starts_the_count_again(bench: Bench) -> None:
    bench.node(gpus=1)
    for bad in [(0,), (0,), (), (0,), (0,)]:
        bench.report("n0", bad=bad)
    assert states(bench) == ["healthy"]


def test_a_gpu_that_the_report_leaves_out_has_failed_its_check(bench: Bench) -> None:
    bench.node(gpus=2)
    for _ in range(3):
        bench.report("n0", missing=(0,))
    gpu = bench.ledger.nodes.views("n0")[0].gpus[0]
    assert gpu.state == "unhealthy"
    assert gpu.state_reason.startswith("no_report")


def test_nothing_new_is_placed_on_an_unhealthy_gpu(bench: Bench) -> None:
    bench.node(gpus=2)
    for _ in range(3):
        bench.report("n0", bad=(0,))
    job = bench.submit(gpu_count=2)
    bench.plan()
    assert bench.job(job).state is JobState.PENDING
    one = bench.submit(gpu_count=1)
    bench.plan()
    assert [gpu.index for gpu in bench.job(one).gpus] == [1]


def test_the_job_on_a_gpu_reported_bad_yields_and_is_requeued(bench: Bench) -> None:
    bench.node(gpus=2)
    job = bench.running(gpu_count=2)
    for _ in range(3):
        bench.report("n0", bad=(0,))
    assert bench.job(job).state is JobState.YIELDING
    assert bench.beat(job).directive.value == "checkpoint_and_exit"
    back = bench.complete(job, 75)
    assert (back.state, back.requeues, back.preempted) == (JobState.PENDING, 1, False)


def test_a_job_that_starts_on_a_gpu_reported_bad_meanwhile_yields_as_well(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()
    bench.plan()
    for _ in range(3):
        bench.report("n0", bad=(0,))
    starting = bench.job(job)
    assert starting.state is JobState.STARTING
    bench.beat(starting)
    bench.clock.advance(1)
    bench.ledger.housekeeping.tick()
    assert bench.job(job).state is JobState.YIELDING


def test_where_reports_are_merely_missing_running_work_goes_on(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running()
    bench.alive(60, job, nodes=())
    assert states(bench) == ["unhealthy"]
    assert bench.job(job).state is JobState.RUNNING
    assert not bench.ledger.nodes.views("n0")[0].alive
    bench.alive(30, job)
    assert states(bench) == ["healthy"]


def test_a_report_names_gpus_that_the_node_has_and_each_once(bench: Bench) -> None:
    bench.node(gpus=1)
    with pytest.raises(InvalidError, match="no GPU 5"):
        bench.ledger.nodes.report_health("n0", HealthReport(gpus=[GpuHealth(index=5)]))
    with pytest.raises(InvalidError, match="twice"):
        bench.ledger.nodes.report_health("n0", HealthReport(gpus=[GpuHealth(index=0), GpuHealth(index=0)]))
    with pytest.raises(NotFoundError, match="register"):
        bench.ledger.nodes.report_health("nosuch", HealthReport(gpus=[]))


# ---- Xids ----------------------------------------------------------------------------------------------


def xid_report(bench: Bench, xid: int) -> None:
    """A report that GPU 0 of a node with one GPU is well, and that its work is to be restarted."""
    bench.ledger.nodes.report_health("n0", HealthReport(gpus=[GpuHealth(index=0, restart_xid=xid)]))


def test_an_xid_that_asks_for_a_restart_sends_the_work_back_and_leaves_the_gpu_in_service(
    bench: Bench,
) -> None:
    bench.node(gpus=1)
    job = bench.running()
    bench.alive(20, job)
    xid_report(bench, 94)
    told = bench.job(job)
    assert told.state is JobState.YIELDING
    assert "Xid 94 on GPU n0:0" in told.reason
    back = bench.complete(job, 1)
    assert (back.state, back.requeues) == (JobState.PENDING, 1), "no failure of the work's own"
    assert states(bench) == ["healthy"]
    bench.until_due(back)
    bench.plan()
    assert bench.job(job).state is JobState.STARTING


def test_an_xid_of_what_ran_on_the_gpu_before_is_no_matter_of_the_work_that_runs_there_now(
    bench: Bench,
) -> None:
    bench.node(gpus=1)
    bench.report("n0")
    bench.clock.advance(5)
    job = bench.running()
    bench.clock.advance(5)
    xid_report(bench, 94)
    assert bench.job(job).state is JobState.RUNNING


def test_a_report_is_answered_with_what_the_policy_says_of_xids(bench: Bench) -> None:
    bench.node(gpus=1)
    report = HealthReport(gpus=[GpuHealth(index=0)])
    assert bench.ledger.nodes.report_health("n0", report).xids == {}
    bench.policy = parse_policy({"xids": {94: "reset"}})
    assert bench.ledger.nodes.report_health("n0", report).xids == {94: "reset"}


# ---- the end of a node ---------------------------------------------------------------------------------


def test_a_silent_node_gets_nothing_new(bench: Bench) -> None:
    bench.node("n0")
    bench.node("n1")
    bench.quiet(40, nodes=("n1",))
    job = bench.submit(gpu_count=4)
    bench.plan()
    assert bench.job(job).nodes == ["n1"]


def test_an_agent_that_leaves_gets_nothing_more_until_it_registers_again(bench: Bench) -> None:
    bench.node("n0")
    job = bench.submit()
    bench.plan()
    bench.ledger.orders.check_in("n0", [], leaving=True)
    assert not bench.ledger.nodes.views("n0")[0].alive
    bench.clock.advance(1)
    bench.ledger.housekeeping.tick()
    back = bench.job(job)
    assert (back.state, "shut down" in back.reason) == (JobState.PENDING, True)
    bench.clock.advance(9)
    bench.report("n0")
    other = bench.submit()
    bench.plan()
    assert bench.job(other).state is JobState.PENDING
    bench.node("n0")
    bench.poll("n0")
    bench.plan()
    assert bench.job(other).state is JobState.STARTING


def test_a_node_that_is_gone_can_be_forgotten(bench: Bench) -> None:
    bench.node("n0")
    with pytest.raises(ConflictError, match="alive"):
        bench.ledger.nodes.remove("n0", actor="op")
    job = bench.running()
    bench.alive(40, job, nodes=())
    with pytest.raises(ConflictError, match="holds work"):
        bench.ledger.nodes.remove("n0", actor="op")
    bench.quiet(70, nodes=())
    bench.ledger.nodes.remove("n0", actor="op")
    assert bench.ledger.nodes.views() == []
    assert ("node_removed", "") in events(bench)

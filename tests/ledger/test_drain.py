"""Nodes and GPUs that an operator takes out of service, and descriptions that he corrects."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select
from tests.builders.ledger import Bench, holders

from emep.ledger.planning.planner import Planner
from emep.ledger.store.tables import Event
from emep.policy import Policy
from emep.scheduling.model import Plan, Snapshot
from emep.scheduling.plan import plan
from emep.wire.base import Directive, JobState
from emep.wire.errors import InvalidError, NotFoundError, RejectedJobError
from emep.wire.jobs import JobView
from emep.wire.operations import NodePatch


def states(bench: Bench, name: str = "n0") -> list[str]:
    return [gpu.state for gpu in bench.ledger.nodes.views(name)[0].gpus]


def waits(bench: Bench, job: JobView) -> bool:
    bench.plan()
    return bench.job(job).state is JobState.PENDING


# ---- no new work -----------------------------------------------------------------------------------------


def test_a_drained_node_finishes_what_runs_and_takes_nothing_more_until_it_is_resumed(bench: Bench) -> None:
    bench.node(gpus=2)
    job = bench.running()
    node = bench.ledger.drains.drain("n0", reason="new fans", actor="op")
    assert (node.state, node.drain, node.drain_reason) == ("draining", True, "new fans")
    assert states(bench) == ["draining", "drained"]
    assert node.gpus[1].state_reason == "its node is drained: new fans"
    assert bench.beat(job).directive is Directive.CONTINUE
    other = bench.submit()
    assert waits(bench, other)
    bench.complete(job)
    assert waits(bench, other)
    assert (bench.ledger.nodes.views("n0")[0].state, states(bench)) == ("drained", ["drained", "drained"])
    assert bench.ledger.drains.resume("n0", actor="op").state == "up"
    assert not waits(bench, other)
    with bench.database.read() as session:
        seen = session.scalars(select(Event).where(Event.event.in_(["node_drained", "node_resumed"])))
        assert [(one.event, one.actor, one.reason, one.node) for one in seen] == [
            ("node_drained", "op", "new fans", "n0"),
            ("node_resumed", "op", "", "n0"),
        ]


def test_a_drained_gpu_is_passed_over_and_the_others_are_not(bench: Bench) -> None:
    bench.node(gpus=2)
    node = bench.ledger.drains.drain("n0", 0, reason="noisy", actor="op")
    assert [(gpu.state, gpu.drain, gpu.state_reason) for gpu in node.gpus] == [
        ("drained", True, "noisy"),
        ("healthy", False, ""),
    ]
    assert node.state == "up"
    bench.running()
    assert [index for _, index in holders(bench)] == [1]
    second = bench.submit()
    assert waits(bench, second)
    bench.ledger.drains.resume("n0", 0, actor="op")
    assert not waits(bench, second)


def test_node_and_gpu_are_drained_and_resumed_each_by_itself(bench: Bench) -> None:
    bench.node(gpus=2)
    bench.ledger.drains.drain("n0", 1, actor="op")
    bench.ledger.drains.drain("n0", actor="op")
    assert states(bench) == ["drained", "drained"]
    bench.ledger.drains.resume("n0", actor="op")
    assert states(bench) == ["healthy", "drained"]
    bench.ledger.drains.drain("n0", actor="op")
    bench.ledger.drains.resume("n0", 1, actor="op")
    assert states(bench) == ["drained", "drained"]


def test_a_drained_gpu_that_is_reported_bad_is_unhealthy_first(bench: Bench) -> None:
    bench.node(gpus=1)
    bench.ledger.drains.drain("n0", 0, actor="op")
    for _ in range(bench.policy.health.failed_checks):
        bench.report("n0", bad=(0,))
    (gpu,) = bench.ledger.nodes.views("n0")[0].gpus
    assert (gpu.state, gpu.drain) == ("unhealthy", True)


def test_a_cpu_job_is_work_on_a_node_too(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running(gpu_count=0)
    assert bench.ledger.drains.drain("n0", actor="op").state == "draining"
    bench.complete(job)
    assert bench.ledger.nodes.views("n0")[0].state == "drained"
    other = bench.submit(gpu_count=0)
    assert waits(bench, other)


def test_the_same_drain_again_says_nothing_new(bench: Bench) -> None:
    bench.node()
    for reason in ("fans", "fans", "", "new disk"):
        node = bench.ledger.drains.drain("n0", reason=reason, actor="op")
    assert node.drain_reason == "new disk"
    bench.ledger.drains.resume("n0", actor="op")
    bench.ledger.drains.resume("n0", actor="op")
    with bench.database.read() as session:
        seen = session.scalars(select(Event.event).where(Event.node == "n0", Event.actor == "op")).all()
    assert seen == ["node_drained", "node_drained", "node_resumed"]


def test_unknown_nodes_and_gpus_are_named(bench: Bench) -> None:
    bench.node()
    for call in (bench.ledger.drains.drain, bench.ledger.drains.resume):
        with pytest.raises(NotFoundError, match="no node 'n9'"):
            call("n9", actor="op")
        with pytest.raises(NotFoundError, match="no GPU 7"):
            call("n0", 7, actor="op")


# ---- now -------------------------------------------------------------------------------------------------


def test_now_means_that_what_runs_leaves_and_keeps_its_place(bench: Bench) -> None:
    bench.node("n0", gpus=2)
    stays = bench.running()
    goes = bench.running()
    other = bench.submit(gpu_count=2)
    bench.clock.advance(10)
    (gpu,) = [gpu.index for gpu in bench.job(goes).gpus]
    bench.ledger.drains.drain("n0", gpu, now=True, reason="noisy", actor="op")
    assert bench.beat(stays).directive is Directive.CONTINUE
    assert bench.beat(goes).directive is Directive.CHECKPOINT_AND_EXIT
    assert bench.job(goes).reason == f"GPU n0:{gpu} is drained: noisy"
    back = bench.complete(goes, exit_code=75)
    assert (back.state, back.requeues, back.preempted) == (JobState.PENDING, 0, False)
    bench.node("n1", gpus=1)
    bench.plan()
    assert bench.job(goes).nodes == ["n1"], "it is older than the other that waits"
    assert bench.job(other).state is JobState.PENDING


def test_now_takes_back_what_has_not_reported_yet(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()
    bench.plan()
    bench.ledger.drains.drain("n0", now=True, actor="op")
    assert bench.job(job).state is JobState.PENDING
    assert states(bench) == ["draining"], "until its agent says that nothing runs there"
    bench.poll("n0")
    assert states(bench) == ["drained"]
    assert waits(bench, job)


def test_a_gang_leaves_when_one_of_its_nodes_is_drained(bench: Bench) -> None:
    for name in ("n0", "n1"):
        bench.node(name, gpus=1)
    job = bench.submit(gpu_count=2, node_count=2, runtime="external")
    bench.plan()
    job = bench.job(job)
    bench.beat(job)
    bench.ledger.drains.drain("n1", now=True, actor="op")
    assert bench.job(job).state is JobState.YIELDING


def test_a_drain_may_become_urgent_later(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.drains.drain("n0", actor="op")
    assert bench.job(job).state is JobState.RUNNING
    bench.ledger.drains.drain("n0", now=True, actor="op")
    assert bench.job(job).state is JobState.YIELDING
    bench.ledger.drains.drain("n0", now=True, actor="op")
    assert bench.complete(job, exit_code=137).state is JobState.PENDING


@pytest.mark.parametrize("gpu", [None, 0])
def test_a_drain_between_plan_and_commit_is_honoured(bench: Bench, gpu: int | None) -> None:
    bench.node(gpus=1)
    job = bench.submit()

    def drained_meanwhile(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        decisions = plan(snapshot, policy, now)
        assert decisions.starts
        bench.ledger.drains.drain("n0", gpu, now=True, actor="op")
        return decisions

    Planner(bench.ledger, "slow", drained_meanwhile).cycle()
    assert bench.job(job).state is JobState.PENDING
    assert not holders(bench)


def test_no_grant_slips_past_a_drain_that_races_with_the_planner(bench: Bench) -> None:
    bench.node(gpus=8)
    jobs = [bench.submit() for _ in range(8)]
    begin = threading.Barrier(2)

    def drain() -> None:
        begin.wait()
        bench.ledger.drains.drain("n0", now=True, actor="op")

    thread = threading.Thread(target=drain)
    thread.start()
    begin.wait()
    for _ in range(3):
        bench.planner.cycle()
    thread.join()
    bench.planner.cycle()
    assert {bench.job(job).state for job in jobs} == {JobState.PENDING}, "nothing is left to start there"


# ---- registration and description ------------------------------------------------------------------------


def test_a_drain_outlives_a_restart_of_the_agent_and_an_exchanged_gpu(bench: Bench) -> None:
    bench.node(gpus=2)
    bench.ledger.drains.drain("n0", 1, reason="noisy", actor="op")
    bench.ledger.drains.drain("n0", reason="fans", actor="op")
    bench.node(gpus=2)
    node = bench.ledger.nodes.views("n0")[0]
    assert (node.drain, node.drain_reason, node.gpus[1].drain) == (True, "fans", True)
    from emep.wire.nodes import GpuReport, NodeRequest

    fresh = [GpuReport(index=1, uuid="GPU-new", gpu_type="H100", gpu_memory="80Gi")]
    bench.ledger.nodes.register(NodeRequest(name="n0", gpus=fresh))
    (gpu,) = bench.ledger.nodes.views("n0")[0].gpus
    assert (gpu.uuid, gpu.drain) == ("GPU-new", True)


def test_what_an_operator_sets_counts_over_what_the_agent_says(bench: Bench) -> None:
    bench.node(labels={"zone": "a"})
    node = bench.ledger.drains.patch_node("n0", NodePatch(labels={"zone": "b"}, rack="r9"), actor="op")
    assert (node.labels, node.rack, node.set_by_operator) == ({"zone": "b"}, "r9", ["labels", "rack"])
    node = bench.node(labels={"zone": "c"}, rack="r1", block="b1")
    assert (node.labels, node.rack, node.block) == ({"zone": "b"}, "r9", "b1")
    node = bench.ledger.drains.patch_node("n0", NodePatch(labels=None), actor="op")
    assert (node.labels, node.rack, node.set_by_operator) == ({"zone": "c"}, "r9", ["rack"])
    with bench.database.read() as session:
        event = session.scalars(select(Event).where(Event.event == "node_changed")).first()
    assert (event.actor, event.data["after"]) == ("op", {"labels": {"zone": "b"}, "rack": "r9"})


def test_what_can_never_run_is_judged_by_the_new_description_at_once(bench: Bench) -> None:
    bench.node()
    wanted = {"topology": {"affinity": {"zone": "z"}}}
    with pytest.raises(RejectedJobError):
        bench.submit(**wanted)
    bench.ledger.drains.patch_node("n0", NodePatch(labels={"zone": "z"}), actor="op")
    bench.plan()
    job = bench.submit(**wanted)
    assert not waits(bench, job)
    bench.ledger.drains.patch_node("n0", NodePatch(pool="elsewhere"), actor="op")
    assert waits(bench, bench.submit())


def test_a_patch_of_nothing_is_refused(bench: Bench) -> None:
    bench.node()
    with pytest.raises(InvalidError, match="at least one field"):
        bench.ledger.drains.patch_node("n0", NodePatch(reason="why not"), actor="op")
    with pytest.raises(NotFoundError):
        bench.ledger.drains.patch_node("n9", NodePatch(rack="r"), actor="op")


def test_nodes_are_listed_in_pages(bench: Bench) -> None:
    for number in (3, 1, 2, 0):
        bench.node(f"n{number}", gpus=1)
    first = bench.ledger.nodes.page(limit=3)
    assert ([node.name for node in first.items], first.total, first.next) == (["n0", "n1", "n2"], 4, "n2")
    assert [len(node.gpus) for node in first.items] == [1, 1, 1]
    second = bench.ledger.nodes.page(first.next, 3)
    assert ([node.name for node in second.items], second.next) == (["n3"], None)

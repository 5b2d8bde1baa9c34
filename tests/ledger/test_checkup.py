"""A check-up says what the watch over the hardware has found, and does at once what the tick would do."""

from __future__ import annotations

from tests.builders.ledger import Bench

from emep.ledger.nodes.checkup import check_up
from emep.wire.health import Checkup


def found(checkup: Checkup) -> list[tuple[str, str]]:
    return [(finding.event, finding.code) for finding in checkup.findings]


def test_without_a_cursor_it_begins_now(bench: Bench) -> None:
    bench.node()
    for _ in range(3):
        bench.report("n0", bad=(1,))
    first = check_up(bench.ledger.context, None)
    assert first.findings == []
    assert first.gpus == {"default": {"healthy": 3, "unhealthy": 1}}
    assert check_up(bench.ledger.context, first.cursor).findings == []


def test_a_bad_gpu_and_the_job_that_leaves_it_are_findings_and_the_rest_is_not(bench: Bench) -> None:
    bench.node(gpus=2)
    cursor = check_up(bench.ledger.context, None).cursor
    job = bench.running()
    ((_, index, _),) = [(gpu.node, gpu.index, gpu.uuid) for gpu in job.gpus]
    for _ in range(3):
        bench.report("n0", bad=(index,))
    bench.complete(bench.job(job), 75)
    checkup = check_up(bench.ledger.context, cursor)
    assert found(checkup) == [
        ("gpu_unhealthy", "reported"),
        ("told_to_yield", "unhealthy"),
        ("requeued", "unhealthy_gpu"),
    ]
    gpu, told, _ = checkup.findings
    assert (gpu.nodes, gpu.gpu_index) == (["n0"], index)
    assert (told.nodes, told.job_id) == (["n0"], job.id)
    assert check_up(bench.ledger.context, checkup.cursor).findings == []


def test_drains_and_resumes_are_findings_and_drained_gpus_are_counted_as_such(bench: Bench) -> None:
    bench.node(gpus=2)
    cursor = check_up(bench.ledger.context, None).cursor
    job = bench.running()
    bench.ledger.drains.drain("n0", None, actor="op", reason="cables", now=False)
    checkup = check_up(bench.ledger.context, cursor)
    assert found(checkup) == [("node_drained", "")]
    assert (checkup.findings[0].actor, checkup.findings[0].reason) == ("op", "cables")
    assert checkup.gpus == {"default": {"draining": 1, "drained": 1}}
    bench.complete(bench.job(job))
    bench.ledger.drains.resume("n0", None, actor="op", reason="")
    after = check_up(bench.ledger.context, checkup.cursor)
    assert found(after) == [("node_resumed", "")]
    assert after.gpus == {"default": {"healthy": 2}}


def test_a_silent_node_is_named_and_its_leases_are_taken_back(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    cursor = check_up(bench.ledger.context, None).cursor
    for _ in range(7):
        bench.clock.advance(10)
        bench.ledger.housekeeping.tick()
    checkup = check_up(bench.ledger.context, cursor)
    assert checkup.silent_nodes == ["n0"]
    assert ("allocation_lost", "lease_expired") in found(checkup)
    assert ("gpu_unhealthy", "no_report") in found(checkup)
    assert [finding.job_id for finding in checkup.findings if finding.event == "requeued"] == [job.id]


def test_it_says_when_the_next_lease_or_report_runs_out(bench: Bench) -> None:
    assert check_up(bench.ledger.context, None).due_seconds is None
    bench.node()
    assert check_up(bench.ledger.context, None).due_seconds == 15
    bench.running()
    bench.clock.advance(4)
    assert check_up(bench.ledger.context, None).due_seconds == 11
    bench.clock.advance(100)
    assert check_up(bench.ledger.context, None).due_seconds == 0


def test_a_page_that_is_full_goes_on_where_it_ended(bench: Bench) -> None:
    bench.node(gpus=4)
    cursor = check_up(bench.ledger.context, None).cursor
    for _ in range(3):
        bench.report("n0", bad=(0, 1, 2, 3))
    seen: list[int | None] = []
    while (checkup := check_up(bench.ledger.context, cursor, limit=2)).findings:
        seen += [finding.gpu_index for finding in checkup.findings]
        cursor = checkup.cursor
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_cursor_of_another_ledger_begins_now(bench: Bench) -> None:
    bench.node()
    assert check_up(bench.ledger.context, 10**9).cursor == check_up(bench.ledger.context, None).cursor

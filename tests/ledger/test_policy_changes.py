"""The policy changes while jobs wait and run."""

from __future__ import annotations

from dataclasses import replace

from tests.builders.ledger import Bench

from emep.api.explain import explain
from emep.wire.base import JobState


def test_a_job_whose_queue_is_gone_waits_and_says_why(bench: Bench) -> None:
    bench.node()
    whole = bench.policy
    runs, waits = bench.running(queue="eval"), bench.submit(queue="eval", gpu_count=4)
    bench.plan()
    bench.policy = replace(
        whole, queues={name: rules for name, rules in whole.queues.items() if name != "eval"}
    )

    bench.plan()

    job = bench.job(waits)
    assert job.state is JobState.PENDING
    assert job.reason_code == "unknown_queue"
    assert "'eval'" in job.reason
    said = explain(job, bench.planner, bench.policy)
    assert [reason.code for reason in said.reasons] == ["unknown_queue"]
    assert "'eval'" in said.sentence
    assert bench.complete(bench.job(runs)).state is JobState.COMPLETED

    bench.policy = whole
    bench.plan()

    assert bench.job(waits).state is JobState.STARTING

"""Many jobs in one transaction, and what one submission costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, func, select
from tests.builders.ledger import Bench, events, spec_for

from emep.ledger.jobs.validation import Submitter
from emep.ledger.store.tables import Event, Job
from emep.wire.base import JobState
from emep.wire.errors import EmepError, InvalidError, RejectedJobError
from emep.wire.jobs import JobRequest

ALICE = Submitter("alice", "alice")


def asked(**fields: Any) -> tuple[JobRequest, Submitter]:
    return JobRequest(**{"spec": spec_for(fields), **fields}), ALICE


def count(bench: Bench) -> int:
    with bench.database.read() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


@contextmanager
def statements(bench: Bench) -> Iterator[list[str]]:
    """The SQL that the block sends."""
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(bench.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(bench.engine, "before_cursor_execute", note)


def test_a_batch_keeps_order_and_every_job_is_in_the_audit(bench: Bench) -> None:
    bench.node()
    outcomes = bench.ledger.submissions.submit_batch([asked(trace_id=f"t-{number}") for number in range(50)])
    views = [outcome[0] for outcome in outcomes if not isinstance(outcome, EmepError)]
    assert [view.trace_id for view in views] == [f"t-{number}" for number in range(50)]
    assert [view.id for view in views] == sorted(view.id for view in views)
    with bench.database.read() as session:
        seen = session.scalars(select(Event).where(Event.event == "submitted").order_by(Event.id)).all()
    assert [one.job_id for one in seen] == [view.id for view in views]
    assert [one.data["trace_id"] for one in seen] == [f"t-{number}" for number in range(50)]
    bench.plan()
    assert bench.job(views[0]).state is JobState.STARTING


def test_one_that_is_refused_keeps_none_of_the_others_out(bench: Bench) -> None:
    bench.node(gpus=2)
    outcomes = bench.ledger.submissions.submit_batch(
        [
            asked(),
            asked(gpu_count=9),
            asked(spec={"engine": "nosuch"}),
            asked(gpu_count=3, node_count=1, gpu_per_node=2),
            asked(idempotency_key="k"),
            asked(idempotency_key="k"),
            asked(gpu_count=2),
        ]
    )
    kinds = [type(one) if isinstance(one, EmepError) else one[1] for one in outcomes]
    assert kinds == [True, RejectedJobError, InvalidError, InvalidError, True, False, True]
    assert outcomes[4][0].id == outcomes[5][0].id  # type: ignore[index]
    assert outcomes[6][0].gpu_count == 2  # type: ignore[index]
    assert count(bench) == 4, "the rejected one is kept, as alone"
    rejected = outcomes[1].extra["job"]["id"]  # type: ignore[union-attr]
    assert bench.ledger.jobs.get(rejected).state is JobState.REJECTED


def test_the_same_batch_again_is_the_same_jobs(bench: Bench) -> None:
    bench.node()
    batch = [asked(idempotency_key=f"k{number}") for number in range(900)]
    first = bench.ledger.submissions.submit_batch(batch)
    again = bench.ledger.submissions.submit_batch(batch)
    assert [one[0].id for one in first] == [one[0].id for one in again]  # type: ignore[index]
    assert not any(one[1] for one in again)  # type: ignore[index]
    assert count(bench) == 900


def test_batches_that_race_with_the_same_keys_make_each_job_once(bench: Bench) -> None:
    bench.node()
    batch = [asked(idempotency_key=f"k{number}") for number in range(20)]
    begin = threading.Barrier(4)

    def submit(_: int) -> list[str]:
        begin.wait()
        return [one[0].id for one in bench.ledger.submissions.submit_batch(batch)]  # type: ignore[index]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(submit, range(4)))
    assert len({tuple(ids) for ids in answers}) == 1
    assert count(bench) == 20


def test_a_submission_is_a_handful_of_statements_and_a_batch_hardly_more(bench: Bench) -> None:
    bench.node(gpus=1)
    bench.submit(idempotency_key="first")
    with statements(bench) as single:
        bench.submit(idempotency_key="second")
    # The job, its event, the clock that numbers it, and SQLite's own BEGIN.
    assert len(single) <= 5, single
    assert not any("emep_node" in one for one in single), "nodes are not read for every job"
    with statements(bench) as batch:
        bench.ledger.submissions.submit_batch([asked(idempotency_key=f"k{number}") for number in range(300)])
    assert len(batch) <= 10, batch


def test_nodes_that_come_make_a_job_possible_at_once(bench: Bench) -> None:
    from emep.ledger.service import LedgerService

    bench.node("n0", gpus=1)
    bench.submit()
    # Another API server has taken the new node in: this one's copy is out of date.
    other = LedgerService(bench.database, lambda: bench.policy, bench.ledger.context.settings)
    from emep.wire.nodes import GpuReport, NodeRequest

    gpus = [GpuReport(index=i, uuid=f"G{i}", gpu_type="H100", gpu_memory="80Gi") for i in range(4)]
    other.nodes.register(NodeRequest(name="n1", gpus=gpus, cpu=32, memory="256Gi"))
    assert bench.submit(gpu_count=4).state is JobState.PENDING


def test_events_of_a_job_carry_its_trace_experiment_and_type(bench: Bench) -> None:
    bench.node()
    job = bench.running(trace_id="t-1", experiment_id="e-1", job_type="tuning")
    bench.beat(job, checkpoint={"step": 1})
    bench.ledger.jobs.cancel(job.id, actor="alice")
    bench.complete(job, exit_code=75)
    labels = {"trace_id": "t-1", "experiment_id": "e-1", "job_type": "tuning"}
    with bench.database.read() as session:
        seen = session.scalars(select(Event).where(Event.job_id == job.id).order_by(Event.id)).all()
    assert len(seen) > 5
    for one in seen:
        assert {name: one.data.get(name) for name in labels} == labels, one.event
    assert [name for name, _ in events(bench, job)][:2] == ["submitted", "granted"]

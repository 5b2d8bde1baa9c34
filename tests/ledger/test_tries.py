"""One try after the other: what an earlier one still writes, the next resumes from, and not beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders.ledger import START, Bench, events, holders

from emep.ledger.store.tables import Job
from emep.wire.base import JobState
from emep.wire.jobs import JobView


def task(try_number: int, **fields: Any) -> dict[str, Any]:
    return {
        "dag_id": "d",
        "run_id": "r",
        "task_id": "t",
        "try_number": try_number,
        "last_try": False,
        **fields,
    }


def test_the_next_try_waits_until_the_one_before_has_saved_its_checkpoint(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1))
    bench.ledger.jobs.cancel(first.id, actor="emep", reason="try 2 of its task has begun")
    second = bench.submit(airflow=task(2))
    assert f"job {first.id} of try 1" in second.reason
    bench.plan()
    assert bench.job(second).state is JobState.PENDING, "the first still writes"
    bench.complete(first, 75)
    bench.plan()
    assert bench.job(second).state is JobState.STARTING
    assert ("earlier_try_ended", "") in events(bench, second)


def test_it_waits_for_an_order_that_may_have_been_carried_out(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.submit(airflow=task(1))
    bench.plan()
    bench.poll("n0", bench.job(first))
    bench.ledger.jobs.cancel(first.id, actor="emep")
    assert bench.job(first).state is JobState.CANCELLED
    second = bench.submit(airflow=task(2))
    bench.plan()
    assert bench.job(second).state is JobState.PENDING
    bench.poll("n0")
    bench.plan()
    assert bench.job(second).state is JobState.STARTING


def test_it_does_not_wait_for_ever(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1))
    bench.ledger.jobs.cancel(first.id, actor="emep")
    second = bench.submit(airflow=task(2))
    bench.alive(100, nodes=("n0",))
    bench.poll("n0", first)
    bench.plan()
    assert bench.job(second).state is JobState.PENDING
    for _ in range(9):
        bench.alive(10)
        bench.poll("n0", first)
    bench.plan()
    assert bench.job(second).state is JobState.STARTING


@pytest.mark.parametrize(
    "other", [task(1, run_id="r2"), task(2, task_id="u"), task(2, map_index=3), task(2, run_id="r2")]
)
def test_other_tasks_wait_for_nobody(bench: Bench, other: dict[str, Any]) -> None:
    bench.node(gpus=4)
    bench.running(airflow=task(1))
    second = bench.submit(airflow=other)
    bench.plan()
    assert bench.job(second).state is JobState.STARTING


def test_after_an_end_of_its_own_the_next_try_begins_at_once(bench: Bench) -> None:
    bench.node(gpus=4)
    bench.complete(bench.running(airflow=task(1)), 1)
    second = bench.submit(airflow=task(2))
    bench.plan()
    assert bench.job(second).state is JobState.STARTING


def test_a_new_try_answers_the_dead_letter_of_the_one_before(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1, last_try=True))
    bench.complete(first, 1)
    assert [letter.state for letter in bench.ledger.dead_letters.page().items] == ["open"]
    second = bench.submit(airflow=task(2, last_try=True))
    (letter,) = bench.ledger.dead_letters.page(state=None).items
    assert letter.state == "requeued"
    assert second.id in letter.resolution


def test_the_dead_letter_of_another_task_stays_open(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1, last_try=True))
    bench.complete(first, 1)
    bench.submit(airflow=task(2, task_id="other"))
    assert [letter.state for letter in bench.ledger.dead_letters.page().items] == ["open"]


# ---- what is done is done ---------------------------------------------------------------------------

SPEC = {"schema_version": 1, "engine": "evolve_candidates", "input": {"x": 1}, "device": "cuda"}
BEGUN = datetime.fromtimestamp(START - 1, UTC)


def retried(try_number: int, **fields: Any) -> dict[str, Any]:
    """A task that was never cleared, in a run that began before the test."""
    return task(try_number, **{"first_try": 1, "run_started_at": BEGUN, **fields})


def test_a_try_whose_predecessor_has_done_the_work_takes_its_result(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=retried(1), spec=SPEC)
    bench.complete(first, 0, result={"status": "done"})
    for number in (2, 3):
        again = bench.submit(airflow=retried(number), spec=SPEC)
        assert (again.id, again.state, again.result) == (first.id, JobState.COMPLETED, {"status": "done"})
    assert [name for name, _ in events(bench, first)].count("asked_again") == 2
    assert holders(bench) == {}


def test_work_that_was_promoted_to_the_cpu_is_the_same_work(bench: Bench) -> None:
    bench.node(gpus=4)
    job = bench.running(airflow=retried(1), spec=SPEC)
    job = bench.complete(job, 86)
    bench.plan()
    bench.beat(bench.job(job))
    bench.complete(bench.job(job), 0)
    assert bench.job(job).promoted_from_gpus == 1
    assert bench.submit(airflow=retried(2), spec=SPEC).id == job.id


@pytest.mark.parametrize(
    ("why", "asks"),
    [
        ("the task was cleared since", {"airflow": retried(2, first_try=2)}),
        ("its operator does not say since when", {"airflow": retried(2, first_try=None)}),
        ("it asks for other work", {"spec": {**SPEC, "input": {"x": 2}}}),
        ("nobody knows what it asks for", {"spec": None, "runtime": "external"}),
        ("it is another task", {"airflow": retried(2, map_index=3)}),
        ("it is another run", {"airflow": retried(2, run_id="other")}),
        (
            "its run was deleted and triggered again under its name",
            {"airflow": retried(2, run_started_at=datetime.fromtimestamp(START + 3600, UTC))},
        ),
    ],
)
def test_a_try_does_the_work_anew_where(bench: Bench, why: str, asks: dict[str, Any]) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=retried(1), spec=SPEC)
    bench.complete(first, 0)
    again = bench.submit(**{"airflow": retried(2), "spec": SPEC, **asks})
    assert again.id != first.id, why
    assert again.state is JobState.PENDING


def test_what_was_called_off_and_completed_all_the_same_is_done_anew(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=retried(1), spec=SPEC)
    bench.ledger.jobs.cancel(first.id, actor="alice")
    assert bench.complete(first, 0).state is JobState.COMPLETED
    assert bench.submit(airflow=retried(2), spec=SPEC).id != first.id


@pytest.mark.parametrize("code", [1, 65])
def test_what_has_failed_is_tried_again(bench: Bench, code: int) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=retried(1), spec=SPEC)
    bench.complete(first, code)
    assert bench.submit(airflow=retried(2), spec=SPEC).id != first.id


def test_a_request_that_is_sent_again_gets_its_own_job_whatever_was_completed_meanwhile(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=retried(1), spec=SPEC)
    asked = {"airflow": retried(2), "spec": SPEC, "idempotency_key": "try 2"}
    second = bench.submit(**asked)
    bench.complete(first, 0)
    assert bench.submit(**asked).id == second.id


def test_a_job_that_another_account_put_in_under_the_tasks_name_is_no_try_of_it(bench: Bench) -> None:
    """As one may stand in a database that was written when each account could name a task."""
    bench.node(gpus=4)
    forged = bench.running("mallory", airflow=retried(1, last_try=True), spec=SPEC)
    bench.complete(forged, 0, result={"invented": True})
    again = bench.submit("emep", airflow=retried(2), spec=SPEC)
    assert (again.state, again.result) == (JobState.PENDING, None)
    holding = bench.running("mallory", airflow=retried(3), spec={**SPEC, "seed": 1})
    later = bench.submit("emep", airflow=retried(4), spec={**SPEC, "seed": 2})
    assert holding.id not in later.reason


# ---- what is being done goes on ----------------------------------------------------------------------


def as_of(bench: Bench, state: JobState) -> JobView:
    """The job of try 1, in an unfinished state."""
    bench.node(gpus=4)
    fields = {"airflow": retried(1), "spec": SPEC, "gpu_count": 2, "idempotency_key": "try 1"}
    if state is JobState.PENDING:
        return bench.submit(**fields)
    if state is JobState.STARTING:
        job = bench.submit(**fields)
        bench.plan()
        return bench.job(job)
    job = bench.running(**fields)
    if state is JobState.YIELDING:
        bench.ledger.drains.drain("n0", now=True, actor="op", reason="maintenance")
    return bench.job(job)


UNFINISHED = [JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.YIELDING]


@pytest.mark.parametrize("state", UNFINISHED)
def test_a_try_takes_over_what_the_one_before_has_begun(bench: Bench, state: JobState) -> None:
    first = as_of(bench, state)
    assert first.state is state
    held = holders(bench)
    asked = {"airflow": retried(3, last_try=True, execution_timeout=60.0), "spec": SPEC, "gpu_count": 2}
    second = bench.submit(**asked, idempotency_key="try 3")
    assert (second.id, second.state, second.epoch) == (first.id, state, first.epoch)
    assert (second.airflow.try_number, second.airflow.last_try) == (3, True)
    assert (second.submitted_at, holders(bench)) == (first.submitted_at, held)
    assert ("taken_over", "") in events(bench, first)
    assert bench.submit(**asked, idempotency_key="try 3").id == first.id, "the same request, sent again"
    with bench.database.read() as session:
        assert session.get(Job, first.id).task_deadline == bench.clock.now + 60.0


def test_a_job_that_was_taken_over_ends_as_its_new_try_does(bench: Bench) -> None:
    first = as_of(bench, JobState.RUNNING)
    bench.submit(airflow=retried(2, last_try=True), spec=SPEC, gpu_count=2)
    assert bench.ledger.tasks.release(("d", "r", "t", -1), 1, "its worker was lost", "airflow") == []
    assert bench.complete(first, 1).state is JobState.DEAD


@pytest.mark.parametrize(
    ("why", "asks"),
    [
        ("the task was cleared since", {"airflow": retried(2, first_try=2)}),
        ("it asks for other work", {"spec": {**SPEC, "input": {"x": 2}}}),
        ("it asks for other GPUs", {"gpu_count": 1}),
        ("it asks with another priority", {"priority": "high"}),
        ("nobody knows what it asks for", {"spec": None, "runtime": "external"}),
        ("it is another task", {"airflow": retried(2, map_index=3)}),
        ("another account asks", {"by": "mallory"}),
        (
            "its run was deleted and triggered again under its name",
            {"airflow": retried(2, run_started_at=datetime.fromtimestamp(START + 3600, UTC))},
        ),
    ],
)
def test_a_try_asks_anew_where(bench: Bench, why: str, asks: dict[str, Any]) -> None:
    first = as_of(bench, JobState.RUNNING)
    again = bench.submit(**{"airflow": retried(2), "spec": SPEC, "gpu_count": 2, **asks})
    assert again.id != first.id, why
    assert bench.job(first).airflow.try_number == 1


@pytest.mark.parametrize("state", UNFINISHED)
def test_what_was_called_off_is_never_taken_over(bench: Bench, state: JobState) -> None:
    first = as_of(bench, state)
    bench.ledger.jobs.cancel(first.id, actor="alice")
    assert bench.submit(airflow=retried(2), spec=SPEC, gpu_count=2).id != first.id


def test_what_ends_at_its_time_limit_is_not_taken_over(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=retried(1), spec=SPEC, max_duration="1m")
    bench.alive(70, first)
    assert bench.job(first).state is JobState.YIELDING
    assert bench.submit(airflow=retried(2), spec=SPEC, max_duration="1m").id != first.id

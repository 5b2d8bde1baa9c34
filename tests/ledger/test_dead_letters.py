"""What a person does with jobs that nothing runs again by itself, and with work that should go back."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from tests.builders.airflow_runs import AirflowRuns, task
from tests.builders.ledger import Bench, events, holders

from emep.ledger.store.tables import Event, Job
from emep.wire.base import Directive, JobState
from emep.wire.errors import ConflictError, NotFoundError, RejectedJobError
from emep.wire.jobs import JobView
from emep.wire.operations import DeadLetterState

DAY = 86400.0


def a_day_later(bench: Bench) -> None:
    """Longer than any queue lets a job wait; the first tick finds that nobody has looked for a while."""
    bench.clock.advance(DAY + 1)
    bench.report("n0")
    bench.ledger.housekeeping.tick()
    bench.ledger.housekeeping.tick()


def expired(bench: Bench, **fields: object) -> JobView:
    """A job that has waited longer than its queue allows."""
    job = bench.submit(**fields)
    a_day_later(bench)
    assert bench.job(job).state is JobState.EXPIRED
    return job


def full(bench: Bench) -> JobView:
    """A node whose GPUs are all held."""
    bench.node(gpus=2)
    return bench.running(gpu_count=2, max_duration="90d")


# ---- running, starting, waiting --------------------------------------------------------------------------


def test_running_work_is_told_to_checkpoint_and_returns_to_its_place(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.clock.advance(20)
    told = bench.ledger.dead_letters.requeue_job(job.id, actor="op", reason="wrong node")
    assert (told.state, told.reason) == (JobState.YIELDING, "wrong node")
    assert bench.beat(job).directive is Directive.CHECKPOINT_AND_EXIT
    assert bench.ledger.dead_letters.requeue_job(job.id, actor="op").state is JobState.YIELDING, (
        "twice is once"
    )
    back = bench.complete(job, exit_code=75)
    assert (back.state, back.requeues, back.preempted) == (JobState.PENDING, 0, False)
    assert back.submitted_at == job.submitted_at
    bench.plan()
    assert bench.job(job).epoch == 2
    with bench.database.read() as session:
        event = session.scalars(select(Event).where(Event.event == "told_to_yield")).one()
    assert (event.actor, event.reason_code, event.reason) == ("op", "requeue", "wrong node")


def test_a_requeue_by_hand_is_not_counted_though_its_supervisor_never_answers(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.dead_letters.requeue_job(job.id, actor="op")
    bench.quiet(300)
    back = bench.job(job)
    assert (back.state, back.requeues) == (JobState.PENDING, 0)


def test_what_has_not_reported_yet_is_taken_back_at_once(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    assert bench.ledger.dead_letters.requeue_job(job.id, actor="op").state is JobState.PENDING
    assert holders(bench), "until its agent says that nothing of it runs"
    bench.poll("n0")
    assert not holders(bench)


def test_a_job_that_waits_is_left_where_it_is(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    with pytest.raises(ConflictError, match="pending already"):
        bench.ledger.dead_letters.requeue_job(job.id, actor="op")
    with pytest.raises(NotFoundError):
        bench.ledger.dead_letters.requeue_job("nosuch", actor="op")


def test_who_is_being_cancelled_is_not_put_back(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.jobs.cancel(job.id, actor="alice")
    with pytest.raises(ConflictError, match="told to end \\(cancel\\)"):
        bench.ledger.dead_letters.requeue_job(job.id, actor="op")
    assert bench.complete(job, exit_code=75).state is JobState.CANCELLED
    assert bench.ledger.dead_letters.requeue_job(job.id, actor="op").state is JobState.PENDING, (
        "now it may be"
    )


def test_what_has_completed_or_can_never_run_is_refused_with_what_to_do(bench: Bench) -> None:
    bench.node(gpus=1)
    done = bench.running()
    bench.complete(done)
    with pytest.raises(ConflictError, match="another idempotency key"):
        bench.ledger.dead_letters.requeue_job(done.id, actor="op")
    with pytest.raises(RejectedJobError) as refused:
        bench.submit(gpu_count=5)
    with pytest.raises(ConflictError, match="submit it again"):
        bench.ledger.dead_letters.requeue_job(refused.value.extra["job"]["id"], actor="op")


def test_a_failed_job_without_a_task_waits_again_as_if_nothing_had_been(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    assert bench.complete(job, exit_code=3).state is JobState.FAILED
    bench.clock.advance(20)
    back = bench.ledger.dead_letters.requeue_job(job.id, actor="op", reason="the disk is free again")
    assert (back.state, back.ended_at, back.exit_code, back.result) == (JobState.PENDING, None, None, None)
    assert back.submitted_at == job.submitted_at
    assert back.queued_at.timestamp() == bench.clock.now
    bench.plan()
    again = bench.job(job)
    assert (again.state, again.epoch) == (JobState.STARTING, 2)
    assert ("put_back", "operator") in events(bench, job)


# ---- dead letters without a task -------------------------------------------------------------------------


def test_an_expired_job_is_requeued_with_a_time_to_live_of_its_own(bench: Bench) -> None:
    full(bench)
    job = expired(bench, trace_id="t-1", experiment_id="e-1")
    (letter,) = bench.ledger.dead_letters.page().items
    assert (letter.id, letter.state, letter.reason_code) == (job.id, DeadLetterState.OPEN, "pending_ttl")
    assert (letter.trace_id, letter.experiment_id, letter.job_type) == ("t-1", "e-1", "merge")
    done = bench.ledger.dead_letters.requeue(job.id, actor="op", reason="more nodes")
    assert (done.state, done.resolved_by, done.resolution) == (DeadLetterState.REQUEUED, "op", "more nodes")
    assert done.job.state is JobState.PENDING
    bench.report("n0")
    bench.ledger.housekeeping.tick()
    assert bench.job(job).state is JobState.PENDING, "its time has begun anew"
    with pytest.raises(ConflictError, match="requeued by op"):
        bench.ledger.dead_letters.requeue(job.id, actor="op")
    a_day_later(bench)
    assert bench.ledger.dead_letters.get(job.id).state is DeadLetterState.OPEN, "it may die again"


def test_requeues_used_up_begin_anew(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    with bench.database._sessions.begin() as session:
        session.get(Job, job.id).requeues = bench.policy.retries.max_infrastructure
    bench.quiet(120)
    assert bench.job(job).state is JobState.DEAD
    bench.ledger.dead_letters.requeue(job.id, actor="op")
    assert (bench.job(job).state, bench.job(job).requeues) == (JobState.PENDING, 0)


def test_requeueing_the_job_resolves_its_letter(bench: Bench) -> None:
    full(bench)
    job = expired(bench)
    bench.ledger.dead_letters.requeue_job(job.id, actor="op")
    assert bench.ledger.dead_letters.get(job.id).state is DeadLetterState.REQUEUED


def test_a_discarded_letter_runs_nothing_and_says_who_and_why(bench: Bench) -> None:
    full(bench)
    job = expired(bench)
    letter = bench.ledger.dead_letters.discard(job.id, actor="op", reason="no longer wanted")
    assert (letter.state, letter.resolved_by, letter.resolution) == (
        DeadLetterState.DISCARDED, "op", "no longer wanted",
    )  # fmt: skip
    assert bench.job(job).state is JobState.EXPIRED
    assert events(bench, job)[-1] == ("dead_letter_discarded", "")
    with pytest.raises(ConflictError, match="discarded by op"):
        bench.ledger.dead_letters.discard(job.id, actor="op")
    with pytest.raises(NotFoundError):
        bench.ledger.dead_letters.discard("nosuch", actor="op")


def test_letters_are_listed_in_pages_by_state(bench: Bench) -> None:
    full(bench)
    jobs = [bench.submit() for _ in range(3)]
    a_day_later(bench)
    bench.ledger.dead_letters.discard(jobs[1].id, actor="op")
    first = bench.ledger.dead_letters.page(limit=1)
    second = bench.ledger.dead_letters.page(after=first.next, limit=1)
    assert [first.items[0].id, second.items[0].id] == [jobs[2].id, jobs[0].id]
    assert (first.total, second.next) == (2, None)
    assert [letter.id for letter in bench.ledger.dead_letters.page("discarded").items] == [jobs[1].id]
    assert len(bench.ledger.dead_letters.page(None).items) == 3


# ---- dead letters of Airflow tasks -----------------------------------------------------------------------


@pytest.fixture
def airflow(bench: Bench) -> AirflowRuns:
    """A DAG with a run in the ledger's own database."""
    runs = AirflowRuns(bench.engine)
    bench.node(gpus=8)
    return runs


def dead(bench: Bench, map_index: int = 0) -> JobView:
    """The last try of ``train[map_index]`` has failed."""
    job = bench.running(airflow=task(map_index))
    assert bench.complete(job, exit_code=3).state is JobState.DEAD
    return job


def test_requeueing_clears_the_task_and_what_follows_it_so_that_it_asks_again(
    bench: Bench, airflow: AirflowRuns
) -> None:
    airflow.run()
    airflow.move("train", "success", map_index=0)
    airflow.move("train", "success", map_index=2)
    job = dead(bench, map_index=1)
    before = airflow.instance("train", 1)
    letter = bench.ledger.dead_letters.requeue(job.id, actor="op", reason="fixed")
    assert letter.state is DeadLetterState.REQUEUED
    assert airflow.states() == {
        ("prepare", -1): "success",
        ("train", 0): "success",
        ("train", 1): None,
        ("train", 2): "success",
        ("report", -1): None,
    }
    after = airflow.instance("train", 1)
    assert after.id != before.id
    assert after.max_tries == 1 + 2, "as many tries again as its task has"
    assert airflow.run_state() == "queued"
    assert bench.job(job).state is JobState.DEAD, "the new try makes a job of its own"
    assert [name for name, _ in events(bench, job)[-2:]] == ["task_cleared", "dead_letter_requeued"]


def test_a_failed_try_s_job_is_requeued_through_its_task_too(bench: Bench, airflow: AirflowRuns) -> None:
    airflow.run()
    job = dead(bench)
    bench.ledger.dead_letters.requeue_job(job.id, actor="op")
    assert airflow.states()["train", 0] is None
    assert bench.ledger.dead_letters.get(job.id).state is DeadLetterState.REQUEUED


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("deferred", "not heard of its job's end"),
        ("up_for_retry", "by itself"),
        ("running", "tried again already"),
        ("queued", "tried again already"),
        (None, "tried again already"),
        ("success", "is success"),
    ],
)
def test_a_task_that_is_not_at_its_end_is_left_alone(
    bench: Bench, airflow: AirflowRuns, state: str | None, words: str
) -> None:
    airflow.run()
    job = dead(bench)
    airflow.move("train", state, map_index=0)
    with pytest.raises(ConflictError, match=words):
        bench.ledger.dead_letters.requeue(job.id, actor="op")
    assert airflow.states()["train", 0] == state
    assert bench.ledger.dead_letters.get(job.id).state is DeadLetterState.OPEN


def test_a_letter_whose_run_or_task_is_gone_says_so_and_can_be_discarded(
    bench: Bench, airflow: AirflowRuns
) -> None:
    gone = dead(bench)
    with pytest.raises(ConflictError, match=r"run of task train.* is gone"):
        bench.ledger.dead_letters.requeue(gone.id, actor="op")
    airflow.run()
    job = bench.running(airflow=task(7))
    bench.complete(job, exit_code=3)
    with pytest.raises(ConflictError, match=r"train\[7\].* is gone"):
        bench.ledger.dead_letters.requeue(job.id, actor="op")
    assert bench.ledger.dead_letters.discard(job.id, actor="op").state is DeadLetterState.DISCARDED


def test_a_newer_try_makes_the_letter_old(bench: Bench, airflow: AirflowRuns) -> None:
    airflow.run()
    job = dead(bench)
    with airflow.sessions.begin() as session:
        airflow._instance(session, "r1", "train", 0).try_number = 2
    with pytest.raises(ConflictError, match="try 2"):
        bench.ledger.dead_letters.requeue(job.id, actor="op")


def test_a_task_that_follows_and_runs_is_not_killed(bench: Bench, airflow: AirflowRuns) -> None:
    airflow.run(report="running")
    job = dead(bench)
    with pytest.raises(ConflictError, match="a task that follows"):
        bench.ledger.dead_letters.requeue(job.id, actor="op")
    assert airflow.states()["train", 0] == "failed", "all of it or nothing"
    assert bench.ledger.dead_letters.get(job.id).state is DeadLetterState.OPEN

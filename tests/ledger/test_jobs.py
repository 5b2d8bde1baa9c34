"""Submission, rejection, cancellation, listing, changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select
from tests.builders.ledger import SPEC, Bench

from emep.ledger.jobs.validation import Submitter
from emep.ledger.store.tables import Event, Job
from emep.policy import parse_policy
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, InvalidError, NotFoundError, RejectedJobError
from emep.wire.jobs import JobRequest

ALICE = Submitter("alice", "alice")


def test_a_submitted_job_is_pending_and_in_the_audit(bench: Bench) -> None:
    bench.node()
    job = bench.submit(gpu_count=2, trace_id="t-1", experiment_id="e-1")
    assert (job.state, job.epoch, job.user) == (JobState.PENDING, 0, "alice")
    with bench.database.read() as session:
        event = session.scalars(select(Event).where(Event.job_id == job.id)).one()
    assert (event.event, event.actor) == ("submitted", "alice")
    assert event.data["trace_id"] == "t-1"


def test_a_repeated_key_returns_the_first_job(bench: Bench) -> None:
    bench.node()
    request = JobRequest(spec=SPEC, idempotency_key="k")
    first, is_new = bench.ledger.submissions.submit(request, ALICE)
    again, is_new_again = bench.ledger.submissions.submit(request, ALICE)
    assert (is_new, is_new_again) == (True, False)
    assert again.id == first.id


def test_keys_belong_to_whoever_submits(bench: Bench) -> None:
    bench.node()
    request = JobRequest(spec=SPEC, idempotency_key="k")
    assert (
        bench.ledger.submissions.submit(request, ALICE)[0].id
        != bench.ledger.submissions.submit(request, Submitter("bob", "bob"))[0].id
    )


def test_racing_submissions_with_one_key_make_one_job(bench: Bench) -> None:
    bench.node()
    barrier = threading.Barrier(8)

    def submit(_: int) -> tuple[str, bool]:
        barrier.wait()
        view, is_new = bench.ledger.submissions.submit(JobRequest(spec=SPEC, idempotency_key="same"), ALICE)
        return view.id, is_new

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu_count": 9}, "9 GPUs"),
        ({"queue": "merg"}, "merge"),
        ({"priority": "urgent"}, "urgent"),
        ({"gpu_memory_min": "200Gi"}, "200Gi"),
        ({"gpu_type": "A100"}, "A100"),
        ({"gpu_count": 3, "node_count": 2, "runtime": "external"}, "node_count"),
        ({"priority": "critical"}, "critical"),
    ],
)
def test_a_job_that_can_never_run_is_refused_at_once_and_kept(
    bench: Bench, fields: dict[str, object], words: str
) -> None:
    bench.node(gpus=4)
    bench.node("n1", gpus=4)
    with pytest.raises(RejectedJobError, match=words) as refused:
        bench.submit(idempotency_key="k", **fields)
    kept = bench.ledger.jobs.get(refused.value.extra["job"]["id"])
    assert (kept.state, kept.reason) == (JobState.REJECTED, refused.value.message)
    assert kept.ended_at is not None
    with pytest.raises(RejectedJobError, match=words):
        bench.submit(idempotency_key="k", **fields)


def test_a_restricted_class_is_open_to_its_dags_and_roles(bench: Bench) -> None:
    bench.node()
    assert bench.submit(priority="critical", trusted_dag="emep_regression_gate").state is JobState.PENDING
    assert bench.submit(priority="critical", roles=("Op",)).state is JobState.PENDING


def test_only_members_charge_a_project_that_lists_them(bench: Bench) -> None:
    bench.policy = parse_policy({"projects": {"team-a": {"members": ["alice"]}}})
    bench.node()
    assert bench.submit(by="alice", project="team-a/vision").state is JobState.PENDING
    with pytest.raises(RejectedJobError, match="bob is not a member of team-a"):
        bench.submit(by="bob", project="team-a")


def test_before_any_node_has_registered_a_job_waits(bench: Bench) -> None:
    assert bench.submit(gpu_count=64).state is JobState.PENDING
    with pytest.raises(RejectedJobError):
        bench.submit(queue="nosuch")


def test_a_node_that_has_just_registered_counts_at_once(bench: Bench) -> None:
    bench.node(gpus=2)
    with pytest.raises(RejectedJobError):
        bench.submit(gpu_count=4)
    bench.node("n1", gpus=4)
    assert bench.submit(gpu_count=4).state is JobState.PENDING


def test_medium_is_normal(bench: Bench) -> None:
    bench.node()
    assert bench.submit(priority="medium").priority == "normal"


@pytest.mark.parametrize("spec", [None, {}, {"engine": ""}, {"engine": 7}])
def test_an_agents_job_needs_a_spec_with_an_engine(bench: Bench, spec: dict[str, object] | None) -> None:
    with pytest.raises(InvalidError, match=r"spec\.engine"):
        bench.submit(spec=spec)
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0


# ---- cancellation ----------------------------------------------------------------------------------------


def test_cancelling_a_waiting_job_ends_it_and_is_idempotent(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    assert (
        bench.ledger.jobs.cancel(job.id, actor="alice", reason="changed my mind").state is JobState.CANCELLED
    )
    again = bench.ledger.jobs.cancel(job.id, actor="alice")
    assert (again.state, again.reason) == (JobState.CANCELLED, "changed my mind")
    bench.plan()
    assert bench.job(job).state is JobState.CANCELLED


def test_cancelling_running_work_tells_it_to_checkpoint_first(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    assert bench.ledger.jobs.cancel(job.id, actor="alice").state is JobState.YIELDING
    assert bench.beat(job).directive.value == "checkpoint_and_exit"
    assert bench.ledger.jobs.cancel(job.id, actor="alice").state is JobState.YIELDING
    assert bench.complete(job, 75).state is JobState.CANCELLED


def test_work_that_finishes_while_being_cancelled_has_completed(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.jobs.cancel(job.id, actor="alice")
    assert bench.complete(job, 0).state is JobState.COMPLETED


def test_a_job_cancelled_while_starting_keeps_its_gpus_until_its_agent_says_so(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.submit()
    bench.plan()
    assert bench.ledger.jobs.cancel(job.id, actor="alice").state is JobState.CANCELLED
    other = bench.submit()
    bench.plan()
    assert bench.job(other).state is JobState.PENDING
    bench.poll("n0")
    bench.plan()
    assert bench.job(other).state is JobState.STARTING


def test_a_job_that_has_ended_cannot_be_cancelled(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.complete(job)
    with pytest.raises(ConflictError, match="completed"):
        bench.ledger.jobs.cancel(job.id, actor="alice")


def test_unknown_ids_are_not_found(bench: Bench) -> None:
    with pytest.raises(NotFoundError, match="nosuch"):
        bench.ledger.jobs.get("nosuch")
    with pytest.raises(NotFoundError):
        bench.ledger.jobs.cancel("nosuch", actor="alice")


# ---- lists and changes -----------------------------------------------------------------------------------


def test_lists_page_and_filter(bench: Bench) -> None:
    bench.node()
    made = []
    for number in range(5):
        bench.clock.advance(1)
        made.append(bench.submit(project="org/a" if number % 2 else "org"))
    page = bench.ledger.jobs.page(limit=2)
    assert [job.id for job in page.items] == [made[4].id, made[3].id]
    assert page.total == 5
    rest = bench.ledger.jobs.page(limit=10, after=page.next)
    assert [job.id for job in rest.items] == [made[2].id, made[1].id, made[0].id]
    assert rest.next is None
    assert bench.ledger.jobs.page(project="org/a").total == 2
    assert bench.ledger.jobs.page(project="org").total == 5
    assert bench.ledger.jobs.page(states=[JobState.RUNNING]).total == 0
    assert bench.ledger.jobs.page(user="bob").total == 0


def test_changes_follow_the_cursor(bench: Bench) -> None:
    bench.node()
    start = bench.ledger.jobs.changes(0).cursor
    job, other = bench.submit(), bench.submit()
    first = bench.ledger.jobs.changes(start)
    assert {view.id for view in first.jobs} == {job.id, other.id}
    assert bench.ledger.jobs.changes(first.cursor).jobs == []
    bench.plan()
    mine = bench.ledger.jobs.changes(first.cursor, ids=[job.id])
    assert [(view.id, view.state) for view in mine.jobs] == [(job.id, JobState.STARTING)]
    assert bench.ledger.jobs.changes(mine.cursor, ids=[job.id, other.id]).jobs == []


def test_changes_come_in_parts_and_none_is_lost(bench: Bench) -> None:
    bench.node()
    made = {bench.submit().id for _ in range(7)}
    cursor, seen = 0, set()
    for _ in range(20):
        part = bench.ledger.jobs.changes(cursor, limit=2)
        seen.update(view.id for view in part.jobs)
        if part.cursor == cursor:
            break
        cursor = part.cursor
    assert seen == made


def test_events_are_numbered_without_gaps_in_the_order_of_their_commits(bench: Bench) -> None:
    bench.node()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: bench.submit(), range(30)))
    with bench.database.read() as session:
        ids = list(session.scalars(select(Event.id).order_by(Event.id)))
    assert ids == list(range(1, len(ids) + 1))


def test_jobs_that_have_ended_are_listed_in_the_order_of_their_ends(bench: Bench) -> None:
    bench.node()
    jobs = [bench.submit().id for _ in range(4)]
    for number in (2, 0, 3, 1):
        bench.clock.advance(1)
        bench.ledger.jobs.cancel(jobs[number], actor="alice")
    ends = {JobState.CANCELLED, JobState.COMPLETED}
    expected = [jobs[number] for number in (1, 3, 0, 2)]
    first = bench.ledger.jobs.page(states=ends, limit=3)
    assert [job.id for job in first.items] == expected[:3]
    rest = bench.ledger.jobs.page(states=ends, limit=3, after=first.next)
    assert ([job.id for job in rest.items], rest.next) == (expected[3:], None)
    assert [job.id for job in bench.ledger.jobs.page().items] == sorted(jobs, reverse=True)

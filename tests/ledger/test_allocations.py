"""Heartbeats, directives, completion: what whoever holds an allocation is told, and where its job goes."""

from __future__ import annotations

import pytest
from tests.builders.ledger import START, Bench, events, holders

from emep.wire.allocations import Completion, Heartbeat
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, NotAuthenticatedError, NotFoundError, StaleEpochError
from emep.wire.nodes import StartOrder


def test_the_first_heartbeat_makes_the_job_run(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    starting = bench.job(job)
    assert (starting.state, starting.epoch, starting.started_at) == (JobState.STARTING, 1, None)
    answer = bench.beat(starting)
    assert (answer.directive.value, answer.lease_seconds) == ("continue", 60.0)
    running = bench.job(job)
    assert running.state is JobState.RUNNING
    assert running.started_at is not None
    assert running.started_at.timestamp() == START


def test_the_token_of_the_order_opens_that_allocation_only(bench: Bench) -> None:
    bench.node()
    first, second = bench.submit(), bench.submit()
    bench.plan()
    orders = {order.job_id: order for order in bench.poll("n0")}
    token = orders[first.id].lease_token
    bench.ledger.allocations.check_lease(orders[first.id].allocation_id, token)
    for allocation in (orders[second.id].allocation_id, "nosuch-1"):
        with pytest.raises(NotAuthenticatedError):
            bench.ledger.allocations.check_lease(allocation, token)
    again = {order.job_id: order for order in bench.poll("n0")}
    assert again[first.id].lease_token == token


def test_a_heartbeat_of_another_epoch_is_told_to_abort(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    with pytest.raises(StaleEpochError) as refused:
        bench.ledger.allocations.heartbeat(job.allocation_id, Heartbeat(epoch=job.epoch + 1))
    assert refused.value.status == 409
    assert refused.value.extra["directive"] == "abort"
    with pytest.raises(NotFoundError):
        bench.ledger.allocations.heartbeat("nosuch-1", Heartbeat(epoch=1))


def test_a_checkpoint_is_remembered_on_the_job(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    checkpoint = {"step": 3, "uri": "file:///c/step-00000003", "time": "2023-11-14T22:13:20+00:00"}
    bench.beat(job, checkpoint=checkpoint, progress={"done": 3, "total": 9})
    bench.beat(job, checkpoint=checkpoint)
    assert bench.job(job).last_checkpoint == checkpoint
    assert bench.ledger.allocations.get(job.allocation_id).progress == {"done": 3, "total": 9}
    assert [name for name, _ in events(bench, job)].count("checkpointed") == 1


@pytest.mark.parametrize("moment", ["yesterday", None, 7, "2023-11-14T22:13:20", "9999-12-31T23:59:59+00:00"])
def test_a_checkpoints_odd_time_does_no_harm(bench: Bench, moment: object) -> None:
    bench.node()
    job = bench.running()
    assert (
        bench.beat(job, checkpoint={"step": 1, "uri": "file:///c", "time": moment}).directive.value
        == "continue"
    )


def test_exit_0_completes_and_frees_the_gpus_at_once(bench: Bench) -> None:
    bench.node()
    job = bench.running(gpu_count=4)
    ended = bench.complete(job, 0, result={"status": "done", "metrics": {"loss": 0.5}})
    assert (ended.state, ended.exit_code, ended.result) == (
        JobState.COMPLETED,
        0,
        {"status": "done", "metrics": {"loss": 0.5}},
    )
    assert holders(bench) == {}
    assert ended.gpus == job.gpus


def test_completing_twice_is_answered_the_same(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    first = bench.complete(job, 0)
    assert bench.complete(job, 0) == first
    with pytest.raises(ConflictError, match="exit code 0"):
        bench.complete(job, 1)
    with pytest.raises(StaleEpochError):
        bench.ledger.allocations.complete(job.allocation_id, Completion(epoch=9, exit_code=0))


def test_a_job_may_be_over_before_its_first_heartbeat(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    done = bench.complete(bench.job(job), 0)
    assert done.state is JobState.COMPLETED
    assert done.started_at is not None


@pytest.mark.parametrize(
    ("exit_code", "result", "message", "expected"),
    [
        (1, None, None, "exited with 1"),
        (
            65,
            {"error": {"code": "bad_input", "message": "recipe.yaml: method: unknown"}},
            None,
            "recipe.yaml",
        ),
        (139, None, "the engine was ended by SIGSEGV", "SIGSEGV"),
        (3, None, None, "exited with 3"),
    ],
)
def test_other_exit_codes_fail_in_their_own_words(
    bench: Bench, exit_code: int, result: dict[str, object] | None, message: str | None, expected: str
) -> None:
    bench.node()
    ended = bench.complete(bench.running(), exit_code, result=result, message=message)
    assert (ended.state, ended.exit_code) == (JobState.FAILED, exit_code)
    assert expected in ended.reason


def test_the_last_try_of_a_task_that_fails_is_a_dead_letter(bench: Bench) -> None:
    bench.node()
    task = {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 1, "last_try": False}
    assert bench.complete(bench.running(airflow=task), 1).state is JobState.FAILED
    assert bench.complete(bench.running(airflow={**task, "last_try": True}), 1).state is JobState.DEAD


# ---- told to yield ---------------------------------------------------------------------------------------


def preempted(bench: Bench, **fields: object) -> tuple[object, object]:
    """A running job that has been told to yield for one of class high."""
    victim = bench.running(gpu_count=4, priority="normal", **fields)
    preemptor = bench.submit(gpu_count=4, priority="high")
    bench.plan()
    return bench.job(victim), preemptor


def test_a_victim_yields_returns_with_its_place_and_resumes(bench: Bench) -> None:
    bench.node(gpus=4)
    victim, preemptor = preempted(bench)
    assert victim.state is JobState.YIELDING
    answer = bench.beat(victim)
    assert (answer.directive.value, answer.grace_seconds) == ("checkpoint_and_exit", 120.0)
    (stop,) = bench.poll("n0", victim)
    assert (stop.kind, stop.directive.value, stop.grace_seconds) == ("stop", "checkpoint_and_exit", 120.0)
    bench.clock.advance(5)
    waiting = bench.complete(victim, 75)
    assert (waiting.state, waiting.preempted, waiting.requeues) == (JobState.PENDING, True, 0)
    assert waiting.submitted_at == victim.submitted_at
    assert waiting.queued_at > victim.queued_at
    bench.plan()
    assert bench.job(preemptor).state is JobState.STARTING
    assert bench.job(victim).state is JobState.PENDING
    bench.beat(bench.job(preemptor))
    bench.complete(bench.job(preemptor), 0)
    bench.plan()
    resumed = bench.job(victim)
    assert (resumed.state, resumed.epoch, resumed.preempted) == (JobState.STARTING, 2, True)


def test_what_a_victim_frees_is_kept_for_its_preemptor(bench: Bench) -> None:
    bench.node("n0", gpus=4)
    first = bench.running(gpu_count=2)
    second = bench.running(gpu_count=2)
    preemptor = bench.submit(gpu_count=4, priority="high")
    bench.plan()
    assert {bench.job(first).state, bench.job(second).state} == {JobState.YIELDING}
    bench.complete(first, 75)
    small = bench.submit(gpu_count=1, priority="high")
    bench.plan()
    assert bench.job(small).state is JobState.PENDING
    assert bench.job(preemptor).state is JobState.PENDING
    bench.complete(second, 75)
    bench.plan()
    assert bench.job(preemptor).state is JobState.STARTING


def test_past_its_grace_a_victim_is_told_to_abort_and_its_lease_runs_out(bench: Bench) -> None:
    bench.node(gpus=4)
    victim, _ = preempted(bench)
    bench.alive(120, victim)
    bench.clock.advance(1)
    answer = bench.beat(victim)
    assert answer.directive.value == "abort"
    (stop,) = bench.poll("n0", victim)
    assert stop.directive.value == "abort"
    assert bench.complete(victim, 137).state is JobState.PENDING


@pytest.mark.parametrize(
    ("exit_code", "state"), [(0, "completed"), (65, "failed"), (3, "failed"), (143, "pending")]
)
def test_one_that_exits_by_itself_in_its_grace_is_judged_by_its_own_status(
    bench: Bench, exit_code: int, state: str
) -> None:
    bench.node(gpus=4)
    victim, _ = preempted(bench)
    assert bench.complete(victim, exit_code).state.value == state


def test_a_victim_that_has_not_started_yet_is_taken_back_at_once(bench: Bench) -> None:
    bench.node(gpus=4)
    victim = bench.submit(gpu_count=4)
    bench.plan()
    assert isinstance(bench.poll("n0")[0], StartOrder)
    preemptor = bench.submit(gpu_count=4, priority="high")
    bench.plan()
    back = bench.job(victim)
    assert (back.state, back.preempted) == (JobState.PENDING, True)
    bench.plan()
    assert bench.job(preemptor).state is JobState.PENDING, "its agent has not said yet that nothing runs"
    bench.poll("n0")
    bench.plan()
    assert bench.job(preemptor).state is JobState.STARTING


def test_exit_75_that_nobody_asked_for_is_requeued_as_lost_infrastructure(bench: Bench) -> None:
    bench.node()
    back = bench.complete(bench.running(), 75)
    assert (back.state, back.requeues, back.preempted) == (JobState.PENDING, 1, False)


def test_over_its_time_limit_a_run_is_told_to_checkpoint_and_the_job_fails(bench: Bench) -> None:
    bench.node()
    job = bench.running(max_duration="1m")
    bench.alive(60, job)
    assert bench.job(job).state is JobState.RUNNING
    bench.alive(10, job)
    assert bench.job(job).state is JobState.YIELDING
    assert bench.beat(job).directive.value == "checkpoint_and_exit"
    ended = bench.complete(job, 75)
    assert ended.state is JobState.FAILED
    assert "max_duration" in ended.reason
    assert "1m" in ended.reason

"""Whose failure it was, and where the job goes then; GPU memory; the task's own time limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.builders.ledger import Bench, events, holders, spec_for

from emep.ledger.jobs.outcomes import Verdict, verdict
from emep.ledger.states import YieldCause
from emep.ledger.store.tables import DeadLetter, Job
from emep.wire.base import JobState
from emep.wire.jobs import JobView

TASK = {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 1, "last_try": False}
LAST = {**TASK, "last_try": True}
KILLS = [137, 143, -9, -15]


def row(bench: Bench, job: JobView) -> Job:
    with bench.database.read() as session:
        return session.scalars(select(Job).where(Job.id == job.id)).one()


def letters(bench: Bench) -> dict[str, str]:
    with bench.database.read() as session:
        return {row.job_id: row.reason_code for row in session.scalars(select(DeadLetter))}


def started_again(bench: Bench, job: JobView) -> JobView:
    """Wait until the job's backoff is over, grant it again and let it report."""
    bench.until_due(job)
    bench.plan()
    job = bench.job(job)
    assert job.state is JobState.STARTING, job.reason
    bench.poll("n0", job)
    bench.beat(job)
    return bench.job(job)


# ---- the judgement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_code", KILLS)
def test_a_signal_that_nobody_sent_is_infrastructure(exit_code: int) -> None:
    assert verdict(exit_code, None) is Verdict.INFRASTRUCTURE


@pytest.mark.parametrize("exit_code", [1, 2, 65, 134, 139, 255])
def test_an_exit_status_of_its_own_is_the_application(exit_code: int) -> None:
    assert verdict(exit_code, None) is Verdict.FAILED


@pytest.mark.parametrize("exit_code", [126, 127])
def test_what_could_not_be_started_is_infrastructure_for_agents_alone(exit_code: int) -> None:
    assert verdict(exit_code, None, "agent") is Verdict.INFRASTRUCTURE
    assert verdict(exit_code, None, "kubernetes") is Verdict.FAILED


@pytest.mark.parametrize("cause", list(YieldCause))
def test_work_that_completes_while_it_is_told_to_end_has_completed(cause: YieldCause) -> None:
    assert verdict(0, cause) is Verdict.COMPLETED


@pytest.mark.parametrize("cause", [YieldCause.PREEMPTION, YieldCause.DRAIN])
def test_a_victim_is_judged_by_its_own_exit_status(cause: YieldCause) -> None:
    assert verdict(75, cause) is verdict(137, cause) is Verdict.STOPPED
    assert verdict(1, cause) is Verdict.FAILED
    assert verdict(86, cause) is Verdict.GPU_MEMORY


def test_whatever_fails_on_a_gpu_found_bad_is_the_gpu_s_but_bad_input_is_not() -> None:
    assert verdict(1, YieldCause.UNHEALTHY) is Verdict.INFRASTRUCTURE
    assert verdict(65, YieldCause.UNHEALTHY) is Verdict.FAILED


# ---- a result that says done -----------------------------------------------------------------------------

DONE = {"status": "done", "exit_code": 0, "metrics": {"acc": 0.5}}


@pytest.mark.parametrize("exit_code", [0, 139, *KILLS])
@pytest.mark.parametrize("cause", [None, *YieldCause])
def test_a_result_that_says_done_completes_the_job_whatever_it_had_been_told(
    bench: Bench, exit_code: int, cause: YieldCause | None
) -> None:
    bench.node()
    job = bench.running(airflow=TASK)
    if cause is not None:
        tell(bench, job, cause)
        assert bench.job(job).state is JobState.YIELDING
    ended = bench.complete(job, exit_code, result={**DONE, "epoch": job.epoch}, message="ended by a signal")
    assert (ended.state, ended.exit_code, ended.requeues) == (JobState.COMPLETED, 0, 0)
    assert row(bench, job).result["metrics"] == {"acc": 0.5}
    assert bench.complete(job, exit_code, result=DONE).state is JobState.COMPLETED, "said again"
    assert bench.complete(job, 0, result=DONE).state is JobState.COMPLETED, "by the other of the two"


@pytest.mark.parametrize(
    "result",
    [
        None,
        {"status": "preempted", "exit_code": 75},
        {"status": "failed", "exit_code": 1, "error": None},
        {**DONE, "exit_code": 1},
        {**DONE, "epoch": 7},
    ],
    ids=["none", "preempted", "failed", "with another exit code", "of another epoch"],
)
def test_a_result_that_says_anything_else_leaves_a_kill_a_kill(bench: Bench, result) -> None:
    bench.node()
    job = bench.running(airflow=TASK)
    assert bench.complete(job, 137, result=result).state is JobState.PENDING


def test_an_exit_status_of_its_own_is_believed_before_a_result(bench: Bench) -> None:
    bench.node()
    assert bench.complete(bench.running(airflow=TASK), 1, result=DONE).state is JobState.FAILED


def tell(bench: Bench, job: JobView, cause: YieldCause) -> None:
    """Tell a running job to yield."""
    from emep.ledger.store.repository import current_allocation, get_job

    def work(tx):
        found = get_job(tx.session, job.id, lock=True)
        bench.ledger.lifecycle.tell_to_yield(
            tx, found, current_allocation(tx.session, found, lock=True), cause, "why"
        )

    bench.database.write(work)


# ---- infrastructure --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_code", KILLS)
def test_killed_work_goes_back_in_the_same_try_with_its_gpus_free_and_a_sentence(
    bench: Bench, exit_code: int
) -> None:
    bench.node()
    job = bench.running(airflow=LAST, gpu_count=2)
    back = bench.complete(job, exit_code)
    assert (back.state, back.requeues, back.try_number) == (JobState.PENDING, 1, 1)
    assert back.submitted_at == job.submitted_at
    assert holders(bench) == {}
    assert ("requeued", "killed") in events(bench, job)
    assert "SIGKILL" in back.reason or "SIGTERM" in back.reason
    assert "EMEP did not send that signal" in back.reason


def test_a_kill_says_that_memory_may_have_been_short(bench: Bench) -> None:
    bench.node()
    back = bench.complete(bench.running(), 137, message="rank 0 was ended by SIGKILL")
    assert "rank 0 was ended by SIGKILL" in back.reason
    assert "ask for more memory" in back.reason


def test_a_job_that_is_killed_again_and_again_is_bounded_and_waits_longer_each_time(bench: Bench) -> None:
    bench.node()
    job = bench.running(airflow=TASK)
    waits = []
    for _ in range(5):
        job = bench.complete(job, 137)
        waits.append(row(bench, job).not_before - bench.clock.now)
        job = started_again(bench, job)
    dead = bench.complete(job, 137)
    assert waits == [30, 60, 120, 240, 480]
    assert (dead.state, dead.requeues, dead.epoch) == (JobState.DEAD, 5, 6)
    assert "requeued 5 times" in dead.reason
    assert letters(bench) == {dead.id: "requeues_used_up"}
    assert [name for name, _ in events(bench, job)].count("requeued") == 5
    assert holders(bench) == {}


def test_what_put_a_job_on_hold_is_told_until_something_else_keeps_it_waiting(bench: Bench) -> None:
    bench.node()
    job = bench.complete(bench.running(gpu_count=4), 137)
    bench.plan()
    held = bench.job(job)
    assert held.reason_code == "backing_off"
    assert "SIGKILL" in held.reason
    bench.node(gpus=2)
    bench.plan()
    assert "cannot run any more" in bench.job(job).reason
    bench.node(gpus=4)
    bench.plan()
    again = bench.job(job)
    assert again.reason_code == "backing_off"
    assert "backs off after a failure of the infrastructure" in again.reason


def test_the_bound_and_the_backoff_are_the_policy_s(bench: Bench) -> None:
    retries = replace(bench.policy.retries, backoff=7.0, max_backoff=9.0, max_infrastructure=2)
    bench.policy = replace(bench.policy, retries=retries)
    bench.node()
    job = bench.running()
    waits = []
    for _ in range(2):
        job = bench.complete(job, 143)
        waits.append(row(bench, job).not_before - bench.clock.now)
        job = started_again(bench, job)
    assert waits == [7, 9]
    assert bench.complete(job, 143).state is JobState.DEAD


def test_nothing_was_started_is_no_failure_of_the_work(bench: Bench) -> None:
    bench.node()
    job = bench.submit()
    bench.plan()
    back = bench.complete(bench.job(job), 127, message="node n0 has no GPU 7, which was granted")
    assert (back.state, back.requeues) == (JobState.PENDING, 1)
    assert ("requeued", "not_started") in events(bench, job)
    assert "has no GPU 7" in back.reason


def test_preemption_and_drain_never_count(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running()
    for number, cause in enumerate((YieldCause.PREEMPTION, YieldCause.DRAIN, YieldCause.DRAIN)):
        with_cause(bench, job, cause)
        job = bench.complete(job, (75, 137, 143)[number])
        assert (job.state, job.requeues) == (JobState.PENDING, 0)
        assert row(bench, job).not_before <= bench.clock.now
        job = started_again(bench, job)


@pytest.mark.parametrize(
    ("cause", "state", "requeues"),
    [
        (YieldCause.PREEMPTION, "pending", 0),
        (YieldCause.DRAIN, "pending", 0),
        (YieldCause.UNHEALTHY, "pending", 1),
        (YieldCause.TIME_LIMIT, "failed", 0),
        (YieldCause.EXECUTION_TIMEOUT, "failed", 0),
        (YieldCause.CANCEL, "cancelled", 0),
    ],
)
def test_one_that_falls_silent_while_it_is_told_to_end_goes_where_it_was_told(
    bench: Bench, cause: YieldCause, state: str, requeues: int
) -> None:
    bench.node()
    job = bench.running()
    with_cause(bench, job, cause)
    bench.quiet(61)
    ended = bench.job(job)
    assert (ended.state.value, ended.requeues) == (state, requeues)


def with_cause(bench: Bench, job: JobView, cause: YieldCause) -> None:
    """Tell the job to yield, as planner, drain and tick do."""

    def work(tx: object) -> None:
        from emep.ledger.store.repository import get_allocation, get_job

        stored = get_job(tx.session, job.id, lock=True)
        allocation = get_allocation(tx.session, job.allocation_id, lock=True)
        bench.ledger.lifecycle.tell_to_yield(tx, stored, allocation, cause, f"told: {cause.value}")

    bench.database.write(work)


# ---- out of GPU memory -----------------------------------------------------------------------------------

DEMANDS = {
    "gpu_count": 4,
    "node_count": 1,
    "gpu_memory_min": "40Gi",
    "gpu_type": "H100",
    "nvlink_required": True,
    "topology": {"required": "nvlink"},
    "checkpoint_key": "k",
}


def test_out_of_gpu_memory_the_same_job_runs_once_more_on_the_cpu_in_chunks(bench: Bench) -> None:
    bench.node()
    job = bench.running(airflow=TASK, **DEMANDS)
    bench.beat(job, checkpoint={"step": 3, "uri": "file:///c/step-00000003"})
    back = bench.complete(job, 86, message="CUDA out of memory: 20 GiB")
    assert (back.state, back.gpu_count, back.nvlink_required, back.requeues) == ("pending", 0, False, 0)
    assert back.last_checkpoint["step"] == 3
    assert ("promoted", "gpu_out_of_memory") in events(bench, job)
    stored = row(bench, job)
    assert (stored.promoted_from_gpus, stored.node_count, stored.gpu_type, stored.gpu_memory_min) == (
        4,
        None,
        "",
        0,
    )
    assert stored.topology["required"] == "node"
    assert stored.checkpoint_key == "k"
    assert stored.spec == {**spec_for({"gpu_count": 4}), "chunked": True, "device": "cpu"}
    bench.plan()
    again = bench.job(job)
    assert (again.state, again.epoch, again.gpus) == (JobState.STARTING, 2, [])
    (order,) = bench.poll("n0")
    assert (order.spec["chunked"], order.spec["device"], order.gpus) == (True, "cpu", [])
    assert holders(bench) == {}
    bench.beat(again)
    assert bench.complete(again, 0).state is JobState.COMPLETED


@pytest.mark.parametrize(("task", "state"), [(TASK, "failed"), (LAST, "dead")])
def test_a_second_time_is_a_failure(bench: Bench, task: dict[str, object], state: str) -> None:
    bench.node()
    job = bench.running(airflow=task, gpu_count=1)
    bench.complete(job, 86)
    ended = bench.complete(started_again(bench, job), 86, message="no memory")
    assert ended.state.value == state
    assert "no memory" in ended.reason
    assert "promoted to the CPU before" in ended.reason


def test_a_job_without_gpus_has_nothing_to_be_promoted_from(bench: Bench) -> None:
    bench.node()
    ended = bench.complete(bench.running(gpu_count=0), 86)
    assert ended.state is JobState.FAILED
    assert "without GPUs" in ended.reason


def test_work_without_a_spec_is_promoted_too(bench: Bench) -> None:
    bench.node()
    job = bench.submit(runtime="external", spec=None, gpu_count=2)
    bench.plan()
    bench.beat(bench.job(job))
    back = bench.complete(bench.job(job), 86)
    assert (back.state, back.gpu_count) == (JobState.PENDING, 0)
    assert row(bench, job).spec is None


def test_out_of_gpu_memory_past_the_time_limit_is_the_time_limit(bench: Bench) -> None:
    bench.node()
    job = bench.running(max_duration="1m")
    bench.alive(70, job)
    ended = bench.complete(job, 86)
    assert ended.state is JobState.FAILED
    assert "max_duration" in ended.reason


# ---- execution_timeout -----------------------------------------------------------------------------------


def limited(**fields: object) -> dict[str, object]:
    return {**TASK, "execution_timeout": 100, **fields}


def test_a_waiting_job_ends_when_its_task_s_time_is_over_and_says_why_it_waited(bench: Bench) -> None:
    bench.node(gpus=1)
    bench.running()
    job = bench.submit(airflow=limited())
    bench.plan()
    bench.quiet(100)
    assert bench.job(job).state is JobState.PENDING
    bench.quiet(2)
    ended = bench.job(job)
    assert ended.state is JobState.CANCELLED
    assert "execution_timeout" in ended.reason
    assert "1m40s" in ended.reason.replace(" ", "")
    assert "it never ran" in ended.reason
    assert row(bench, job).reason_code == "execution_timeout"
    assert ended.ended_at is not None


def test_a_last_try_that_times_out_is_a_dead_letter(bench: Bench) -> None:
    job = bench.submit(airflow=limited(last_try=True))
    bench.quiet(102, nodes=())
    assert bench.job(job).state is JobState.DEAD
    assert letters(bench) == {job.id: "execution_timeout"}


def test_a_job_that_has_not_reported_yet_fails_and_its_gpus_come_back(bench: Bench) -> None:
    bench.node()
    job = bench.submit(airflow=limited())
    bench.plan()
    bench.poll("n0", bench.job(job))
    bench.quiet(102)
    assert bench.job(job).state is JobState.FAILED
    (stop,) = bench.poll("n0", bench.job(job))
    assert stop.directive.value == "abort"
    bench.poll("n0")
    assert holders(bench) == {}


@pytest.mark.parametrize("exit_code", [75, 137])
def test_a_running_job_is_told_to_checkpoint_and_has_then_failed(bench: Bench, exit_code: int) -> None:
    bench.node()
    job = bench.running(airflow=limited())
    bench.alive(100, job)
    assert bench.job(job).state is JobState.RUNNING
    bench.alive(2, job)
    assert bench.job(job).state is JobState.YIELDING
    assert bench.beat(job).directive.value == "checkpoint_and_exit"
    ended = bench.complete(job, exit_code)
    assert ended.state is JobState.FAILED
    assert "execution_timeout" in ended.reason
    assert row(bench, job).reason_code == "execution_timeout"
    assert holders(bench) == {}


def test_the_time_goes_on_while_a_preempted_job_waits(bench: Bench) -> None:
    bench.node(gpus=1)
    job = bench.running(airflow=limited())
    bench.submit(priority="high")
    bench.plan()
    bench.complete(job, 75)
    bench.quiet(102)
    assert bench.job(job).state is JobState.CANCELLED


def test_without_a_limit_a_task_waits_and_runs_as_long_as_it_takes(bench: Bench) -> None:
    bench.node()
    job = bench.running(airflow=TASK)
    bench.alive(1000, job)
    assert bench.job(job).state is JobState.RUNNING

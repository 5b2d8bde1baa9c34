"""Nodes that fail what they get are taken out, and come back by one job; broken jobs take none out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.ledger import START, Bench, events

from emep.ledger.failing_nodes.blame import to_blame
from emep.policy import parse_policy
from emep.wire.base import JobState
from emep.wire.jobs import JobView

LEFT_NOTHING = "the supervisor ended with exit status 1 and left no result"
TASK = {"dag_id": "d", "run_id": "r", "task_id": "t", "last_try": False}


def state(bench: Bench, name: str) -> str:
    return bench.ledger.nodes.views(name)[0].state


def granted(bench: Bench, by: str = "alice", **fields: Any) -> JobView:
    """A new job that has been granted GPUs."""
    job = bench.submit(by, **fields)
    bench.plan()
    return bench.job(job)


def recipe(number: int) -> dict[str, Any]:
    return {"engine": "merge", "input": {"recipe": number}, "output_uri": "out"}


def never_begins(bench: Bench, job: JobView) -> JobView:
    """What an agent with a broken engine command reports."""
    return bench.complete(job, 1, message=LEFT_NOTHING)


def fails(bench: Bench, job: JobView, exit_code: int = 1) -> JobView:
    """The engine begins, and fails at once with words of its own."""
    bench.beat(job)
    result = {"status": "failed", "exit_code": exit_code, "error": {"message": "no"}}
    return bench.complete(job, exit_code, result=result)


def break_node(bench: Bench, count: int = 3) -> None:
    for _ in range(count):
        job = granted(bench)
        assert job.nodes == ["n0"]
        never_begins(bench, job)


def cool_down(bench: Bench, nodes: tuple[str, ...] = ("n0", "n1")) -> None:
    bench.quiet(310, nodes=nodes)


# ---- whose failure ---------------------------------------------------------------------------------------


def test_work_that_left_no_result_before_its_first_heartbeat_goes_back_to_the_queue(bench: Bench) -> None:
    bench.node()
    back = never_begins(bench, granted(bench))
    assert (back.state, back.requeues) == (JobState.PENDING, 1)
    assert LEFT_NOTHING in back.reason


@pytest.mark.parametrize(
    ("exit_code", "result"),
    [(65, None), (1, {"status": "failed", "exit_code": 1})],
    ids=["bad input", "a result"],
)
def test_work_that_says_itself_how_it_failed_has_failed(
    bench: Bench, exit_code: int, result: dict[str, Any] | None
) -> None:
    bench.node()
    assert bench.complete(granted(bench), exit_code, result=result).state is JobState.FAILED


# ---- out of service --------------------------------------------------------------------------------------


def test_a_node_on_which_three_different_jobs_never_begin_gets_no_more(bench: Bench) -> None:
    bench.node("n0")
    bench.node("n1")
    break_node(bench)
    view = bench.ledger.nodes.views("n0")[0]
    assert (view.state, LEFT_NOTHING in view.check_reason) == ("out", True)
    assert "3 different jobs" in view.check_reason
    assert granted(bench).nodes == ["n1"]
    assert ("node_taken_out", "quick_failures") in events(bench)


def test_one_job_that_fails_again_and_again_is_one(bench: Bench) -> None:
    bench.node()
    job = granted(bench)
    for _ in range(4):
        never_begins(bench, job)
        bench.until_due(job)
        bench.plan()
        job = bench.job(job)
    assert state(bench, "n0") == "up"


def test_starts_that_never_send_a_heartbeat_count(bench: Bench) -> None:
    bench.policy = parse_policy({"lease": {"start_deadline": 30}})
    bench.node("n0", gpus=3)
    jobs = [granted(bench) for _ in range(3)]
    assert {job.state for job in jobs} == {JobState.STARTING}
    bench.quiet(40)
    assert state(bench, "n0") == "out"


def test_a_job_that_completes_in_between_starts_the_count_again(bench: Bench) -> None:
    bench.node("n0")
    bench.node("n1")
    break_node(bench, 2)
    bench.complete(bench.running())
    break_node(bench, 2)
    assert state(bench, "n0") == "up"


def test_it_is_still_out_for_a_control_plane_that_starts_anew(bench: Bench) -> None:
    bench.node("n0")
    break_node(bench)
    again = Bench(bench.engine)
    again.clock.now = bench.clock.now
    assert state(again, "n0") == "out"


def test_no_node_is_taken_out_where_the_policy_says_0(bench: Bench) -> None:
    bench.policy = parse_policy({"node_checks": {"quick_failures": 0}})
    bench.node("n0")
    break_node(bench, 5)
    assert state(bench, "n0") == "up"


# ---- jobs that are to blame ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "recipes", "expected"),
    [("aaa", [1, 2, 3], "up"), ("abc", [1, 1, 1], "up"), ("abc", [1, 2, 3], "out")],
    ids=["one user", "one recipe", "several users with several recipes"],
)
def test_jobs_that_began_take_a_node_out_only_where_users_and_recipes_differ(
    bench: Bench, users: str, recipes: list[int], expected: str
) -> None:
    bench.node("n0")
    for user, number in zip(users, recipes, strict=True):
        fails(bench, granted(bench, user, spec=recipe(number)))
    assert state(bench, "n0") == expected


def test_bad_input_is_no_fault_of_the_node(bench: Bench) -> None:
    bench.node("n0")
    for number in range(4):
        fails(bench, granted(bench, f"u{number}", spec=recipe(number)), 65)
    assert state(bench, "n0") == "up"


def test_failures_after_a_while_are_not_quick(bench: Bench) -> None:
    bench.node("n0")
    for number in range(4):
        job = granted(bench, f"u{number}", spec=recipe(number))
        bench.beat(job)
        bench.alive(70, job)
        bench.complete(job, 1, result={"status": "failed", "exit_code": 1})
    assert state(bench, "n0") == "up"


def test_what_fails_on_other_nodes_for_the_same_reason_takes_none_out(bench: Bench) -> None:
    bench.node("n0", gpus=1)
    bench.node("n1", gpus=1)
    for _ in range(4):
        first, second = granted(bench), granted(bench)
        assert {*first.nodes, *second.nodes} == {"n0", "n1"}
        never_begins(bench, first)
        never_begins(bench, second)
    assert (state(bench, "n0"), state(bench, "n1")) == ("up", "up")


def test_one_users_jobs_that_complete_elsewhere_show_that_the_node_was_to_blame(bench: Bench) -> None:
    bench.node("n0")
    bench.node("n1")
    for number in range(3):
        task = {**TASK, "task_id": f"t{number}"}
        first = granted(bench, airflow={**task, "try_number": 1})
        assert first.nodes == ["n0"]
        fails(bench, first)
        assert state(bench, "n0") == "up"
        second = granted(bench, airflow={**task, "try_number": 2})
        assert second.nodes == ["n1"], "another node than the one of the try before"
        bench.beat(second)
        bench.complete(second)
    assert state(bench, "n0") == "out"


def failure(job: str, **changes: Any) -> dict[str, Any]:
    made = {"job": job, "user": job, "recipe": job, "began": True, "reason": "r", "elsewhere": False}
    return {**made, "completed": False, "at": START, **changes}


@pytest.mark.parametrize(
    ("failures", "elsewhere", "blamed"),
    [
        ([failure("a"), failure("b"), failure("c")], (), 3),
        ([failure("a"), failure("b")], (), 0),
        ([failure("a"), failure("b"), failure("c", elsewhere=True)], (), 0),
        ([failure("a"), failure("b"), failure("c", elsewhere=True, completed=True)], (), 3),
        ([failure("a"), failure("b"), failure("c")], ("r",), 0),
        ([failure(job, user="u", began=False) for job in "abc"], (), 3),
        ([failure(job, user="u", completed=True) for job in "abc"], ("r",), 3),
    ],
)
def test_what_is_blamed_on_a_node(
    failures: list[dict[str, Any]], elsewhere: tuple[str, ...], blamed: int
) -> None:
    assert len(to_blame(failures, 3, elsewhere)) == blamed
    assert to_blame(failures, 0, elsewhere) == [], "0 takes no node out"


# ---- back in service -------------------------------------------------------------------------------------


def test_after_its_cool_down_a_node_gets_one_job_at_a_time_until_one_has_completed(bench: Bench) -> None:
    bench.node("n0")
    break_node(bench)
    with_backoff = [job.id for job in bench.ledger.jobs.page(limit=10).items]
    for job_id in with_backoff:
        bench.ledger.jobs.cancel(job_id, actor="alice", reason="")
    cool_down(bench, ("n0",))
    assert state(bench, "n0") == "probation"
    first, second = bench.submit(), bench.submit()
    for _ in range(3):
        bench.plan()
    assert [bench.job(job).state for job in (first, second)] == [JobState.STARTING, JobState.PENDING]
    first = bench.job(first)
    bench.beat(first)
    bench.complete(first)
    view = bench.ledger.nodes.views("n0")[0]
    assert (view.state, view.check_reason) == ("up", "")
    third = bench.submit()
    bench.plan()
    assert {bench.job(job).state for job in (second, third)} == {JobState.STARTING}


def test_a_node_that_fails_on_probation_is_out_again(bench: Bench) -> None:
    bench.node("n0")
    break_node(bench)
    cool_down(bench, ("n0",))
    bench.plan()
    starting = [job for job in bench.ledger.jobs.page(limit=10).items if job.state is JobState.STARTING]
    assert len(starting) == 1, "of three that wait"
    never_begins(bench, starting[0])
    assert state(bench, "n0") == "out"
    assert "probation" in bench.ledger.nodes.views("n0")[0].check_reason


def test_an_operator_brings_a_node_back_by_hand(bench: Bench) -> None:
    bench.node("n0")
    break_node(bench)
    view = bench.ledger.drains.resume("n0", reason="engine installed", actor="op")
    assert (view.state, view.check_reason) == ("up", "")
    assert ("node_resumed", "") in events(bench)
    assert granted(bench).nodes == ["n0"]


def test_a_job_that_waits_is_told_that_its_node_is_out_of_service(bench: Bench) -> None:
    bench.node("n0")
    break_node(bench)
    job = bench.submit()
    bench.plan()
    assert "4 on nodes that are lost, drained or out of service" in bench.job(job).reason


# ---- other nodes first -----------------------------------------------------------------------------------


def test_a_job_that_goes_back_avoids_the_node_that_it_failed_on_while_another_is_free(bench: Bench) -> None:
    bench.node("n0")
    bench.node("n1")
    job = granted(bench)
    assert job.nodes == ["n0"]
    never_begins(bench, job)
    bench.until_due(job, nodes=("n0", "n1"))
    bench.plan()
    assert bench.job(job).nodes == ["n1"]


def test_where_no_other_node_is_free_it_goes_to_the_same(bench: Bench) -> None:
    bench.node("n0")
    job = granted(bench)
    never_begins(bench, job)
    bench.until_due(job)
    bench.plan()
    assert bench.job(job).nodes == ["n0"]

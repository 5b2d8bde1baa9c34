"""One try after the other: what an earlier one still writes, the next resumes from, and not beside it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.ledger import Bench, events, holders

from emep.api.schemas import JobState


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
    bench.ledger.cancel(first.id, actor="emep", reason="try 2 of its task has begun")
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
    bench.ledger.cancel(first.id, actor="emep")
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
    bench.ledger.cancel(first.id, actor="emep")
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
    assert [letter.state for letter in bench.ledger.dead_letters().items] == ["open"]
    second = bench.submit(airflow=task(2, last_try=True))
    (letter,) = bench.ledger.dead_letters(state=None).items
    assert letter.state == "requeued"
    assert second.id in letter.resolution


def test_the_dead_letter_of_another_task_stays_open(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1, last_try=True))
    bench.complete(first, 1)
    bench.submit(airflow=task(2, task_id="other"))
    assert [letter.state for letter in bench.ledger.dead_letters().items] == ["open"]


def test_a_try_whose_predecessor_has_done_the_work_takes_its_result(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1, first_try=1), spec={"engine": "merge", "input": {"x": 1}})
    bench.complete(first, 0, result={"status": "done"})
    for number in (2, 3):
        again = bench.submit(airflow=task(number, first_try=1), spec={"engine": "merge", "input": {"x": 1}})
        assert (again.id, again.state, again.result) == (first.id, JobState.COMPLETED, {"status": "done"})
    assert [name for name, _ in events(bench, first)].count("asked_again") == 2
    assert holders(bench) == {}


@pytest.mark.parametrize(
    ("why", "asks"),
    [
        ("the task was cleared since", {"airflow": task(2, first_try=2)}),
        ("its operator does not say since when", {"airflow": task(2)}),
        ("it asks for other work", {"airflow": task(2, first_try=1), "spec": {"engine": "evaluate"}}),
        ("it is another task", {"airflow": task(2, first_try=1, map_index=3)}),
        ("it is another run", {"airflow": task(2, first_try=1, run_id="other")}),
    ],
)
def test_a_try_does_the_work_anew_where(bench: Bench, why: str, asks: dict[str, Any]) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1, first_try=1))
    bench.complete(first, 0)
    again = bench.submit(**asks)
    assert again.id != first.id, why
    assert again.state is JobState.PENDING


@pytest.mark.parametrize("code", [1, 65])
def test_what_has_failed_is_tried_again(bench: Bench, code: int) -> None:
    bench.node(gpus=4)
    first = bench.running(airflow=task(1, first_try=1))
    bench.complete(first, code)
    assert bench.submit(airflow=task(2, first_try=1)).id != first.id

"""Retries of tasks: the policy's numbers, pauses that differ, and what is not tried again."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, RetryAction
from airflow.serialization.serialized_objects import DagSerialization

from emep.dagkit.settings import default_arguments
from emep.operators import retries
from emep.operators.fair_share import FairShareGpuOperator
from emep.operators.retries import JitteredBackoff
from emep.policy import default_policy

NUMBERS = default_policy().retries


def operator(**fields):
    with DAG("d", schedule=None, default_args=fields.pop("default_args", {})):
        return FairShareGpuOperator(task_id="t", engine="merge", output_uri="o", **fields)


def pauses(backoff: JitteredBackoff, try_number: int, max_tries: int = 3, count: int = 200) -> list[float]:
    context = {"task": SimpleNamespace(retries=3)}
    decisions = [backoff.evaluate(ValueError(), try_number, max_tries, context) for _ in range(count)]
    assert {decision.action for decision in decisions} == {RetryAction.RETRY}
    return [decision.retry_delay.total_seconds() for decision in decisions]


@pytest.mark.parametrize(("try_number", "full"), [(1, 30), (2, 60), (3, 100)])
def test_each_pause_is_up_to_twice_the_one_before_and_bounded(try_number, full):
    found = pauses(JitteredBackoff(30, 100), try_number)
    assert full / 2 <= min(found) <= max(found) <= full
    assert len(set(found)) > 100, "no two tasks come back at the same moment"


def test_after_a_task_was_cleared_the_pauses_begin_anew():
    # Three tries are over, then it was cleared: Airflow allows three more retries.
    assert max(pauses(JitteredBackoff(30, 1800), try_number=4, max_tries=6)) <= 30


def test_a_policy_of_no_pause_is_none():
    assert set(pauses(JitteredBackoff(0, 0), 2)) == {0.0}


def test_an_operator_s_retries_are_the_policy_s():
    task = operator()
    assert task.retries == NUMBERS.max
    assert task.retry_delay == timedelta(seconds=NUMBERS.backoff)
    assert task.max_retry_delay == timedelta(seconds=NUMBERS.max_backoff)
    assert task.retry_exponential_backoff == 2.0
    assert isinstance(task.retry_policy, JitteredBackoff)


def test_a_dag_s_and_a_task_s_own_numbers_come_first():
    assert operator(retries=0).retries == 0
    assert operator(default_args={"retries": 7, "retry_delay": timedelta(1)}).retries == 7
    assert operator(default_args={"retries": 7}, retries=1).retries == 1
    assert operator(retry_policy=None).retry_policy is None


def test_mapped_tasks_have_them_too_and_can_be_serialized():
    with DAG("d", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)) as dag:
        partial = FairShareGpuOperator.partial(task_id="t", engine="merge", output_uri="o")
        mapped = partial.expand(extra_input=[{"candidates": [0]}, {"candidates": [1]}])
        operator_of_its_own = FairShareGpuOperator(task_id="u", engine="merge")
    assert mapped.retries == operator_of_its_own.retries == NUMBERS.max
    assert isinstance(mapped.retry_policy, JitteredBackoff)
    read = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    for name in ("t", "u"):
        assert read.get_task(name).retries == NUMBERS.max


def test_the_dags_arguments_are_those_of_the_policy_file(tmp_path, monkeypatch):
    path = tmp_path / "policy.yaml"
    path.write_text("retries: {max: 5, backoff: 7s, max_backoff: 1m}\n")
    monkeypatch.setenv("AIRFLOW__EMEP__POLICY_FILE", str(path))
    arguments = default_arguments()
    assert (arguments["retries"], arguments["retry_delay"].seconds) == (5, 7)
    assert arguments["max_retry_delay"] == timedelta(minutes=1)


@pytest.mark.parametrize("text", ["retries: [", "retries: {max: -1}"])
def test_a_policy_file_that_cannot_be_read_breaks_no_dag(tmp_path, monkeypatch, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    monkeypatch.setenv("AIRFLOW__EMEP__POLICY_FILE", str(path))
    assert retries.retry_numbers() == NUMBERS
    monkeypatch.setenv("AIRFLOW__EMEP__POLICY_FILE", str(tmp_path / "none.yaml"))
    assert retries.retry_numbers() == NUMBERS


def test_a_policy_survives_its_own_serialization():
    assert JitteredBackoff.deserialize(JitteredBackoff(1, 2).serialize()).serialize() == {
        "backoff": 1,
        "max_backoff": 2,
    }

"""Weights from EMEP's score: the formula, what they are worth without a database, and who reads it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy
from tests.builders.ledger import Bench, sqlite_engine

from emep.airflow.priority_weight import LARGEST, Weights, weights
from emep.ledger.shares.deficits import read_shares
from emep.policy import Policy, default_policy
from emep.policy.load import parse_policy_text
from emep.priority import FairSharePriorityWeight
from emep.scheduling.plan import plan


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A ledger in which project a has had GPUs and project b has not."""
    bench = Bench(sqlite_engine(str(tmp_path / "ledger.db")))
    bench.node(gpus=4)
    job = bench.running(gpu_count=4, project="a")
    bench.alive(3600.0, job)
    return bench


def weights_of(bench: Bench) -> Weights:
    def read(policy: Policy) -> Any:
        with bench.database.read() as session:
            return read_shares(session, policy, bench.clock())

    return Weights(lambda: bench.policy, read)


def test_weights_are_the_scores_that_the_planner_shows(bench):
    waiting = [
        bench.submit(gpu_count=4, project=project, priority=priority, by="bob")
        for project in ("a", "b")
        for priority in ("normal", "low")
    ]
    seen = bench.planner.read()
    decided = plan(seen.snapshot, bench.policy, seen.taken_at)
    scores = {entry.job_id: entry.score.score for entry in decided.waiting}
    found = weights_of(bench)
    found.refresh()
    for job in waiting:
        assert found.weight(job.priority, job.queue, job.project) == round(100 * scores[job.id])
    assert found.weight("normal", "merge", "b") > found.weight("normal", "merge", "a")


def test_before_the_shares_are_read_and_where_they_cannot_be_the_class_alone_counts():
    def broken(policy: Policy) -> Any:
        raise OSError("no database")

    found = Weights(default_policy, broken)
    found.refresh()
    names = ("critical", "high", "normal", "medium", "low", "nonsense")
    values = [found.weight(name, "merge", "a") for name in names]
    assert values == [100_000, 10_000, 1_000, 1_000, 100, 1_000]


def test_shares_are_read_by_a_thread_of_their_own():
    asked, readers = threading.Event(), []

    def read(policy: Policy) -> Any:
        readers.append(threading.get_ident())
        asked.set()
        raise OSError("nothing there")

    found = Weights(default_policy, read)
    for _ in range(50):
        found.weight("normal", "merge", "a")
    assert asked.wait(30)
    assert len(readers) == 1, "not at every question"
    assert readers[0] != threading.get_ident()


def test_the_largest_weight_fits_airflow_s_column():
    policy = parse_policy_text(
        "classes: {realtime: 1000000000, critical: 1000, high: 100, normal: 10, low: 1}", "p"
    )
    found = Weights(lambda: policy, lambda policy: (policy, None))  # type: ignore[arg-type,return-value]
    assert found.weight("realtime", "inference", "a") == LARGEST


def test_the_rule_is_registered_under_the_path_that_dags_name():
    rule = validate_and_load_priority_weight_strategy("emep.priority.FairSharePriorityWeight")
    assert type(rule) is FairSharePriorityWeight


class Instance:
    """A task instance as far as a weight rule may look."""

    def __init__(self, task: Any, **loaded: Any) -> None:
        self.task = task
        self.__dict__.update(loaded)


def task(**fields: Any) -> Any:
    return SimpleNamespace(
        **{"params": {}, "template_fields": (), "pool": "default_pool", "priority_weight": 3} | fields
    )


@pytest.mark.parametrize(
    ("instance", "weight"),
    [
        (Instance(None), 1),
        (Instance(task()), 3),
        (Instance(task(params={"priority": "high"})), 10_000),
        (Instance(task(pool="emep")), 1_000),
        (Instance(task(pool="emep"), dag_run=SimpleNamespace(conf={"priority": "low"})), 100),
        (Instance(task(pool="emep", priority_weight=None, template_fields=3, params=4)), 1),
    ],
)
def test_the_rule_goes_by_what_is_loaded_and_never_raises(instance, weight):
    weights.cache_clear()
    assert FairSharePriorityWeight().get_weight(instance) == weight

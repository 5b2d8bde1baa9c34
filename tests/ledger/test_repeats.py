"""A key names one request: the same again gets its job, another is refused with the field that differs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders.ledger import START, Bench, spec_for

from emep.ledger.jobs.repeats import DECIDES, difference
from emep.ledger.jobs.validation import Submitter
from emep.wire.errors import ConflictError
from emep.wire.jobs import JobRequest

SPEC = spec_for({"gpu_count": 2})
TASK: dict[str, Any] = {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 2, "last_try": False}
OTHERS: dict[str, Any] = {
    "queue": "evaluate",
    "priority": "high",
    "project": "other",
    "user": "bob",
    "gpu_count": 2,
    "node_count": 1,
    "cpu": 2,
    "memory": "1Gi",
    "gpu_memory_min": "1Gi",
    "gpu_type": "A100",
    "nvlink_required": True,
    "topology": {"required": "rack"},
    "max_duration": "2h",
    "preemptible": False,
    "checkpoint_interval": "5m",
    "placement": "spread",
    "runtime": "external",
    "spec": {**SPEC, "input": {"recipe": {"weight": 0.5}}},
    "experiment_id": "e-2",
    "job_type": "other",
    "checkpoint_key": "c",
    "airflow.dag_id": "d2",
    "airflow.run_id": "r2",
    "airflow.task_id": "t2",
    "airflow.map_index": 4,
    "airflow.try_number": 3,
}
"""For each field that decides, another value than the first request had."""


def with_field(fields: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    outer, _, inner = field.partition(".")
    return {**fields, outer: {**fields[outer], inner: value} if inner else value}


def asked(**fields: Any) -> dict[str, Any]:
    return {"spec": SPEC, "idempotency_key": "k", "airflow": TASK, **fields}


def test_there_is_another_value_for_each_field_that_decides() -> None:
    assert set(OTHERS) == set(DECIDES.values())


@pytest.mark.parametrize("field", OTHERS)
def test_another_request_under_a_key_is_refused_with_the_field(bench: Bench, field: str) -> None:
    bench.node(gpus=4)
    first = bench.submit("emep", **asked())
    other = with_field(asked(), field, OTHERS[field])
    with pytest.raises(ConflictError) as refused:
        bench.submit("emep", **other)
    error = refused.value
    assert (error.code, error.status, error.extra["job_id"]) == ("key_reused", 409, first.id)
    assert str(error.field).startswith(field)
    assert error.message.startswith(f"{error.field}: ")
    outcome = bench.ledger.submissions.submit_batch([(JobRequest(**other), Submitter("emep", "emep"))])[0]
    if field != "user":
        assert isinstance(outcome, ConflictError)
        assert outcome.field == error.field
    assert len(bench.ledger.jobs.page().items) == 1, "nothing was written"


def test_the_place_in_the_spec_is_named(bench: Bench) -> None:
    bench.node(gpus=4)
    bench.submit(spec={**SPEC, "input": {"models": [{"weight": 0.5}, {"weight": 1}]}}, idempotency_key="k")
    with pytest.raises(ConflictError, match=r"spec.input.models\[1\].weight: .* with 1, .* has True"):
        bench.submit(
            spec={**SPEC, "input": {"models": [{"weight": 0.5}, {"weight": True}]}}, idempotency_key="k"
        )


def test_the_same_request_in_other_words_is_the_same(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.submit(**asked(max_duration="2h", memory="2Gi", cpu=2, topology={}))
    again = asked(
        max_duration=7200,
        memory=2 * 1024**3,
        cpu=2.0,
        queue="merge",
        gpu_count=1,
        job_type="evolve_candidates",
    )
    assert bench.submit(**again).id == first.id


def test_what_only_describes_one_sending_may_differ(bench: Bench) -> None:
    """An operator that is run again says how long its try may take still, and belongs to another trace."""
    bench.node(gpus=4)
    begun = datetime.fromtimestamp(START - 60, UTC)
    first = bench.submit(
        **asked(trace_id="t-1", airflow={**TASK, "execution_timeout": 3600, "first_try": 1, "last_try": True})
    )
    later = {**TASK, "execution_timeout": 1800.5, "first_try": 2, "run_started_at": begun}
    assert bench.submit(**asked(trace_id="t-2", airflow=later)).id == first.id


def test_a_job_that_was_promoted_to_the_cpu_is_still_the_answer_to_its_request(bench: Bench) -> None:
    bench.node(gpus=4)
    fields = {"gpu_count": 2, "gpu_type": "H100", "gpu_memory_min": "1Gi", "idempotency_key": "k"}
    job = bench.running(**fields)
    bench.complete(job, 86)
    assert bench.job(job).promoted_from_gpus == 2
    assert bench.submit(**fields).id == job.id
    for other in ({"gpu_count": 3}, {"spec": {**SPEC, "input": {"x": 1}}}):
        with pytest.raises(ConflictError):
            bench.submit(**{**fields, **other})


def test_keys_of_two_accounts_have_nothing_to_do_with_one_another(bench: Bench) -> None:
    bench.node(gpus=4)
    first = bench.submit("alice", **asked(airflow=None))
    other = bench.submit("bob", **asked(airflow=None, gpu_count=3))
    assert first.id != other.id
    assert bench.submit("alice", **asked(airflow=None)).id == first.id


def test_two_requests_of_one_batch_with_one_key(bench: Bench) -> None:
    bench.node(gpus=4)
    who = Submitter("alice", "alice")
    first, same, other = bench.ledger.submissions.submit_batch(
        [(JobRequest(spec=SPEC, idempotency_key="k", gpu_count=count), who) for count in (1, 1, 2)]
    )
    assert isinstance(first, tuple)
    assert isinstance(same, tuple)
    assert first[0].id == same[0].id
    assert isinstance(other, ConflictError)
    assert (other.field, other.extra["job_id"]) == ("gpu_count", None)
    assert "a job of this batch" in other.message


@pytest.mark.parametrize(
    ("before", "now", "where"),
    [
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": 1}, {"a": True}, "x.a"),
        ({"a": 0}, {"a": False}, "x.a"),
        ({"a": [1, 2]}, {"a": [1]}, "x.a"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "x.a[1].b"),
        ({"a": None}, {}, "x.a"),
        ({}, {"b": 1}, "x.b"),
        (None, {}, "x"),
        ("1", 1, "x"),
    ],
)
def test_where_two_values_differ(before: Any, now: Any, where: str | None) -> None:
    found = difference(before, now, "x")
    assert (None if found is None else found[0]) == where

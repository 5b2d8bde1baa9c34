"""What a request says of itself is checked: the task that asks, and whose result it gets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from .conftest import Api

SPEC = {"engine": "merge", "input": {}, "output_uri": "out"}
INVENTED = {"status": "done", "metrics": {"accuracy": 1.0}}


def task(try_number: int = 1, **fields: Any) -> dict[str, Any]:
    begun = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "first_try": 1, "run_started_at": begun}
    return {**names, "try_number": try_number, **fields}


def complete_by_hand(api: Api, who: str, job_id: str) -> None:
    """As the asker of external work does: take the lease, begin, end it with a result of one's own."""
    while not (allocation := api.call(who, "GET", f"/jobs/{job_id}").json()["allocation_id"]):
        api.call(who, "GET", "/jobs:changes", params={"since": 0, "timeout": 1})
    at = f"/allocations/{allocation}"
    lease = api.call(who, "POST", f"{at}/lease", json={"started": True}).json()
    token, epoch = lease["lease_token"], lease["epoch"]
    assert api.call(token, "POST", f"{at}/heartbeat", json={"epoch": epoch}).status_code == 200
    end = {"epoch": epoch, "exit_code": 0, "result": INVENTED}
    assert api.call(token, "POST", f"{at}/complete", json=end).json()["state"] == "completed"


@pytest.mark.parametrize("who", ["alice", "op", "admin"])
def test_only_the_service_account_names_a_task(api: Api, who: str) -> None:
    api.node()
    before = api.call("op", "GET", "/jobs").json()["total"]
    refused = api.submit(who, airflow=task())
    assert (refused.status_code, refused.json()["field"]) == (403, "airflow")
    batch = api.call(who, "POST", "/jobs:batch", json={"jobs": [{"spec": SPEC, "airflow": task()}]}).json()
    assert batch["items"][0]["problem"]["field"] == "airflow"
    assert api.call("op", "GET", "/jobs").json()["total"] == before
    assert api.submit("emep", airflow=task()).status_code == 201


def test_no_result_that_somebody_invented_reaches_the_next_try_of_a_task(api: Api) -> None:
    api.node()
    asked = {"spec": SPEC, "runtime": "external"}
    forged = api.submit("alice", **asked, airflow=task())
    assert forged.status_code == 403
    own = api.submit("alice", **asked).json()["id"]
    complete_by_hand(api, "alice", own)
    real = api.submit("emep", **asked, airflow=task(2))
    assert (real.status_code, real.json()["result"]) == (201, None)


def test_the_try_after_a_lost_worker_takes_what_the_one_before_has_asked_for(api: Api) -> None:
    api.node()
    asked = {"spec": SPEC, "runtime": "external"}
    first = api.submit("emep", **asked, airflow=task()).json()["id"]
    complete_by_hand(api, "emep", first)
    again = api.submit("emep", **asked, airflow=task(2))
    assert (again.status_code, again.json()["id"], again.json()["result"]) == (200, first, INVENTED)


# ---- queries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "query", "field"),
    [
        ("GET", "/jobs", "stat=running", "stat"),
        ("GET", "/jobs", "State=running", "State"),
        ("GET", "/jobs", "limit=1&limit=2", "limit"),
        ("GET", "/jobs/JOB", "verbose=1", "verbose"),
        ("POST", "/jobs", "dry_run=true", "dry_run"),
        ("DELETE", "/jobs/JOB", "raeson=old", "raeson"),
        ("GET", "/nodes", "\u00e9=1", "\\xe9"),
        ("GET", "/emep/openapi.json", "x=1", "x"),
    ],
)
def test_a_query_that_nothing_would_look_at_is_refused_by_name(
    api: Api, method: str, path: str, query: str, field: str
) -> None:
    job_id = api.submit("op").json()["id"]
    answer = api.call("op", method, f"{path.replace('JOB', job_id)}?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_state_may_be_asked_for_more_than_once(api: Api) -> None:
    api.submit("alice")
    assert api.call("op", "GET", "/jobs?state=pending&state=running").json()["total"] == 1


# ---- values ----------------------------------------------------------------------------------------------

NO_INTEGERS: list[Any] = [True, False, "2", "", 2.0, 1.5, [2], {}]
NO_NUMBERS: list[Any] = [True, False, "2", [2.0], {}]
NO_TRUTHS: list[Any] = [0, 1, "true", "yes", 1.0, []]
NO_TEXTS: list[Any] = [1, True, 1.5, ["a"], {}]
MISTAKEN: dict[str, list[Any]] = {
    "gpu_count": NO_INTEGERS,
    "node_count": NO_INTEGERS,
    "gpu_per_node": NO_INTEGERS,
    "cpu": NO_NUMBERS,
    "memory": [True, False, 1.5, [1], {}],
    "gpu_memory_min": [True, 0.5],
    "max_duration": [True, [1], {}],
    "checkpoint_interval": [True],
    "nvlink_required": NO_TRUTHS,
    "preemptible": NO_TRUTHS,
    "queue": NO_TEXTS,
    "idempotency_key": NO_TEXTS,
    "runtime": NO_TEXTS,
    "topology.affinity": [{"zone": 1}, {"zone": True}, []],
    "airflow.map_index": NO_INTEGERS,
    "airflow.try_number": NO_INTEGERS,
    "airflow.last_try": NO_TRUTHS,
    "airflow.run_started_at": [1, True, 1.5, "yesterday", "2025-01-01T00:00:00"],
    "airflow.execution_timeout": [True],
}


@pytest.mark.parametrize("field", MISTAKEN)
def test_no_value_of_a_job_is_taken_for_one_of_another_type(api: Api, field: str) -> None:
    top, _, below = field.partition(".")
    for value in MISTAKEN[field]:
        whole = {**(task() if top == "airflow" else {}), below: value} if below else value
        answer = api.submit("emep", **{top: whole})
        assert answer.status_code == 422, f"{field} {value!r}: {answer.status_code}"
        assert answer.json()["field"].startswith(field), answer.text


@pytest.mark.parametrize(
    ("path", "good", "field", "wrong"),
    [
        ("/nodes", {"name": "n1"}, "cpu", NO_NUMBERS),
        ("/nodes", {"name": "n1"}, "gpus[0].index", [True, "0", 0.0]),
        ("/nodes/n0/health", {}, "gpus[0].healthy", NO_TRUTHS),
        ("/nodes/n0/health", {}, "gpus[0].memory_used", NO_INTEGERS),
        ("/nodes/n0/health", {}, "gpus[0].temperature_c", NO_NUMBERS),
        ("/nodes/n0/poll", {}, "timeout", NO_NUMBERS),
        ("/nodes/n0/poll", {}, "leaving", NO_TRUTHS),
    ],
)
def test_no_value_of_an_agent_is_taken_for_one_of_another_type(
    api: Api, path: str, good: dict[str, Any], field: str, wrong: list[Any]
) -> None:
    api.node()
    for value in wrong:
        outer, _, inner = field.partition("[0].")
        gpu = {"index": 0, "uuid": "u", inner: value} if path == "/nodes" else {"index": 0, inner: value}
        document = {**good, outer: [gpu] if inner else value}
        answer = api.call("agent", "POST", path, json=document)
        assert (answer.status_code, answer.json()["field"]) == (422, field), f"{value!r}: {answer.text}"


def test_no_value_of_a_holder_is_taken_for_one_of_another_type(api: Api) -> None:
    api.node()
    _, at, token = api.granted()
    for value in NO_INTEGERS:
        for what in ("heartbeat", "complete"):
            body = {"epoch": value, "exit_code": 0} if what == "complete" else {"epoch": value}
            answer = api.call(token, "POST", f"{at}/{what}", json=body)
            assert (answer.status_code, answer.json()["field"]) == (422, "epoch"), f"{what} {value!r}"
        body = {"epoch": 1, "exit_code": value}
        assert api.call(token, "POST", f"{at}/complete", json=body).json()["field"] == "exit_code"


# ---- bounds ----------------------------------------------------------------------------------------------


def test_a_spec_has_256_kib(api: Api) -> None:
    api.node()
    most = 256 * 1024 - len('{"engine":"merge","input":{"recipe":""}}')
    for size, status in ((most, 201), (most + 1, 422)):
        answer = api.submit(spec={"engine": "merge", "input": {"recipe": "x" * size}})
        assert answer.status_code == status, answer.text[:300]
    problem = answer.json()
    assert problem["field"] == "spec"
    assert "262,145 bytes" in problem["detail"]
    euro = api.submit(spec={"engine": "merge", "input": {"recipe": "€" * 100_000}})
    assert euro.status_code == 422, "bytes are counted, not characters"
    batch = {"jobs": [{"spec": {"engine": "merge", "input": {"recipe": "x" * 300_000}}}, {"spec": SPEC}]}
    items = api.call("alice", "POST", "/jobs:batch", json=batch).json()["items"]
    assert [item["status"] for item in items] == [422, 201]


def test_one_user_has_a_bound_of_jobs_that_wait(api: Api) -> None:
    from emep.policy.load import parse_policy_text

    api.bench.policy = parse_policy_text("limits: {pending_jobs: 2}", "test policy")
    assert [api.submit("alice").status_code for _ in range(2)] == [201, 201]
    refused = api.submit("alice")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_pending")
    assert refused.headers["retry-after"] == "10"
    assert api.submit("op").status_code == 201
    batch = {"jobs": [{"spec": SPEC}] * 2}
    items = api.call("op", "POST", "/jobs:batch", json=batch).json()["items"]
    assert [item["status"] for item in items] == [201, 429]

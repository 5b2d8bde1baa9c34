"""Nothing answers without credentials, and each kind of caller has its own routes."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from fastapi.routing import APIRoute

from emep.ledger.jobs.burial import bury
from emep.ledger.states import JobEvent
from emep.ledger.store.tables import Job

from .conftest import Api

PUBLIC = {"/health", "/static/job.js"}


def every_route(api: Api) -> list[tuple[str, str]]:
    routes = []
    for route in api.app.routes:
        assert isinstance(route, APIRoute), f"{route} is outside the app's authentication"
        routes += [(method, route.path) for method in sorted(route.methods)]
    return routes


def test_no_dependency_of_a_route_costs_a_change_of_threads(api: Api) -> None:
    seen = set()
    for route in api.app.routes:
        assert isinstance(route, APIRoute)
        waiting = list(route.dependant.dependencies)
        while waiting:
            one = waiting.pop()
            waiting += one.dependencies
            seen.add(one.call)
    assert len(seen) > 8
    assert [call for call in seen if not inspect.iscoroutinefunction(call)] == []


def filled(path: str, **ids: str) -> str:
    """The path with something for each of its parameters."""
    known = {"job_id": "j", "name": "n0", "allocation_id": "a-1", "letter_id": "j", "entity": "queue:merge"}
    return "/emep" + re.sub(r"{(\w+)(:\w+)?}", lambda found: {**known, **ids}[found[1]], path)


def test_every_route_answers_401_without_credentials(api: Api) -> None:
    routes = every_route(api)
    assert len(routes) > 15
    for method, path in routes:
        for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"}):
            answer = api.client.request(method, filled(path), headers=headers)
            if path in PUBLIC:
                assert answer.status_code == 200
                if path != "/health":
                    continue  # a script, which is the same for everyone
                assert set(answer.json()) == {"ok", "state", "last_plan_age_seconds", "policy"}
            else:
                assert answer.status_code == 401, f"{method} {path} answered {answer.status_code}"
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "token", ["nonsense", "a.b.c", "emep-agent.", "emep-agent.wrong", "emep-lease.wrong", "emep-lease."]
)
def test_every_route_refuses_credentials_that_are_not_valid(api: Api, token: str) -> None:
    for method, path in every_route(api):
        if path not in PUBLIC:
            answer = api.client.request(method, filled(path), headers={"Authorization": f"Bearer {token}"})
            expected = {401, 403} if token.startswith("emep-lease") else {401}
            assert answer.status_code in expected, f"{method} {path} answered {answer.status_code}"


def test_a_token_of_another_secret_is_refused(api: Api) -> None:
    import jwt

    forged = jwt.encode({"sub": "admin", "role": "admin", "exp": 9999999999}, "x" * 64, algorithm="HS512")
    assert api.call(forged, "GET", "/jobs").status_code == 401


def test_no_agent_may_call_where_no_token_is_configured(api: Api) -> None:
    from dataclasses import replace

    api.runtime.settings = replace(api.runtime.settings, agent_token="")
    for token in ("emep-agent.", "emep-agent.enrol"):
        assert api.call(token, "GET", "/nodes").status_code == 401


def test_a_viewer_reads_everything_and_writes_nothing(api: Api) -> None:
    api.node()
    job = api.submit("alice").json()
    for path in ("/jobs", "/jobs:changes", f"/jobs/{job['id']}", f"/jobs/{job['id']}/explain", "/nodes",
                 f"/jobs/{job['id']}/events", f"/jobs:explain?ids={job['id']}", f"/emep/jobs/{job['id']}",
                 "/nodes/n0", "/fair-share", "/dead-letters", "/allocations", "/policy",
                 "/emep/openapi.json", "/emep/docs"):  # fmt: skip
        assert api.call("viewer", "GET", path).status_code == 200, path
    writes: list[tuple[str, str, Any]] = [
        ("POST", "/jobs", {"spec": {"engine": "merge"}}),
        ("DELETE", f"/jobs/{job['id']}", None),
        ("POST", "/nodes", {"name": "n1"}),
        ("DELETE", "/nodes/n0", None),
        ("POST", "/nodes/n0/health", {"gpus": []}),
        ("POST", "/nodes/n0/poll", {}),
    ]
    for method, path, body in writes:
        answer = api.call("viewer", method, path, json=body)
        assert answer.status_code == 403, f"{method} {path} answered {answer.status_code}"
    assert api.bench.ledger.jobs.get(job["id"]).state.value in ("pending", "starting")


BODIES: dict[str, Any] = {
    "POST /jobs": {"spec": {"engine": "merge"}},
    "POST /jobs:batch": {"jobs": [{"spec": {"engine": "merge"}}]},
    "PUT /fair-share/{entity:path}": {"weight": 1},
    "PATCH /nodes/{name}": {"rack": "r"},
    "POST /jobs/{job_id}/requeue": {},
    "POST /dead-letters/{letter_id}/requeue": {},
    "POST /nodes/{name}/drain": {},
    "POST /nodes/{name}/resume": {},
    "POST /allocations/{allocation_id}/lease": {},
    "POST /allocations/{allocation_id}/lost": {"epoch": 1, "reason": "gone"},
}
"""Requests whose routes look at who asks once they know what is asked for."""


def a_dead_letter(api: Api, **fields: Any) -> str:
    """The id of a job that has expired, with its letter."""
    job_id: str = api.submit(gpu_count=4, queue="merge", **fields).json()["id"]
    ledger = api.bench.ledger

    def expire(tx: Any) -> None:
        job = tx.session.get(Job, job_id)
        tx.move_job(job, JobEvent.EXPIRED, ended_at=tx.now, reason_code="pending_ttl", reason="too long")
        tx.emit("expired", job=job, code="pending_ttl", reason="too long")
        bury(tx, job, "pending_ttl", "too long")

    ledger.context.database.write(expire)
    return job_id


def test_a_viewer_may_call_no_route_that_writes(api: Api) -> None:
    """Every route there is, with a request that would succeed for somebody else."""
    letter = a_dead_letter(api)
    api.node()
    order, _, _ = api.granted()
    ids = {"job_id": order["job_id"], "letter_id": letter, "allocation_id": order["allocation_id"]}
    refused = 0
    for method, path in every_route(api):
        if method in ("GET", "HEAD"):
            continue
        body = BODIES.get(f"{method} {path.removeprefix('/api/v1')}", {"epoch": 1, "exit_code": 0})
        answer = api.call("viewer", method, filled(path, **ids), json=body)
        assert answer.status_code == 403, (
            f"{method} {path} answered {answer.status_code}: {answer.text[:200]}"
        )
        refused += 1
    assert refused > 12
    assert api.bench.ledger.dead_letters.get(letter).state.value == "open"
    assert not api.bench.ledger.nodes.views("n0")[0].drain
    assert not api.bench.ledger.shares.fair_share().overrides


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/nodes/n0/drain", {}),
        ("POST", "/nodes/n0/resume", {}),
        ("PATCH", "/nodes/n0", {"rack": "r"}),
        ("PUT", "/fair-share/queue:merge", {"weight": 2}),
        ("DELETE", "/fair-share/queue:merge", None),
    ],
)
def test_the_cluster_is_changed_by_operators_only(api: Api, method: str, path: str, body: Any) -> None:
    api.node()
    for who in ("viewer", "alice", "agent", "emep"):
        answer = api.call(who, method, path, json=body)
        assert answer.status_code == 403, f"{who} {answer.status_code}"
    assert api.call("op", method, path, json=body).status_code in (200, 204, 404)


def test_requeueing_and_dead_letters_are_for_those_who_may_edit_the_stored_dags_tasks(api: Api) -> None:
    own, others = a_dead_letter(api), a_dead_letter(api, who="emep", user="bob")
    for method, path in [("POST", "/dead-letters/{}/requeue"), ("POST", "/jobs/{}/requeue"),
                         ("DELETE", "/dead-letters/{}")]:  # fmt: skip
        for who in ("viewer", "agent"):
            assert api.call(who, method, path.format(own)).status_code == 403, f"{who} {path}"
        assert api.call("alice", method, path.format(others)).status_code == 403, path
    assert api.call("alice", "POST", f"/dead-letters/{own}/requeue").json()["state"] == "requeued"
    discarded = api.call("op", "DELETE", f"/dead-letters/{others}", params={"reason": "old"}).json()
    assert (discarded["state"], discarded["resolved_by"], discarded["resolution"]) == (
        "discarded",
        "op",
        "old",
    )


def test_an_agent_has_the_nodes_routes_and_no_others(api: Api) -> None:
    assert api.call("agent", "POST", "/nodes", json={"name": "n0"}).status_code == 201
    assert api.call("agent", "GET", "/nodes").status_code == 200
    closed = [("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/allocations"), ("GET", "/policy")]
    closed += [("POST", f"/allocations/a-1/{what}") for what in ("heartbeat", "complete")]
    for method, path in closed:
        body = {"epoch": 1, "exit_code": 0} if "complete" in path else {"epoch": 1}
        body = {"spec": {"engine": "m"}} if path == "/jobs" else body
        answer = api.call("agent", method, path, json=body if method == "POST" else None)
        assert answer.status_code == 403, f"{method} {path} answered {answer.status_code}"


def test_a_lease_token_opens_its_own_allocation_and_nothing_else(api: Api) -> None:
    api.node()
    order, own, token = api.granted()
    _, others, _ = api.granted()
    body = {"epoch": order["epoch"]}
    assert api.call(token, "POST", f"{own}/heartbeat", json=body).status_code == 200
    assert api.call(token, "GET", own).status_code == 200
    assert api.call(token, "POST", f"{others}/heartbeat", json=body).status_code == 401
    for path in ("/jobs", "/nodes", "/allocations", "/policy", "/emep/openapi.json"):
        assert api.call(token, "GET", path).status_code == 403, path
    for who in ("alice", "admin", "emep"):
        assert api.call(who, "POST", f"{own}/heartbeat", json=body).status_code == 403
        assert api.call(who, "POST", f"{own}/complete", json={**body, "exit_code": 0}).status_code == 403


def test_only_the_service_account_and_administrators_submit_for_others(api: Api) -> None:
    api.node()
    assert api.submit("alice").json()["user"] == "alice"
    assert api.submit("alice", user="alice").json()["user"] == "alice"
    refused = api.submit("alice", user="bob")
    assert (refused.status_code, refused.json()["field"]) == (403, "user")
    assert api.submit("op", user="bob").status_code == 403
    assert api.submit("emep", user="bob").json()["user"] == "bob"
    assert api.submit("admin", user="bob").json()["user"] == "bob"


def test_restricted_classes_look_at_the_dag_that_the_service_account_names(api: Api) -> None:
    api.node()
    gate = {"dag_id": "emep_regression_gate", "run_id": "r", "task_id": "t"}
    other = {**gate, "dag_id": "emep_merge"}
    assert api.submit("emep", priority="critical", user="alice", airflow=gate).status_code == 201
    assert api.submit("emep", priority="critical", user="alice", airflow=other).status_code == 422
    assert api.submit("emep", priority="critical", user="op", airflow=other).status_code == 201
    assert api.submit("alice", priority="critical").status_code == 422
    assert api.submit("alice", priority="critical", airflow=gate).status_code == 403
    assert api.submit("admin", priority="critical").status_code == 201


def test_cancelling_is_for_those_who_may_edit_the_stored_dags_tasks(api: Api) -> None:
    api.node()
    task = {"dag_id": "d", "run_id": "r", "task_id": "t"}
    of_a_dag = api.submit("emep", airflow=task).json()["id"]
    of_nobody = api.submit("emep", user="bob").json()["id"]
    assert api.call("viewer", "DELETE", f"/jobs/{of_a_dag}").status_code == 403
    assert api.call("alice", "DELETE", f"/jobs/{of_a_dag}").status_code == 200
    assert api.call("alice", "DELETE", f"/jobs/{of_nobody}").status_code == 403
    assert (
        api.call("op", "DELETE", f"/jobs/{of_nobody}", params={"reason": "stuck"}).json()["reason"] == "stuck"
    )


def test_the_session_cookie_works_as_in_airflows_own_ui(api: Api) -> None:
    api.client.cookies.set("_token", api.token("viewer"))
    try:
        assert api.call(None, "GET", "/jobs").status_code == 200
        assert api.submit(None).status_code == 403
    finally:
        api.client.cookies.clear()


def test_an_explicit_token_wins_over_the_cookie(api: Api) -> None:
    api.client.cookies.set("_token", api.token("admin"))
    try:
        assert api.call("nonsense.a.b", "GET", "/jobs").status_code == 401
    finally:
        api.client.cookies.clear()


@pytest.mark.parametrize("name", ["%00", "a%00b", "%F0%9F%92%A5", "-", "a" * 81])
def test_a_lease_token_for_what_can_be_no_allocation_is_refused_without_asking_the_database(
    api: Api, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def asked(*_: object) -> None:
        raise ValueError("A string literal cannot contain NUL (0x00) characters.")  # as PostgreSQL's driver

    monkeypatch.setattr(api.runtime.ledger.allocations, "check_lease", asked)
    answer = api.call("emep-lease.x", "POST", f"/allocations/{name}/heartbeat", json={"epoch": 1})
    assert answer.status_code == 401, answer.text

"""Nothing answers without credentials, and each kind of caller has its own routes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from .conftest import Api

PUBLIC = {"/health"}


def every_route(api: Api) -> list[tuple[str, str]]:
    routes = []
    for route in api.app.routes:
        assert isinstance(route, APIRoute), f"{route} is outside the app's authentication"
        routes += [(method, route.path) for method in sorted(route.methods)]
    return routes


def filled(path: str) -> str:
    return "/emep" + path.format(job_id="j", name="n0", allocation_id="a-1")


def test_every_route_answers_401_without_credentials(api: Api) -> None:
    routes = every_route(api)
    assert len(routes) > 15
    for method, path in routes:
        for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"}):
            answer = api.client.request(method, filled(path), headers=headers)
            if path in PUBLIC:
                assert answer.status_code == 200
                assert set(answer.json()) == {"ok", "last_plan_age_seconds"}
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
                 "/nodes/n0", "/allocations", "/policy", "/emep/openapi.json", "/emep/docs"):  # fmt: skip
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
    assert api.bench.ledger.job(job["id"]).state.value in ("pending", "starting")


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
    assert api.submit("alice", priority="critical", airflow=gate).status_code == 422
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

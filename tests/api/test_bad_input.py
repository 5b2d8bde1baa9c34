"""Every route with everything that is wrong: refused by name with 4xx, never 5xx, and nothing has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import func, select

from emep.api.bodies import DEFAULT_BYTES as MAX_BODY_BYTES
from emep.ledger.store.tables import Allocation, Event, Job, Node

from .conftest import Api

HOSTILE: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308, "", " ", "x", "x" * 100_000,
    "a\u0000b", "\ud800", "💥", "../../etc", "' OR 1=1 --", "%s%n", "9" * 400, "1e999", "-5m", "5 parsecs",
    [], [[]], [None], {}, {"a": 1}, {"a": {"b": [1, "\u0000"]}},
]  # fmt: skip
RAW = [
    b"", b"null", b"[]", b"7", b'"text"', b"{", b'{"a":', b"\xff\xfe", b"\x00", b'{"spec": NaN}',
    b'{"a": 1e999}', b"[" * 100_000, b'{"a":' * 50_000, b"{}" + b" " * 100_000, b"a=b&c=d",
    b'{"epoch": 1, "epoch": 2}', b'{"epoch": ' + b"1" * 5_000 + b"}", b'{"a": [' + b"-7" * 30_000 + b"]}",
    b'{"a": ' + b"1" * 50_000 + b"}",
]  # fmt: skip

TASK = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 1, "try_number": 1, "last_try": True}
JOB = {
    "queue": "merge", "priority": "normal", "project": "p", "user": "alice", "gpu_count": 1, "node_count": 1,
    "gpu_per_node": 1, "cpu": 1, "memory": "1Gi", "gpu_memory_min": "1Gi", "gpu_type": "H100",
    "nvlink_required": False, "topology": {"required": "node", "affinity": {"zone": "a"}},
    "max_duration": "1h", "preemptible": True, "checkpoint_interval": "1m", "placement": "pack",
    "runtime": "agent", "spec": {"engine": "merge"}, "trace_id": "t", "experiment_id": "e",
    "job_type": "merge", "idempotency_key": "k", "checkpoint_key": "c", "airflow": TASK,
}  # fmt: skip
GPU = {"index": 0, "uuid": "u", "gpu_type": "t", "gpu_memory": "1Gi", "nvlink_group_id": "g"}
NODE = {
    "name": "n9", "pool": "default", "rack": "r", "block": "b", "labels": {"a": "b"}, "cpu": 1,
    "memory": "1Gi", "network_bandwidth_gbps": 1, "gpus": [GPU],
}  # fmt: skip
REPORT = {
    "index": 0, "healthy": True, "reason": "r", "utilization": 1, "temperature_c": 1, "memory_used": 1,
    "memory_total": 1, "ecc_errors": 1, "xid": 1,
}  # fmt: skip
VALID: dict[str, dict[str, Any]] = {
    "POST /jobs": JOB,
    "POST /nodes": NODE,
    "POST /nodes/{name}/health": {"gpus": [REPORT]},
    "POST /nodes/{name}/poll": {"running": [{"allocation_id": "a-1", "epoch": 1}], "timeout": 0},
    "POST /allocations/{allocation_id}/heartbeat": {
        "epoch": 1,
        "checkpoint": {"step": 1},
        "progress": {"done": 1},
    },
    "POST /allocations/{allocation_id}/complete": {"epoch": 7, "exit_code": 0, "result": {}, "message": "m"},
}


def variants(document: Any) -> Any:
    """The document with one value replaced by something hostile, one key missing, or one too many."""
    if isinstance(document, dict):
        yield {**document, "no_such_field": 1}
        for key, value in document.items():
            for hostile in HOSTILE:
                yield {**document, key: hostile}
            for inner in variants(value):
                yield {**document, key: inner}
    elif isinstance(document, list):
        for inner in variants(document[0]):
            yield [inner]
        yield document * 2
        yield document * 5000


def caller_of(path: str, token: str) -> str:
    if path.startswith("/nodes"):
        return "agent"
    return token if path.startswith("/allocations/") else "emep"


def check(answer: Any, what: str) -> None:
    assert answer.status_code < 500, f"{what[:500]} answered {answer.status_code}: {answer.text[:500]}"
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", what[:500]
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert problem["title"]
        assert problem["detail"], what[:500]


def body_of(document: Any) -> bytes:
    """JSON as a careless client writes it: NaN and infinities, lone surrogates as escapes."""
    return json.dumps(document).encode()


@pytest.mark.parametrize("route", sorted(VALID))
def test_no_field_can_be_so_wrong_that_the_server_fails(api: Api, route: str) -> None:
    api.node("n0", gpus=1)
    order, _, token = api.granted()
    method, path = route.split(" ")
    url = path.format(name="n0", allocation_id=order["allocation_id"])
    headers = {"Content-Type": "application/json"}
    for number, document in enumerate(variants(VALID[route])):
        if isinstance(document, dict) and document.get("idempotency_key") == "k":
            document["idempotency_key"] = f"k{number}"  # each is a request of its own
        body = body_of(document)
        check(
            api.call(caller_of(path, token), method, url, content=body, headers=headers), f"{route} {body!r}"
        )


@pytest.mark.parametrize("route", sorted(VALID))
def test_bodies_that_are_no_document_are_refused(api: Api, route: str) -> None:
    api.node("n0", gpus=1)
    order, _, token = api.granted()
    method, path = route.split(" ")
    url = path.format(name="n0", allocation_id=order["allocation_id"])
    for body in RAW:
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense"):
            answer = api.call(
                caller_of(path, token), method, url, content=body, headers={"Content-Type": kind}
            )
            check(answer, f"{route} {kind} {body[:80]!r}")
            if not (path.endswith("/poll") and body.startswith(b"{}")):
                assert answer.status_code in (400, 409, 413, 422), f"{route} {kind} {body[:80]!r}"


def test_odd_paths_and_queries_are_refused(api: Api) -> None:
    api.node("n0", gpus=1)
    order, at, token = api.granted()
    odd = ["%00", "a%00b", "%F0%9F%92%A5", "..%2F..", "x" * 5000, "%", "a b", "'", "%ff", "-", "~"]
    for route in api.app.routes:
        assert isinstance(route, APIRoute)
        for name in odd:
            if "{" in route.path:
                path = "/emep" + route.path.replace("{job_id}", name).replace("{name}", name)
                path = path.replace("{allocation_id}", name).replace("{letter_id}", name)
                path = path.replace("{entity:path}", name)
                for method in route.methods:
                    for who in ("admin", "agent"):
                        answer = api.call(who, method, path)
                        check(answer, f"{method} {path}")
                        assert answer.status_code >= 400
    queries = {
        "/jobs": ["state", "queue", "project", "user", "dag_id", "run_id", "next", "limit"],
        "/jobs:changes": ["since", "timeout", "ids"],
        "/allocations": ["live", "next", "limit"],
        "/nodes": ["next", "limit"],
        "/dead-letters": ["state", "next", "limit"],
        f"{at}/logs": ["offset"],
        f"/jobs/{order['job_id']}": ["nonsense"],
    }
    for path, names in queries.items():
        for name in names:
            for value in [
                "",
                "-1",
                "1e9",
                "NaN",
                "\x00",
                "💥",
                "9" * 30,
                "' OR 1=1",
                "a,b,,c",
                "x" * 3000,
                "\ud800",
            ]:
                raw = value.encode("utf-8", "surrogatepass")
                query = f"{name}=" + "".join(f"%{byte:02x}" for byte in raw)
                check(api.call("admin", "GET", f"{path}?{query}"), f"{path}?{query}")
    for offset in ["", "-1", "x", "1e3", str(2**70)]:
        answer = api.call(token, "POST", f"{at}/logs?offset={offset}", content=b"x")
        check(answer, offset)
        assert (answer.status_code, answer.json()["field"]) == (422, "offset")


def test_what_was_refused_has_changed_nothing(api: Api) -> None:
    api.node("n0", gpus=1)
    api.granted()

    def rows() -> list[int]:
        with api.bench.database.read() as session:
            return [session.scalar(select(func.count()).select_from(table)) or 0
                    for table in (Job, Node, Allocation, Event)]  # fmt: skip

    before = rows()
    refused = [
        api.submit(gpu_counts=1),
        api.submit(cpu="many"),
        api.submit(runtime="cloud"),
        api.submit(max_duration="-1h"),
        api.submit(gpu_count=3, node_count=1, gpu_per_node=2),
        api.call("emep", "POST", "/jobs", json={}),
        api.call("agent", "POST", "/nodes", json={"name": "bad name"}),
        api.call("agent", "POST", "/nodes", json={"name": "n2", "gpus": [{"index": 0, "uuid": "GPU-n0-0"}]}),
        api.call("agent", "POST", "/nodes/n0/health", json={"gpus": [{"index": 9}]}),
        api.call("agent", "POST", "/nodes/nosuch/poll", json={}),
        api.call("admin", "DELETE", "/jobs/nosuch"),
    ]
    for answer in refused:
        check(answer, answer.request.url.path)
        assert answer.status_code in (404, 409, 422), answer.text
    assert rows() == before


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"gpu_counts": 1}, "gpu_counts", "is not a field"),
        ({"gpu_count": "two"}, "gpu_count", "integer"),
        ({"gpu_count": -1}, "gpu_count", "greater than or equal to 0"),
        ({"memory": "80 apples"}, "memory", "80Gi"),
        ({"max_duration": "soon"}, "max_duration", "30m, 2h, 7d"),
        ({"topology": {"required": "planet"}}, "topology.required", "'nvlink'"),
        ({"airflow": {"dag_id": "d"}}, "airflow.run_id", "required"),
        ({"runtime": "cloud"}, "runtime", "'agent'"),
        ({"spec": {"engine": "m", "seed": float("nan")}}, "body", "finite"),
    ],
)
def test_the_answer_names_the_field_and_the_fix(
    api: Api, fields: dict[str, Any], field: str, words: str
) -> None:
    document = {"spec": {"engine": "merge"}, **fields}
    answer = api.call(
        "emep", "POST", "/jobs", content=body_of(document), headers={"Content-Type": "application/json"}
    )
    problem = answer.json()
    assert answer.status_code == 422
    assert problem["field"] == field, problem
    assert field in problem["detail"] or field == "body"
    assert words in problem["detail"]


@pytest.mark.parametrize(
    "field",
    ["queue", "priority", "project", "user", "gpu_type", "trace_id", "experiment_id", "job_type",
     "idempotency_key", "checkpoint_key", "topology"],
)  # fmt: skip
def test_names_hold_no_character_that_moves_a_logs_line_or_a_terminals_cursor(api: Api, field: str) -> None:
    for odd in ("\n", "\r", "\x1b[2J", "\x85", "\u2028", "\u202e", "\x7f"):
        text = f"a{odd}b"
        value: Any = {"affinity": {"zone": text}} if field == "topology" else text
        refused = api.submit(**{field: value})
        assert refused.status_code == 422, odd
        assert refused.json()["field"].startswith(field)
        assert "has the control character U+" in refused.json()["detail"]
        assert odd not in refused.json()["detail"]


def test_more_bytes_than_any_honest_request_has_are_refused(api: Api) -> None:
    body = b'{"a": "' + b"x" * MAX_BODY_BYTES + b'"}'
    headers = {"Content-Type": "application/json"}
    assert api.call("emep", "POST", "/jobs", content=body, headers=headers).status_code == 413

    def in_pieces() -> Any:
        for _ in range(MAX_BODY_BYTES // 2**20 + 2):
            yield b"x" * 2**20

    answer = api.call("emep", "POST", "/jobs", content=in_pieces(), headers=headers)
    assert answer.status_code == 413
    check(answer, "in pieces")


def test_unknown_paths_and_methods_are_problems_too(api: Api) -> None:
    for method, path, status in [
        ("GET", "/nosuch", 404),
        ("PATCH", "/jobs", 405),
        ("GET", "/emep/nosuch", 404),
    ]:
        answer = api.call("admin", method, path)
        check(answer, path)
        assert answer.status_code == status

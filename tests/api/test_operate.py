"""Batches, requeues, drains, dead letters and shares over the API."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from emep.ledger.store.tables import DeadLetter, Event, FairShareOverride, Gpu, Job, Node
from emep.wire.engines import ENGINE_NAMES

from .conftest import Api
from .test_auth import a_dead_letter
from .test_bad_input import HOSTILE, RAW, body_of, check

SPEC = {"engine": "evolve_candidates", "input": {}, "output_uri": "out"}


def rows(api: Api) -> list[Any]:
    """All that a refused request must leave as it is."""
    with api.bench.database.read() as session:
        counts = [session.scalar(select(func.count()).select_from(table)) for table in (Job, DeadLetter)]
        changed = session.scalars(select(Event.event).where(Event.actor.in_(["op", "alice", "admin"]))).all()
        flags = session.execute(select(Node.drain, Node.rack, Gpu.drain).join(Gpu, Gpu.node == Node.name))
        weights = session.scalars(select(FairShareOverride.weight)).all()
        return [*counts, list(changed), [tuple(row) for row in flags], list(weights)]


# ---- batches ---------------------------------------------------------------------------------------------


def test_every_entry_of_a_batch_has_the_outcome_it_would_have_alone(api: Api) -> None:
    api.node(gpus=4)
    first = api.submit(idempotency_key="known", spec=SPEC).json()
    task = {"dag_id": "d", "run_id": "r", "task_id": "t"}
    entries: list[Any] = [
        {"spec": SPEC, "gpu_count": 2, "idempotency_key": "a", "trace_id": "t-1"},
        {"spec": SPEC, "gpu_count": "two"},
        {"spec": SPEC, "idempotency_key": "known"},
        {"spec": SPEC, "gpu_count": 9},
        {"spec": SPEC, "user": "bob"},
        {"spec": {"engine": "merg"}},
        7,
        {"spec": SPEC, "gpu_count": 2, "idempotency_key": "a"},
        {"spec": SPEC, "project": "a//b"},
        {"spec": SPEC, "airflow": task},
        {"spec": SPEC, "gpu_count": 3, "node_count": 1, "gpu_per_node": 2},
        {"spec": SPEC, "experiment_id": "nul\x00"},
        {"spec": SPEC, "idempotency_key": "a"},
    ]
    answer = api.call("alice", "POST", "/jobs:batch", json={"jobs": entries})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    statuses = [item["status"] for item in document["items"]]
    assert statuses == [201, 422, 200, 422, 403, 422, 422, 200, 422, 403, 422, 422, 409]
    assert (document["created"], document["refused"]) == (1, 10)
    items = document["items"]
    assert items[2]["job"]["id"] == first["id"]
    assert items[7]["job"]["id"] == items[0]["job"]["id"]
    assert items[0]["job"]["trace_id"] == "t-1"
    assert items[3]["problem"]["code"] == "rejected"
    assert items[4]["problem"]["field"] == "user"
    assert (items[12]["problem"]["code"], items[12]["problem"]["field"]) == ("key_reused", "gpu_count")
    for place in (1, 3, 4, 5, 6, 8, 9, 10, 11):
        headers = {"Content-Type": "application/json"}
        alone = api.call("alice", "POST", "/jobs", content=body_of(entries[place]), headers=headers)
        problem = items[place]["problem"]
        assert alone.status_code == items[place]["status"] == problem["status"]
        if place not in (6, 11):
            assert problem["detail"] == alone.json()["detail"]
        assert problem["title"]
        assert problem["detail"]
    again = api.call("alice", "POST", "/jobs:batch", json={"jobs": [entries[0]]}).json()
    assert (again["items"][0]["status"], again["created"]) == (200, 0)


def test_a_thousand_jobs_are_one_batch_and_one_more_is_too_many(api: Api) -> None:
    api.node(gpus=1)
    entries = [{"spec": SPEC, "idempotency_key": f"k{number}"} for number in range(1000)]
    answer = api.call("alice", "POST", "/jobs:batch", json={"jobs": entries})
    assert answer.json()["created"] == 1000
    ids = [item["job"]["id"] for item in answer.json()["items"]]
    assert ids == sorted(ids), "they keep their order"
    assert len(set(ids)) == 1000
    for jobs in ([], [*entries, entries[0]]):
        refused = api.call("alice", "POST", "/jobs:batch", json={"jobs": jobs})
        assert (refused.status_code, refused.json()["field"]) == (422, "jobs")


def test_nobody_s_entry_may_speak_for_another_dag_than_he_may_edit(api: Api) -> None:
    body = {"jobs": [{"spec": SPEC, "airflow": {"dag_id": "d", "run_id": "r", "task_id": "t"}}]}
    assert api.call("viewer", "POST", "/jobs:batch", json=body).status_code == 403


# ---- what jobs may say -----------------------------------------------------------------------------------


def test_the_engines_are_those_that_agents_have() -> None:
    from engines.contract import ENGINES

    assert set(ENGINE_NAMES) == set(ENGINES)


def test_an_unknown_engine_is_refused_before_it_is_granted_anything(api: Api) -> None:
    api.node()
    before = rows(api)
    refused = api.submit(spec={"engine": "merg"})
    problem = refused.json()
    assert (refused.status_code, problem["field"]) == (422, "spec.engine")
    assert "did you mean 'merge'?" in problem["detail"]
    far = api.submit(spec={"engine": "train-it"}).json()["detail"]
    assert all(name in far for name in ENGINE_NAMES)
    assert rows(api) == before
    assert api.submit(spec={"engine": "anything"}, runtime="external").status_code == 201


@pytest.mark.parametrize("project", ["a//b", "/a", "a/", "/", " ", "a/ /b"])
def test_a_project_with_an_empty_part_is_refused(api: Api, project: str) -> None:
    refused = api.submit(project=project)
    assert (refused.status_code, refused.json()["field"]) == (422, "project")
    assert "org/team" in refused.json()["detail"]


# ---- drains, patches, pages ------------------------------------------------------------------------------


def test_a_node_is_drained_corrected_and_resumed(api: Api) -> None:
    api.node(gpus=2)
    one = api.call("op", "POST", "/nodes/n0/drain", json={"gpu": 1, "reason": "noisy"})
    assert [gpu["state"] for gpu in one.json()["gpus"]] == ["healthy", "drained"]
    whole = api.call("op", "POST", "/nodes/n0/drain").json()
    assert (whole["state"], whole["drain"]) == ("drained", True)
    patched = api.call("op", "PATCH", "/nodes/n0", json={"labels": {"zone": "b"}, "reason": "moved"}).json()
    assert (patched["labels"], patched["set_by_operator"]) == ({"zone": "b"}, ["labels"])
    assert api.call("op", "PATCH", "/nodes/n0", json={"labels": None}).json()["set_by_operator"] == []
    assert api.call("op", "POST", "/nodes/n0/resume").json()["state"] == "up"
    with api.bench.database.read() as session:
        seen = session.execute(select(Event.event, Event.reason).where(Event.actor == "op")).all()
    assert [tuple(row) for row in seen][:3] == [
        ("gpu_drained", "noisy"), ("node_drained", ""), ("node_changed", "moved"),
    ]  # fmt: skip


def test_running_work_leaves_a_drained_node_and_a_requeued_job_its_place(api: Api) -> None:
    api.node(gpus=2)
    order, at, token = api.granted()
    api.call(token, "POST", f"{at}/heartbeat", json={"epoch": 1})
    told = api.call("alice", "POST", f"/jobs/{order['job_id']}/requeue", json={"reason": "elsewhere"})
    assert (told.json()["state"], told.json()["reason"]) == ("yielding", "elsewhere")
    beat = api.call(token, "POST", f"{at}/heartbeat", json={"epoch": 1}).json()
    assert beat["directive"] == "checkpoint_and_exit"
    api.call("op", "POST", "/nodes/n0/drain", json={"now": True})
    back = api.call(token, "POST", f"{at}/complete", json={"epoch": 1, "exit_code": 75}).json()
    assert back["state"] == "pending"
    assert api.call("alice", "POST", f"/jobs/{order['job_id']}/requeue").status_code == 409


def test_nodes_come_in_pages(api: Api) -> None:
    for number in range(3):
        api.node(f"n{number}", gpus=1)
    first = api.call("viewer", "GET", "/nodes", params={"limit": 2}).json()
    second = api.call("viewer", "GET", "/nodes", params={"limit": 2, "next": first["next"]}).json()
    assert [node["name"] for node in first["items"] + second["items"]] == ["n0", "n1", "n2"]
    assert (first["total"], second["next"]) == (3, None)


# ---- shares ----------------------------------------------------------------------------------------------


def test_a_weight_is_set_shown_in_force_and_unset(api: Api) -> None:
    api.node()
    api.submit(project="org/team")
    for entity in ("queue:merge", "org", "org%2Fteam", "org/team@alice"):
        answer = api.call("op", "PUT", f"/fair-share/{entity}", json={"weight": 3.5, "reason": "deadline"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["set_by"], answer.json()["weight"]) == ("op", 3.5)
    shown = api.call("viewer", "GET", "/fair-share").json()
    assert {one["entity"]: one["reason"] for one in shown["overrides"]} == dict.fromkeys(
        ("queue:merge", "org", "org/team", "org/team@alice"), "deadline"
    )
    (alice,) = [one for one in shown["entities"]
                if one["entity"] == "org/team@alice" and one["queue"] == "merge"]  # fmt: skip
    assert (alice["policy_weight"], alice["override"], alice["weight"]) == (1.0, 3.5, 3.5)
    policy = api.call("viewer", "GET", "/policy").json()
    assert policy["queues"]["merge"]["weight"] == 3.5
    assert policy["projects"]["org"]["projects"]["team"]["users"]["alice"]["weight"] == 3.5
    for entity in ("queue:merge", "org", "org/team", "org/team@alice"):
        assert api.call("op", "DELETE", f"/fair-share/{entity}").status_code == 204
        assert api.call("op", "DELETE", f"/fair-share/{entity}").status_code == 404
    after = api.call("viewer", "GET", "/policy").json()
    assert after["queues"]["merge"]["weight"] != 3.5
    assert api.call("viewer", "GET", "/fair-share").json()["policy_digest"] != shown["policy_digest"]


# ---- bad input -------------------------------------------------------------------------------------------

BAD: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/jobs:batch", {"jobs": 7}, 422, "jobs"),
    ("POST", "/jobs:batch", {}, 422, "jobs"),
    ("POST", "/jobs:batch", {"jobs": [], "more": 1}, 422, "jobs"),
    ("POST", "/jobs/{job}/requeue", {"why": "x"}, 422, "why"),
    ("POST", "/jobs/{job}/requeue", {"reason": 7}, 422, "reason"),
    ("POST", "/jobs/{job}/requeue", {"reason": "x" * 1001}, 422, "reason"),
    ("POST", "/jobs/nosuch/requeue", {}, 404, "job_id"),
    ("POST", "/nodes/n9/drain", {}, 404, "name"),
    ("POST", "/nodes/n0/drain", {"gpu": 77}, 404, "gpu"),
    ("POST", "/nodes/n0/drain", {"gpu": -1}, 422, "gpu"),
    ("POST", "/nodes/n0/drain", {"gpu": "1"}, 422, "gpu"),
    ("POST", "/nodes/n0/drain", {"gpu": True}, 422, "gpu"),
    ("POST", "/nodes/n0/drain", {"now": "yes"}, 422, "now"),
    ("POST", "/nodes/n0/resume", {"gpu": 5000}, 422, "gpu"),
    ("POST", "/nodes/n0/resume", {"now": True}, 422, "now"),
    ("PATCH", "/nodes/n0", {}, 422, "body"),
    ("PATCH", "/nodes/n0", {"pool": ""}, 422, "pool"),
    ("PATCH", "/nodes/n0", {"cpu": 9}, 422, "cpu"),
    ("PATCH", "/nodes/n0", {"labels": {"a": 1}}, 422, "labels.a"),
    ("PATCH", "/nodes/n0", {"network_bandwidth_gbps": -1}, 422, "network_bandwidth_gbps"),
    ("PATCH", "/nodes/n9", {"rack": "r"}, 404, "name"),
    ("PUT", "/fair-share/queue:merge", {}, 422, "weight"),
    ("PUT", "/fair-share/queue:merge", {"weight": -1}, 422, "weight"),
    ("PUT", "/fair-share/queue:merge", {"weight": "2"}, 422, "weight"),
    ("PUT", "/fair-share/queue:merge", {"weight": float("nan")}, 422, "body"),
    ("PUT", "/fair-share/queue:merge", {"weight": 1e300}, 422, "weight"),
    ("PUT", "/fair-share/queue:nosuch", {"weight": 1}, 404, "entity"),
    ("PUT", "/fair-share/no/such/project", {"weight": 1}, 404, "entity"),
    ("PUT", "/fair-share/a%2F%2Fb", {"weight": 1}, 422, "entity"),
    ("PUT", "/fair-share/a%00b", {"weight": 1}, 422, "entity"),
    ("PUT", "/fair-share/" + "x" * 251, {"weight": 1}, 422, "entity"),
    ("DELETE", "/fair-share/queue:merge", None, 404, "entity"),
    ("POST", "/dead-letters/nosuch/requeue", {}, 404, "letter_id"),
    ("POST", "/dead-letters/{letter}/requeue", {"reason": None}, 422, "reason"),
    ("DELETE", "/dead-letters/nosuch", None, 404, "letter_id"),
    ("DELETE", "/dead-letters/{letter}?reason=%00", None, 422, "reason"),
    ("GET", "/dead-letters/nosuch", None, 404, "letter_id"),
    ("GET", "/dead-letters?state=lost", None, 422, "state"),
    ("GET", "/dead-letters?limit=0", None, 422, "limit"),
    ("GET", "/dead-letters?next=%00", None, 422, "next"),
    ("GET", "/nodes?limit=1001", None, 422, "limit"),
    ("GET", "/nodes?next=%ff", None, 422, "next"),
]


def test_what_is_wrong_is_named_and_nothing_has_changed(api: Api) -> None:
    letter, job = a_dead_letter(api), api.submit().json()["id"]
    api.node(gpus=1)
    before = rows(api)
    for method, path, body, status, field in BAD:
        where = path.replace("{job}", job).replace("{letter}", letter)
        content = None if body is None else body_of(body)
        answer = api.call(
            "admin", method, where, content=content, headers={"Content-Type": "application/json"}
        )
        check(answer, f"{method} {path} {body}")
        problem = answer.json()
        assert (answer.status_code, problem.get("field")) == (status, field), (
            f"{method} {path}: {answer.text}"
        )
        assert problem["detail"]
    assert rows(api) == before


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("POST", "/jobs:batch", ["jobs"]),
        ("POST", "/jobs/nosuch/requeue", ["reason"]),
        ("POST", "/nodes/n0/drain", ["gpu", "now", "reason"]),
        ("POST", "/nodes/n0/resume", ["gpu", "reason"]),
        ("PATCH", "/nodes/n0", ["pool", "rack", "block", "labels", "network_bandwidth_gbps", "reason"]),
        ("PUT", "/fair-share/queue:merge", ["weight", "reason"]),
        ("POST", "/dead-letters/nosuch/requeue", ["reason"]),
    ],
)
def test_no_field_can_be_so_wrong_that_the_server_fails(
    api: Api, method: str, path: str, fields: list[str]
) -> None:
    api.node(gpus=1)
    headers = {"Content-Type": "application/json"}
    for field in fields:
        for hostile in HOSTILE:
            body = body_of({"weight": 1, field: hostile} if method == "PUT" else {field: hostile})
            check(
                api.call("op", method, path, content=body, headers=headers), f"{path} {field} {body[:80]!r}"
            )
    for raw in RAW:
        check(api.call("op", method, path, content=raw, headers=headers), f"{path} {raw[:80]!r}")

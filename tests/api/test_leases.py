"""Who may fetch a lease, and say of it what: the account that asked, or an administrator."""

from __future__ import annotations

import pytest

from .conftest import Api

LABELS = {"emep/runtime": "kubernetes"}


@pytest.fixture
def pod(api: Api) -> tuple[str, str]:
    """A pod's job of alice's that was granted; its allocation."""
    api.bench.node("n0", labels=LABELS)
    made = api.call("alice", "POST", "/jobs", json={"runtime": "kubernetes", "gpu_count": 2}).json()
    since = 0
    while True:
        changes = api.call("alice", "GET", f"/jobs:changes?since={since}&timeout=20&ids={made['id']}").json()
        since = changes["cursor"]
        for job in changes["jobs"]:
            if job["state"] == "starting":
                return job["id"], job["allocation_id"]


def test_the_asker_gets_the_token_and_it_opens_the_allocation(api: Api, pod: tuple[str, str]) -> None:
    answer = api.call("alice", "POST", f"/allocations/{pod[1]}/lease", json={})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    token = answer.json()["lease_token"]
    beat = api.call(token, "POST", f"/allocations/{pod[1]}/heartbeat", json={"epoch": 1})
    assert beat.json()["directive"] == "continue"


@pytest.mark.parametrize("who", ["viewer", "emep", "agent", "op"])
def test_nobody_else_gets_it_or_ends_the_work(api: Api, pod: tuple[str, str], who: str) -> None:
    loss = {"epoch": 1, "reason": "x"}
    for path, body in (("lease", {}), ("lost", loss), ("gone", None)):
        answer = api.call(who, "POST", f"/allocations/{pod[1]}/{path}", json=body)
        assert answer.status_code == 403, (who, path)
        assert "lease_token" not in answer.text
    job = api.call("alice", "GET", f"/jobs/{pod[0]}").json()
    assert "x" not in job["reason"].split()


def test_an_administrator_may(api: Api, pod: tuple[str, str]) -> None:
    assert api.call("admin", "POST", f"/allocations/{pod[1]}/lease", json={}).status_code == 200
    loss = {"epoch": 1, "code": "pod_deleted", "reason": "pod p was deleted", "gone": True}
    answer = api.call("admin", "POST", f"/allocations/{pod[1]}/lost", json=loss)
    assert answer.json()["state"] == "pending"
    assert api.call("admin", "POST", f"/allocations/{pod[1]}/gone").status_code == 204
    assert api.call("admin", "POST", f"/allocations/{pod[1]}/lease", json={}).status_code == 409


def test_no_token_is_in_the_audit(api: Api, pod: tuple[str, str]) -> None:
    from sqlalchemy import select

    from emep.ledger.store.tables import Event

    token = api.call("alice", "POST", f"/allocations/{pod[1]}/lease", json={}).json()["lease_token"]
    with api.bench.database.read() as session:
        told = [f"{row.reason} {row.data}" for row in session.scalars(select(Event))]
    assert told
    assert not [words for words in told if token.removeprefix("emep-lease.") in words]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"epoch": 1},
        {"epoch": 1, "reason": ""},
        {"epoch": 1, "reason": "x", "code": "weather"},
        {"epoch": -1},
    ],
)
def test_a_loss_that_makes_no_sense_is_refused(api: Api, pod: tuple[str, str], body: dict) -> None:
    assert api.call("alice", "POST", f"/allocations/{pod[1]}/lost", json=body).status_code == 422


def test_readiness_is_the_operators_or_the_agents_word(api: Api) -> None:
    api.bench.node("n0", labels=LABELS)
    said = {"ready": False, "reason": "no word from its kubelet"}
    assert api.call("viewer", "PUT", "/nodes/n0/readiness", json=said).status_code == 403
    assert api.call("alice", "PUT", "/nodes/n0/readiness", json=said).status_code == 403
    answer = api.call("op", "PUT", "/nodes/n0/readiness", json=said)
    assert (answer.json()["ready"], answer.json()["ready_reason"]) == (False, "no word from its kubelet")
    assert api.call("agent", "PUT", "/nodes/n0/readiness", json={"ready": True}).json()["ready"]
    assert api.call("op", "PUT", "/nodes/none/readiness", json=said).status_code == 404
    assert api.call("viewer", "GET", "/allocations:leaving").json()["items"] == []

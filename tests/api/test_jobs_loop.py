"""A job's life over HTTP: submitted, granted, started, logged, completed; and what watchers see of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .conftest import Api


def test_from_submission_to_completion(api: Api) -> None:
    api.node()
    submitted = api.submit("alice", gpu_count=2, trace_id="t", experiment_id="e")
    assert submitted.status_code == 201
    job = submitted.json()
    assert (job["state"], job["user"], job["trace_id"]) == ("pending", "alice", "t")
    (order,) = api.call("agent", "POST", "/nodes/n0/poll", json={"timeout": 30}).json()["orders"]
    assert (order["kind"], order["job_id"], len(order["gpus"])) == ("start", job["id"], 2)
    at, token = f"/allocations/{order['allocation_id']}", order["lease_token"]

    beat = api.call(token, "POST", f"{at}/heartbeat", json={"epoch": 1, "progress": {"done": 1}})
    assert beat.json() == {"directive": "continue", "grace_seconds": None, "lease_seconds": 60.0}
    assert api.call("alice", "GET", f"/jobs/{job['id']}").json()["state"] == "running"
    (allocation,) = api.call("viewer", "GET", "/allocations").json()["items"]
    assert (allocation["state"], allocation["progress"]) == ("active", {"done": 1})
    (node,) = api.call("viewer", "GET", "/nodes").json()["items"]
    assert [gpu["job_id"] for gpu in node["gpus"]] == [job["id"], job["id"], None, None]

    text = {"Content-Type": "text/plain"}
    assert api.call(token, "POST", f"{at}/logs?offset=0", content=b"hello\n", headers=text).json() == {
        "next_offset": 6
    }
    gap = api.call(token, "POST", f"{at}/logs?offset=99", content=b"x", headers=text)
    assert (gap.status_code, gap.json()["expected_offset"]) == (409, 6)
    assert api.call("viewer", "GET", f"{at}/logs").json()["text"] == "hello\n"
    page = api.call("viewer", "GET", f"/jobs/{job['id']}/logs")
    assert (page.text, page.headers["content-type"]) == ("hello\n", "text/plain; charset=utf-8")

    end = {"epoch": 1, "exit_code": 0, "result": {"status": "done"}}
    assert api.call(token, "POST", f"{at}/complete", json=end).json()["state"] == "completed"
    assert api.call(token, "POST", f"{at}/complete", json=end).status_code == 200
    late = api.call(token, "POST", f"{at}/heartbeat", json={"epoch": 1})
    assert (late.status_code, late.json()["directive"]) == (409, "abort")
    assert api.call("viewer", "GET", "/allocations").json()["items"] == []
    assert api.call("viewer", "GET", "/allocations?live=false").json()["total"] == 1


def test_a_repeated_submission_is_answered_200_with_the_first_job(api: Api) -> None:
    api.node()
    first = api.submit(idempotency_key="k")
    again = api.submit(idempotency_key="k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


def test_a_job_that_can_never_run_is_422_with_the_limit_it_hit(api: Api) -> None:
    api.node(gpus=4)
    answer = api.submit(gpu_count=64)
    problem = answer.json()
    assert answer.status_code == 422
    assert "64 GPUs" in problem["detail"]
    assert problem["job"]["state"] == "rejected"
    assert api.call("viewer", "GET", "/jobs?state=rejected").json()["total"] == 1


def test_a_poll_waits_and_answers_as_soon_as_there_is_an_order(api: Api) -> None:
    api.node()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.call, "agent", "POST", "/nodes/n0/poll", json={"timeout": 30})
        job = api.submit().json()
        started = time.monotonic()
        (order,) = waiting.result(30).json()["orders"]
    assert order["job_id"] == job["id"]
    assert time.monotonic() - started < 25, "it came with the order, not with the end of the wait"


def test_a_poll_without_news_answers_empty_at_its_time_out(api: Api) -> None:
    api.node()
    assert api.call("agent", "POST", "/nodes/n0/poll", json={"timeout": 0.2}).json() == {"orders": []}


def test_orders_for_one_node_do_not_end_the_polls_of_others(api: Api) -> None:
    api.node("n0")
    api.node("n1", gpus=1)
    with ThreadPoolExecutor(2) as pool:
        idle = pool.submit(api.call, "agent", "POST", "/nodes/n1/poll", json={"timeout": 3})
        busy = pool.submit(api.call, "agent", "POST", "/nodes/n0/poll", json={"timeout": 30})
        api.submit(gpu_count=4)
        assert len(busy.result(30).json()["orders"]) == 1
        assert idle.result(30).json()["orders"] == []


def test_a_stop_order_is_not_repeated_while_it_is_carried_out(api: Api) -> None:
    api.node()
    order, at, token = api.granted()
    running = [{"allocation_id": order["allocation_id"], "epoch": 1}]
    api.call(token, "POST", f"{at}/heartbeat", json={"epoch": 1})
    api.call("alice", "DELETE", f"/jobs/{order['job_id']}")
    (stop,) = api.call("agent", "POST", "/nodes/n0/poll", json={"running": running, "timeout": 30}).json()[
        "orders"
    ]
    assert (stop["kind"], stop["directive"]) == ("stop", "checkpoint_and_exit")
    assert 0 < stop["grace_seconds"] <= 120
    again = api.call("agent", "POST", "/nodes/n0/poll", json={"running": running, "timeout": 0.5})
    assert again.json() == {"orders": []}


def test_changes_wait_for_the_job_that_is_watched(api: Api) -> None:
    api.node()
    job = api.submit().json()
    other = api.submit().json()
    cursor = 0
    seen: list[str] = []
    while "starting" not in seen:
        answer = api.call(
            "viewer", "GET", "/jobs:changes", params={"since": cursor, "timeout": 20, "ids": job["id"]}
        ).json()
        assert other["id"] not in {view["id"] for view in answer["jobs"]}
        assert answer["cursor"] > cursor
        cursor = answer["cursor"]
        seen += [view["state"] for view in answer["jobs"]]
    with ThreadPoolExecutor(1) as pool:
        watch = pool.submit(
            api.call,
            "viewer",
            "GET",
            "/jobs:changes",
            params={"since": cursor, "timeout": 30, "ids": job["id"]},
        )
        api.call("alice", "DELETE", f"/jobs/{job['id']}")
        assert [view["state"] for view in watch.result(30).json()["jobs"]] == ["cancelled"]


def test_changes_made_by_another_api_server_wake_this_ones_watchers(api: Api) -> None:
    """The other server shares the database and nothing else."""
    from emep.ledger.service import LedgerService
    from emep.ledger.store.database import Database

    api.node()
    job = api.submit().json()
    elsewhere = LedgerService(
        Database(api.bench.engine), lambda: api.bench.policy, api.bench.ledger.context.settings
    )
    cursor = api.call("viewer", "GET", "/jobs:changes").json()["cursor"]
    timer = threading.Timer(0.5, elsewhere.jobs.cancel, [job["id"]], {"actor": "elsewhere"})
    timer.start()
    states: list[str] = []
    while "cancelled" not in states:
        answer = api.call("viewer", "GET", "/jobs:changes", params={"since": cursor, "timeout": 30}).json()
        assert answer["cursor"] > cursor, "the wait ran out"
        cursor = answer["cursor"]
        states += [view["state"] for view in answer["jobs"] if view["id"] == job["id"]]
    timer.join()


def test_many_watchers_wait_without_holding_threads(api: Api) -> None:
    """More long polls than the server has worker threads, and others are still served meanwhile."""
    api.node()
    watched = api.granted()[0]["job_id"]
    cursor = api.call("viewer", "GET", f"/jobs:changes?ids={watched}").json()["cursor"]

    def watch(_: int) -> Any:
        params = {"since": cursor, "timeout": 30, "ids": watched}
        return api.call("viewer", "GET", "/jobs:changes", params=params)

    with ThreadPoolExecutor(60) as pool:
        waits = [pool.submit(watch, number) for number in range(60)]
        assert api.submit().status_code == 201
        assert not all(wait.done() for wait in waits)
        assert api.call("alice", "DELETE", f"/jobs/{watched}").status_code == 200
        assert all(wait.result(120).status_code == 200 for wait in waits)


def test_explain_says_why_in_codes_numbers_and_a_sentence(api: Api) -> None:
    api.node(gpus=4)
    api.granted(gpu_count=3)
    waiting = api.submit(gpu_count=2).json()
    told = api.call("viewer", "GET", f"/jobs/{waiting['id']}/explain").json()
    assert told["position"] == 1
    assert [reason["code"] for reason in told["reasons"]] == [
        "insufficient_gpus",
        "no_topology_domain",
    ]
    assert "needs 2 GPUs" in told["sentence"]
    assert told["class_value"] == 10
    assert told["score"] > 0
    assert told["order_key"]


def test_lists_page_by_their_cursor(api: Api) -> None:
    api.node()
    ids = {api.submit().json()["id"] for _ in range(5)}
    seen: set[str] = set()
    path = "/jobs?limit=2"
    while True:
        page = api.call("viewer", "GET", path).json()
        assert page["total"] == 5
        seen |= {job["id"] for job in page["items"]}
        if page["next"] is None:
            break
        path = f"/jobs?limit=2&next={page['next']}"
    assert seen == ids


def test_the_policy_is_shown_whole(api: Api) -> None:
    policy = api.call("viewer", "GET", "/policy").json()
    assert policy["classes"]["critical"] == 1000
    assert policy["queues"]["merge"]["pending_ttl"] == 86400


def test_health_says_how_old_the_last_plan_is(api: Api) -> None:
    api.node()
    api.granted()
    answer = api.client.get("/emep/health")
    assert answer.json()["ok"] is True
    assert answer.json()["state"] in ("idle", "planning")
    assert answer.json()["policy"] == "file"
    assert 0 <= answer.json()["last_plan_age_seconds"] < 60


def test_the_apis_description_lists_its_routes(api: Api) -> None:
    document = api.call("viewer", "GET", "/emep/openapi.json").json()
    assert "/api/v1/jobs:changes" in document["paths"]
    assert document["servers"] == [{"url": "/emep"}]
    page = api.call("viewer", "GET", "/emep/docs").text
    assert "/api/v1/jobs" in page
    assert "<script" not in page
    assert "src=" not in page

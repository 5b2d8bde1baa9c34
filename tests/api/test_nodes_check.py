"""``POST /nodes:check``: who may, what it does at once, and how long it waits."""

from __future__ import annotations

import threading

import pytest
from tests.builders.ledger import make_settings

from .conftest import Api


def report(api: Api, bad: bool) -> None:
    gpus = [{"index": index, "healthy": not bad} for index in range(4)]
    assert api.call("agent", "POST", "/nodes/n0/health", json={"gpus": gpus}).status_code == 200


@pytest.mark.parametrize("who", ["viewer", "alice", "agent"])
def test_only_an_operator_may_check(api: Api, who: str) -> None:
    answer = api.call(who, "POST", "/nodes:check")
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("query", ["since=-1", "since=x", "since=9223372036854775808", "timeout=31"])
def test_wrong_values_are_refused_with_the_field(api: Api, query: str) -> None:
    answer = api.call("op", "POST", f"/nodes:check?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.text


def test_an_operator_hears_what_was_found_since_the_cursor(api: Api) -> None:
    api.node()
    cursor = api.call("op", "POST", "/nodes:check").json()["cursor"]
    for _ in range(3):
        report(api, bad=True)
    answer = api.call("op", "POST", f"/nodes:check?since={cursor}&timeout=20").json()
    assert {finding["event"] for finding in answer["findings"]} == {"gpu_unhealthy"}
    assert answer["gpus"] == {"default": {"unhealthy": 4}}
    after = api.call("op", "POST", f"/nodes:check?since={answer['cursor']}").json()
    assert after["findings"] == []


def test_it_waits_for_the_first_finding(api: Api) -> None:
    api.node()
    cursor = api.call("op", "POST", "/nodes:check").json()["cursor"]
    report(api, bad=True)
    report(api, bad=True)
    answers: list[dict[str, object]] = []

    def wait() -> None:
        answers.append(api.call("op", "POST", f"/nodes:check?since={cursor}&timeout=30").json())

    waiting = threading.Thread(target=wait)
    waiting.start()
    report(api, bad=True)
    waiting.join(60)
    assert answers[0]["findings"]


def test_it_finds_by_itself_what_the_tick_has_not_found_yet(api: Api) -> None:
    """With a tick that comes once a minute and is stopped, only the check can have taken the lease back."""
    api.runtime.runner.stop()
    api.runtime.ledger.context.settings = make_settings(tick_seconds=60.0)
    api.node()
    job = api.bench.submit()
    api.runtime.runner.planner.cycle()
    cursor = api.call("op", "POST", "/nodes:check").json()["cursor"]
    real = api.runtime.ledger.context.database.clock
    api.runtime.ledger.context.database.clock = lambda: real() + 200
    answer = api.call("op", "POST", f"/nodes:check?since={cursor}").json()
    requeued = [finding for finding in answer["findings"] if finding["event"] == "requeued"]
    assert [finding["job_id"] for finding in requeued] == [job.id]
    assert answer["silent_nodes"] == ["n0"]

"""An agent's polls: the newest gets the orders."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.builders.ledger import SPEC
from tests.builders.real_api import real_api

from emep.wire.jobs import JobRequest
from emep.wire.nodes import PollRequest


@pytest.fixture
def api(tmp_path):
    with real_api(tmp_path) as served:
        served.node()
        yield served


def waiting(api, polls: int) -> None:
    """Until so many polls wait on the server."""

    def on_server() -> int:
        # They come and go in the server's thread.
        with api.runtime.follower._mutex:
            return sum(len(group) for group in api.runtime.follower._subscriptions.values())

    until = time.monotonic() + 120
    while on_server() < polls:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_poll_that_was_given_up_answers_at_once_and_takes_no_order_along(api):
    with ThreadPoolExecutor() as pool:
        given_up = pool.submit(api.agent.poll, "n0", PollRequest(timeout=30))
        waiting(api, 1)
        newest = pool.submit(api.agent.poll, "n0", PollRequest(timeout=30))
        assert given_up.result(25).orders == []
        api.user.submit_job(JobRequest(spec=SPEC))
        (order,) = newest.result(60).orders
    assert order.kind == "start"


def test_an_order_that_went_to_a_poll_nobody_read_is_given_again_at_once(api):
    api.user.submit_job(JobRequest(spec=SPEC))
    (order,) = api.agent.poll("n0", PollRequest(timeout=25)).orders
    assert api.agent.poll("n0", PollRequest(timeout=0)).orders == [], "it was given, and is being carried out"
    assert api.agent.poll("n0", PollRequest(timeout=25, gave_up=True)).orders == [order]

"""One user's jobs that wait are bounded, whoever submits them and however."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.builders.ledger import SPEC, Bench

from emep.ledger.caches.pending_bound import KNOWN_SECONDS
from emep.ledger.jobs.validation import Submitter
from emep.policy.load import parse_policy_text
from emep.wire.base import JobState
from emep.wire.errors import TooManyError
from emep.wire.jobs import JobRequest

LIMIT = 3


@pytest.fixture
def bounded(bench: Bench) -> Bench:
    bench.policy = parse_policy_text(f"limits: {{pending_jobs: {LIMIT}}}", "test policy")
    bench.node(gpus=4)
    return bench


def fill(bench: Bench, user: str = "alice") -> list[Any]:
    return [bench.submit(user) for _ in range(LIMIT)]


def test_one_more_than_may_wait_is_refused_and_nothing_is_written(bounded: Bench) -> None:
    fill(bounded)
    with pytest.raises(TooManyError) as refused:
        bounded.submit("alice")
    assert (refused.value.status, refused.value.code) == (429, "too_many_pending")
    assert refused.value.message.startswith("alice has 3 jobs that wait")
    assert bounded.ledger.jobs.page().total == LIMIT
    assert bounded.submit("bob").state is JobState.PENDING, "others are not concerned"


def test_what_has_started_or_ended_does_not_count(bounded: Bench) -> None:
    first, second, _ = fill(bounded)
    bounded.ledger.jobs.cancel(first.id, actor="alice")
    bounded.submit("alice")
    with pytest.raises(TooManyError):
        bounded.submit("alice")
    bounded.plan()
    assert bounded.job(second).state is JobState.STARTING
    assert len([bounded.submit("alice") for _ in range(LIMIT)]) == LIMIT


def test_the_user_counts_and_not_the_account_that_submits(bounded: Bench) -> None:
    fill(bounded)
    with pytest.raises(TooManyError):
        bounded.submit("emep", user="alice")
    assert bounded.submit("emep", user="carol").user == "carol"


def test_a_request_that_is_sent_again_is_answered_at_the_bound_too(bounded: Bench) -> None:
    first = bounded.submit("alice", idempotency_key="k")
    fill_up = [bounded.submit("alice") for _ in range(LIMIT - 1)]
    assert len(fill_up) == LIMIT - 1
    assert bounded.submit("alice", idempotency_key="k").id == first.id
    with pytest.raises(TooManyError):
        bounded.submit("alice", idempotency_key="another")


def test_in_a_batch_those_that_fit_are_taken(bounded: Bench) -> None:
    known = bounded.submit("alice", idempotency_key="k")
    alice, bob = Submitter("alice", "alice"), Submitter("bob", "bob")
    keys = [(None, alice), (None, bob), ("k", alice), (None, alice), (None, alice), ("k", alice), (None, bob)]
    asked = [(JobRequest(spec=SPEC, idempotency_key=key), who) for key, who in keys]
    outcomes = bounded.ledger.submissions.submit_batch(asked)
    shown = ["429" if isinstance(one, TooManyError) else "new" if one[1] else one[0].id for one in outcomes]  # type: ignore[index]
    assert shown == ["new", "new", known.id, "new", "429", known.id, "new"]
    assert bounded.ledger.jobs.page(user="alice").total == LIMIT


def test_what_can_never_run_takes_no_place(bounded: Bench) -> None:
    for _ in range(LIMIT + 1):
        with pytest.raises(Exception, match="needs 9 GPUs"):
            bounded.submit("alice", gpu_count=9)
    fill(bounded)


def test_another_servers_jobs_count_after_some_seconds(bounded: Bench) -> None:
    other = Bench(bounded.engine, bounded.policy)
    other.database.clock = bounded.clock
    bounded.submit("alice")
    for _ in range(LIMIT - 1):
        other.submit("alice")
    bounded.clock.advance(KNOWN_SECONDS)
    with pytest.raises(TooManyError):
        bounded.submit("alice")


def test_many_at_once_are_no_more_than_may_wait(bounded: Bench) -> None:
    def submit(number: int) -> bool:
        try:
            bounded.submit("alice", experiment_id=str(number))
        except TooManyError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(submit, range(24)))
    assert taken <= LIMIT
    assert bounded.ledger.jobs.page(user="alice").total == taken
    while taken < LIMIT:  # those that were refused while others were being written fit now
        bounded.submit("alice")
        taken += 1
    with pytest.raises(TooManyError):
        bounded.submit("alice")


def test_jobs_that_have_ended_are_put_back_within_the_bound(bounded: Bench) -> None:
    """Else a user cancels, submits as many again, and puts the first ones back."""
    ended = fill(bounded)
    for job in ended:
        bounded.ledger.jobs.cancel(job.id, actor="alice")
    waiting = fill(bounded)
    with pytest.raises(TooManyError, match="alice has 3 jobs that wait"):
        bounded.ledger.dead_letters.requeue_job(ended[0].id, actor="alice")
    assert bounded.job(ended[0]).state is JobState.CANCELLED
    bounded.ledger.jobs.cancel(waiting[0].id, actor="alice")
    assert bounded.ledger.dead_letters.requeue_job(ended[0].id, actor="alice").state is JobState.PENDING
    with pytest.raises(TooManyError):
        bounded.submit("alice")
    assert bounded.ledger.dead_letters.requeue_job(ended[1].id, actor="op").state is JobState.PENDING, (
        "an operator decides"
    )

"""Retries, logins and long polls over real HTTP, for both clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.conftest import Answer, ScriptedServer, Seen

from emep.client import (
    AirflowLogin,
    AsyncEmepClient,
    EmepApiError,
    EmepClient,
    EmepConnectionError,
    Retry,
    agent_token,
    lease_token,
)
from emep.wire.jobs import JobRequest
from emep.wire.nodes import PollRequest

Scripted = Callable[[Callable[[Seen], Answer]], ScriptedServer]
QUICK = Retry(attempts=3, first=0.01)
NODES = {"items": [], "total": 0, "next": None}


def one_after_another(*answers: Answer) -> Callable[[Seen], Answer]:
    left: Iterator[Answer] = iter(answers)
    return lambda _: next(left)


def test_an_idempotent_call_is_repeated_until_it_is_answered(scripted: Scripted) -> None:
    server = scripted(one_after_another(Answer(drop=True), Answer(502, {}), Answer(200, NODES)))
    with EmepClient(server.url, agent_token("s"), retry=QUICK) as client:
        assert client.nodes().items == []
    assert len(server.seen) == 3


def test_retries_end_with_the_last_refusal(scripted: Scripted) -> None:
    server = scripted(lambda _: Answer(503, {"title": "Unavailable", "detail": "not yet"}))
    with (
        EmepClient(server.url, agent_token("s"), retry=QUICK) as client,
        pytest.raises(EmepApiError, match="not yet"),
    ):
        client.nodes()
    assert len(server.seen) == 3


@pytest.mark.parametrize(("key", "attempts"), [(None, 1), ("k", 3)])
def test_a_submission_is_only_repeated_with_an_idempotency_key(
    scripted: Scripted, key: str | None, attempts: int
) -> None:
    server = scripted(lambda _: Answer(drop=True))
    with EmepClient(server.url, agent_token("s"), retry=QUICK) as client, pytest.raises(EmepConnectionError):
        client.submit_job(JobRequest(idempotency_key=key))
    assert len(server.seen) == attempts


def test_a_refusal_is_not_repeated(scripted: Scripted) -> None:
    server = scripted(lambda _: Answer(422, {"title": "Rejected", "detail": "no"}))
    with EmepClient(server.url, agent_token("s"), retry=QUICK) as client, pytest.raises(EmepApiError):
        client.nodes()
    assert len(server.seen) == 1


def test_retry_after_is_obeyed(scripted: Scripted) -> None:
    server = scripted(one_after_another(Answer(429, {}, {"Retry-After": "0"}), Answer(200, NODES)))
    slow = Retry(attempts=2, first=1000, maximum=1000)
    with EmepClient(server.url, agent_token("s"), retry=slow) as client:
        client.nodes()
    assert len(server.seen) == 2


class Airflow:
    """Hands out numbered tokens and forgets the old one when told to."""

    def __init__(self) -> None:
        self.tokens = 0
        self.valid = ""

    def __call__(self, request: Seen) -> Answer:
        if request.path == "/auth/token":
            login = json.loads(request.body)
            if login != {"username": "alice", "password": "pw"}:
                return Answer(401, {"detail": "Invalid credentials"})
            self.tokens += 1
            self.valid = f"token-{self.tokens}"
            return Answer(201, {"access_token": self.valid})
        if request.authorization != f"Bearer {self.valid}":
            return Answer(401, {"detail": "expired"})
        return Answer(200, NODES)


def test_a_login_is_made_once_and_again_when_it_has_expired(scripted: Scripted) -> None:
    airflow = Airflow()
    server = scripted(airflow)
    with EmepClient(server.url, AirflowLogin(server.url, "alice", "pw")) as client:
        client.nodes()
        client.nodes()
        assert airflow.tokens == 1
        airflow.valid = "revoked"
        client.nodes()
    assert airflow.tokens == 2


def test_a_wrong_password_is_said_without_the_password(scripted: Scripted) -> None:
    server = scripted(Airflow())
    login = AirflowLogin(server.url, "alice", "guess")
    with EmepClient(server.url, login) as client, pytest.raises(EmepApiError) as error:
        client.nodes()
    assert str(error.value) == (
        f"{server.url}/auth/token refused user 'alice': check the user name and the password"
    )


async def test_the_asynchronous_client_does_the_same(scripted: Scripted) -> None:
    airflow = Airflow()
    server = scripted(airflow)
    async with AsyncEmepClient(server.url, AirflowLogin(server.url, "alice", "pw"), retry=QUICK) as client:
        assert (await client.nodes()).total == 0
        airflow.valid = "revoked"
        assert (await client.nodes()).total == 0
    assert airflow.tokens == 2


async def test_another_caller_shares_the_connections_but_not_the_credentials(scripted: Scripted) -> None:
    server = scripted(lambda _: Answer(200, {"orders": []}))
    async with AsyncEmepClient(server.url, agent_token("s")) as client:
        await client.poll("n1", PollRequest(timeout=0))
        await client.as_caller(lease_token("t")).raw(_heartbeat())
        await client.poll("n1", PollRequest(timeout=0))
    assert [seen.authorization for seen in server.seen] == [
        "Bearer emep-agent.s", "Bearer emep-lease.t", "Bearer emep-agent.s",
    ]  # fmt: skip


def _heartbeat() -> Any:
    from emep.client import calls
    from emep.wire.allocations import Heartbeat

    return calls.heartbeat("a-1", Heartbeat(epoch=1))


def test_ids_are_quoted_and_states_repeated(scripted: Scripted) -> None:
    server = scripted(lambda _: Answer(200, {}))
    with EmepClient(server.url, agent_token("s")) as client:
        from emep.client import calls

        client.raw(calls.explain("a/b?c"))
        client.raw(calls.jobs(["running", "pending"], queue="merge"))
        client.raw(calls.changes(7, 2.5))
    assert [seen.path for seen in server.seen] == [
        "/emep/api/v1/jobs/a%2Fb%3Fc/explain",
        "/emep/api/v1/jobs?state=running&state=pending&queue=merge",
        "/emep/api/v1/jobs:changes?since=7&timeout=2.5",
    ]


def test_a_page_that_is_no_api_is_said(scripted: Scripted) -> None:
    server = scripted(lambda _: Answer(302, None, {"Location": "/login"}))
    with (
        EmepClient(server.url, agent_token("s")) as client,
        pytest.raises(EmepApiError, match="is not EMEP's API"),
    ):
        client.nodes()

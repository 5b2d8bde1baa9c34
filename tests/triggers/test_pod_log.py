"""Reading a container's log while nodes and servers refuse, break off and go; the ledger is EMEP's own.

Only the cluster's end of the connection is played, one reading after the other: no real cluster breaks off
at a chosen byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.builders.ledger import SPEC
from tests.builders.real_api import real_api

from emep.client import AsyncEmepClient, lease_token
from emep.kubernetes import pod_log
from emep.kubernetes.client import KubeError, KubeUnreachableError
from emep.kubernetes.log_shipping import LogShipping
from emep.kubernetes.pod_log import PodLog
from emep.kubernetes.status import Phase, PodState
from emep.wire.jobs import JobRequest

WAITING = PodState(Phase.WAITING, placed=True)
RUNNING = PodState(Phase.RUNNING, began=True, placed=True)
FINISHED = PodState(Phase.FINISHED, exit_code=0, began=True, placed=True)
NEVER_RAN = PodState(Phase.LOST, "its node no longer knows the container", placed=True)
GONE = None
ONE, TWO = b"2026-01-01T00:00:00.1Z one\n", b"2026-01-01T00:00:00.2Z two\n"
BROKEN_OFF = KubeUnreachableError("the stream ended: ClientPayloadError")
REFUSED = KubeError(500, "", "Get https://node:10250/containerLogs: connection refused")
NOT_FOUND = KubeError(404, "NotFound", "container not found")


class Node:
    """Where the log is read. ``readings``: what each answers, and the pod's state after it."""

    path = "/api/v1/namespaces/emep/pods"

    def __init__(self, state: PodState | None, *readings: tuple[list[bytes | Exception], PodState | None]):
        self.state, self.readings, self.opened = state, list(readings), 0

    async def client(self) -> Any:
        return self

    @asynccontextmanager
    async def stream(self, path: str, **query: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        self.opened += 1
        pieces, after = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if pieces and isinstance(pieces[0], Exception):
            self.state = after
            raise pieces[0]

        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces:
                if isinstance(piece, Exception):
                    self.state = after
                    raise piece
                yield piece
            self.state = after

        yield chunks()

    async def news(self, seconds: float) -> None:
        """Nothing is waited for: what happens next is in the readings, or a pod that waits runs now."""
        if self.state is WAITING:
            self.state = RUNNING
        await asyncio.sleep(0)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An allocation and the client of its holder."""
    monkeypatch.setattr(pod_log, "PAUSE", 0.0)
    monkeypatch.setattr(pod_log, "ENDED_PATIENCE", 0.0)
    with real_api(tmp_path) as api:
        api.node()
        api.user.submit_job(JobRequest(spec=SPEC))
        yield api, api.order()


async def shipped(work: Any, node: Node) -> str:
    """What the ledger has once all is shipped."""
    api, order = work
    async with AsyncEmepClient(api.url, lease_token(order.lease_token)) as client:

        async def holder() -> AsyncEmepClient:
            return client

        log = PodLog(node, "p", "base", holder, order.allocation_id, lambda: node.state, node.news)
        async with asyncio.timeout(120):
            await log.ship()
        return (await client.logs(order.allocation_id, 0)).text


LOST = "could not be read: "
CASES = {
    "followed to its end": (Node(RUNNING, ([ONE, TWO], FINISHED)), "one\ntwo\n"),
    "over before anybody looked": (Node(FINISHED, ([ONE, TWO], FINISHED)), "one\ntwo\n"),
    "it waited first": (Node(WAITING, ([ONE], FINISHED)), "one\n"),
    "said nothing": (Node(RUNNING, ([], FINISHED)), ""),
    "broken off, and over by then": (
        Node(RUNNING, ([ONE, BROKEN_OFF], FINISHED), ([ONE, TWO], FINISHED)),
        "one\ntwo\n",
    ),
    "half a line when it broke off": (
        Node(RUNNING, ([ONE, TWO[:-2], BROKEN_OFF], RUNNING), ([ONE, TWO], FINISHED)),
        "one\ntwo\n",
    ),
    "a node that knows it not yet": (
        Node(RUNNING, ([NOT_FOUND], RUNNING), ([REFUSED], RUNNING), ([ONE], FINISHED)),
        "one\n",
    ),
    "cleared away after its end was read": (
        Node(RUNNING, ([ONE], RUNNING), ([NOT_FOUND], GONE)),
        "one\n",
    ),
    "gone in the middle": (
        Node(RUNNING, ([ONE, BROKEN_OFF], GONE)),
        f"one\n[EMEP: the rest of the log of pod p {LOST}the stream ended: ClientPayloadError]\n",
    ),
    "gone in the middle of a line": (
        Node(RUNNING, ([ONE, TWO[:-2], BROKEN_OFF], GONE)),
        f"one\ntw\n[EMEP: the rest of the log of pod p {LOST}the stream ended: ClientPayloadError]\n",
    ),
    "never to be had": (
        Node(FINISHED, ([REFUSED], FINISHED)),
        f"[EMEP: the log of pod p {LOST}Get https://node:10250/containerLogs: connection refused]\n",
    ),
    "never started": (Node(NEVER_RAN, ([NOT_FOUND], NEVER_RAN)), ""),
    "deleted while it waited": (Node(GONE, ([], GONE)), ""),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_can_be_read_is_kept_and_what_cannot_is_said(work, name):
    node, expected = CASES[name]
    assert await shipped(work, node) == expected


async def test_a_log_that_is_given_up_says_why_and_is_not_shipped_again(work):
    api, order = work
    async with AsyncEmepClient(api.url, lease_token(order.lease_token)) as client:

        async def holder() -> AsyncEmepClient:
            return client

        node = Node(RUNNING, ([ONE], RUNNING))
        shipping = LogShipping(node, "p", "base", holder, order.allocation_id, lambda: node.state)
        shipping.start()
        await shipping.before_end()
        await shipping.finish(0.2, "its node is not heard of")
        text = (await client.logs(order.allocation_id, 0)).text
        note = "[EMEP: the rest of the log of pod p could not be read: its node is not heard of]\n"
        assert text == "one\n" + note
    assert await shipped(work, Node(FINISHED, ([ONE], FINISHED))) == text

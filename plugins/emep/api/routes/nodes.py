"""Nodes: register, report, poll for orders, look at."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from emep.api.answers import answers
from emep.api.auth import Agent, AgentOrOperator, AgentOrReader, Operator
from emep.api.guarded import GuardedRoute
from emep.api.parameters import AfterNode, Limit, NodeName, RuntimeDep
from emep.ledger.long_poll import Subscription, node_topic
from emep.wire.jobs import Page
from emep.wire.nodes import (
    HealthReport,
    NodeRequest,
    NodeView,
    PollAnswer,
    PollRequest,
    ReportAnswer,
    StartOrder,
    StopOrder,
)
from emep.wire.operations import DrainRequest, NodePatch, ResumeRequest

router = APIRouter(tags=["nodes"], route_class=GuardedRoute)
REPEAT_SECONDS = 5.0
"""An order that was given is given again only after this, so that a poll is no busy loop while it is carried
out.
"""


class OrderGate:
    """Remembers which orders this server has given lately."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str, int, str], float] = {}

    def fresh(self, node: str, orders: list[StartOrder | StopOrder]) -> list[StartOrder | StopOrder]:
        """Those that were not given within the last seconds."""
        now = time.monotonic()
        return [
            order for order in orders if now - self._given.get(self._key(node, order), -1e9) >= REPEAT_SECONDS
        ]

    def note(self, node: str, orders: list[StartOrder | StopOrder]) -> None:
        """These are being given now."""
        now = time.monotonic()
        if len(self._given) > 10_000:
            self._given = {key: at for key, at in self._given.items() if now - at < 60}
        for order in orders:
            self._given[self._key(node, order)] = now

    def forget(self, node: str) -> None:
        """What the node was given lately did not arrive."""
        self._given = {key: at for key, at in self._given.items() if key[0] != node}

    @staticmethod
    def _key(node: str, order: StartOrder | StopOrder) -> tuple[str, str, int, str]:
        what = order.directive.value if isinstance(order, StopOrder) else order.kind
        return node, order.allocation_id, order.epoch, what


gate = OrderGate()
newest_poll: dict[str, Subscription] = {}
"""The poll of each node that gets its orders."""


def supersede(node: str, subscription: Subscription) -> None:
    """From now on this poll gets the node's orders.

    The agent gave the one before up, as its list of what runs has changed: that one answers with nothing, or
    it would take orders along that nobody reads.
    """
    before = newest_poll.get(node)
    newest_poll[node] = subscription
    if before is not None:
        before.wake()


@router.get("/nodes", summary="List nodes by name")
def list_nodes(_: AgentOrReader, runtime: RuntimeDep, after: AfterNode = None, limit: Limit = 1000) -> Page:
    """A page of nodes with their GPUs, their health and who holds them."""
    return runtime.ledger.nodes.page(after, limit)


@router.post("/nodes", status_code=201, summary="Register a node")
@answers(409)
def register(request: NodeRequest, _: AgentOrOperator, runtime: RuntimeDep) -> NodeView:
    """Take a node in with its GPUs; the same name again replaces its description."""
    return runtime.ledger.nodes.register(request)


@router.get("/nodes/{name}", summary="One node")
def get_node(name: NodeName, _: AgentOrReader, runtime: RuntimeDep) -> NodeView:
    """The node as it is now."""
    return runtime.ledger.nodes.views(name)[0]


@router.patch("/nodes/{name}", summary="Correct a node's description")
def patch(name: NodeName, request: NodePatch, caller: Operator, runtime: RuntimeDep) -> NodeView:
    """What is set here counts over what the agent says, also when that registers again; null: its word."""
    return runtime.ledger.drains.patch_node(name, request, actor=caller.name, reason=request.reason)


@router.post("/nodes/{name}/drain", summary="Give a node or a GPU no new work")
def drain(
    name: NodeName, caller: Operator, runtime: RuntimeDep, request: DrainRequest | None = None
) -> NodeView:
    """What runs may finish; ``now``: it is told to checkpoint and goes back to its place in the queue."""
    asked = request or DrainRequest()
    return runtime.ledger.drains.drain(name, asked.gpu, now=asked.now, reason=asked.reason, actor=caller.name)


@router.post("/nodes/{name}/resume", summary="Let a node or a GPU take work again")
def resume(
    name: NodeName, caller: Operator, runtime: RuntimeDep, request: ResumeRequest | None = None
) -> NodeView:
    """The end of a drain; a GPU that was drained by itself is resumed by itself."""
    asked = request or ResumeRequest()
    return runtime.ledger.drains.resume(name, asked.gpu, reason=asked.reason, actor=caller.name)


@router.delete("/nodes/{name}", status_code=204, summary="Forget a node that is gone")
@answers(409)
def remove(name: NodeName, caller: AgentOrOperator, runtime: RuntimeDep) -> None:
    """Forget a node whose agent is silent and that holds no work."""
    runtime.ledger.nodes.remove(name, actor=caller.name)


@router.post("/nodes/{name}/health", summary="The ten-second report")
def report(name: NodeName, request: HealthReport, _: Agent, runtime: RuntimeDep) -> ReportAnswer:
    """Count one health check for each GPU of the node."""
    return runtime.ledger.nodes.report_health(name, request)


@router.post("/nodes/{name}/poll", summary="An agent asks for orders")
async def poll(name: NodeName, request: PollRequest, _: Agent, runtime: RuntimeDep) -> PollAnswer:
    """Orders to start and to stop; waits up to ``timeout`` seconds where there are none.

    Answers at once, with no order, where the next list of what runs is needed to give GPUs back.
    """
    ledger, follower = runtime.ledger, runtime.follower
    clock = asyncio.get_running_loop().time
    deadline = clock() + request.timeout
    async with follower.subscribe(node_topic(name)) as subscription:
        supersede(name, subscription)
        if request.gave_up:
            gate.forget(name)
        await run_in_threadpool(ledger.orders.check_in, name, request.running, leaving=request.leaving)
        while True:
            answer, wants_confirmation = await run_in_threadpool(ledger.orders.due, name, request.running)
            if newest_poll[name] is not subscription:
                return PollAnswer(orders=[])
            fresh = gate.fresh(name, answer.orders)
            left = deadline - clock()
            if fresh or wants_confirmation or left <= 0 or request.leaving or follower.is_stopping:
                gate.note(name, fresh)
                return PollAnswer(orders=fresh)
            # Orders that were given lately come again, or turn into an abort, without any event.
            await subscription.wait(min(left, 1.0) if answer.orders else left)

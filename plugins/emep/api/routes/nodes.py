"""Nodes: register, report, poll for orders, list and get."""

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
"""Seconds before an order is repeated, so that polls are no busy loop while an agent carries it out."""


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
        """Remember that these orders are being sent."""
        now = time.monotonic()
        if len(self._given) > 10_000:
            self._given = {key: at for key, at in self._given.items() if now - at < 60}
        for order in orders:
            self._given[self._key(node, order)] = now

    def forget(self, node: str) -> None:
        """Send the node's last orders again, because they did not arrive."""
        self._given = {key: at for key, at in self._given.items() if key[0] != node}

    @staticmethod
    def _key(node: str, order: StartOrder | StopOrder) -> tuple[str, str, int, str]:
        what = order.directive.value if isinstance(order, StopOrder) else order.kind
        return node, order.allocation_id, order.epoch, what


gate = OrderGate()
newest_poll: dict[str, Subscription] = {}
"""The poll of each node that gets its orders."""


def supersede(node: str, subscription: Subscription) -> None:
    """Let this poll get the node's orders from now on.

    The agent has abandoned its poll before this one, because its list of running work changed. That poll
    must answer without orders, since the agent no longer reads its answer.
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
    """Register a node with its GPUs; registering the same name again replaces its description."""
    return runtime.ledger.nodes.register(request)


@router.get("/nodes/{name}", summary="One node")
def get_node(name: NodeName, _: AgentOrReader, runtime: RuntimeDep) -> NodeView:
    """The node as it is now."""
    return runtime.ledger.nodes.views(name)[0]


@router.patch("/nodes/{name}", summary="Correct a node's description")
def patch(name: NodeName, request: NodePatch, caller: Operator, runtime: RuntimeDep) -> NodeView:
    """Override what the agent says of its node, also when it registers again; null removes an override."""
    return runtime.ledger.drains.patch_node(name, request, actor=caller.name, reason=request.reason)


@router.post("/nodes/{name}/drain", summary="Give a node or a GPU no new work")
def drain(
    name: NodeName, caller: Operator, runtime: RuntimeDep, request: DrainRequest | None = None
) -> NodeView:
    """Give a node no new work. Running work may finish; with ``now`` it must checkpoint and is requeued."""
    asked = request or DrainRequest()
    return runtime.ledger.drains.drain(name, asked.gpu, now=asked.now, reason=asked.reason, actor=caller.name)


@router.post("/nodes/{name}/resume", summary="Let a node or a GPU take work again")
def resume(
    name: NodeName, caller: Operator, runtime: RuntimeDep, request: ResumeRequest | None = None
) -> NodeView:
    """End a drain; a GPU that was drained by itself is also resumed by itself."""
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
    """Orders to start and to stop work; waits up to ``timeout`` seconds for the first one.

    Answers at once without an order if the next list of running work is needed to free GPUs.
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

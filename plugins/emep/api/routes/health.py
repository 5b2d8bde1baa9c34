"""The watch over the hardware: check now, and list the findings."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from emep.api.auth import Operator
from emep.api.guarded import GuardedRoute
from emep.api.parameters import RuntimeDep, Timeout
from emep.api.runtime import Runtime
from emep.ledger.long_poll import NODES
from emep.ledger.nodes.checkup import check_up
from emep.wire.health import Checkup

router = APIRouter(tags=["nodes"], route_class=GuardedRoute)
SHORTEST_PAUSE = 1.0
"""Seconds between two checks for expired leases in one call; news of nodes is not delayed by it."""


@router.post("/nodes:check", summary="Check every node, GPU and lease now")
async def check(
    _: Operator,
    runtime: RuntimeDep,
    since: Annotated[
        int | None, Query(ge=0, lt=2**62, description="The cursor of the last answer; none: from now on.")
    ] = None,
    timeout: Timeout = 0,  # noqa: ASYNC109 - the protocol's own field
) -> Checkup:
    """Run the scheduler's checks now: count missing reports, take back expired leases, requeue their jobs.

    The answer lists all findings since the cursor, also those of other callers and of the scheduler's own
    tick. Waits up to ``timeout`` seconds for the first one.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout
    async with runtime.follower.subscribe(NODES) as news:
        found = await run_in_threadpool(_look, runtime, since)
        while not found.findings and (left := deadline - clock()) > 0 and not runtime.follower.is_stopping:
            due = max(SHORTEST_PAUSE, found.due_seconds if found.due_seconds is not None else left)
            await news.wait(min(left, due))
            found = await run_in_threadpool(_look, runtime, found.cursor)
    return found


def _look(runtime: Runtime, since: int | None) -> Checkup:
    if since is None:
        # What the tick finds now is news to a watch that begins now.
        since = check_up(runtime.ledger.context, None).cursor
    runtime.ledger.housekeeping.tick()
    return check_up(runtime.ledger.context, since)

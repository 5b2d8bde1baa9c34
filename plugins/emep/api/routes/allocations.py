"""Allocations: heartbeats, logs and completion for their holders, and a list for people."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from emep.api.answers import answers
from emep.api.auth import Holder, HolderOrReader, Reader
from emep.api.bodies import body_limit
from emep.api.guarded import GuardedRoute
from emep.api.parameters import After, AllocationId, Limit, Offset, RuntimeDep
from emep.wire.allocations import AllocationView, Completion, Heartbeat, HeartbeatAnswer, LogChunk, LogReceipt
from emep.wire.jobs import JobView, Page

router = APIRouter(tags=["allocations"], route_class=GuardedRoute)


@router.get("/allocations", summary="List allocations, newest first")
def list_allocations(
    _: Reader,
    runtime: RuntimeDep,
    live: Annotated[bool, Query(description="Only those that are not over.")] = True,
    after: After = None,
    limit: Limit = 100,
) -> Page:
    """Who holds which GPUs, since when, and until when its lease lasts."""
    return runtime.ledger.allocations.page(live_only=live, after=after, limit=limit)


@router.get("/allocations/{allocation_id}", summary="One allocation")
def get_allocation(allocation_id: AllocationId, _: HolderOrReader, runtime: RuntimeDep) -> AllocationView:
    """The allocation as it is now."""
    return runtime.ledger.allocations.get(allocation_id)


@router.post("/allocations/{allocation_id}/heartbeat", summary="Renew the lease")
@body_limit(64 * 1024)
@answers(409)
async def heartbeat(
    allocation_id: AllocationId, beat: Heartbeat, _: Holder, runtime: RuntimeDep
) -> HeartbeatAnswer:
    """Renew the lease and get a directive.

    409 with ``directive: abort`` if the lease has passed to another holder.
    """
    return await run_in_threadpool(runtime.ledger.allocations.heartbeat, allocation_id, beat)


@router.post(
    "/allocations/{allocation_id}/logs",
    summary="Add to the log",
    openapi_extra={
        "requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}, "required": True}
    },
)
@answers(409)
async def append_log(
    allocation_id: AllocationId,
    request: Request,
    _: Holder,
    runtime: RuntimeDep,
    offset: Offset,
    final: Annotated[bool, Query(description="Nothing more comes.")] = False,
) -> LogReceipt:
    """Add the body's bytes at ``offset``; 409 with ``expected_offset`` if earlier bytes are missing."""
    data = await request.body()
    next_offset = await run_in_threadpool(
        runtime.ledger.logs.append, allocation_id, offset, data, final=final
    )
    return LogReceipt(next_offset=next_offset)


@router.get("/allocations/{allocation_id}/logs", summary="Read the log")
def read_log(
    allocation_id: AllocationId, _: HolderOrReader, runtime: RuntimeDep, offset: Offset = 0
) -> LogChunk:
    """Text from a byte offset on, at most 256 KiB; ask again from ``next_offset`` until ``complete``."""
    return runtime.ledger.logs.read(allocation_id, offset)


@router.post("/allocations/{allocation_id}/complete", summary="The work has ended")
@body_limit(4 * 1024**2)
@answers(409)
def complete(allocation_id: AllocationId, end: Completion, caller: Holder, runtime: RuntimeDep) -> JobView:
    """Record how the work ended and release its GPUs; repeating the call gives the same answer."""
    return runtime.ledger.allocations.complete(allocation_id, end, actor=caller.name)

"""Leases of pods and of work that the client starts itself, and the cluster manager's readiness of nodes.

Only the account that submitted the job (or an administrator) gets a lease's token. Tokens are never logged.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from emep.api.answers import answers
from emep.api.auth import AgentOrOperator, Reader
from emep.api.guarded import GuardedRoute
from emep.api.parameters import AllocationId, NodeName, RuntimeDep
from emep.api.permissions import Asker
from emep.wire.jobs import JobView, Page
from emep.wire.leases import LeaseAnswer, LeaseRequest, Loss, NodeReadiness
from emep.wire.nodes import NodeView

router = APIRouter(tags=["leases"], route_class=GuardedRoute)


@router.post("/allocations/{allocation_id}/lease", summary="Token and environment of a lease")
@answers(409)
def lease(
    allocation_id: AllocationId, request: LeaseRequest, _: Asker, runtime: RuntimeDep, response: Response
) -> LeaseAnswer:
    """Get the lease of work that no agent starts. 409 if the allocation is over."""
    response.headers["Cache-Control"] = "no-store"
    return runtime.ledger.leases.fetch(allocation_id, started=request.started)


@router.post("/allocations/{allocation_id}/lost", summary="The work was lost")
@answers(409)
def lost(allocation_id: AllocationId, loss: Loss, _: Asker, runtime: RuntimeDep) -> JobView:
    """Report work as lost (evicted, deleted by hand, node gone): the job is requeued in the same try."""
    return runtime.ledger.leases.report_lost(
        allocation_id, loss.epoch, loss.code, loss.reason, gone=loss.gone
    )


@router.post("/allocations/{allocation_id}/gone", status_code=204, summary="Nothing of it runs any more")
@answers(409)
def gone(allocation_id: AllocationId, _: Asker, runtime: RuntimeDep) -> None:
    """Offer the GPUs of an allocation that is over again. 409 while its lease lives."""
    runtime.ledger.leases.report_gone(allocation_id)


OfRuntime = Annotated[
    Literal["kubernetes", "external"], Query(alias="runtime", description="Who has started them.")
]


@router.get("/allocations:leaving", summary="Allocations that are over, but not confirmed gone")
def leaving(_: Reader, runtime: RuntimeDep, of: OfRuntime = "kubernetes") -> Page:
    """Allocations that are over but hold their GPUs until their pod is gone, or ``/gone`` is called."""
    found = runtime.ledger.leases.leaving(of)
    return Page(items=list(found), total=len(found))


@router.put("/nodes/{name}/readiness", summary="What the cluster manager says of a node")
def readiness(name: NodeName, said: NodeReadiness, caller: AgentOrOperator, runtime: RuntimeDep) -> NodeView:
    """Record whether the cluster manager calls a node ready; a node that is not ready gets no work."""
    return runtime.ledger.nodes.set_readiness(name, ready=said.ready, reason=said.reason, actor=caller.name)

"""Leases of pods, and of work that the asker starts itself; the cluster manager's word on nodes.

Nobody but the account that submitted the job (or an administrator) gets a token, and none is ever logged.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from emep.api.auth import AgentOrOperator, Caller, Reader, User, may_edit_tasks
from emep.api.parameters import AllocationId, NodeName, RuntimeDep
from emep.api.runtime import Runtime
from emep.api.schemas import JobView, LeaseAnswer, LeaseRequest, Loss, NodeReadiness, NodeView, Page
from emep.exceptions import ForbiddenError

router = APIRouter(tags=["leases"])


def _check_asker(caller: Caller, runtime: Runtime, allocation_id: str) -> None:
    submitted_by, dag_id = runtime.ledger.asker(allocation_id)
    is_admin = "admin" in {role.lower() for role in caller.roles}
    if not is_admin and not (caller.name == submitted_by and may_edit_tasks(caller, dag_id)):
        raise ForbiddenError(
            f"allocation {allocation_id} is not {caller.name}'s: only the account that submitted its job, "
            "or an administrator, may start and end its work"
        )


@router.post("/allocations/{allocation_id}/lease", summary="Token and environment of a lease")
def lease(
    allocation_id: AllocationId, request: LeaseRequest, caller: User, runtime: RuntimeDep, response: Response
) -> LeaseAnswer:
    """For work that no agent starts. 409 where the allocation is over."""
    _check_asker(caller, runtime, allocation_id)
    response.headers["Cache-Control"] = "no-store"
    return runtime.ledger.lease(allocation_id, started=request.started)


@router.post("/allocations/{allocation_id}/lost", summary="The work was lost")
def lost(allocation_id: AllocationId, loss: Loss, caller: User, runtime: RuntimeDep) -> JobView:
    """Evicted, deleted by hand, its node gone: the job goes back to the queue in the same try."""
    _check_asker(caller, runtime, allocation_id)
    return runtime.ledger.report_lost(allocation_id, loss.epoch, loss.code, loss.reason, gone=loss.gone)


@router.post("/allocations/{allocation_id}/gone", status_code=204, summary="Nothing of it runs any more")
def gone(allocation_id: AllocationId, caller: User, runtime: RuntimeDep) -> None:
    """Offer the GPUs of an allocation that is over again. 409 while its lease lives."""
    _check_asker(caller, runtime, allocation_id)
    runtime.ledger.report_gone(allocation_id)


@router.get("/allocations:leaving", summary="Pods' allocations that are over, but not confirmed gone")
def leaving(_: Reader, runtime: RuntimeDep) -> Page:
    """Their GPUs are held until somebody has seen the pod leave."""
    found = runtime.ledger.leaving("kubernetes")
    return Page(items=list(found), total=len(found))


@router.put("/nodes/{name}/readiness", summary="What the cluster manager says of a node")
def readiness(name: NodeName, said: NodeReadiness, caller: AgentOrOperator, runtime: RuntimeDep) -> NodeView:
    """A node that is not ready gets no work."""
    return runtime.ledger.set_readiness(name, ready=said.ready, reason=said.reason, actor=caller.name)

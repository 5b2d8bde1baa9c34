"""Fair share: every entity's weight, use and place in line, and weights set over the policy file's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from emep.api.auth import Operator, Reader
from emep.api.guarded import GuardedRoute
from emep.api.parameters import Reason, RuntimeDep
from emep.wire.operations import FairShareView, OverrideRequest, OverrideView

router = APIRouter(tags=["fair share"], route_class=GuardedRoute)
Entity = Annotated[
    str,
    Path(max_length=250, description="queue:NAME, a project (org/team), or a user in one (org/team@u)."),
]


@router.get("/fair-share", summary="The fair-share tree")
def get_shares(_: Reader, runtime: RuntimeDep) -> FairShareView:
    """Queues, projects and users level by level, as the planner compares them now; overrides beside."""
    return runtime.ledger.shares.fair_share()


@router.put("/fair-share/{entity:path}", summary="Set a weight over the policy file's")
def set_share(
    entity: Entity, request: OverrideRequest, caller: Operator, runtime: RuntimeDep
) -> OverrideView:
    """Set a weight over the policy file's, in every API server within two seconds, and record who and why."""
    return runtime.ledger.shares.set_weight(entity, request.weight, actor=caller.name, reason=request.reason)


@router.delete("/fair-share/{entity:path}", status_code=204, summary="Let the policy file's weight count")
def unset_share(entity: Entity, caller: Operator, runtime: RuntimeDep, reason: Reason = "") -> None:
    """Remove the override, so that the policy file's weight counts again."""
    runtime.ledger.shares.unset_weight(entity, actor=caller.name, reason=reason)

"""Calls of what operators do: requeues, dead letters, fair shares, drains.

Others use them as functions of ``emep.client.calls``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emep.client.call import Call
from emep.client.call import at as _at

if TYPE_CHECKING:
    from emep.wire.jobs import JobView, Page
    from emep.wire.nodes import NodeView
    from emep.wire.operations import DeadLetterView, FairShareView, NodePatch, OverrideView


def requeue(job_id: str, reason: str = "") -> Call[JobView]:
    """Put a job back into the queue; one that runs is told to checkpoint first."""
    path = _at("jobs", job_id, "requeue")
    return Call("POST", path, "JobView", body={"reason": reason}, repeatable=False)


# --- dead letters -------------------------------------------------------------------------------------------


def dead_letters(
    state: str | None = None, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page]:
    """A page of dead letters: open ones, or ``requeued``, ``discarded``, ``all``."""
    return Call("GET", "/dead-letters", "Page", params={"state": state, "limit": limit, "next": cursor})


def dead_letter(letter_id: str) -> Call[DeadLetterView]:
    """One dead letter, named by its job."""
    return Call("GET", _at("dead-letters", letter_id), "DeadLetterView")


def requeue_dead_letter(letter_id: str, reason: str = "") -> Call[DeadLetterView]:
    """Run the job again: through its Airflow task where it has one."""
    path = _at("dead-letters", letter_id, "requeue")
    return Call("POST", path, "DeadLetterView", body={"reason": reason}, repeatable=False)


def discard_dead_letter(letter_id: str, reason: str = "") -> Call[DeadLetterView]:
    """Resolve a dead letter without running anything."""
    params = {"reason": reason or None}
    path = _at("dead-letters", letter_id)
    return Call("DELETE", path, "DeadLetterView", params=params, repeatable=False)


# --- fair share ---------------------------------------------------------------------------------------------


def policy() -> Call[dict[str, Any]]:
    """The policy in force, in the policy file's own shape; ``problem`` where the file is refused."""
    return Call("GET", "/policy")


def fair_share() -> Call[FairShareView]:
    """The whole fair-share tree, and the weights that operators have set."""
    return Call("GET", "/fair-share", "FairShareView")


def set_share(entity: str, weight: float, reason: str = "") -> Call[OverrideView]:
    """Set the weight of ``queue:NAME``, ``org/team`` or ``org/team@user`` over the policy file's."""
    body = {"weight": weight, "reason": reason}
    return Call("PUT", _at("fair-share", entity), "OverrideView", body=body)


def unset_share(entity: str, reason: str = "") -> Call[None]:
    """Let the policy file's weight count again."""
    params = {"reason": reason or None}
    return Call("DELETE", _at("fair-share", entity), params=params, repeatable=False)


# --- nodes --------------------------------------------------------------------------------------------------


def patch_node(name: str, patch: NodePatch | Mapping[str, Any]) -> Call[NodeView]:
    """Set pool, rack, block, labels or bandwidth over what the agent says; null: the agent's word again."""
    return Call("PATCH", _at("nodes", name), "NodeView", body=patch)


def drain(name: str, gpu: int | None = None, *, now: bool = False, reason: str = "") -> Call[NodeView]:
    """Give a node, or one GPU of it, no new work; ``now``: what runs there is told to yield."""
    body = {"gpu": gpu, "now": now, "reason": reason}
    return Call("POST", _at("nodes", name, "drain"), "NodeView", body=body)


def resume(name: str, gpu: int | None = None, *, reason: str = "") -> Call[NodeView]:
    """Let a node, or one GPU of it, take work again."""
    return Call("POST", _at("nodes", name, "resume"), "NodeView", body={"gpu": gpu, "reason": reason})

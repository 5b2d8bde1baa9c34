"""Dead letters: jobs that nothing runs again by itself, for a person to look at, requeue or discard."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from emep.api.answers import answers
from emep.api.auth import Reader
from emep.api.guarded import GuardedRoute
from emep.api.parameters import ID_PATTERN, After, Limit, Reason, RuntimeDep
from emep.api.permissions import LetterChanger
from emep.wire.jobs import Page
from emep.wire.operations import DeadLetterView, ReasonRequest

router = APIRouter(tags=["dead letters"], route_class=GuardedRoute)
LetterId = Annotated[str, Path(max_length=80, pattern=ID_PATTERN, description="The id of its job.")]


@router.get("/dead-letters", summary="List dead letters, newest job first")
def list_letters(
    _: Reader,
    runtime: RuntimeDep,
    state: Annotated[
        Literal["open", "requeued", "discarded", "all"], Query(description="Those in this state.")
    ] = "open",
    after: After = None,
    limit: Limit = 100,
) -> Page:
    """A page of dead letters, each with its job; ``next`` of the answer asks for the following one."""
    return runtime.ledger.dead_letters.page(None if state == "all" else state, after=after, limit=limit)


@router.get("/dead-letters/{letter_id}", summary="One dead letter")
def get_letter(letter_id: LetterId, _: Reader, runtime: RuntimeDep) -> DeadLetterView:
    """The dead letter as it is now."""
    return runtime.ledger.dead_letters.get(letter_id)


@router.post("/dead-letters/{letter_id}/requeue", summary="Run it again")
@answers(409, 429)
def requeue(
    letter_id: LetterId, caller: LetterChanger, runtime: RuntimeDep, request: ReasonRequest | None = None
) -> DeadLetterView:
    """Put the job back in the queue; if an Airflow task asked for it, that task is cleared and asks again.

    409 if that task cannot be cleared, or the letter is resolved.
    """
    reason = request.reason if request else ""
    return runtime.ledger.dead_letters.requeue(letter_id, actor=caller.name, reason=reason)


@router.delete("/dead-letters/{letter_id}", summary="Discard it")
@answers(409)
def discard(
    letter_id: LetterId, caller: LetterChanger, runtime: RuntimeDep, reason: Reason = ""
) -> DeadLetterView:
    """Resolve the letter without running anything; it records who discarded it and why."""
    return runtime.ledger.dead_letters.discard(letter_id, actor=caller.name, reason=reason)

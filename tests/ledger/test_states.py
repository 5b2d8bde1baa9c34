"""The tables of states: complete, and nothing outside them moves."""

from __future__ import annotations

import itertools

import pytest

from emep.ledger.states import (
    ALLOCATION_MOVES,
    JOB_MOVES,
    AllocationEvent,
    AllocationState,
    JobEvent,
    move_allocation,
    move_job,
)
from emep.wire.base import ENDED_STATES, JobState
from emep.wire.errors import IllegalMoveError

CONTRACT = {
    "pending": {"starting", "expired", "cancelled", "dead"},
    "starting": {"running", "pending", "failed", "cancelled", "dead"},
    "running": {"completed", "failed", "yielding", "pending", "dead"},
    "yielding": {"pending", "completed", "failed", "cancelled", "dead"},
    "failed": {"pending"},
    "cancelled": {"pending"},
    "expired": {"pending"},
    "dead": {"pending"},
}
"""The contract's table; ``dead`` from work that ran is a last try that failed, and what has ended moves only
when an operator puts it back.
"""


def test_the_moves_of_jobs_are_those_of_the_contract() -> None:
    ours = {state.value: {to.value for to in moves.values()} for state, moves in JOB_MOVES.items()}
    assert ours == CONTRACT


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_a_job_that_has_ended_never_moves_by_itself(state: JobState) -> None:
    for event in set(JobEvent) - {JobEvent.PUT_BACK}:
        with pytest.raises(IllegalMoveError):
            move_job(state, event)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.REJECTED])
def test_what_has_completed_or_can_never_run_is_not_put_back(state: JobState) -> None:
    with pytest.raises(IllegalMoveError, match="put back"):
        move_job(state, JobEvent.PUT_BACK)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, JobEvent)))
def test_a_job_moves_by_the_table_or_is_refused(state: JobState, event: JobEvent) -> None:
    after = JOB_MOVES.get(state, {}).get(event)
    if after is None:
        with pytest.raises(IllegalMoveError, match=state.value) as refused:
            move_job(state.value, event)
        assert refused.value.status == 409
    else:
        assert move_job(state.value, event) is after


@pytest.mark.parametrize(("state", "event"), list(itertools.product(AllocationState, AllocationEvent)))
def test_an_allocation_moves_by_the_table_or_is_refused(
    state: AllocationState, event: AllocationEvent
) -> None:
    after = ALLOCATION_MOVES.get(state, {}).get(event)
    if after is None:
        with pytest.raises(IllegalMoveError):
            move_allocation(state.value, event)
    else:
        assert move_allocation(state.value, event) is after


def test_every_state_of_a_job_can_be_reached() -> None:
    reached = {JobState.PENDING, JobState.REJECTED}
    for moves in JOB_MOVES.values():
        reached.update(moves.values())
    assert reached == set(JobState)

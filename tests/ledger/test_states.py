"""The tables of states: complete, and nothing outside them moves."""

from __future__ import annotations

import itertools

import pytest

from emep.api.schemas import ENDED_STATES, JobState
from emep.exceptions import IllegalMoveError
from emep.ledger.states import (
    ALLOCATION_MOVES,
    JOB_MOVES,
    AllocationEvent,
    AllocationState,
    JobEvent,
    move_allocation,
    move_job,
)

CONTRACT = {
    "pending": {"starting", "expired", "cancelled", "dead"},
    "starting": {"running", "pending", "failed", "cancelled", "dead"},
    "running": {"completed", "failed", "yielding", "pending", "dead"},
    "yielding": {"pending", "completed", "failed", "cancelled", "dead"},
}
"""The contract's table; ``dead`` from work that ran is a last try that failed."""


def test_the_moves_of_jobs_are_those_of_the_contract() -> None:
    ours = {state.value: {to.value for to in moves.values()} for state, moves in JOB_MOVES.items()}
    assert ours == CONTRACT


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_a_job_that_has_ended_never_moves(state: JobState) -> None:
    for event in JobEvent:
        with pytest.raises(IllegalMoveError):
            move_job(state, event)


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

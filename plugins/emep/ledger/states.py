"""The state machines of jobs and allocations: every state, every event, every move, in one table each.

Whatever is not in the table is refused with ``IllegalMoveError`` (409). Callers move rows with an UPDATE that
is guarded by id, epoch and the state they saw; this module only says what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from emep.wire.base import ENDED_STATES, JobState
from emep.wire.errors import IllegalMoveError


class JobEvent(str, Enum):
    """What happens to a job."""

    GRANTED = "granted"
    """The planner gave it GPUs."""
    STARTED = "started"
    """First heartbeat of its supervisor."""
    TOLD_TO_YIELD = "told_to_yield"
    """Preemption, drain, bad GPU, time limit or cancel of running work."""
    YIELDED = "yielded"
    """It made room and goes back to its place in the queue."""
    REQUEUED = "requeued"
    """Infrastructure was lost under it."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Pending longer than its queue allows."""
    DIED = "died"
    """Requeues or tries are used up."""
    PUT_BACK = "put_back"
    """An operator lets it wait again after its end; one with an Airflow task gets a new try instead."""


class AllocationState(str, Enum):
    """States of an allocation."""

    GRANTED = "granted"
    ACTIVE = "active"
    YIELDING = "yielding"
    RELEASED = "released"
    LOST = "lost"


class AllocationEvent(str, Enum):
    """What happens to an allocation."""

    HEARTBEAT = "heartbeat"
    TOLD_TO_YIELD = "told_to_yield"
    RELEASED = "released"
    LOST = "lost"


class YieldCause(str, Enum):
    """Why running work was told to checkpoint and exit; decides where the job goes afterwards."""

    PREEMPTION = "preemption"
    DRAIN = "drain"
    UNHEALTHY = "unhealthy"
    TIME_LIMIT = "time_limit"
    EXECUTION_TIMEOUT = "execution_timeout"
    """The Airflow task's own limit, waiting included."""
    CANCEL = "cancel"
    REQUEUE = "requeue"
    """An operator wants it back in its place in the queue."""


class CheckState(str, Enum):
    """What is thought of a node that has failed jobs; others have none (an empty text)."""

    WATCHED = "watched"
    """It has quick failures, too few to take it out."""
    OUT = "out"
    """It gets nothing until its cool-down is over."""
    PROBATION = "probation"
    """It gets one job at a time until one has completed."""


_P, _S, _R, _Y = JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.YIELDING

JOB_MOVES: Mapping[JobState, Mapping[JobEvent, JobState]] = {
    _P: {
        JobEvent.GRANTED: _S,
        JobEvent.EXPIRED: JobState.EXPIRED,
        JobEvent.CANCELLED: JobState.CANCELLED,
        JobEvent.DIED: JobState.DEAD,
    },
    _S: {
        JobEvent.STARTED: _R,
        JobEvent.REQUEUED: _P,
        JobEvent.YIELDED: _P,
        JobEvent.FAILED: JobState.FAILED,
        JobEvent.DIED: JobState.DEAD,
        JobEvent.CANCELLED: JobState.CANCELLED,
    },
    _R: {
        JobEvent.COMPLETED: JobState.COMPLETED,
        JobEvent.FAILED: JobState.FAILED,
        JobEvent.DIED: JobState.DEAD,
        JobEvent.TOLD_TO_YIELD: _Y,
        JobEvent.REQUEUED: _P,
    },
    _Y: {
        JobEvent.YIELDED: _P,
        JobEvent.REQUEUED: _P,
        JobEvent.COMPLETED: JobState.COMPLETED,
        JobEvent.FAILED: JobState.FAILED,
        JobEvent.DIED: JobState.DEAD,
        JobEvent.CANCELLED: JobState.CANCELLED,
    },
    JobState.FAILED: {JobEvent.PUT_BACK: _P},
    JobState.CANCELLED: {JobEvent.PUT_BACK: _P},
    JobState.EXPIRED: {JobEvent.PUT_BACK: _P},
    JobState.DEAD: {JobEvent.PUT_BACK: _P},
}
"""Jobs enter as ``pending`` or ``rejected``.

``DIED`` of work that ran is a last try that failed (a dead letter).
"""

ALLOCATION_MOVES: Mapping[AllocationState, Mapping[AllocationEvent, AllocationState]] = {
    AllocationState.GRANTED: {
        AllocationEvent.HEARTBEAT: AllocationState.ACTIVE,
        AllocationEvent.RELEASED: AllocationState.RELEASED,
        AllocationEvent.LOST: AllocationState.LOST,
    },
    AllocationState.ACTIVE: {
        AllocationEvent.HEARTBEAT: AllocationState.ACTIVE,
        AllocationEvent.TOLD_TO_YIELD: AllocationState.YIELDING,
        AllocationEvent.RELEASED: AllocationState.RELEASED,
        AllocationEvent.LOST: AllocationState.LOST,
    },
    AllocationState.YIELDING: {
        AllocationEvent.HEARTBEAT: AllocationState.YIELDING,
        AllocationEvent.RELEASED: AllocationState.RELEASED,
        AllocationEvent.LOST: AllocationState.LOST,
    },
}

LIVE_JOB_STATES = frozenset(JobState) - ENDED_STATES
ASKER_STARTS = frozenset({"kubernetes", "external"})
"""Runtimes whose work is started by its asker."""
LIVE_ALLOCATION_STATES = frozenset(ALLOCATION_MOVES)


def move_job(state: JobState | str, event: JobEvent) -> JobState:
    """The state after ``event``; raises IllegalMoveError where the table has no such move."""
    before = JobState(state)
    after = JOB_MOVES.get(before, {}).get(event)
    if after is None:
        raise IllegalMoveError(
            f"a job that is {before.value} cannot be {event.value.replace('_', ' ')}", state=before.value
        )
    return after


def move_allocation(state: AllocationState | str, event: AllocationEvent) -> AllocationState:
    """The state after ``event``; raises IllegalMoveError where the table has no such move."""
    before = AllocationState(state)
    after = ALLOCATION_MOVES.get(before, {}).get(event)
    if after is None:
        raise IllegalMoveError(
            f"an allocation that is {before.value} cannot be {event.value.replace('_', ' ')}",
            state=before.value,
        )
    return after

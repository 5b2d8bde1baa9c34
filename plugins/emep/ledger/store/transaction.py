"""One write transaction: states move only if no other write moved them; events are numbered at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from sqlalchemy import Dialect, Table, TextClause, bindparam, func, insert, select, text, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.util import identity_key

from emep.ledger.states import AllocationEvent, JobEvent, move_allocation, move_job
from emep.ledger.store.audit_log import JOBS_AT_HAND, LABELS
from emep.ledger.store.tables import Allocation, Clock, Event, Job

MANY_EVENTS = 50
"""So many at once are sent to PostgreSQL as one document: a third of the work of as many rows of values."""
_CHECKED_AT_ONCE = 400
"""Values of one IN list, as ``repository.CHUNK``."""

_CLOCK = cast(Table, Clock.__table__)
_INSERT_EVENTS = insert(cast(Table, Event.__table__))
_ADVANCE = (
    update(_CLOCK)
    .where(_CLOCK.c.id == 1)
    .values(seq=_CLOCK.c.seq + bindparam("events"), dirty=_CLOCK.c.dirty + bindparam("changes"))
)
_ADVANCE_AND_TELL = _ADVANCE.returning(_CLOCK.c.seq)
_READ_SEQ = select(_CLOCK.c.seq).where(_CLOCK.c.id == 1)
"""For SQLite before 3.35, which cannot return what it has updated."""


class LostRaceError(Exception):
    """A guarded update found the row changed: the transaction is rolled back and run again."""


class HoldsNotLockedError(Exception):
    """A write changed which GPUs are held without having locked them: it runs again with that lock first."""


class HoldsGuard(Protocol):
    """Keeps rows that depend on which GPUs are held and usable, in the same transaction (Airflow's pools)."""

    def is_on(self, session: Session) -> bool:
        """Whether there is anything to guard."""

    def lock(self, session: Session) -> None:
        """The first lock of a transaction."""

    def settle(self, tx: Transaction, *, only_freed: bool = False) -> None:
        """The transaction's own statements are done: write what follows from them.

        ``only_freed``: nothing but that GPUs are free again.
        """


class Transaction:
    """One write: a session, the time it happens at, and the events that become visible with its commit."""

    def __init__(self, session: Session, now: float, guard: HoldsGuard | None = None) -> None:
        self._guard = guard
        self._holds_changed = self._holds_freed = False
        self.holds_locked = False
        self.session = session
        self.now = now
        self.events: list[dict[str, Any]] = []
        self.dirty = False
        """Whether the planner must look again."""

    def lock_holds(self) -> None:
        """Take the lock on the rows that depend on held GPUs, before any other lock."""
        if self._guard is not None and self._guard.is_on(self.session):
            self._guard.lock(self.session)
            self.holds_locked = True

    def changes_holds(self, *, freed: bool = False) -> None:
        """Say that this write changes which GPUs are held or usable; ``freed``: only to fewer held.

        Raises HoldsNotLockedError, which starts the write again, where that was not expected.
        """
        if self._guard is None or not self._guard.is_on(self.session):
            return
        if not self.holds_locked:
            raise HoldsNotLockedError
        if freed:
            self._holds_freed = True
        else:
            self._holds_changed = True

    def settle_holds(self) -> None:
        """Write the rows that depend on held GPUs, if these have changed."""
        if self._guard is not None and (self._holds_changed or self._holds_freed):
            self._guard.settle(self, only_freed=not self._holds_changed)

    def emit(
        self,
        event: str,
        *,
        job: Job | None = None,
        allocation: Allocation | None = None,
        node: str | None = None,
        actor: str = "scheduler",
        code: str = "",
        reason: str = "",
        plan: bool = True,
        **data: Any,
    ) -> None:
        """Add an event to the audit; ``plan=False`` where it gives the planner nothing to decide."""
        job_id = job.id if job is not None else (allocation.job_id if allocation is not None else None)
        epoch = allocation.epoch if allocation is not None else (job.epoch if job is not None else None)
        if allocation is not None:
            data.setdefault("nodes", allocation.nodes)
        if job is None and job_id is not None:
            # Code that changes an allocation has read its job; it is not read again for its labels alone.
            job = self.session.info.get(JOBS_AT_HAND, {}).get(job_id)
            job = job or self.session.identity_map.get(identity_key(Job, job_id))
        if job is not None:
            for label in LABELS:
                data.setdefault(label, getattr(job, label))
        self.events.append(
            {
                "time": self.now,
                "event": event,
                "actor": actor[:250],
                "job_id": job_id,
                "allocation_id": allocation.id if allocation is not None else None,
                "epoch": epoch,
                "node": node,
                "reason_code": code,
                "reason": reason,
                "data": data,
            }
        )
        self.dirty = self.dirty or plan

    def move_job(self, job: Job, event: JobEvent, **values: Any) -> None:
        """Move a job by the table of states, guarded by id, epoch and the state that was read.

        Raises IllegalMoveError if the table has no such move, LostRaceError if another write moved it
        meanwhile.
        """
        values["state"] = move_job(job.state, event).value
        self._guarded(job, Job, values)

    def move_jobs(self, event: JobEvent, moves: Sequence[tuple[Job, Mapping[str, Any]]]) -> None:
        """As ``move_job``, of many jobs that are read and locked, each with the same columns.

        Raises IllegalMoveError, LostRaceError.
        """
        if not moves:
            return
        table = cast(Table, Job.__table__)
        states = [move_job(job.state, event).value for job, _ in moves]
        statement = (
            update(table)
            .where(table.c.id == bindparam("of_id"))
            .where(table.c.epoch == bindparam("of_epoch"), table.c.state == bindparam("of_state"))
            .values({name: bindparam(name) for name in ("state", *moves[0][1])})
        )
        rows = [
            {"of_id": job.id, "of_epoch": job.epoch, "of_state": job.state, "state": state, **values}
            for (job, values), state in zip(moves, states, strict=True)
        ]
        connection = self.session.connection()
        connection.execute(statement, rows)
        # Drivers count the rows of such a statement each in its own way.
        moved = 0
        for start in range(0, len(rows), _CHECKED_AT_ONCE):
            ids = [row["of_id"] for row in rows[start : start + _CHECKED_AT_ONCE]]
            where = (table.c.id.in_(ids), table.c.state.in_(set(states)))
            moved += connection.scalar(select(func.count()).select_from(table).where(*where)) or 0
        if moved != len(rows):
            raise LostRaceError(f"{len(rows) - moved} of {len(rows)} jobs changed meanwhile")
        for (job, values), state in zip(moves, states, strict=True):
            for name, value in {"state": state, **values}.items():
                set_committed_value(job, name, value)

    def move_allocation(self, allocation: Allocation, event: AllocationEvent, **values: Any) -> None:
        """Move an allocation likewise."""
        values["state"] = move_allocation(allocation.state, event).value
        self._guarded(allocation, Allocation, values)

    def _guarded(
        self, row: Job | Allocation, table: type[Job] | type[Allocation], values: dict[str, Any]
    ) -> None:
        statement = (
            update(table)
            .where(table.id == row.id, table.epoch == row.epoch, table.state == row.state)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        if self.session.execute(statement).rowcount != 1:  # type: ignore[attr-defined]
            raise LostRaceError(f"{table.__tablename__} {row.id} changed meanwhile")
        for name, value in values.items():
            set_committed_value(row, name, value)

    def number_events(self) -> None:
        """Give the events their numbers and write them; the last statements before the commit."""
        if not (self.events or self.dirty):
            return
        self.session.flush()
        connection = self.session.connection()
        counts = {"events": len(self.events), "changes": int(self.dirty)}
        if connection.dialect.update_returning:
            last = connection.scalar(_ADVANCE_AND_TELL, counts)
        else:
            connection.execute(_ADVANCE, counts)
            last = connection.scalar(_READ_SEQ)
        if not self.events:
            return
        first = int(last or 0) - len(self.events) + 1
        rows = [{"id": first + offset, **event} for offset, event in enumerate(self.events)]
        if len(rows) >= MANY_EVENTS and connection.dialect.name == "postgresql":
            connection.execute(_insert_of_document(connection.dialect), {"rows": json.dumps(rows)})
        else:
            connection.execute(_INSERT_EVENTS, rows)


@lru_cache(maxsize=8)
def _insert_of_document(dialect: Dialect) -> TextClause:
    """INSERT of all events in the JSON document ``:rows``."""
    table = cast(Table, Event.__table__)
    names = ", ".join(column.name for column in table.c)
    types = ", ".join(f"{column.name} {column.type.compile(dialect)}" for column in table.c)
    return text(
        f"INSERT INTO {table.name} ({names}) SELECT {names} "  # noqa: S608 - the names are the table's own
        f"FROM json_to_recordset(CAST(:rows AS json)) AS one({types})"
    )

"""Reads and writes of the ledger's database; writes are retried and number their events at the end.

Every write runs as ``database.write(work)``: ``work`` gets a ``Transaction``, and may be run again from the
start after a lock time-out, a deadlock or a lost race, so it must do nothing outside the database.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from emep.ledger.store.audit_log import write_events
from emep.ledger.store.tables import Clock
from emep.ledger.store.transaction import HoldsGuard, HoldsNotLockedError, LostRaceError, Transaction
from emep.wire.errors import UnavailableError

__all__ = ["ATTEMPTS", "Database", "LostRaceError", "Transaction"]

T = TypeVar("T")
ATTEMPTS = 6
_RETRY_CODES = {"40001", "40P01", "55P03"}
"""PostgreSQL: serialization failure, deadlock, lock not available."""


class Database:
    """Sessions on Airflow's engine (or a test's)."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self.engine = engine
        self.clock = clock
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._sessions = sessionmaker(engine, expire_on_commit=False, autoflush=False)
        self._listeners: list[Callable[[], None]] = []
        self.guard: HoldsGuard | None = None
        # SQLite has one writer: queueing here is fair and prompt, its own busy handler polls.
        self._writers: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        )

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every commit with events or work for the planner; it must not block."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; nothing of it is committed."""
        with self._sessions() as session:
            yield session

    @contextlib.contextmanager
    def read_consistent(self) -> Iterator[Session]:
        """A session whose statements all see the same moment."""
        with self._sessions() as session:
            if self.is_sqlite:
                session.connection().exec_driver_sql("BEGIN")
            else:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    def write(self, work: Callable[[Transaction], T], *, holds: bool = False) -> T:
        """Run ``work`` in one transaction and commit it; ``holds``: it will change which GPUs are held.

        Raises what ``work`` raises, after rolling back; UnavailableError when the database stays busy.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result, done = self._attempt(work, holds)
            except HoldsNotLockedError as error:
                holds = True
                if attempt == ATTEMPTS:
                    raise UnavailableError("the database is busy: try again in a few seconds") from error
            except (LostRaceError, StaleDataError, OperationalError, DBAPIError) as error:
                if not _worth_retrying(error):
                    raise
                if attempt == ATTEMPTS:
                    raise UnavailableError("the database is busy: try again in a few seconds") from error
                time.sleep(random.uniform(0.005, 0.03) * attempt)
            else:
                if done.events or done.dirty:
                    for listener in self._listeners:
                        listener()
                write_events(done.events)
                return result
        raise AssertionError("unreachable")

    def _attempt(self, work: Callable[[Transaction], T], holds: bool) -> tuple[T, Transaction]:
        with self._writers, self._sessions() as session, session.begin():
            if self.is_sqlite:
                session.connection().exec_driver_sql("BEGIN IMMEDIATE")
            transaction = Transaction(session, self.clock(), self.guard)
            if holds:
                transaction.lock_holds()
            result = work(transaction)
            transaction.settle_holds()
            transaction.number_events()
            session.flush()
            return result, transaction

    def prepare(self) -> None:
        """Make sure the clock's row exists. Raises OperationalError where the tables were never migrated."""
        with self.read() as session:
            if session.get(Clock, 1) is not None:
                return
        with contextlib.suppress(IntegrityError):  # another API server was first
            self.write(lambda tx: tx.session.add(Clock(id=1)))


def _worth_retrying(error: Exception) -> bool:
    if isinstance(error, (LostRaceError, StaleDataError)):
        return True  # StaleDataError: a row that was read is gone
    if isinstance(error, DBAPIError):
        if getattr(error.orig, "pgcode", None) in _RETRY_CODES:
            return True
        return "database is locked" in str(error.orig) or "database table is locked" in str(error.orig)
    return False

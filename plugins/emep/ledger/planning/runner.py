"""The scheduler service's thread: plans when the state has changed, looks at time-outs every second."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from emep.ledger.planning.planner import Planner
from emep.ledger.planning.runner_health import Health, HealthRecord, failure_code
from emep.ledger.store.repository import clock_row
from emep.ledger.store.tables import Job
from emep.wire.base import JobState
from emep.wire.errors import EmepError

if TYPE_CHECKING:
    from emep.ledger.service import LedgerService

log = logging.getLogger(__name__)
REPLAN_SECONDS = 10.0
"""With jobs pending, a plan at least this often: order and reservations depend on time too."""
DEAF_SECONDS = 2.0
"""A server whose event loop was blocked for longer must not count the heartbeats of that time as missing."""
BUSY_SECONDS = 0.1
"""How soon to look again while another API server is planning."""

REST_SECONDS = 0.1
"""The longest pause after a cycle. Without pauses an API server that plans would not answer requests."""


def process_name() -> str:
    """A name for this process's planner that no other has, not even after a restart with the same pid."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Runner:
    """Runs the planner and the tick of one API server."""

    def __init__(self, ledger: LedgerService, planner: Planner | None = None) -> None:
        self.ledger = ledger
        self.planner = planner or Planner(ledger, process_name())
        self._poke = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._due_at = 0.0
        self._heard_at: float | None = None
        self._was_deaf = False
        self._record = HealthRecord()
        ledger.context.database.on_commit(self._poke.set)

    def start(self) -> None:
        """Give every lease its full period, then plan and tick in a thread of its own."""
        self.ledger.context.database.prepare()
        self.ledger.housekeeping.tick(just_started=True)
        self._thread = threading.Thread(target=self._run, name="emep-scheduler", daemon=True)
        self._thread.start()

    def heard(self) -> None:
        """Record that the server's event loop runs; the loop calls this several times a second."""
        self._heard_at = time.monotonic()

    def tick(self) -> None:
        """Carry out what depends on time alone, unless this server's event loop has been blocked.

        The thread of this runner goes on while the event loop is blocked (Airflow builds its workers' API at
        the first request). Missing heartbeats do not count then, and afterwards every lease gets its full
        period.
        """
        if self._heard_at is not None and time.monotonic() - self._heard_at > DEAF_SECONDS:
            self._was_deaf = True
            return
        self.ledger.housekeeping.tick(just_started=self._was_deaf)
        self._was_deaf = False

    def stop(self) -> None:
        """End the thread after the cycle it is in."""
        self._stopping.set()
        self._poke.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def health(self) -> Health:
        """The scheduler's state. This asks the database, so that an outage of it shows at once."""
        if not self.is_alive:
            return Health("stopped")
        try:
            age, has_pending = self.last_plan_age(), self._has_pending()
        except (EmepError, SQLAlchemyError) as error:
            return Health("failing", failure_code(error))
        if failing := self._record.failing:
            return Health("failing", failing, age)
        if self._record.is_late:
            return Health("behind", plan_age=age)
        return Health("planning" if has_pending else "idle", plan_age=age)

    def _has_pending(self) -> bool:
        with self.ledger.context.database.read() as session:
            pending = select(Job.id).where(Job.state == JobState.PENDING.value).limit(1)
            return session.scalar(pending) is not None

    def last_plan_age(self) -> float | None:
        """Seconds since any API server's last plan; None before the first."""
        with self.ledger.context.database.read() as session:
            planned_at = clock_row(session)[2]
        return max(0.0, self.ledger.context.now - planned_at) if planned_at else None

    # ---- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_tick = time.monotonic()
        wait, is_first = 0.0, True
        while not self._stopping.is_set():
            self._poke.wait(wait)
            self._poke.clear()
            wait = self.ledger.context.settings.tick_seconds
            try:
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + self.ledger.context.settings.tick_seconds
                    self.tick()
                needs_plan = self.needs_plan()
                if needs_plan:
                    if self.step():
                        needs_plan = False
                        if is_first:
                            _spare_the_collector()
                            is_first = False
                        self._rest()
                    else:
                        wait = BUSY_SECONDS
                self._record.went_well(has_news=needs_plan)
            except (EmepError, SQLAlchemyError) as error:
                self._record.failed(error)
                log.warning("the scheduler's cycle failed and is repeated: %s", error)
            except Exception as error:
                self._record.failed(error)
                # A defect in planning must not end the thread; it is logged in full each time.
                log.exception("the scheduler's cycle failed and is repeated")
                self._stopping.wait(1.0)

    def _rest(self) -> None:
        """Leave the process to its callers for a quarter of what the cycle took; news gathers meanwhile."""
        if self.planner.last is not None:
            self._stopping.wait(min(self.planner.last.seconds / 4, REST_SECONDS))

    def needs_plan(self) -> bool:
        """Whether anything has changed since the last plan, or time alone asks for one."""
        with self.ledger.context.database.read() as session:
            _, dirty, planned_at, planned_dirty = clock_row(session)
            if dirty != planned_dirty:
                return True
            now = self.ledger.context.now
            if self._due_at and now >= self._due_at:
                return True
            if 0 <= now - planned_at < REPLAN_SECONDS:  # below 0: the clock was set back
                return False
            pending = session.scalar(
                select(func.count()).select_from(Job).where(Job.state == JobState.PENDING.value)
            )
        return bool(pending)

    def step(self) -> bool:
        """Run one cycle; False if another planner was busy."""
        cycle = self.planner.cycle()
        if cycle is None:
            return False
        later = [
            job.not_before for job in cycle.seen.snapshot.pending if job.not_before > cycle.seen.taken_at
        ]
        self._due_at = min(later, default=0.0)
        if cycle.plan.starts or cycle.plan.preemptions:
            log.info(
                "planned %d pending jobs in %.3f s: %d started, %d told to yield",
                len(cycle.seen.snapshot.pending),
                cycle.seconds,
                len(cycle.plan.starts),
                len(cycle.plan.preemptions),
            )
        return True


def _spare_the_collector() -> None:
    """Keep what there is now out of later garbage collections.

    Airflow's modules and the planner's memory of the ledger are there for good: walking over them stopped
    every caller of the API server for 0.15 s, several times a minute under load.
    """
    gc.collect()
    gc.freeze()

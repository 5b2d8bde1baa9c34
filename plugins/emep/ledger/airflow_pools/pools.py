"""Airflow's pools ``gpu_<pool>``: one row for each pool of EMEP's nodes, kept equal to the ledger.

A row's slots are the usable GPUs (healthy, undrained, on a node that is alive) that EMEP neither holds nor
has promised to a preemptor. Airflow subtracts its own queued, running and deferred tasks from them by itself,
so those are not subtracted here. A write that changes which GPUs are held or usable calls
``tx.changes_holds()``: the same transaction then writes the rows, which it locks before any row of EMEP's, in
the order that Airflow's scheduler uses. EMEP never grants what the tasks of those pools hold; ``Budget``
checks that under the lock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from emep.ledger.airflow_pools.counts import (
    KEPT,
    PREFIX,
    SLOTS,
    PlainTasks,
    PoolCount,
    count_gpus,
    has_pools,
    read_plain_tasks,
)
from emep.ledger.airflow_pools.stale_reads import StaleReads
from emep.ledger.store.database import Database, Transaction
from emep.ledger.store.repository import chunks, clock_row
from emep.ledger.store.tables import Node

log = logging.getLogger(__name__)
LOCK_SECONDS = 10
"""How long to wait for Airflow's scheduler, which holds its lock for milliseconds."""
Row = tuple[int, str | None, bool]
"""Slots, description, include_deferred."""
COUNT_SECONDS = 5.0
"""Rows are compared every second; GPUs are counted for it when something has changed, and this often."""
COUNT_SHARE, COUNT_QUICK = 0.05, 0.02
"""Counting takes at most this share of the time, unless it takes no more than so many seconds."""
MANY_GPUS = 4096
"""Beyond, not every end of a job counts all GPUs."""


class _OnNode(Protocol):
    """A GPU's row, or as much of it."""

    @property
    def node(self) -> Any:
        """Name of its node."""


@dataclass
class Budget:
    """What may still be granted in each pool, as it is under the lock."""

    left: dict[str, int]
    in_doubt: dict[str, int]
    """GPUs that Airflow's scheduler may be giving away at this moment (SQLite only, see StaleReads)."""
    pool_of: Mapping[str, str]
    claimed: dict[str, int] = field(default_factory=dict)
    """GPUs that are withheld from Airflow until it is certain that its scheduler has not given them away."""

    def take(self, gpus: Collection[_OnNode]) -> bool:
        """Take these GPUs from the budget if plain tasks leave so many.

        If not, return False. GPUs that Airflow may or may not be giving away at this moment are then claimed.
        """
        wanted: dict[str, int] = {}
        for gpu in gpus:
            pool = self.pool_of.get(gpu.node, "")
            wanted[pool] = wanted.get(pool, 0) + 1
        if all(self.left.get(pool, 0) >= count for pool, count in wanted.items()):
            for pool, count in wanted.items():
                self.left[pool] -= count
            return True
        if all(self.left.get(pool, 0) + self.in_doubt.get(pool, 0) >= n for pool, n in wanted.items()):
            for pool, count in wanted.items():
                self.claimed[pool] = self.claimed.get(pool, 0) + count
        return False


@dataclass(frozen=True)
class _Seen:
    """What the last look at the rows has found."""

    clock: tuple[int, int] = (-1, -1)
    rows: Mapping[str, Row] = field(default_factory=dict)
    plain: Mapping[str, PlainTasks] = field(default_factory=dict)
    counted_at: float = 0.0
    count_took: float = 0.0
    gpus: int = 0
    wrong: tuple[str, ...] = ()

    def held(self, pool: str) -> int:
        """What plain tasks hold of a pool."""
        return self.plain[pool].held if pool in self.plain else 0

    @property
    def rest(self) -> float:
        """Seconds before counting again."""
        return 0.0 if self.count_took <= COUNT_QUICK else min(COUNT_SECONDS, self.count_took / COUNT_SHARE)

    def is_edited(self, rows: Mapping[str, Row]) -> bool:
        """Whether a row looks as EMEP does not write it."""
        return any(
            pool not in rows or not rows[pool][2] or KEPT not in (rows[pool][1] or "") for pool in self.rows
        )


class Pools:
    """Keeps Airflow's rows; a ledger's guard of what is held (``Database.guard``)."""

    def __init__(self, database: Database, alive_for: Callable[[], float]) -> None:
        self._database = database
        self._alive_for = alive_for
        self.stale = StaleReads() if database.is_sqlite else None
        self._seen = _Seen()

    def is_on(self, session: Session) -> bool:
        """Whether there are rows to keep: not in a database without Airflow's tables."""
        return has_pools(session)

    def lock(self, session: Session) -> None:
        """Lock Airflow's rows before anything else, in the order in which Airflow's scheduler does.

        Its advisory lock comes first: without it every collision would be an error in its log, because it
        asks for the rows without waiting. SQLite's write transaction has begun already, and is alone.
        """
        if self._database.is_sqlite:
            return
        from airflow.utils.db import DBLocks

        session.execute(text("SELECT set_config('lock_timeout', :wait, true)"), {"wait": f"{LOCK_SECONDS}s"})
        key = DBLocks.SCHEDULER_CRITICAL_SECTION.value
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
        rows = select(SLOTS.c.id).where(SLOTS.c.pool.startswith(PREFIX, autoescape=True))
        session.execute(rows.order_by(SLOTS.c.id).with_for_update()).all()

    # ---- writing the rows ----------------------------------------------------------------------------------

    def settle(self, tx: Transaction, *, only_freed: bool = False) -> None:
        """Write the rows as they must be after this transaction; the rows are locked.

        Where counting is slow, GPUs that are free again are left to the next tick: until then the rows say
        less than there is, never more.
        """
        if only_freed and self._seen.gpus > MANY_GPUS:
            return
        tx.session.flush()
        counts = count_gpus(tx.session, tx.now - self._alive_for())
        rows = self._rows(tx.session, counts)
        for pool, count in sorted(counts.items()):
            slots = self._slots(pool, count)
            wanted = (slots, count.description, True)
            if rows.get(pool) == wanted:
                continue
            values = {"slots": slots, "description": count.description, "include_deferred": True}
            where = SLOTS.c.pool == PREFIX + pool
            if self.stale is not None and pool in rows:
                self.stale.was_visible(pool, rows[pool][0], tx.now)
            if tx.session.execute(SLOTS.update().where(where).values(**values)).rowcount == 0:  # type: ignore[attr-defined]
                tx.session.execute(SLOTS.insert().values(pool=PREFIX + pool, **values))

    def _slots(self, pool: str, count: PoolCount) -> int:
        claimed = self.stale.claimed(pool) if self.stale is not None else 0
        return max(0, count.slots - claimed)

    @staticmethod
    def _rows(session: Session, pools: Collection[str]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for part in chunks(sorted(pools)):
            columns = (SLOTS.c.pool, SLOTS.c.slots, SLOTS.c.description, SLOTS.c.include_deferred)
            query = select(*columns).where(SLOTS.c.pool.in_([PREFIX + name for name in part]))
            for name, slots, description, deferred in session.execute(query):
                found[name.removeprefix(PREFIX)] = (slots, description, bool(deferred))
        return found

    # ---- granting ------------------------------------------------------------------------------------------

    def budget(self, tx: Transaction, nodes: Collection[str]) -> Budget | None:
        """What may be granted on these nodes beside what plain tasks hold; None: no pools, no limit."""
        if not self.is_on(tx.session):
            return None
        pool_of: dict[str, str] = {}
        for part in chunks(sorted(nodes)):
            query = select(Node.name, Node.pool).where(Node.name.in_(part))
            pool_of.update((name, pool) for name, pool in tx.session.execute(query))
        counts = count_gpus(tx.session, tx.now - self._alive_for())
        plain = read_plain_tasks(tx.session, counts)
        rows = self._rows(tx.session, counts)
        left, in_doubt = {}, {}
        for pool, count in counts.items():
            tasks = plain.get(pool, PlainTasks())
            doubt = 0
            if self.stale is not None and tasks.waiting and pool in rows:
                seen = self.stale.highest(pool, rows[pool][0], tx.now)
                doubt = min(tasks.waiting, max(0, seen - tasks.held))
            left[pool] = count.usable - count.allocated - tasks.held - doubt
            in_doubt[pool] = doubt
        return Budget(left, in_doubt, pool_of)

    def after_grants(self, tx: Transaction, budget: Budget | None) -> None:
        """Keep from Airflow what could not be granted yet because it may be giving it away just now."""
        if self.stale is not None and self.stale.claim(budget.claimed if budget else {}, tx.now):
            tx.changes_holds()

    # ---- the tick ------------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Correct rows that another program has written, and plan again when plain tasks free GPUs.

        This also takes the GPUs of nodes that have fallen silent out of the rows.
        """
        now = self._database.clock()
        with self._database.read() as session:
            if not self.is_on(session):
                return
            seen = self._look(session, now)
        before, self._seen = self._seen, seen
        freed = any(seen.held(pool) < tasks.held for pool, tasks in before.plain.items())
        settled = self.stale is not None and self.stale.is_settled(now)
        forgotten = self.stale is not None and self.stale.is_forgotten(now)
        if seen.wrong:
            names = ", ".join(PREFIX + pool for pool in seen.wrong)
            log.info("Airflow's pools are put right: %s", names)
        if seen.wrong or freed or settled:
            self._database.write(
                lambda tx: self._look_again(tx, plan=freed or settled, forget=forgotten),
                holds=bool(seen.wrong) or forgotten,
            )

    def _look(self, session: Session, now: float) -> _Seen:
        """The rows, and which of them are wrong; nothing is counted where nothing can have changed."""
        before = self._seen
        clock = clock_row(session)[:2]
        pools = list(session.scalars(select(Node.pool).distinct()))
        rows, plain = self._rows(session, pools), read_plain_tasks(session, pools)
        age = now - before.counted_at
        if age < 0:  # the clock was set back
            age = math.inf
        is_same = (clock, rows) == (before.clock, before.rows)
        if (is_same and age < COUNT_SECONDS) or (age < before.rest and not before.is_edited(rows)):
            return replace(before, plain=plain, wrong=())
        started = time.perf_counter()
        counts = count_gpus(session, now - self._alive_for())
        took = time.perf_counter() - started
        wrong = [
            pool
            for pool, count in counts.items()
            if rows.get(pool) != (self._slots(pool, count), count.description, True)
        ]
        gpus = sum(count.total for count in counts.values())
        return _Seen(clock, rows, plain, now, took, gpus, tuple(sorted(wrong)))

    def _look_again(self, tx: Transaction, *, plan: bool, forget: bool) -> None:
        if plan:
            tx.dirty = True
        if forget and self.stale is not None:
            self.stale.claim({}, tx.now)
        if tx.holds_locked:
            tx.changes_holds()

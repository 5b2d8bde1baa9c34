"""One planning cycle: lock, snapshot, ``plan``, and its decisions carried out in one transaction.

Planning itself holds no transaction open. At the commit, every decision is checked again against the rows as
they are then: a job that was cancelled or a GPU that became unhealthy meanwhile is left out, and the next
cycle sees it.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, or_, select, update
from sqlalchemy.exc import IntegrityError, OperationalError

from emep.ledger.planning.apply import Effects
from emep.ledger.planning.snapshot import LedgerSnapshot
from emep.ledger.planning.snapshot_cache import Mirror
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import Clock, Lock
from emep.policy.model import Policy
from emep.scheduling.collection import no_collection
from emep.scheduling.model import Plan, Reason, Snapshot
from emep.scheduling.plan import plan
from emep.wire.errors import UnavailableError

if TYPE_CHECKING:
    from emep.ledger.service import LedgerService

log = logging.getLogger(__name__)
PlanFunction = Callable[[Snapshot, Policy, float], Plan]
LOCK_NAME = "planner"
LOCK_SECONDS = 60.0
"""A planner that is silent for this long is taken for dead; what it still decides is refused by the fence."""


FEW = 500
"""Of so many waiting jobs each cycle looks whether what blocks them has changed in kind."""
IN_TURN = 100
"""Of more, it looks at the new ones and at so many of the others, in turn."""
THOUGHT_SECONDS = 5.0
"""How long an explained plan is good for, if nothing changes."""


ALONE_SECONDS = 10.0
"""After another planner was met, the lock is taken for each cycle for so long."""


class FencedError(Exception):
    """Another planner has taken the lock over, so this cycle must not be carried out."""


@dataclass(frozen=True)
class Cycle:
    """A cycle that was carried out."""

    seen: LedgerSnapshot
    plan: Plan
    seconds: float
    """What reading, planning and committing took together."""
    parts: Mapping[str, tuple[float, float]]
    """``load``, ``plan`` and ``commit``: seconds each took, and CPU seconds of this thread."""


class _Laps:
    """What the parts of a cycle take, one after the other."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, float]] = {}
        self._begin = self._last = (time.perf_counter(), time.thread_time())

    def end(self, part: str) -> None:
        """This part has ended, and the next one begins."""
        before, self._last = self._last, (time.perf_counter(), time.thread_time())
        self.parts[part] = (self._last[0] - before[0], self._last[1] - before[1])

    @property
    def seconds(self) -> float:
        """All of it up to the last end."""
        return self._last[0] - self._begin[0]


class Planner:
    """Plans for one API server; of several, one at a time."""

    def __init__(self, ledger: LedgerService, holder: str, plan: PlanFunction | None = None) -> None:
        """``plan``: a function to use instead of the incremental core; it gets a whole snapshot each time."""
        self.ledger = ledger
        self.holder = holder
        self._plan = plan
        self._mirror = Mirror()
        self._mutex = threading.Lock()
        """Requests that explain a job read the same mirror as the planner's thread."""
        self._effects = Effects(ledger)
        self._thought: tuple[LedgerSnapshot, Plan] | None = None
        self._told_up_to = ""
        self._fence: int | None = None
        self._alone_from = 0.0
        self.last: Cycle | None = None

    # ---- the lock ------------------------------------------------------------------------------------------

    def _lock(self) -> int | None:
        """The fencing number to commit a plan under, or None while another planner has the lock.

        A planner that planned last, and met no other lately, keeps its number without asking. That is safe:
        the commit compares it, and a planner that took the lock since has raised it.
        """
        if self._fence is not None and time.monotonic() > self._alone_from:
            return self._fence
        return self._acquire()

    def _acquire(self) -> int | None:

        def work(tx: Transaction) -> int | None:
            taken = tx.session.execute(
                update(Lock)
                .where(
                    Lock.name == LOCK_NAME,
                    or_(
                        Lock.expires_at < tx.now,
                        Lock.holder == self.holder,
                        # The clock was set back since: its holder may be long dead.
                        Lock.expires_at > tx.now + 2 * LOCK_SECONDS,
                    ),
                )
                .values(holder=self.holder, fence=Lock.fence + 1, expires_at=tx.now + LOCK_SECONDS)
                .execution_options(synchronize_session=False)
            )
            if taken.rowcount == 0:  # type: ignore[attr-defined]
                if tx.session.scalar(select(func.count()).where(Lock.name == LOCK_NAME)):
                    return None
                tx.session.add(
                    Lock(name=LOCK_NAME, holder=self.holder, fence=1, expires_at=tx.now + LOCK_SECONDS)
                )
                tx.session.flush()
            return tx.session.scalar(select(Lock.fence).where(Lock.name == LOCK_NAME))

        try:
            return self.ledger.context.database.write(work)
        except IntegrityError:
            return None  # another API server created the row in this moment

    def _release(self, fence: int) -> None:
        self.ledger.context.database.write(lambda tx: self._check_and_release(tx, fence, must_hold=False))

    def _check_and_release(self, tx: Transaction, fence: int, *, must_hold: bool = True) -> None:
        released = tx.session.execute(
            update(Lock)
            .where(Lock.name == LOCK_NAME, Lock.holder == self.holder, Lock.fence == fence)
            .values(expires_at=0.0)
            .execution_options(synchronize_session=False)
        )
        if must_hold and released.rowcount != 1:  # type: ignore[attr-defined]
            raise FencedError("another planner has taken over")

    # ---- a cycle -------------------------------------------------------------------------------------------

    def read(self) -> LedgerSnapshot:
        """The ledger as the core sees it now."""
        with self._mutex:
            return self._refresh()

    def _refresh(self) -> LedgerSnapshot:
        ledger = self.ledger
        try:
            with ledger.context.database.read_consistent() as session:
                return self._mirror.refresh(
                    session, ledger.context.policy, ledger.context.now, ledger.context.alive_for()
                )
        except BaseException:
            self._mirror.forget()  # it may be half way between two moments
            raise

    def think(self) -> tuple[LedgerSnapshot, Plan]:
        """Plan without carrying anything out, with the reasons of every job that waits.

        Returns the last answer if nothing has changed since.
        """
        thought = self._thought
        if thought is not None and 0 <= self.ledger.context.now - thought[0].taken_at < THOUGHT_SECONDS:
            with self.ledger.context.database.read() as session:
                dirty = session.scalar(select(Clock.dirty).where(Clock.id == 1))
            if dirty == thought[0].dirty:
                return thought
        seen = self.read()
        thought = self._thought = seen, plan(seen.snapshot, self.ledger.context.policy, seen.taken_at)
        return thought

    def cycle(self) -> Cycle | None:
        """Plan once and carry it out; None if another planner is busy or took over."""
        was_ours = self._fence is not None
        fence, self._fence = self._lock(), None
        if fence is None:
            self._alone_from = time.monotonic() + ALONE_SECONDS
            return None
        laps = _Laps()
        try:
            with no_collection():
                seen, decisions, said = self._decide(laps)
                changes = bool(
                    decisions.starts or decisions.preemptions or decisions.holds or seen.snapshot.holds
                )
                self.ledger.context.database.write(
                    lambda tx: self._carry_out(tx, fence, seen, decisions, said), holds=changes
                )
            laps.end("commit")
        except FencedError as error:
            self._alone_from = time.monotonic() + ALONE_SECONDS
            if was_ours:
                return self.cycle()  # another planner came between: this time the cycle takes the lock
            log.warning("a plan was thrown away: %s", error)
            return None
        except BaseException as error:
            if not isinstance(error, (OperationalError, UnavailableError)):
                # A wrong mirror may have caused the failure, and would cause it again: read everything anew.
                with self._mutex:
                    self._mirror.forget()
            self._release(fence)
            raise
        self._fence = fence
        self.last = Cycle(seen, decisions, laps.seconds, laps.parts)
        return self.last

    def _decide(self, laps: _Laps) -> tuple[LedgerSnapshot, Plan, Mapping[str, tuple[Reason, ...]]]:
        """Return the snapshot, its plan, and the waiting reasons of the jobs whose reasons are due."""
        with self._mutex:
            seen = self._refresh()
            laps.end("load")
            if self._plan is not None:
                decided = self._plan(seen.snapshot, self.ledger.context.policy, seen.taken_at)
                laps.end("plan")
                return seen, decided, {one.job_id: one.reasons for one in decided.waiting}
            snapshot, core = seen.snapshot, self._mirror.core
            decided, said = core.plan_and_say(
                seen.taken_at, snapshot.usage, snapshot.holds, self._to_be_told(seen)
            )
            laps.end("plan")
            return seen, decided, said

    def _to_be_told(self, seen: LedgerSnapshot) -> list[str]:
        """Jobs whose reasons this cycle computes: those without a reason, and some of the others in turn.

        If jobs are few, or nothing has changed, it computes the reasons of all.
        """
        codes, last = seen.reason_codes, self.last
        is_quiet = last is None or last.seen.dirty == seen.dirty
        if len(codes) <= FEW or is_quiet:
            return list(codes)
        known = sorted(job_id for job_id, code in codes.items() if code)
        first = bisect_right(known, self._told_up_to)
        turn = (known[first:] + known[:first])[:IN_TURN]
        self._told_up_to = turn[-1] if turn else ""
        return [*(job_id for job_id, code in codes.items() if not code), *turn]

    def _carry_out(
        self,
        tx: Transaction,
        fence: int,
        seen: LedgerSnapshot,
        decisions: Plan,
        said: Mapping[str, tuple[Reason, ...]],
    ) -> None:
        self._check_and_release(tx, fence)
        self._effects.carry_out(tx, decisions, seen.snapshot.holds)
        self._effects.note_reasons(tx, seen.reason_codes, said, decisions.rejections)
        tx.session.flush()
        tx.session.execute(
            update(Clock).where(Clock.id == 1).values(planned_at=seen.taken_at, planned_dirty=seen.dirty)
        )

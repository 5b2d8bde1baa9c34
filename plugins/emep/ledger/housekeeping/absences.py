"""Detects when the control plane was away or its clock was set back, and extends all leases by that time."""

from __future__ import annotations

from sqlalchemy import select, update

from emep.ledger.context import LedgerContext
from emep.ledger.states import LIVE_ALLOCATION_STATES, AllocationState
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import Allocation, Clock, Node

_LIVE = [state.value for state in LIVE_ALLOCATION_STATES]


class Absences:
    """Knows when no API server was there to listen."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context

    def note_tick(self, now: float, just_started: bool) -> float | None:
        """Record this tick; if the last one is too long ago, return its time, else None."""
        allowed = max(self._context.policy.lease.heartbeat, 5 * self._context.settings.tick_seconds)

        def is_away(before: float) -> bool:
            # Clocks of several servers differ somewhat: one that is a little behind has not been set back.
            return just_started or abs(now - before) > allowed

        def work(tx: Transaction) -> float | None:
            before = tx.session.scalar(select(Clock.ticked_at).where(Clock.id == 1)) or 0.0
            tx.session.execute(update(Clock).where(Clock.id == 1).values(ticked_at=now))
            return before if is_away(before) else None

        with self._context.database.read() as session:
            before = session.scalar(select(Clock.ticked_at).where(Clock.id == 1)) or 0.0
        # Not written at every tick: an idle ledger leaves the database in peace.
        return self._context.database.write(work) if is_away(before) or now - before > allowed / 4 else None

    def grant_full_period(self, now: float, away_since: float) -> None:
        """Extend every lease, and count nodes as alive that were alive when the control plane went away."""

        def work(tx: Transaction) -> None:
            until = now + self._context.policy.lease.expiry
            extended = tx.session.execute(
                update(Allocation)
                .where(Allocation.state.in_(_LIVE), Allocation.deadline < until)
                .values(deadline=until)
                .execution_options(synchronize_session=False)
            )
            if now < away_since:
                self._shorten(tx, now)
            tx.session.execute(
                update(Node)
                .where(Node.last_report_at >= away_since - self._context.alive_for())
                .values(last_report_at=now, last_check_at=now)
                .execution_options(synchronize_session=False)
            )
            tx.emit(
                "control_plane_back",
                reason=f"every lease lasts at least until {until:.0f}, no report is held missing before",
                leases=int(extended.rowcount),  # type: ignore[attr-defined]
            )

        self._context.database.write(work)

    def _shorten(self, tx: Transaction, now: float) -> None:
        """Shorten deadlines after the clock was set back, so that they do not last longer than meant."""
        lease, grace = self._context.policy.lease, self._context.policy.preemption.grace_period
        granted = Allocation.state == AllocationState.GRANTED.value
        for column, limit, where in (
            (Allocation.deadline, now + lease.start_deadline, granted),
            (Allocation.deadline, now + lease.expiry, ~granted),
            (Allocation.yield_deadline, now + grace, ~granted),
        ):
            tx.session.execute(
                update(Allocation)
                .where(Allocation.state.in_(_LIVE), where, column > limit)
                .values({column: limit})
                .execution_options(synchronize_session=False)
            )

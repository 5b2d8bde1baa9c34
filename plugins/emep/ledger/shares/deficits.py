"""Computes each user's fair-share deficit without running a planning cycle."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.ledger.policies.effective import with_overrides
from emep.ledger.shares.usage import decay, decayed_charge
from emep.ledger.states import LIVE_ALLOCATION_STATES
from emep.ledger.store.tables import Allocation, FairShareOverride, Job, Usage
from emep.policy.model import Policy
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import UsageRecord
from emep.wire.base import JobState


def read_shares(session: Session, policy: Policy, now: float) -> tuple[Policy, FairTree]:
    """The policy with the operators' weights, and consumption up to ``now`` of what ended and what runs."""
    rows = session.execute(select(FairShareOverride.entity, FairShareOverride.weight)).all()
    effective = with_overrides(policy, {entity: weight for entity, weight in rows})
    usage: dict[tuple[str, str, str], float] = {}
    ended = select(Usage.queue, Usage.project, Usage.user, Usage.decayed, Usage.decayed_at)
    for queue, project, user, amount, at in session.execute(ended):
        usage[queue, project, user] = decay(amount, now - at, effective.half_life)
    running = (
        select(Job.queue, Job.project, Job.user, Allocation.billing_rate, Allocation.granted_at)
        .join(Allocation, Allocation.job_id == Job.id)
        .where(Allocation.state.in_([state.value for state in LIVE_ALLOCATION_STATES]))
    )
    for queue, project, user, rate, since in session.execute(running):
        key = (queue, project, user)
        usage[key] = usage.get(key, 0.0) + decayed_charge(rate, since, now, now, effective.half_life)
    tree = FairTree(effective, [UsageRecord(*key, spent) for key, spent in sorted(usage.items())])
    waiting = select(Job.queue, Job.project, Job.user).where(Job.state == JobState.PENDING.value).distinct()
    for leaf in session.execute(waiting):
        tree.leaf(*leaf)  # known, whether it has consumed anything or not
    return effective, tree

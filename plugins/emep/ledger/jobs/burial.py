"""Keeping a job that has died as a dead letter."""

from __future__ import annotations

from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import DeadLetter, Job


def bury(tx: Transaction, job: Job, code: str, reason: str) -> None:
    """Keep a job that is ``dead`` or ``expired`` as a dead letter, for a person to requeue or discard."""
    letter = tx.session.get(DeadLetter, job.id, with_for_update=True)
    if letter is None:
        letter = DeadLetter(job_id=job.id)
        tx.session.add(letter)
    letter.state, letter.reason_code, letter.reason = "open", code, reason
    letter.created_at, letter.resolved_at = tx.now, None
    letter.resolved_by, letter.resolution = "", ""
    tx.session.flush()

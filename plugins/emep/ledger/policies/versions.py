"""Every policy that was in force, by its document's digest, so that an old decision can be understood."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from emep.ledger.store.database import Database, Transaction
from emep.ledger.store.tables import Event, PolicyVersion
from emep.policy import parse_policy
from emep.policy.model import Policy


def digest_of(policy: Policy) -> str:
    """SHA-256 of the policy's canonical JSON: equal policies have one, wherever they were read."""
    return _digest(policy.describe())


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def last_in_force(database: Database) -> Policy | None:
    """The policy that was in force last, overrides included; None where the ledger knows of none."""
    with database.read() as session:
        digest = _last_digest(session)
        kept = None if digest is None else session.get(PolicyVersion, digest)
        return None if kept is None else parse_policy(kept.document, f"policy {digest}", base=Policy())


def _last_digest(session: Session) -> str | None:
    """The version that came into force last: by the audit, else (never changed) the one that is kept."""
    changes = select(Event).where(Event.event == "policy_changed").order_by(Event.id.desc()).limit(1)
    changed = session.scalars(changes).first()
    if changed is not None:
        return str(changed.data["digest"])
    newest = select(PolicyVersion.digest).order_by(PolicyVersion.since.desc()).limit(1)
    return session.scalar(newest)


def keep_version(database: Database, policy: Policy, *, announce: bool) -> str:
    """Keep a policy that has come into force, overrides included; its digest.

    ``announce``: another one was in force before, so that the audit says so and jobs are planned again.
    """
    document = policy.describe()
    digest = _digest(document)

    def work(tx: Transaction) -> None:
        is_new = tx.session.get(PolicyVersion, digest) is None
        former = _last_digest(tx.session)
        if is_new:
            tx.session.add(PolicyVersion(digest=digest, document=document, since=tx.now))
            tx.session.flush()
        # The file may have changed while no server ran: then another one was in force before, too.
        if announce or former not in (None, digest):
            tx.emit(
                "policy_changed", reason=f"policy {digest[:12]} is in force", digest=digest, is_new=is_new
            )

    with database.read() as session:
        if not announce and _last_digest(session) == digest:
            return digest
    try:
        database.write(work)
    except IntegrityError:
        database.write(work)  # another API server has kept it in this moment
    return digest

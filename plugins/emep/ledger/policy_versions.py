"""Every policy that was in force, by its document's digest, so that an old decision can be understood."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy.exc import IntegrityError

from emep.ledger.database import Database, Transaction
from emep.ledger.tables import PolicyVersion
from emep.policy import Policy


def digest_of(policy: Policy) -> str:
    """SHA-256 of the policy's canonical JSON: equal policies have one, wherever they were read."""
    return _digest(policy.describe())


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def keep_version(database: Database, policy: Policy, *, announce: bool) -> str:
    """Keep a policy that has come into force, overrides included; its digest.

    ``announce``: another one was in force before, so that the audit says so and jobs are planned again.
    """
    document = policy.describe()
    digest = _digest(document)

    def work(tx: Transaction) -> None:
        is_new = tx.session.get(PolicyVersion, digest) is None
        if is_new:
            tx.session.add(PolicyVersion(digest=digest, document=document, since=tx.now))
            tx.session.flush()
        if announce:
            tx.emit(
                "policy_changed", reason=f"policy {digest[:12]} is in force", digest=digest, is_new=is_new
            )

    with database.read() as session:
        if not announce and session.get(PolicyVersion, digest) is not None:
            return digest
    try:
        database.write(work)
    except IntegrityError:
        database.write(work)  # another API server has kept it in this moment
    return digest

"""What one API server keeps for EMEP while it runs: ledger, scheduler thread, follower, settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from emep.ledger.long_poll import Follower
from emep.ledger.planning.runner import Runner
from emep.ledger.policies.source import PolicySource
from emep.ledger.policies.versions import last_in_force
from emep.ledger.service import LedgerService
from emep.ledger.store.database import Database
from emep.policy.model import Policy
from emep.settings import Settings
from emep.wire.errors import UnavailableError


@dataclass
class Runtime:
    """Builds and owns these parts; call ``start`` before the first request and ``stop`` after the last."""

    settings: Settings
    ledger: LedgerService
    runner: Runner
    follower: Follower

    @classmethod
    def build(
        cls,
        engine: Engine,
        settings: Settings,
        policy: Callable[[], Policy] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Runtime:
        """Wire the parts on a database.

        Raises PolicyError where the policy file is broken and no policy was ever in force on this database.
        """
        database = Database(engine, clock)
        source = policy or PolicySource(settings.policy_file, lambda: _last_policy(database))
        ledger = LedgerService(database, source, settings)
        return cls(settings, ledger, Runner(ledger), Follower(database))

    def start(self) -> None:
        """Begin to schedule."""
        self.ledger.context.database.prepare()
        self.ledger.context.policies.start()
        self.runner.start()
        self.follower.start()

    def stop(self) -> None:
        """End both threads; waiters answer at once."""
        self.follower.stop()
        self.runner.stop()
        self.ledger.context.policies.stop()
        self.follower.join()


def _last_policy(database: Database) -> Policy | None:
    try:
        return last_in_force(database)
    except SQLAlchemyError:
        return None  # the tables are not there yet


def get_runtime(request: Request) -> Runtime:
    """The runtime of this app; UnavailableError with the reason where it could not start."""
    runtime: Runtime | None = getattr(request.app.state, "runtime", None)
    if runtime is None:
        why = getattr(request.app.state, "broken", "") or "it has not started yet"
        raise UnavailableError(f"EMEP does not schedule: {why}")
    return runtime


async def current_runtime(request: Request) -> Runtime:
    """As ``get_runtime``, as a dependency of a route: a plain function would be run in a thread."""
    return get_runtime(request)

"""Airflow's ``priority_weight`` from EMEP's score: class value times the project's deficit, times 100.

Airflow asks for weights inside a transaction of its scheduler or API server. So nothing here opens a session
in the caller's thread: another thread reads the shares, on a connection of its own, as long as weights are
asked for. Until it has read them, or if it cannot, the class alone decides.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emep.policy import Policy
    from emep.scheduling.fair_share import FairTree

log = logging.getLogger(__name__)
REFRESH_SECONDS = 10.0
SCALE = 100
LARGEST = 2**31 - 1
"""The column is a 32-bit integer."""


class Weights:
    """The weights of one process."""

    def __init__(
        self, policy: Callable[[], Policy], read_shares: Callable[[Policy], tuple[Policy, FairTree]]
    ) -> None:
        self._read_policy = policy
        self._read_shares = read_shares
        self._mutex = threading.Lock()
        self._tree: FairTree | None = None
        self._policy: Policy | None = None
        self._asked_at = -REFRESH_SECONDS
        self._process = os.getpid()

    def weight(self, priority: str, queue: str, project: str) -> int:
        """``value(class) x clamp(1 + deficit, 0.25, 2) x 100``, rounded, at least 1.

        An unknown class counts as normal. Raises PolicyError where the policy file is broken.
        """
        self._ask()
        with self._mutex:
            policy = self._policy or self._read_policy()
            name = policy.canonical_class(priority)
            value = policy.classes.get(name, policy.classes.get("normal", 1.0))
            deficit = 0.0
            if self._tree is not None:
                deficit = self._tree.deficit(self._tree.project(queue, project))
        factor = min(2.0, max(0.25, 1.0 + deficit))
        return max(1, min(LARGEST, round(value * factor * SCALE)))

    def _ask(self) -> None:
        """Start reading the shares again if they are old, without waiting for that."""
        now = time.monotonic()
        with self._mutex:
            if os.getpid() != self._process:  # forked: the reader stayed behind
                self._process, self._asked_at = os.getpid(), -REFRESH_SECONDS
            if now - self._asked_at < REFRESH_SECONDS:
                return
            self._asked_at = now
        threading.Thread(target=self.refresh, name="emep-weights", daemon=True).start()

    def refresh(self) -> None:
        """Read policy and shares now; if that fails, the former ones stay."""
        try:
            policy, tree = self._read_shares(self._read_policy())
        except Exception as error:
            log.debug("weights go by class alone: %s", error)
            return
        with self._mutex:
            self._policy, self._tree = policy, tree


@cache
def weights() -> Weights:
    """The weights of this process, with Airflow's database and configuration."""
    from emep.ledger.policies.source import PolicySource

    return Weights(PolicySource(_policy_file()), _read_from_airflow)


def _policy_file() -> Path | None:
    from airflow.configuration import conf

    from emep.settings import SECTION, _shipped_policy

    named = str(conf.get(SECTION, "policy_file", fallback="") or "").strip()
    return Path(named).expanduser() if named else _shipped_policy()


def _read_from_airflow(policy: Policy) -> tuple[Policy, FairTree]:
    from airflow.settings import get_engine
    from sqlalchemy.orm import Session

    from emep.ledger.shares.deficits import read_shares

    with Session(get_engine()) as session:  # type: ignore[no-untyped-call]
        return read_shares(session, policy, time.time())

"""Decayed consumption of every (queue, project, user), exact at any instant.

Consumption grows at the billed rate of what an entity holds and decays with the policy's half-life h:
``du/dt = rate - u ln(2)/h``, so over a span s of constant rate
``u(t + s) = u(t) 2^(-s/h) + rate (1 - 2^(-s/h)) h / ln 2``; without decay ``u(t + s) = u(t) + rate s``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from emep.scheduling.model import UsageRecord

Leaf = tuple[str, str, str]
"""Queue, project, user."""


@dataclass(slots=True)
class _Account:
    consumed: float = 0.0
    rate: float = 0.0
    holding: int = 0
    at: float = 0.0


class UsageAccounts:
    """Consumption of each entity in billed GPU-seconds; times never go back."""

    def __init__(self, half_life: float) -> None:
        self._decay = math.log(2.0) / half_life if half_life > 0 else 0.0
        self._accounts: dict[Leaf, _Account] = {}

    def know(self, leaf: Leaf, now: float) -> None:
        """Open an account: all known siblings count in fair share, idle ones too."""
        if leaf not in self._accounts:
            self._accounts[leaf] = _Account(at=now)

    def add_rate(self, leaf: Leaf, billed_gpus: float, now: float) -> None:
        """From ``now`` on the entity holds this many more billed GPUs (negative: fewer)."""
        self.know(leaf, now)
        account = self._accounts[leaf]
        account.consumed, account.at = self._value(account, now), now
        account.rate += billed_gpus
        account.holding += 1 if billed_gpus >= 0 else -1
        if account.holding == 0:
            account.rate = 0.0  # what sums of fractions leave over must not be charged for ever

    def records(self, now: float) -> tuple[UsageRecord, ...]:
        """Consumption of all as of ``now``, in the order in which accounts were opened."""
        return tuple(
            UsageRecord(queue, project, user, self._value(account, now))
            for (queue, project, user), account in self._accounts.items()
        )

    def _value(self, account: _Account, now: float) -> float:
        span = now - account.at
        if not self._decay:
            return account.consumed + account.rate * span
        # expm1 keeps the difference exact for spans that are short against the half-life.
        faded = -math.expm1(-self._decay * span)
        return account.consumed * (1.0 - faded) + account.rate * faded / self._decay

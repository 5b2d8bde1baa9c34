"""Decayed usage: exact GPU-seconds with a half-life, of ended and of running work."""

from __future__ import annotations

import math


def decay(amount: float, elapsed: float, half_life: float) -> float:
    """What is left of ``amount`` after ``elapsed`` seconds; ``half_life`` 0 means no decay."""
    if half_life <= 0 or elapsed <= 0:
        return amount
    return amount * math.exp2(-elapsed / half_life)


def decayed_charge(rate: float, start: float, end: float, now: float, half_life: float) -> float:
    """Consumption at ``rate`` per second from ``start`` to ``end``, each moment decayed to ``now``.

    The integral of ``rate * 2^(-(now - t) / h)`` over t, which is
    ``rate * h / ln 2 * (2^(-(now - end) / h) - 2^(-(now - start) / h))``.
    """
    if end <= start:
        return 0.0
    if half_life <= 0:
        return rate * (end - start)
    # expm1 keeps the difference exact for runs that are short against the half-life.
    fresh = -math.expm1(-(end - start) * math.log(2) / half_life)
    return rate * half_life / math.log(2) * decay(fresh, now - end, half_life)

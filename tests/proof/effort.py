"""How hard the proof tries: ``EMEP_PROOF_EXAMPLES`` (default 60) examples of every property.

Comparisons with the reference, which are cheap, try twenty times as many. With the variable set, examples are
drawn anew each time; without it they are always the same, so that a build never fails by luck.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

from hypothesis import HealthCheck, settings

_ASKED = os.environ.get("EMEP_PROOF_EXAMPLES")
EXAMPLES = int(_ASKED) if _ASKED else 60

proof = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=_ASKED is None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""Decorator of a property test."""


def cases(factor: int = 20) -> Iterator[tuple[int, Random]]:
    """Numbered sources of randomness, for comparisons with the reference; the number names the case."""
    first = 0 if _ASKED is None else Random().randrange(10**9)
    for number in range(first, first + EXAMPLES * factor):
        yield number, Random(number)

"""Placement strategies for the fragmentation study only: what ``pack`` is measured against.

Each gives an index whose placement prefers, among equally compact places, another one than best fit. The core
knows nothing of them and stays free of randomness: a random preference is drawn here, from a seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emep.scheduling import ClusterIndex

Strategy = Callable[[ClusterIndex], ClusterIndex]
"""Called before each plan with the cluster's index; gives the one to plan with."""


class FirstFit:
    """The first place in order of names."""

    def __init__(self) -> None:
        self._made: tuple[ClusterIndex, ClusterIndex] | None = None

    def __call__(self, index: ClusterIndex) -> ClusterIndex:
        """The index, with places ranked by their number."""
        if self._made is None or self._made[0] is not index:
            self._made = (index, index.preferring(np.arange(index.cell_count)))
        return self._made[1]


class RandomFit:
    """Any place, drawn anew for every plan."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def __call__(self, index: ClusterIndex) -> ClusterIndex:
        """The index, with places ranked at random."""
        return index.preferring(self._draw.permutation(index.cell_count))

"""Placement strategies for the fragmentation study only: what ``pack`` is measured against.

Each ranks the cells (GPUs of one node and NVLink group) that placement takes in their order, instead of best
fit. The core knows nothing of them and stays free of randomness: a random order is drawn here, from a seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from emep.scheduling.cluster.index import ClusterIndex

Ranks = npt.NDArray[np.int64]
Strategy = Callable[[ClusterIndex], Ranks]
"""Called before each plan with the cluster's index; gives a rank for each of its cells, the lowest first."""


def first_fit(index: ClusterIndex) -> Ranks:
    """The first place in order of names."""
    return np.arange(index.cell_count, dtype=np.int64)


class RandomFit:
    """Any place, drawn anew for every plan."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def __call__(self, index: ClusterIndex) -> Ranks:
        """Ranks in any order."""
        return self._draw.permutation(index.cell_count)

"""Types that the scheduling core computes with: arrays, and the filter of eligible cells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

Filter = tuple[str, str, int, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
"""What makes a cell eligible: pool, GPU type ("" = any), least memory, affinity, anti-affinity."""

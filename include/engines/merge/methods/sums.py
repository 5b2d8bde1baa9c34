"""Sums over tensors that do not depend on chunk sizes or the number of threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_ROW = 256
"""Elements that one thread adds in double precision; divides the block size, so rows never span chunks."""


class Sum:
    """Adds chunks in rows of fixed length, and the rows exactly (``math.fsum``): same bits however it is cut."""

    def __init__(self) -> None:
        self._partials: list[float] = []

    @property
    def value(self) -> float:
        """The sum so far."""
        return math.fsum(self._partials)

    def add(self, chunk: Tensor) -> None:
        """Add all elements of a flat chunk that starts at a multiple of the row length."""
        import torch

        whole = chunk.numel() // _ROW * _ROW
        rows = [chunk[:whole].view(-1, _ROW), chunk[whole:].view(1, -1)]
        partials: list[float] = []
        for part in rows:
            if part.numel():
                partials += part.sum(dim=1, dtype=torch.float64).tolist()
        # One exact number per chunk would round; two floats (value and remainder) keep fsum's result exact.
        self._partials += partials
        if len(self._partials) > 1 << 16:
            self._compact()

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add the products of two chunks' elements, each formed in double precision."""
        self.add(left.double().mul_(right))

    def _compact(self) -> None:
        # Error-free: fsum of the rest and the negated total is what rounding lost.
        total = math.fsum(self._partials)
        lost = math.fsum([*self._partials, -total])
        self._partials = [total, lost]

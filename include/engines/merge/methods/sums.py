"""Sums over tensors that do not depend on chunk sizes or the number of threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_ROW = 256
"""Elements that are added in the compute type; divides the block size, so rows never span chunks."""


class Sum:
    """Adds chunks in rows of fixed length, and the rows exactly (``math.fsum``).

    The result has the same bits whatever the chunks are.
    A row's rounding error is a few units in its last place; over a tensor's many rows they average out.
    """

    def __init__(self) -> None:
        self._partials: list[float] = []

    @property
    def value(self) -> float:
        """The sum so far."""
        return math.fsum(self._partials)

    def add(self, chunk: Tensor) -> None:
        """Add all elements of a flat chunk that starts at a multiple of the row length."""
        whole = chunk.numel() // _ROW * _ROW
        for part in (chunk[:whole].view(-1, _ROW), chunk[whole:].view(1, -1)):
            if part.numel():
                self._partials += part.sum(dim=1).tolist()
        if len(self._partials) > 1 << 16:
            self._compact()

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add the products of two chunks' elements."""
        self.add(left * right)

    def _compact(self) -> None:
        # Error-free: fsum of the rest and the negated total is what rounding lost.
        total = math.fsum(self._partials)
        lost = math.fsum([*self._partials, -total])
        self._partials = [total, lost]

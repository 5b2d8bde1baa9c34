"""The k greatest magnitudes of a tensor, exactly, without sorting and without holding the tensor.

The bits of |δ| as an integer rise with |δ|. Counting them by their top digits finds the digit in which the
k-th greatest lies; counting the next digits below it finds the rest: a radix selection, in as many passes
over the input as there are digits (two for float32). Memory is one histogram per input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engines.merge.methods.job import TensorJob
from engines.merge.methods.masks import above, at_least, below, equals
from engines.merge.methods.sums import Sum
from engines.merge.methods.task_vectors import Keep, Sparsifier, deltas

if TYPE_CHECKING:
    from torch import Tensor

_DIGIT = 16


@dataclass
class _Search:
    """One input's selection: the known high digits of the threshold, and how many are still sought."""

    sought: int
    """Rank, counted from the greatest, of the element sought among those that share ``prefix``."""
    prefix: int = 0


@dataclass
class TopMagnitudes:
    """Keeps what is above the threshold, and of the elements equal to it the first ``ties`` by index."""

    threshold: float
    ties: int
    scale: float = 1.0
    _used: int = field(default=0, repr=False)

    def apply(self, start: int, delta: Tensor) -> Tensor:
        """Zero what is not kept. Chunks come in order; the one at element 0 begins a new pass."""
        import torch

        if start == 0:
            self._used = 0
        magnitude = delta.abs()
        left = self.ties - self._used
        if left == 0:
            keep = above(magnitude, self.threshold)
        else:
            keep = at_least(magnitude, self.threshold)
            equal = equals(magnitude, self.threshold)
            count = int(torch.count_nonzero(equal))
            if count > left:
                keep.sub_(equal.mul_(equal.cumsum(0) > left))
            self._used += min(count, left)
        delta.mul_(keep.to(delta.dtype))
        return delta if self.scale == 1.0 else delta.mul_(self.scale)


class Drop:
    """Keeps nothing (density 0)."""

    def apply(self, start: int, delta: Tensor) -> Tensor:
        """Zeros."""
        return delta.zero_()


def magnitude_thresholds(job: TensorJob) -> list[Sparsifier]:
    """Select each input's int(density · numel) greatest magnitudes, at least one unless density is 0.

    With ``rescale`` the kept elements are scaled to the L1 norm of the whole.
    """
    counts = [_kept(float(entry.parameters["density"]), job.numel) for entry in job.inputs]
    searches = {index: _Search(count) for index, count in enumerate(counts) if 0 < count < job.numel}
    if searches:
        _narrow(job, searches)
    result: list[Sparsifier] = []
    for index, count in enumerate(counts):
        if index in searches:
            search = searches[index]
            result.append(TopMagnitudes(_to_float(job, search.prefix), search.sought))
        else:
            result.append(Keep() if count else Drop())
    if job.parameters["rescale"] and searches:
        _rescale(job, result)
    return result


def _kept(density: float, numel: int) -> int:
    if density >= 1 or numel == 0:
        return numel
    return max(1, int(density * numel)) if density > 0 else 0


def _narrow(job: TensorJob, searches: dict[int, _Search]) -> None:
    """Find the digits of every threshold from the highest down, one pass over the inputs per digit."""
    import torch

    bits = _bits(job)
    high = bits
    for shift in (*range(bits - _DIGIT, 0, -_DIGIT), 0):
        width = high - shift
        histograms: dict[int, Tensor] = {}
        for start, stop in job.chunks():
            for index, delta in enumerate(deltas(job, start, stop)):
                if index in searches:
                    digits = _digits(delta, searches[index].prefix, bits, high, shift)
                    counted = torch.bincount(digits, minlength=1 << width)
                    histograms[index] = histograms[index].add_(counted) if index in histograms else counted
        for index, histogram in histograms.items():
            _descend(searches[index], histogram, width)
        high = shift


def _digits(delta: Tensor, prefix: int, bits: int, high: int, shift: int) -> Tensor:
    """The digit at ``shift`` of every magnitude whose digits from ``high`` on are ``prefix``."""
    pattern = _pattern(delta)
    if high == bits:
        return pattern.bitwise_right_shift_(shift)
    # What shares the prefix is less than the next digit's unit once the prefix is taken off.
    found = below(pattern.bitwise_xor_(prefix << high), 1 << high)
    return found.bitwise_right_shift_(shift)


def _descend(search: _Search, histogram: Tensor, width: int) -> None:
    """Take the digit in which the element sought lies."""
    at_least = histogram.flip(0).cumsum(0)
    position = int((at_least < search.sought).sum())
    greater = int(at_least[position - 1]) if position else 0
    search.prefix = (search.prefix << width) | ((1 << width) - 1 - position)
    search.sought -= greater


def _bits(job: TensorJob) -> int:
    """Bits of a magnitude in the compute type."""
    assert job.base is not None  # noqa: S101
    return 63 if job.base.source.chunk(0, 1).element_size() == 8 else 31


def _pattern(delta: Tensor) -> Tensor:
    import torch

    integers = torch.int64 if delta.element_size() == 8 else torch.int32
    return delta.abs_().view(integers)


def _to_float(job: TensorJob, pattern: int) -> float:
    import torch

    if _bits(job) == 63:
        return float(torch.tensor(pattern, dtype=torch.int64).view(torch.float64))
    return float(torch.tensor(pattern, dtype=torch.int32).view(torch.float32))


def _rescale(job: TensorJob, sparsifiers: list[Sparsifier]) -> None:
    before, after = [Sum() for _ in sparsifiers], [Sum() for _ in sparsifiers]
    for start, stop in job.chunks():
        for index, delta in enumerate(deltas(job, start, stop)):
            before[index].add(delta.abs())
            after[index].add(sparsifiers[index].apply(start, delta).abs_())
    for sparsifier, whole, kept in zip(sparsifiers, before, after, strict=True):
        if isinstance(sparsifier, TopMagnitudes) and kept.value > 0:
            sparsifier.scale = whole.value / kept.value

"""DARE: drop and rescale ("Language models are super Mario", Yu et al. 2023, arXiv 2311.03099).

Each element of a task vector is kept with probability ``density``. What is kept is scaled so that the
tensor's L1 norm is what it was; in the mean that is the paper's 1/density, and users of recipes expect the
former.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engines.merge.methods.job import BLOCK, TensorJob
from engines.merge.methods.registry import Base, Method
from engines.merge.methods.select import Drop
from engines.merge.methods.sums import Sum
from engines.merge.methods.task_vectors import Keep, Sparsifier, combine, deltas, parameters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

LINEAR = Method(
    name="dare_linear",
    target="engines.merge.methods.dare:merge_linear",
    parameters=parameters(normalize=False, rescale=True),
    base=Base.REQUIRED,
    paper="arXiv 2311.03099",
    passes=2,
    cost=5.0,
)
TIES = Method(
    name="dare_ties",
    target="engines.merge.methods.dare:merge_ties",
    parameters=parameters(normalize=False, rescale=True),
    base=Base.REQUIRED,
    paper="arXiv 2311.03099, 2306.01708",
    passes=2,
    cost=6.0,
)


def merge_linear(job: TensorJob) -> Iterator[Tensor]:
    """θ₀ + λ Σ wᵢ·thinned δᵢ."""
    return combine(job, _thinned(job), elect=False)


def merge_ties(job: TensorJob) -> Iterator[Tensor]:
    """As ``dare_linear``, with the election of signs of TIES."""
    return combine(job, _thinned(job), elect=True)


@dataclass
class RandomDrop:
    """Keeps an element where its 32 random bits are below ``density · 2³²``.

    The bits of a block of 65,536 elements come from a generator seeded by (run seed, tensor, input, block):
    the mask does not depend on order, threads, chunk sizes, sharding or device.
    """

    density: float
    seed: int
    scale: float = 1.0

    def apply(self, start: int, delta: Tensor) -> Tensor:
        """Zero what is dropped, scale what is kept."""
        import torch

        # As bytes: torch converts those to floats several times faster than booleans.
        kept = torch.from_numpy(self.mask(start, delta.numel())).to(delta.device).to(delta.dtype)
        delta.mul_(kept)
        return delta if self.scale == 1.0 else delta.mul_(self.scale)

    def mask(self, start: int, count: int) -> NDArray[np.uint8]:
        """1 where an element is kept, for ``count`` elements from ``start``, a multiple of the block size."""
        import numpy as np

        kept = np.empty(count, dtype=bool)
        limit = np.uint32(min(round(self.density * 2**32), 2**32 - 1))
        for offset in range(0, count, BLOCK):
            size = min(BLOCK, count - offset)
            entropy = [self.seed & (2**64 - 1), self.seed >> 64, (start + offset) // BLOCK]
            raw = np.random.SFC64(np.random.SeedSequence(entropy)).random_raw((size + 1) // 2)
            bits = raw.astype("<u8", copy=False).view("<u4")[:size]
            np.less(bits, limit, out=kept[offset : offset + size])
        return kept.view(np.uint8)


def _thinned(job: TensorJob) -> list[Sparsifier]:
    result: list[Sparsifier] = []
    for index, entry in enumerate(job.inputs):
        density = float(entry.parameters["density"])
        if density >= 1:
            result.append(Keep())
        else:
            result.append(RandomDrop(density, job.tensor_seed(index)) if density > 0 else Drop())
    if job.parameters["rescale"] and any(isinstance(entry, RandomDrop) for entry in result):
        _match_norms(job, result)
    return result


def _match_norms(job: TensorJob, sparsifiers: list[Sparsifier]) -> None:
    before, after = [Sum() for _ in sparsifiers], [Sum() for _ in sparsifiers]
    for start, stop in job.chunks():
        for index, delta in enumerate(deltas(job, start, stop)):
            if isinstance(sparsifiers[index], RandomDrop):
                before[index].add(delta.abs_())
                after[index].add(sparsifiers[index].apply(start, delta))
    for sparsifier, whole, kept in zip(sparsifiers, before, after, strict=True):
        # Nothing kept (tiny tensors): nothing to scale.
        if isinstance(sparsifier, RandomDrop) and kept.value > 0:
            sparsifier.scale = whole.value / kept.value

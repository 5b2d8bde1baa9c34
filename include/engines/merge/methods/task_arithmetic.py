"""Task arithmetic ("Editing models with task arithmetic", Ilharco et al. 2022, arXiv 2212.04089)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engines.merge.methods.job import TensorJob
from engines.merge.methods.registry import Base, Method
from engines.merge.methods.task_vectors import Keep, combine, parameters

if TYPE_CHECKING:
    from torch import Tensor

METHOD = Method(
    name="task_arithmetic",
    target="engines.merge.methods.task_arithmetic:merge",
    parameters=parameters(normalize=False, rescale=False),
    base=Base.REQUIRED,
    paper="arXiv 2212.04089",
    cost=1.5,
)


def merge(job: TensorJob) -> Iterator[Tensor]:
    """θ₀ + λ Σ wᵢ(θᵢ − θ₀). ``density``, ``rescale`` and ``int8_mask`` are accepted and change nothing."""
    return combine(job, [Keep() for _ in job.inputs], elect=False)

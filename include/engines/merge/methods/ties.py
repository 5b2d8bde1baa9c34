"""TIES: trim, elect sign, merge (Yadav et al. 2023, arXiv 2306.01708)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engines.merge.methods.job import TensorJob
from engines.merge.methods.registry import Base, Method
from engines.merge.methods.select import magnitude_thresholds
from engines.merge.methods.task_vectors import combine, parameters

if TYPE_CHECKING:
    from torch import Tensor

METHOD = Method(
    name="ties",
    target="engines.merge.methods.ties:merge",
    parameters=parameters(normalize=True, rescale=False),
    base=Base.REQUIRED,
    paper="arXiv 2306.01708",
    passes=3,
    cost=6.0,
)


def merge(job: TensorJob) -> Iterator[Tensor]:
    """Keep each task vector's top ``density`` by magnitude, elect signs, average those that agree."""
    return combine(job, magnitude_thresholds(job), elect=True)

"""Weighted average of parameters ("model soups", Wortsman et al. 2022, arXiv 2203.05482)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engines.merge.methods.job import TensorJob
from engines.merge.methods.registry import Base, Kind, Method, Parameter, Scope

if TYPE_CHECKING:
    from torch import Tensor

METHOD = Method(
    name="linear",
    target="engines.merge.methods.linear:merge",
    parameters=(
        Parameter("weight", Scope.INPUT, required=True),
        Parameter("normalize", Scope.SHARED, default=True, kind=Kind.BOOLEAN),
    ),
    base=Base.IGNORED,
    paper="arXiv 2203.05482",
)


def merge(job: TensorJob) -> Iterator[Tensor]:
    """Σ wᵢθᵢ, divided by Σ wᵢ where ``normalize``; accumulated in the compute type."""
    weights = [float(entry.parameters["weight"]) for entry in job.inputs]
    if job.parameters["normalize"]:
        total = sum(weights)
        weights = [weight / total for weight in weights]
    for start, stop in job.chunks():
        first, *others = zip(job.inputs, weights, strict=True)
        result = first[0].source.chunk(start, stop).mul_(first[1])
        for entry, weight in others:
            result.add_(entry.source.chunk(start, stop), alpha=weight)
        yield result

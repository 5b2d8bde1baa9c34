"""The common frame of the methods that add task vectors δᵢ = θᵢ − θ₀ to the base.

"Editing models with task arithmetic", Ilharco et al. 2022, arXiv 2212.04089; the election of signs is from
"TIES-merging", Yadav et al. 2023, arXiv 2306.01708.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from engines.merge.methods.job import TensorJob
from engines.merge.methods.masks import at_least
from engines.merge.methods.registry import Kind, Parameter, Scope

if TYPE_CHECKING:
    from torch import Tensor

ZERO_WEIGHT = 1e-8
"""A sum of weights below this is not divided by."""


class Sparsifier(Protocol):
    """Drops part of one input's task vector, chunk by chunk in order."""

    def apply(self, start: int, delta: Tensor) -> Tensor:
        """The chunk that starts at element ``start``, thinned (in place where possible)."""
        ...


class Keep:
    """Drops nothing."""

    def apply(self, start: int, delta: Tensor) -> Tensor:
        """The chunk itself."""
        return delta


def parameters(*, normalize: bool, rescale: bool) -> tuple[Parameter, ...]:
    """The parameters that all methods of this family accept, with the method's own defaults."""
    return (
        Parameter("weight", Scope.TASK, required=True),
        Parameter("density", Scope.TASK, default=1.0, low=0.0, high=1.0),
        Parameter("lambda", Scope.SHARED, default=1.0),
        Parameter("normalize", Scope.SHARED, default=normalize, kind=Kind.BOOLEAN),
        Parameter("rescale", Scope.SHARED, default=rescale, kind=Kind.BOOLEAN),
        Parameter(
            "int8_mask",
            Scope.SHARED,
            default=False,
            kind=Kind.BOOLEAN,
            note="accepted; masks never outlive a chunk here, so there is nothing to save",
        ),
    )


def deltas(job: TensorJob, start: int, stop: int) -> Iterator[Tensor]:
    """Task vectors' chunks, one input after the other; the base is read once."""
    assert job.base is not None  # noqa: S101 - the plan gives it to every method with a required base
    base = job.base.source.chunk(start, stop)
    for entry in job.inputs:
        yield entry.source.chunk(start, stop).sub_(base)


def combine(job: TensorJob, sparsifiers: Sequence[Sparsifier], *, elect: bool) -> Iterator[Tensor]:
    """θ₀ + λ Σ wᵢδᵢ over the thinned task vectors, divided by Σ wᵢ where ``normalize``.

    With ``elect`` an element counts only where its weighted task vector has the sign of Σ wᵢδᵢ (0 is
    positive), and ``normalize`` divides by the weights of those that count.
    """
    assert job.base is not None  # noqa: S101
    weights = [float(entry.parameters["weight"]) for entry in job.inputs]
    scale, normalize = float(job.parameters["lambda"]), bool(job.parameters["normalize"])
    for start, stop in job.chunks():
        base = job.base.source.chunk(start, stop)
        weighted = (
            sparsifier.apply(start, entry.source.chunk(start, stop).sub_(base)).mul_(weight)
            for entry, sparsifier, weight in zip(job.inputs, sparsifiers, weights, strict=True)
        )
        if elect:
            mixed = _elect(list(weighted), weights, normalize)
        else:
            mixed = _total(weighted)
            total = sum(weights)
            if normalize and abs(total) >= ZERO_WEIGHT:
                mixed.div_(total)
        yield base.add_(mixed, alpha=scale)


def _total(chunks: Iterator[Tensor]) -> Tensor:
    result = next(chunks)
    for chunk in chunks:
        result.add_(chunk)
    return result


def _elect(weighted: list[Tensor], weights: list[float], normalize: bool) -> Tensor:
    import torch

    elected = torch.add(weighted[0], weighted[1]) if len(weighted) > 1 else weighted[0].clone()
    for chunk in weighted[2:]:
        elected.add_(chunk)
    # +1 where the sum is at least 0, else -1; a chunk times it is positive exactly where it agrees.
    sign = at_least(elected, 0).to(elected.dtype).mul_(2).sub_(1)
    agreeing = [chunk.mul_(sign).clamp_(min=0) for chunk in weighted]
    mixed = torch.add(agreeing[0], agreeing[1]) if len(agreeing) > 1 else agreeing[0].clone()
    for chunk in agreeing[2:]:
        mixed.add_(chunk)
    if normalize:
        divisor = agreeing[0].sign_().mul_(weights[0])
        for chunk, weight in zip(agreeing[1:], weights[1:], strict=True):
            divisor.add_(chunk.sign_(), alpha=weight)
        # No input agrees, or the weights of those that do cancel out: divide by 1 instead of almost 0.
        divisor.add_(1 - at_least(divisor.abs(), ZERO_WEIGHT).to(divisor.dtype))
        mixed.div_(divisor)
    return mixed.mul_(sign)

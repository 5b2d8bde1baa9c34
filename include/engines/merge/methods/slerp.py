"""Spherical linear interpolation of two tensors.

K. Shoemake, "Animating rotation with quaternion curves", 1985.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engines.merge.methods.job import TensorJob
from engines.merge.methods.registry import Base, Method, Parameter, Scope
from engines.merge.methods.sums import Sum

if TYPE_CHECKING:
    from torch import Tensor

METHOD = Method(
    name="slerp",
    target="engines.merge.methods.slerp:merge",
    parameters=(Parameter("t", Scope.SHARED, required=True),),
    base=Base.REQUIRED,
    paper="Shoemake 1985",
    inputs=(2, 2),
    base_counts=True,
    passes=2,
    cost=2.0,
)

PARALLEL = 0.9995
"""Above this |cos Ω| the sines lose their digits and linear interpolation is as good."""


def merge(job: TensorJob) -> Iterator[Tensor]:
    """[sin((1−t)Ω)θ₀ + sin(tΩ)θ₁] / sin Ω over the flat tensor, Ω the angle between θ₀ (base) and θ₁.

    Linear interpolation where the two are parallel, or one is zero (there is no angle then).
    """
    assert job.base is not None  # noqa: S101 - the plan gives it to every method with a required base
    (other,) = job.inputs
    first, second = _coefficients(job, float(job.parameters["t"]))
    for start, stop in job.chunks():
        result = job.base.source.chunk(start, stop).mul_(first)
        yield result.add_(other.source.chunk(start, stop), alpha=second)


def _coefficients(job: TensorJob, t: float) -> tuple[float, float]:
    assert job.base is not None  # noqa: S101
    (other,) = job.inputs
    dot, square0, square1 = Sum(), Sum(), Sum()
    for start, stop in job.chunks():
        zero, one = job.base.source.chunk(start, stop), other.source.chunk(start, stop)
        dot.add_product(zero, one)
        square0.add_product(zero, zero)
        square1.add_product(one, one)
    norms = math.sqrt(square0.value) * math.sqrt(square1.value)
    cosine = dot.value / norms if norms > 0 else 1.0
    if abs(cosine) > PARALLEL:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)

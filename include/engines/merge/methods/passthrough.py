"""One model's tensors as they are, or scaled: stacking layers ("frankenmerges") and pruning by ``slices``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engines.merge.methods.job import TensorJob
from engines.merge.methods.registry import Base, Method, Parameter, Scope

if TYPE_CHECKING:
    from torch import Tensor

METHOD = Method(
    name="passthrough",
    target="engines.merge.methods.passthrough:merge",
    parameters=(Parameter("scale", Scope.INPUT),),
    base=Base.IGNORED,
    paper="no paper; θ·scale",
    inputs=(1, 1),
)


def merge(job: TensorJob) -> Iterator[Tensor]:
    """The only input, times ``scale`` where it is given."""
    (entry,) = job.inputs
    scale = entry.parameters.get("scale")
    for start, stop in job.chunks():
        chunk = entry.source.chunk(start, stop)
        yield chunk if scale is None else chunk.mul_(float(scale))

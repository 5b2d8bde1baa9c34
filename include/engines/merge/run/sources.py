"""Inputs of a tensor's merge as chunks, from files or memory, rounded and checked to be finite."""

# ruff: noqa: TID253 - chunks are torch tensors; only imported to merge
from __future__ import annotations

from typing import Protocol

import torch

from engines.contract import BadInputError
from engines.merge.methods.job import MethodInput, TensorJob
from engines.merge.plan.planned import PlannedInput, PlannedTensor
from engines.tensor.dtypes import DType


class TensorAccess(Protocol):
    """A model's tensors by name and element range."""

    def chunk(self, name: str, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Elements [start, stop) as a flat tensor that the caller owns."""
        ...


class CheckedSource:
    """One input tensor.

    The first pass over it checks that every element is finite; a small one is read once.
    """

    def __init__(
        self,
        access: TensorAccess,
        planned: PlannedInput,
        dtype: torch.dtype,
        cast: torch.dtype | None,
        *,
        keep_elements: int,
        allow_nonfinite: bool,
    ) -> None:
        self._access, self._planned, self._dtype, self._cast = access, planned, dtype, cast
        self._checked_to = planned.info.numel if allow_nonfinite else 0
        self._keep = planned.info.numel <= keep_elements
        self._kept: torch.Tensor | None = None

    def chunk(self, start: int, stop: int) -> torch.Tensor:
        """Elements [start, stop) in the compute type.

        Raises BadInputError naming model and tensor for NaN, infinity.
        """
        if not self._keep:
            return self._read(start, stop)
        if self._kept is None:
            self._kept = self._read(0, self._planned.info.numel)
        return self._kept[start:stop].clone()

    def _read(self, start: int, stop: int) -> torch.Tensor:
        if self._cast is None:
            chunk = self._access.chunk(self._planned.info.name, start, stop, self._dtype)
        else:
            chunk = self._access.chunk(self._planned.info.name, start, stop, self._cast).to(self._dtype)
        if stop > self._checked_to:
            self._check(chunk, start)
            self._checked_to = stop
        return chunk

    def _check(self, chunk: torch.Tensor, start: int) -> None:
        # A sum is finite only if every element is; the exact look is needed only where it is not.
        if bool(torch.isfinite(chunk.sum())):
            return
        bad = (~torch.isfinite(chunk)).nonzero()
        if bad.numel():
            info = self._planned.info
            raise BadInputError(
                f"{info.file}: tensor {info.name} of {self._planned.model} holds {float(chunk[bad[0]])} at "
                f"element {start + int(bad[0])}; repair the model, or allow non-finite inputs explicitly",
                code="nonfinite_input",
                file=str(info.file),
                field=info.name,
            )


def make_job(
    tensor: PlannedTensor,
    access: dict[object, TensorAccess],
    cast: DType | None,
    *,
    seed: int,
    chunk_elements: int,
    allow_nonfinite: bool = False,
) -> TensorJob:
    """The method's view of a planned tensor; ``access`` by model reference."""
    dtype = getattr(torch, tensor.compute)

    def method_input(planned: PlannedInput) -> MethodInput:
        rounded = cast is not None and cast.size < planned.info.dtype.size
        rounded = rounded or (cast is not None and cast.size == 2 and planned.info.dtype != cast)
        source = CheckedSource(
            access[planned.model],
            planned,
            dtype,
            cast.torch() if rounded and cast else None,
            keep_elements=chunk_elements,
            allow_nonfinite=allow_nonfinite,
        )
        return MethodInput(str(planned.model), source, planned.parameters)

    return TensorJob(
        name=tensor.name,
        shape=tensor.shape,
        inputs=tuple(method_input(entry) for entry in tensor.inputs),
        base=None if tensor.base is None else method_input(tensor.base),
        parameters=tensor.parameters,
        seed=seed,
        chunk_elements=chunk_elements,
    )


def to_stored(chunk: torch.Tensor, tensor: PlannedTensor) -> torch.Tensor:
    """A result's chunk in the stored type. Raises BadInputError where a finite result does not fit it."""
    dtype = tensor.dtype.torch()
    if tensor.dtype.size == 2 and chunk.numel():
        # The greatest value that rounds to a finite one lies half a step above the type's greatest.
        info = torch.finfo(dtype)
        bound = info.max * (1 + info.eps / 4)
        low, high = torch.aminmax(chunk)
        value = max(-float(low), float(high))
        if bound <= value < float("inf"):
            raise BadInputError(
                f"tensor {tensor.name}: {value:g} does not fit {tensor.dtype.name}; set out_dtype: float32",
                code="overflow",
                field="out_dtype",
            )
    return chunk.to(dtype)

"""The plan of a merge: every output tensor with its inputs, its parameters and its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.merge.recipe.data import Recipe
from engines.merge.recipe.references import ModelRef
from engines.tensor.dtypes import DType
from engines.tensor.layout import ModelLayout, TensorInfo


@dataclass(frozen=True)
class PlannedInput:
    """One model's tensor for one output tensor."""

    model: ModelRef
    info: TensorInfo
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedTensor:
    """One output tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    """Stored type."""
    inputs: tuple[PlannedInput, ...]
    """In recipe order, without the base where the method has one."""
    base: PlannedInput | None
    parameters: Mapping[str, Any]
    copied: bool = False
    """Bytes of the only input as they are."""

    @property
    def sources(self) -> tuple[PlannedInput, ...]:
        """All inputs, the base first."""
        return (self.base, *self.inputs) if self.base else self.inputs

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.inputs[0].info.numel if self.inputs else 0

    @property
    def nbytes(self) -> int:
        """Bytes in the output."""
        return self.numel * self.dtype.size

    @property
    def compute(self) -> str:
        """Type of the arithmetic: float64 where a float64 is read or written, else float32."""
        types = {entry.info.dtype.name for entry in self.sources} | {self.dtype.name}
        return "float64" if "float64" in types else "float32"


@dataclass(frozen=True)
class MergePlan:
    """The plan of a merge."""

    recipe: Recipe
    models: Mapping[ModelRef, ModelLayout]
    donor: ModelLayout
    tokenizer: ModelLayout
    """Whose tokenizer files are copied."""
    config: Mapping[str, Any]
    """The output's config.json."""
    tensors: tuple[PlannedTensor, ...]
    cast: DType | None
    """The recipe's ``dtype``, which inputs are rounded to."""
    warnings: tuple[str, ...] = ()

    def input_paths(self) -> list[Path]:
        """Every folder and file that the merge reads, links followed: none of them may be its output."""
        found: list[Path] = [] if self.recipe.file is None else [uri_to_path(self.recipe.file)]
        for layout in (*self.models.values(), self.donor, self.tokenizer):
            found += [layout.folder, *(path.resolve() for path in layout.files)]
        return found

    @property
    def output_bytes(self) -> int:
        """Bytes of all output tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Number of weights of the output."""
        return sum(tensor.numel for tensor in self.tensors if tensor.dtype.floating)

    @property
    def read_bytes(self) -> int:
        """Bytes read in all passes."""
        passes = self.recipe.method.passes
        return sum(
            entry.info.nbytes * (1 if tensor.copied else passes)
            for tensor in self.tensors
            for entry in tensor.sources
        )

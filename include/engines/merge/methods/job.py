"""The merge of one output tensor: its inputs (read by element range), parameters, seed and chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 16
"""Elements per random block. Chunks begin at multiples of it, so no result depends on the chunk's size."""


class ChunkSource(Protocol):
    """A flat tensor that is read piece by piece."""

    def chunk(self, start: int, stop: int) -> Tensor:
        """Elements [start, stop) in the compute type on the compute device; the caller may modify them."""
        ...


@dataclass(frozen=True)
class MethodInput:
    """One input of a tensor's merge."""

    label: str
    """The model, as error messages name it."""
    source: ChunkSource
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorJob:
    """All that a method needs for one tensor. ``merge(job)`` yields the result's chunks in order."""

    name: str
    shape: tuple[int, ...]
    inputs: tuple[MethodInput, ...]
    """In recipe order; without the base where ``base`` holds it."""
    base: MethodInput | None
    parameters: Mapping[str, Any]
    seed: int
    """The run's seed; ``tensor_seed`` is what a method uses."""
    chunk_elements: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Element ranges that cover the tensor in order; an empty tensor has none."""
        for start in range(0, self.numel, self.chunk_elements):
            yield start, min(start + self.chunk_elements, self.numel)

    def tensor_seed(self, index: int = 0) -> int:
        """Seed of 128 bits for the tensor's input ``index``, from run seed, tensor name and index alone."""
        text = f"{self.seed}\0{self.name}\0{index}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:16], "big")

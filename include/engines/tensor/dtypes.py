"""Element types: their names in safetensors headers, in recipes and configs, and in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """An element type of a safetensors file."""

    code: str
    """In the header."""
    name: str
    """In recipes, configs and torch."""
    size: int
    """Bytes."""
    floating: bool
    """Whether weights of this type can be merged; others are copied."""

    def torch(self) -> torch.dtype:
        """The same type in torch."""
        import torch

        return getattr(torch, self.name)  # type: ignore[no-any-return]


DTYPES = {
    dtype.code: dtype
    for dtype in (
        DType("F64", "float64", 8, True),
        DType("F32", "float32", 4, True),
        DType("F16", "float16", 2, True),
        DType("BF16", "bfloat16", 2, True),
        DType("I64", "int64", 8, False),
        DType("I32", "int32", 4, False),
        DType("I16", "int16", 2, False),
        DType("I8", "int8", 1, False),
        DType("U8", "uint8", 1, False),
        DType("BOOL", "bool", 1, False),
    )
}
BY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}


def promote(dtypes: list[DType]) -> DType:
    """The smallest floating type that holds all, as torch has it: float16 with bfloat16 is float32."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        if dtype != result:
            larger = max(dtype, result, key=lambda entry: entry.size)
            result = larger if dtype.size != result.size else BY_NAME["float32"]
    return result

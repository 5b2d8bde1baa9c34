"""TensorEngine: reads models piece by piece and writes model folders, on one device, in bounded memory."""

# ruff: noqa: TID253 - computes with torch; only imported by engines that do
from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from engines.contract import BadInputError, EngineError
from engines.tensor.layout import ModelLayout, read_layout
from engines.tensor.reader import TensorReader
from engines.tensor.writer import SHARD_BYTES, ShardedWriter, TensorSpec

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
CPU_CHUNK = 1 << 18
"""Elements per piece on a CPU: three float32 pieces stay in the second-level cache's reach."""
CUDA_CHUNK = 1 << 24
"""Elements per piece on a GPU, where starting a kernel costs more than memory."""
SMALL_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 20}
"""Elements per piece where the SPEC says ``chunked``, as after a GPU ran out of memory."""


def resolve_device(device: str) -> str:
    """``auto`` is the first GPU, or the CPU where torch sees none; others are checked.

    Raises BadInputError for a name that is no device, EngineError where there is no such GPU here.
    """
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in {"cpu", "cuda"} or (index and not index.isdigit()):
        raise BadInputError(f"device: '{device}' is none; one of auto, cpu, cuda, cuda:N", field="device")
    if kind == "cpu":
        return "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        message = f"device: {device} was asked for, but torch sees {count} GPU(s) here"
        raise EngineError(message, code="no_device", field="device")
    return f"cuda:{int(index or 0)}"


def keep_freed_memory() -> None:
    """Let the C library keep freed pieces for the next ones (glibc).

    By default it gives memory above 128 KB back to the kernel, which clears it again page by page: a tenth of
    a merge's time. What is kept is a few pieces.
    """
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):
            library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
            library.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


class TensorEngine:
    """Reads and writes models on one device. ``chunked`` makes pieces smaller."""

    def __init__(self, device: str = "auto", *, chunked: bool = False) -> None:
        keep_freed_memory()
        self.device = resolve_device(device)
        kind = self.device.partition(":")[0]
        normal = CPU_CHUNK if kind == "cpu" else CUDA_CHUNK
        self.chunk_elements = SMALL_CHUNK[kind] if chunked else normal

    def open(self, model: ModelLayout | Path) -> TensorReader:
        """A reader of a model folder. Raises BadInputError where its files are missing or corrupt."""
        layout = model if isinstance(model, ModelLayout) else read_layout(model)
        return TensorReader(layout, self.device)

    def create(
        self, folder: Path, tensors: Sequence[TensorSpec], *, shard_bytes: int = SHARD_BYTES, written: int = 0
    ) -> ShardedWriter:
        """A writer of a model folder (see ``ShardedWriter``)."""
        return ShardedWriter(folder, tensors, shard_bytes=shard_bytes, written=written)

    def peak_memory(self) -> int:
        """Greatest number of bytes that torch has held on the GPU; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device != "cpu" else 0

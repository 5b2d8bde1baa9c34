"""Reads tensors of a model folder piece by piece into fixed buffers, whatever the size of model or shard."""

# ruff: noqa: TID253 - reading yields torch tensors; only engines that compute import this module
from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from types import TracebackType

import torch

from engines.contract import BadInputError
from engines.tensor.layout import ModelLayout, TensorInfo

_OPEN_FILES = 32


class TensorReader:
    """Element ranges of a model's tensors. Not safe for use by several threads at once."""

    def __init__(self, layout: ModelLayout, device: str = "cpu") -> None:
        self.layout = layout
        self.device = torch.device(device)
        self._descriptors: OrderedDict[Path, int] = OrderedDict()
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self.bytes_read = 0

    def info(self, name: str) -> TensorInfo:
        """The tensor's header entry."""
        return self.layout.tensors[name]

    def raw(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Elements [start, stop) as stored, flat, on the CPU.

        The result is a view of the reader's buffer, valid until the next read. Raises BadInputError if the
        file has become shorter than its header says.
        """
        info = self.info(name)
        size = (stop - start) * info.dtype.size
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.uint8)
        view = memoryview(self._buffer.numpy().data)[:size]
        done, offset = 0, info.offset + start * info.dtype.size
        descriptor = self._descriptor(info.file)
        while done < size:
            count = os.preadv(descriptor, [view[done:]], offset + done)
            if count == 0:
                raise BadInputError(
                    f"{info.file} is truncated: it ends inside tensor {name}",
                    code="corrupt_shard",
                    file=str(info.file),
                    field=name,
                )
            done += count
        self.bytes_read += size
        return self._buffer[:size].view(info.dtype.torch())

    def chunk(self, name: str, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Elements [start, stop), flat, converted to ``dtype`` on the device; the caller owns them."""
        return self.raw(name, start, stop).to(device=self.device, dtype=dtype, copy=True)

    def tensor(self, name: str) -> torch.Tensor:
        """A whole tensor as stored, on the device."""
        info = self.info(name)
        flat = self.raw(name, 0, info.numel).to(device=self.device, copy=True)
        return flat.view(info.shape)

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _descriptor(self, path: Path) -> int:
        if path in self._descriptors:
            self._descriptors.move_to_end(path)
            return self._descriptors[path]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadInputError(f"cannot read {path}: {error.strerror}", file=str(path)) from error
        self._descriptors[path] = descriptor
        if len(self._descriptors) > _OPEN_FILES:
            os.close(self._descriptors.popitem(last=False)[1])
        return descriptor

"""Writes a model folder as sharded safetensors, one tensor after the other, in pieces as they are computed.

Names, types and shapes are known before the first byte, so every shard's header is written first and its
bytes follow in order: memory holds one piece, whatever the size of tensor, shard or model. The folder is
written beside and renamed when it is complete; ``position`` says after which tensor a broken write can go on.
"""

# ruff: noqa: TID253 - pieces are torch tensors; only engines that compute import this module
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.artifacts.folder import fsync_folder
from engines.contract import EngineError
from engines.tensor.dtypes import DType
from engines.tensor.layout import INDEX, SINGLE

SHARD_BYTES = 5_000_000_000
"""Default limit of a shard, in bytes."""
_COPY = 1 << 20


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to write."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        size = self.dtype.size
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True)
class Shard:
    """One file: its tensors in order, and where each begins."""

    file: str
    header: bytes
    tensors: tuple[TensorSpec, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(tensor.nbytes for tensor in self.tensors)


def plan_shards(tensors: Sequence[TensorSpec], limit: int) -> list[Shard]:
    """Cut the tensors, in order, into shards of at most ``limit`` bytes; a larger tensor is one shard."""
    groups: list[list[TensorSpec]] = [[]]
    held = 0
    for tensor in tensors:
        if groups[-1] and held + tensor.nbytes > limit:
            groups.append([])
            held = 0
        groups[-1].append(tensor)
        held += tensor.nbytes
    count = len(groups)
    names = (
        [SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    )
    return [Shard(name, _header(group), tuple(group)) for name, group in zip(names, groups, strict=True)]


class ShardedWriter:
    """Writes the tensors of ``tensors`` in their order into ``folder``.

    ``written``: tensors that an earlier writer of the same list has completed there; what follows them is
    overwritten. Raises EngineError where those bytes are not there.
    """

    def __init__(
        self, folder: Path, tensors: Sequence[TensorSpec], *, shard_bytes: int = SHARD_BYTES, written: int = 0
    ) -> None:
        self.folder = folder
        self.shards = plan_shards(tensors, shard_bytes)
        self.digests: dict[str, str] = {}
        """SHA-256 of each finished shard."""
        self.position = 0
        """Tensors completely written (not necessarily on the disk yet: ``sync``)."""
        self._pending = [
            (number, tensor) for number, shard in enumerate(self.shards) for tensor in shard.tensors
        ]
        self._file: int | None = None
        self._shard = -1
        self._hash = hashlib.sha256()
        self._left = 0
        folder.mkdir(parents=True, exist_ok=True)
        if written:
            self._resume(written)

    def write(self, piece: torch.Tensor) -> None:
        """Append elements to the current tensor; call ``end_tensor`` after its last."""
        data = memoryview(piece.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        self.write_bytes(data)

    def write_bytes(self, data: memoryview | bytes) -> None:
        """Append bytes to the current tensor. Raises EngineError where they exceed it."""
        number, tensor = self._pending[self.position]
        if number != self._shard:
            self._open(number)
        if self._file is None or len(data) > tensor.nbytes - self._left:
            raise EngineError(
                f"more data than tensor {tensor.name} holds", code="internal", field=tensor.name
            )
        view = memoryview(data)
        self._hash.update(view)
        self._left += len(view)
        while view:
            view = view[os.write(self._file, view) :]

    def end_tensor(self) -> None:
        """Finish the current tensor. Raises EngineError where bytes are missing."""
        number, tensor = self._pending[self.position]
        if number != self._shard:
            self._open(number)
        if self._left != tensor.nbytes:
            raise EngineError(
                f"tensor {tensor.name} got {self._left} of {tensor.nbytes} bytes",
                code="internal",
                field=tensor.name,
            )
        self._left = 0
        self.position += 1
        if self.position == len(self._pending) or self._pending[self.position][0] != number:
            self._finish_shard()

    def sync(self) -> None:
        """Make what is written durable."""
        if self._file is not None:
            os.fsync(self._file)
        fsync_folder(self.folder)

    def close(self) -> None:
        """Close the current shard's file; the folder stays as it is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def finish(self) -> None:
        """Write the index (several shards). Raises EngineError where tensors are missing."""
        if self.position != len(self._pending):
            missing = self._pending[self.position][1].name
            raise EngineError(f"tensor {missing} was not written", code="internal", field=missing)
        if len(self.shards) > 1:
            total = sum(tensor.nbytes for shard in self.shards for tensor in shard.tensors)
            names = {tensor.name: shard.file for shard in self.shards for tensor in shard.tensors}
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
            (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _open(self, number: int) -> None:
        shard = self.shards[number]
        path = self.folder / shard.file
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._shard, self._hash, self._left = number, hashlib.sha256(shard.header), 0
        os.write(self._file, shard.header)

    def _finish_shard(self) -> None:
        self.digests[self.shards[self._shard].file] = self._hash.hexdigest()
        self.sync()
        self.close()

    def _resume(self, written: int) -> None:
        """Go on after ``written`` tensors: hash what is there again, cut off what follows."""
        if written > len(self._pending):
            raise EngineError(f"{self.folder} cannot hold {written} tensors", code="resume")
        number = self._pending[written - 1][0]
        for index in range(number + 1):
            shard = self.shards[index]
            held = [tensor for at, tensor in self._pending[:written] if at == index]
            size = len(shard.header) + sum(tensor.nbytes for tensor in held)
            digest = _digest_prefix(self.folder / shard.file, shard.header, size)
            if len(held) == len(shard.tensors):
                self.digests[shard.file] = digest.hexdigest()
            else:
                self._file = os.open(self.folder / shard.file, os.O_RDWR | os.O_CLOEXEC)
                os.ftruncate(self._file, size)
                os.lseek(self._file, 0, os.SEEK_END)
                self._shard, self._hash = index, digest
        self.position = written


def _header(tensors: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype.code,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (
        -len(text) % 8
    )  # tensors begin at a multiple of 8 bytes, as readers that map files expect
    return len(text).to_bytes(8, "little") + text


def _digest_prefix(path: Path, header: bytes, size: int):  # type: ignore[no-untyped-def]
    digest, left = hashlib.sha256(), size
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                raise EngineError(f"{path} was begun by another merge", code="resume", file=str(path))
            digest.update(header)
            left -= len(header)
            while left and (data := file.read(min(_COPY, left))):
                digest.update(data)
                left -= len(data)
    except OSError as error:
        raise EngineError(
            f"cannot go on with {path}: {error.strerror}", code="resume", file=str(path)
        ) from error
    if left:
        raise EngineError(f"{path} lacks {left} bytes of what was saved", code="resume", file=str(path))
    return digest

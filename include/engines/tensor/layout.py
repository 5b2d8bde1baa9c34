"""The layout of a model folder: reads and checks config, index and headers before any tensor is read.

The format: 8 bytes little-endian length, that much JSON ``{name: {dtype, shape, data_offsets}}``, then the
bytes. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.contract import BadInputError
from engines.tensor.dtypes import DTYPES, DType

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor in one file."""

    name: str
    file: Path
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    """Of the first byte, from the file's start."""
    nbytes: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelLayout:
    """A model folder: its config, and its tensors by name."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    """What a person should know about what was read, in sentences."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Number of elements of all floating tensors."""
        return sum(info.numel for info in self.tensors.values() if info.dtype.floating)


def read_layout(folder: Path) -> ModelLayout:
    """Read config and headers of a model folder.

    Raises BadInputError naming file and tensor where a file is missing, truncated or corrupt, the index and
    the files disagree, or two files hold a tensor of the same name.
    """
    config = read_model_config(folder)
    index, single = folder / INDEX, folder / SINGLE
    # The same choice as transformers makes, so that what is evaluated is what is merged.
    is_sharded = index.exists() and not single.exists()
    tensors = _sharded(folder, index) if is_sharded else read_header(_single_file(folder))
    if not tensors:
        raise BadInputError(f"{folder} holds no tensors", file=str(folder), field="model")
    files = tuple(sorted({info.file for info in tensors.values()}))
    return ModelLayout(folder, config, tensors, files, () if is_sharded else _beside(folder))


def read_model_config(folder: Path) -> dict[str, Any]:
    """A model folder's config. Raises BadInputError where the folder or the file is missing or broken."""
    if not folder.is_dir():
        raise BadInputError(f"there is no model folder {folder}", file=str(folder), field="model")
    return read_json_object(folder / "config.json", "every model folder needs its config")


def _beside(folder: Path) -> tuple[str, ...]:
    """A note where an index beside the single file names other files: two models lie in one folder."""
    index = folder / INDEX
    if not index.exists():
        return ()
    try:
        named = set(_weight_map(index).values())
    except BadInputError:
        named = set()
    return () if named == {SINGLE} else (f"{folder} has both {SINGLE} and {INDEX}: {SINGLE} is read",)


def read_json_object(path: Path, why: str) -> dict[str, Any]:
    """Read a JSON object; ``why`` ends the sentence where the file is missing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInputError(f"{path} is missing; {why}", file=str(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path} is not readable JSON: {error}", file=str(path)) from error
    if not isinstance(value, dict):
        raise BadInputError(f"{path} must hold a JSON object", file=str(path))
    return value


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one safetensors file.

    Raises BadInputError where the header does not describe the file exactly.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 0 < length <= min(MAX_HEADER, size - 8):
                raise _corrupt(path, f"{size} bytes cannot hold a header of {length} bytes (truncated?)")
            text = file.read(length)
    except FileNotFoundError as error:
        raise BadInputError(f"{path} is missing", code="missing_shard", file=str(path)) from error
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror}", file=str(path)) from error
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is no JSON object")
    header.pop("__metadata__", None)
    data = 8 + length
    tensors = {name: _info(path, name, entry, data) for name, entry in header.items()}
    _check_extent(path, sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)), data, size)
    return tensors


def _info(path: Path, name: str, entry: Any, data: int) -> TensorInfo:
    try:
        code, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _corrupt(path, f"tensor {name} lacks dtype, shape or data_offsets", name) from error
    if not isinstance(code, str) or code not in DTYPES:
        known = ", ".join(DTYPES)
        raise BadInputError(
            f"{path}: tensor {name} has type {code}, which is not supported; known: {known}",
            file=str(path),
            field=name,
        )
    whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    dtype = DTYPES[code]
    if not whole or end - begin != math.prod(shape) * dtype.size:
        raise _corrupt(path, f"tensor {name} of shape {list(shape)} does not fit bytes {begin}-{end}", name)
    return TensorInfo(name, path, dtype, shape, data + begin, end - begin)


def _check_extent(path: Path, tensors: list[TensorInfo], data: int, size: int) -> None:
    at = data
    for info in tensors:
        if info.offset != at:
            raise _corrupt(path, f"tensor {info.name} overlaps another or leaves a gap before it", info.name)
        at += info.nbytes
        if at > size:
            missing = f"it ends at byte {at}, the file at {size}: the file is truncated"
            raise _corrupt(path, f"tensor {info.name} is incomplete; {missing}", info.name)
    if at != size:
        raise _corrupt(path, f"{size - at} bytes follow the last tensor")


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name to shard, every shard a plain file name."""
    weights = read_json_object(index, "").get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise BadInputError(f"{index} has no weight_map", file=str(index), field="weight_map")
    for name, file in weights.items():
        if not isinstance(file, str):
            raise BadInputError(
                f"{index}: weight_map.{name} is {file!r}, not the name of a file",
                file=str(index),
                field="weight_map",
            )
        if "/" in file or "\\" in file or file in {"", ".", ".."}:
            raise BadInputError(
                f"{index}: shard {file!r} is no plain file name", file=str(index), field="weight_map"
            )
    return weights


def _sharded(folder: Path, index: Path) -> dict[str, TensorInfo]:
    weights = _weight_map(index)
    tensors: dict[str, TensorInfo] = {}
    for file in sorted(set(weights.values())):
        try:
            found = read_header(folder / file)
        except BadInputError as error:
            if error.code == "missing_shard":
                first = next(name for name, where in weights.items() if where == file)
                raise BadInputError(
                    f"{folder / file} is missing; {index.name} says it holds {first}",
                    code="missing_shard",
                    file=str(folder / file),
                    field=first,
                ) from error
            raise
        for name, info in found.items():
            if name in tensors:
                other = tensors[name].file.name
                raise BadInputError(
                    f"{folder}: tensor {name} is in both {other} and {file}", file=str(info.file), field=name
                )
            tensors[name] = info
    for name, file in weights.items():
        if name not in tensors or tensors[name].file.name != file:
            raise BadInputError(
                f"{folder / file} lacks tensor {name}, which {index.name} says it holds",
                file=str(folder / file),
                field=name,
            )
    return tensors


def _single_file(folder: Path) -> Path:
    single = folder / SINGLE
    if single.exists():
        return single
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1 and not _is_part(found[0]):
        return found[0]
    if found:
        missing = folder / INDEX
        need = (
            f"{found[0].name} is one of several and needs" if len(found) == 1 else f"{len(found)} shards need"
        )
        raise BadInputError(f"{missing} is missing; {need} it", file=str(missing))
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        message = f"{pickled[0]} is a pickle, which could run code; save the model as safetensors"
        raise BadInputError(message, code="pickle", file=str(pickled[0]))
    raise BadInputError(f"{single} is missing", code="missing_shard", file=str(single))


def _is_part(file: Path) -> bool:
    """Whether the name implies other shards, so that a model cannot lose half of its layers unnoticed."""
    numbers = re.search(r"-of-(\d+)\.safetensors$", file.name)
    return numbers is not None and int(numbers[1]) > 1


def _corrupt(path: Path, message: str, field: str | None = None) -> BadInputError:
    return BadInputError(f"{path} is corrupt: {message}", code="corrupt_shard", file=str(path), field=field)

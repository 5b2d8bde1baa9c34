"""Reading and writing piece by piece: what goes out comes in again, and a broken write goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engines.artifacts import digest_file
from engines.contract import BadInputError, EngineError
from engines.tensor.dtypes import BY_NAME, promote
from engines.tensor.engine import TensorEngine, resolve_device
from engines.tensor.layout import INDEX, read_layout
from engines.tensor.writer import ShardedWriter, TensorSpec

TYPES = ["float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool"]


def content() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"t.{name}": (torch.randn(7, 5, generator=generator) * 9).to(getattr(torch, name)) for name in TYPES
    }
    return {**tensors, "scalar": torch.tensor(1.5), "empty": torch.empty(0, 3)}


def specs(tensors: dict[str, torch.Tensor]) -> list[TensorSpec]:
    return [
        TensorSpec(name, BY_NAME[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))
        for name, tensor in tensors.items()
    ]


def pieces(tensor: torch.Tensor, size: int = 8) -> Iterator[torch.Tensor]:
    yield from tensor.reshape(-1).split(size) if tensor.numel() else ()


def write(folder: Path, tensors: dict[str, torch.Tensor], shard_bytes: int) -> ShardedWriter:
    writer = ShardedWriter(folder, specs(tensors), shard_bytes=shard_bytes)
    for tensor in tensors.values():
        for piece in pieces(tensor):
            writer.write(piece)
        writer.end_tensor()
    writer.finish()
    (folder / "config.json").write_text("{}")
    return writer


@pytest.mark.parametrize("shard_bytes", [1, 100, 300, 10**9])
def test_every_type_round_trips_through_any_shard_size(tmp_path: Path, shard_bytes: int) -> None:
    tensors = content()
    writer = write(tmp_path, tensors, shard_bytes)
    layout = read_layout(tmp_path)
    assert set(layout.tensors) == set(tensors)
    with TensorEngine("cpu").open(layout) as reader:
        for name, tensor in tensors.items():
            assert torch.equal(reader.tensor(name), tensor), name
            assert reader.tensor(name).dtype == tensor.dtype
    for file, digest in writer.digests.items():
        assert digest_file(tmp_path / file)[0] == digest
        held = load_file(tmp_path / file)  # the format's own library agrees
        assert all(torch.equal(held[name], tensors[name]) for name in held)
        with safe_open(tmp_path / file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}  # without it transformers refuses the file
    assert (tmp_path / INDEX).exists() == (len(writer.shards) > 1)
    assert all(
        sum(t.nbytes for t in shard.tensors) <= shard_bytes or len(shard.tensors) == 1
        for shard in writer.shards
    )


def test_the_index_counts_all_bytes_and_names_every_tensor(tmp_path: Path) -> None:
    tensors = content()
    write(tmp_path, tensors, 100)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in tensors.values())
    assert set(index["weight_map"]) == set(tensors)


@pytest.mark.parametrize("done", range(1, 10))
def test_a_write_that_broke_goes_on_to_the_same_bytes(tmp_path: Path, done: int) -> None:
    tensors = content()
    whole = write(tmp_path / "whole", tensors, 200)
    broken = ShardedWriter(tmp_path / "part", specs(tensors), shard_bytes=200)
    items = list(tensors.values())
    for tensor in items[:done]:
        for piece in pieces(tensor):
            broken.write(piece)
        broken.end_tensor()
    if done < len(items) and items[done].numel():
        broken.write(items[done].reshape(-1)[:1])  # half a tensor more, which does not count
    broken.close()
    resumed = ShardedWriter(tmp_path / "part", specs(tensors), shard_bytes=200, written=done)
    for tensor in items[done:]:
        for piece in pieces(tensor):
            resumed.write(piece)
        resumed.end_tensor()
    resumed.finish()
    assert resumed.digests == whole.digests
    for file in whole.digests:
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_resume_without_the_bytes_is_refused(tmp_path: Path) -> None:
    tensors = content()
    write(tmp_path, tensors, 200)
    first = sorted(tmp_path.glob("*.safetensors"))[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(EngineError, match="lacks 1 bytes"):
        ShardedWriter(tmp_path, specs(tensors), shard_bytes=200, written=len(tensors))


def test_too_many_or_too_few_elements_are_refused(tmp_path: Path) -> None:
    spec = [TensorSpec("a", BY_NAME["float32"], (2,))]
    writer = ShardedWriter(tmp_path / "more", spec)
    with pytest.raises(EngineError, match="more data than tensor a holds"):
        writer.write(torch.zeros(3))
    writer = ShardedWriter(tmp_path / "less", spec)
    writer.write(torch.zeros(1))
    with pytest.raises(EngineError, match="tensor a got 4 of 8 bytes"):
        writer.end_tensor()
    with pytest.raises(EngineError, match="tensor a was not written"):
        writer.finish()


def test_a_file_that_shrinks_after_its_header_was_read_is_noticed(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1000)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    layout = read_layout(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with (
        TensorEngine("cpu").open(layout) as reader,
        pytest.raises(BadInputError, match="ends inside tensor a"),
    ):
        reader.tensor("a")


def test_a_piece_belongs_to_its_reader(tmp_path: Path) -> None:
    save_file({"a": torch.arange(10.0)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with TensorEngine("cpu").open(tmp_path) as reader:
        first = reader.chunk("a", 0, 3, torch.float32)
        first.add_(100)
        assert reader.chunk("a", 0, 3, torch.float32).tolist() == [0, 1, 2]
        assert reader.chunk("a", 7, 10, torch.float64).dtype == torch.float64


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        (["float16", "float16"], "float16"),
        (["float16", "bfloat16"], "float32"),
        (["bfloat16", "float32"], "float32"),
        (["bfloat16", "float64", "float32"], "float64"),
        (["float16", "bfloat16", "float16"], "float32"),
    ],
)
def test_types_promote_as_torch_promotes(types: list[str], wanted: str) -> None:
    assert promote([BY_NAME[name] for name in types]).name == wanted
    result = getattr(torch, types[0])
    for name in types[1:]:
        result = torch.promote_types(result, getattr(torch, name))
    assert str(result) == f"torch.{wanted}"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "tpu:0"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(BadInputError, match="one of auto, cpu, cuda"):
        resolve_device(device)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match="torch sees"):
        resolve_device("cuda:63")

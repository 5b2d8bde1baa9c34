"""Headers, index and shards: what is read, and the sentence for what is broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.builders.checkpoints import save_model

from engines.contract import BadInputError
from engines.tensor.layout import INDEX, read_header, read_layout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "m"
    save_model(folder, 0)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "m"))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def truncate(folder: Path) -> str:
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:-5])
    return "incomplete; it ends at byte .* truncated"


def cut_header(folder: Path) -> str:
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:40])
    return "cannot hold a header"


def empty(folder: Path) -> str:
    shards(folder)[1].write_bytes(b"")
    return "cannot hold a header"


def garble(folder: Path) -> str:
    path = shards(folder)[1]
    data = bytearray(path.read_bytes())
    data[8:12] = b"\xff\xfe{{"
    path.write_bytes(bytes(data))
    return "header is no JSON"


def grow(folder: Path) -> str:
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes() + b"xx")
    return "2 bytes follow the last tensor"


def remove(folder: Path) -> str:
    shards(folder)[1].unlink()
    return r"is missing; model\.safetensors\.index\.json says it holds"


def point_elsewhere(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    first, second = shards(folder)[:2]
    name = next(name for name, file in index["weight_map"].items() if file == first.name)
    index["weight_map"][name] = second.name
    (folder / INDEX).write_text(json.dumps(index))
    return "lacks tensor"


def invent(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = shards(folder)[0].name
    (folder / INDEX).write_text(json.dumps(index))
    return r"lacks tensor model\.extra\.weight"


def duplicate(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    save_file({"model.norm.weight": torch.ones(16), "other": torch.ones(1)}, folder / "twice.safetensors")
    index["weight_map"]["other"] = "twice.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    return r"tensor model\.norm\.weight is in both"


def escape(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["x"] = "../other.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    return "no plain file name"


def lose_index(folder: Path) -> str:
    (folder / INDEX).unlink()
    return r"index\.json is missing"


def lose_all_but_one(folder: Path) -> str:
    (folder / INDEX).unlink()
    for path in shards(folder)[1:]:
        path.unlink()
    return r"index\.json is missing; model-00001-of-\d+\.safetensors is one of several"


def number_a_shard(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["x"] = 5
    (folder / INDEX).write_text(json.dumps(index))
    return r"weight_map\.x is 5, not the name of a file"


def nest_config(folder: Path) -> str:
    (folder / "config.json").write_text("[" * 100_000)
    return r"config\.json is not readable JSON"


def nest_header(folder: Path) -> str:
    path, text = shards(folder)[0], b"[" * 100_000
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return "its header is no JSON"


def lose_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return r"config\.json is missing"


def break_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return r"config\.json is not readable JSON"


def pickle_only(folder: Path) -> str:
    for path in (*shards(folder), folder / INDEX):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    return "is a pickle, which could run code"


def nothing(folder: Path) -> str:
    for path in (*shards(folder), folder / INDEX):
        path.unlink()
    return r"model\.safetensors is missing"


FAULTS = [
    truncate,
    cut_header,
    empty,
    garble,
    grow,
    remove,
    point_elsewhere,
    invent,
    duplicate,
    escape,
    lose_index,
    lose_all_but_one,
    number_a_shard,
    nest_config,
    nest_header,
    lose_config,
    break_config,
    pickle_only,
    nothing,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_model_is_refused_with_file_and_tensor(model: Path, fault: Callable[[Path], str]) -> None:
    wanted = fault(model)
    with pytest.raises(BadInputError, match=wanted) as caught:
        read_layout(model)
    assert caught.value.file is not None
    assert str(model) in caught.value.file


def header(path: Path, entries: object, data: bytes) -> Path:
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "type F8_E4M3, which is not supported"),
        ({"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}, "which is not supported"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "does not fit bytes 0-4"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "does not fit"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "leaves a gap"),
        ({"dtype": "F32", "shape": [1]}, "lacks dtype, shape or data_offsets"),
        ("text", "lacks dtype, shape or data_offsets"),
    ],
)
def test_a_wrong_header_entry_names_its_tensor(tmp_path: Path, entry: object, words: str) -> None:
    path = header(tmp_path / "x.safetensors", {"a.weight": entry}, b"\0" * 8)
    with pytest.raises(BadInputError, match=words) as caught:
        read_header(path)
    assert caught.value.field == "a.weight"


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path = header(tmp_path / "x.safetensors", {"a": entry, "b": entry}, b"\0" * 4)
    with pytest.raises(BadInputError, match="overlaps"):
        read_header(path)


def test_a_whole_model_is_described_by_its_headers(saved: Path) -> None:
    layout = read_layout(saved)
    assert layout.parameters == 6896
    assert layout.nbytes == 4 * 6896
    assert len(layout.files) == len(shards(saved)) > 1
    assert layout.tensors["model.norm.weight"].shape == (16,)

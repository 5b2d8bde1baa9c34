"""Models of equal shapes that are not alike, packed weights, and folders that hold two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.builders.checkpoints import save_model

from engines.cli import main
from engines.contract import BadInputError
from engines.merge.plan import make_plan, open_models
from engines.merge.planned import MergePlan
from engines.merge.recipe import parse_recipe
from engines.tensor.layout import read_layout


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    save_model(tmp_path / "a", 1)
    save_model(tmp_path / "b", 2)
    return tmp_path / "a", tmp_path / "b"


def change(folder: Path, **fields: Any) -> None:
    """Set fields of a model's config; None takes one out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def recipe(*folders: Path, **more: Any) -> dict[str, Any]:
    models = [{"model": str(folder), "parameters": {"weight": 0.5}} for folder in folders]
    return {"merge_method": "linear", "models": models, "dtype": "float32", **more}


def plan(*folders: Path, **more: Any) -> MergePlan:
    parsed = parse_recipe(recipe(*folders, **more))
    return make_plan(parsed, open_models(parsed))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_attention_heads": 2, "head_dim": 8, "num_key_value_heads": 1}, "num_attention_heads"),
        ({"head_dim": 8}, "head_dim"),
        ({"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}, "rope_theta"),
        ({"rope_parameters": None, "rope_theta": 500000.0}, "rope_theta"),
        (
            {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}},
            "rope_scaling",
        ),
        ({"rms_norm_eps": 0.01}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "mistral"}, "model_type"),
    ],
)
def test_equal_shapes_of_another_meaning_are_refused_by_name_and_allowed_by_name(
    pair: tuple[Path, Path], fields: dict[str, Any], name: str
) -> None:
    change(pair[1], **fields)
    with pytest.raises(BadInputError, match=rf"{name} is .*--allow-mismatch {name}") as caught:
        plan(*pair)
    assert (caught.value.code, caught.value.field) == ("config_mismatch", name)
    assert caught.value.file == str(pair[1] / "config.json")
    allowed = plan(*pair, allow_mismatch=[name, "num_key_value_heads", "head_dim"])
    assert any(name in warning and "allowed" in warning for warning in allowed.warnings)


def test_what_a_config_leaves_out_is_no_difference(pair: tuple[Path, Path]) -> None:
    change(pair[1], head_dim=None, rms_norm_eps=None, rope_parameters=None, rope_theta=10000)
    assert plan(*pair).warnings == ()


def test_other_depths_are_refused_but_in_slices(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    save_model(tmp_path / "deep", 3, num_hidden_layers=4)
    with pytest.raises(BadInputError, match=r"num_hidden_layers is 3 .* and 4 "):
        plan(pair[0], tmp_path / "deep")
    sources = [
        {"sources": [{"model": str(pair[0]), "layer_range": [0, 2]}]},
        {"sources": [{"model": str(tmp_path / "deep"), "layer_range": [2, 4]}]},
    ]
    parsed = parse_recipe({"merge_method": "passthrough", "slices": sources})
    assert len(make_plan(parsed, open_models(parsed)).tensors) > 0


def test_a_field_that_no_config_has_cannot_be_allowed(pair: tuple[Path, Path]) -> None:
    with pytest.raises(BadInputError, match="did you mean 'rope_theta'"):
        plan(*pair, allow_mismatch=["rope_tetha"])


def test_the_command_allows_what_it_is_told(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(pair[1], rms_norm_eps=0.01)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe(*pair)))
    assert main(["merge", str(path), str(tmp_path / "out")]) == 2
    assert "rms_norm_eps is" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["merge", str(path), str(tmp_path / "out"), "--allow-mismatch", "rms_norm_eps"]) == 0
    assert "warning: rms_norm_eps is" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "awq", "fp8"])
def test_a_quantised_model_is_refused_naming_its_method(pair: tuple[Path, Path], method: str) -> None:
    change(pair[1], quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(BadInputError, match=rf"quantization_config says .*\({method}\)") as caught:
        plan(*pair)
    assert caught.value.field == "quantization_config"


def test_packed_tensors_are_refused_where_no_config_tells(pair: tuple[Path, Path]) -> None:
    for folder in pair:
        layout = read_layout(folder)
        state = {
            name: torch.zeros(info.shape) for name, info in layout.tensors.items() if "q_proj" not in name
        }
        state["model.layers.0.self_attn.q_proj.qweight"] = torch.ones((2, 16), dtype=torch.int32)
        for file in (*layout.files, folder / "model.safetensors.index.json"):
            file.unlink(missing_ok=True)
        save_file(state, folder / "model.safetensors")
    with pytest.raises(BadInputError, match=r"q_proj\.qweight belongs to packed \(quantised\) weights"):
        plan(*pair)


def test_a_single_file_beside_an_index_is_what_every_reader_takes_and_it_is_said(
    pair: tuple[Path, Path],
) -> None:
    folder = pair[0]
    assert (folder / "model.safetensors.index.json").is_file()
    ones = {name: torch.ones(info.shape) for name, info in read_layout(folder).tensors.items()}
    save_file(ones, folder / "model.safetensors", metadata={"format": "pt"})
    layout = read_layout(folder)
    assert [file.name for file in layout.files] == ["model.safetensors"]
    said = f"{folder} has both model.safetensors and model.safetensors.index.json: model.safetensors is read"
    assert layout.notes == (said,)
    assert said in plan(*pair).warnings
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(bool((tensor == 1).all()) for name, tensor in loaded.items() if name in ones)

"""Models of equal shapes that are not alike, packed weights, and folders that hold two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.builders.checkpoints import save_model

from engines.cli import main
from engines.contract import BadInputError
from engines.merge.plan.plan import make_plan, open_models
from engines.merge.plan.planned import MergePlan
from engines.merge.recipe.parse import parse_recipe
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


@pytest.mark.parametrize(
    ("mine", "other", "name"),
    [
        # A config of before the field had it: 10,000.
        ({"rope_parameters": None}, {"rope_parameters": None, "rope_theta": 1e6}, "rope_theta"),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e6},
                    "sliding_attention": {"rope_theta": 1e4},
                }
            },
            {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 5e3},
            "rope_theta",
        ),
        ({}, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "rope_scaling"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
            "rope_scaling",
        ),
        ({}, {"attention_bias": True}, "attention_bias"),
        ({"n_group": 2}, {"n_group": 4}, "n_group"),
        ({"vision_config": {"num_heads": 4}}, {"vision_config": {"num_heads": 8}}, "vision_config.num_heads"),
    ],
)
def test_what_configs_say_in_other_forms_or_not_at_all_is_compared_too(
    pair: tuple[Path, Path], mine: dict[str, Any], other: dict[str, Any], name: str
) -> None:
    change(pair[0], **mine)
    change(pair[1], **other)
    with pytest.raises(BadInputError, match=rf"{name} is ") as caught:
        plan(*pair)
    assert caught.value.field == name
    plan(*pair, allow_mismatch=[name.rpartition(".")[2]])


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ({"rms_norm_eps": 1e-6}, {"rms_norm_eps": 9.999999974752427e-07}),
        ({"rope_parameters": None, "rope_theta": 10000, "rope_scaling": None}, {}),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 1.0}}, {}),
        ({"head_dim": None}, {"head_dim": 4}),
        ({"num_key_value_heads": None}, {"num_key_value_heads": 4}),
        ({"hidden_act": "gelu_new"}, {"hidden_act": "gelu_pytorch_tanh"}),
        (
            {"model_type": "gemma", "hidden_act": "gelu"},
            {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"},
        ),
        (
            {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
            {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21},
        ),
        ({"max_position_embeddings": 32}, {"max_position_embeddings": 4096}),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e6},
                    "sliding_attention": {"rope_theta": 1e4},
                }
            },
            {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        ),
        ({"eos_token_id": 2, "use_cache": True}, {"eos_token_id": [2, 3], "use_cache": False}),
    ],
)
def test_one_meaning_in_two_forms_is_no_difference(
    pair: tuple[Path, Path], mine: dict[str, Any], other: dict[str, Any]
) -> None:
    change(pair[0], **mine)
    change(pair[1], **other)
    assert plan(*pair).warnings == ()


def test_fields_that_no_rule_knows_are_warned_of(pair: tuple[Path, Path]) -> None:
    change(pair[0], mixture_sharpness=2, sliding_window=16)
    change(pair[1], mixture_sharpness=3, sliding_window=32)
    warnings = plan(*pair).warnings
    assert any("mixture_sharpness is 2 in" in warning for warning in warnings)
    assert any("sliding_window is 16 in" in warning for warning in warnings)


def test_all_fields_that_differ_are_named_at_once(pair: tuple[Path, Path]) -> None:
    change(pair[1], rms_norm_eps=0.01, hidden_act="gelu")
    with pytest.raises(BadInputError) as caught:
        plan(*pair)
    options = "--allow-mismatch rms_norm_eps --allow-mismatch hidden_act"
    assert options in caught.value.message
    assert "allow_mismatch: [rms_norm_eps, hidden_act]" in caught.value.message


def resave(folder: Path, **tensors: torch.Tensor) -> None:
    """Write a model again as one file, with other tensors; dots in their names are two underscores."""
    state = {}
    for file in read_layout(folder).files:
        state |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    state |= {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_bias_that_the_donor_lacks_is_not_left_out_unless_it_is_allowed(pair: tuple[Path, Path]) -> None:
    resave(pair[1], model__layers__0__self_attn__q_proj__bias=torch.ones(16))
    with pytest.raises(BadInputError, match=r"q_proj\.bias.*--allow-mismatch tensors") as caught:
        plan(*pair)
    assert caught.value.field == "model.layers.0.self_attn.q_proj.bias"
    warnings = plan(*pair, allow_mismatch=["tensors"]).warnings
    assert any("q_proj.bias; left out" in warning for warning in warnings)


@pytest.mark.parametrize(
    "name",
    ["model__layers__0__self_attn__rotary_emb__inv_freq", "model__layers__3__eh_proj__weight", "v_head"],
)
def test_buffers_and_whole_parts_that_the_donor_lacks_are_left_out_with_a_warning(
    pair: tuple[Path, Path], name: str
) -> None:
    resave(pair[1], **{name: torch.ones(4)})
    assert any("left out" in warning for warning in plan(*pair).warnings)


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
    with pytest.raises(
        BadInputError, match=rf"quantization_config says .*quantised \({method}, 4 bits\)"
    ) as caught:
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
    with pytest.raises(BadInputError, match=r"q_proj\.qweight \(int32\) is that of a quantised model"):
        plan(*pair)


def test_whole_numbers_in_a_weight_s_place_are_packed_weights(pair: tuple[Path, Path]) -> None:
    for folder in pair:
        resave(folder, model__layers__0__mlp__up_proj__weight=torch.ones((24, 8), dtype=torch.uint8))
    with pytest.raises(BadInputError, match=r"up_proj\.weight \(uint8\) is that of a quantised model"):
        plan(*pair)


def test_positions_that_are_stored_are_copied(pair: tuple[Path, Path]) -> None:
    for folder in pair:
        resave(folder, model__position_ids=torch.arange(8))
    assert any("model.position_ids is int64: copied" in warning for warning in plan(*pair).warnings)


def test_the_quantisation_is_named_before_a_type_that_only_it_has(pair: tuple[Path, Path]) -> None:
    folder = pair[1]
    resave(folder, model__norm__weight=torch.ones(16).to(torch.float8_e4m3fn))
    change(folder, quantization_config={"quant_method": "compressed-tensors", "format": "float-quantized"})
    with pytest.raises(BadInputError, match=r"\(compressed-tensors, float-quantized\)"):
        plan(*pair)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quantization_config": {"load_in_4bit": True}}, r"quantization_config .*\(bitsandbytes, 4 bits\)"),
        ({"compression_config": {"format": "pack-quantized"}}, "compression_config says"),
        ({"text_config": {"quantization_config": {"quant_algo": "NVFP4"}}}, r"text_config\.quant.*\(NVFP4\)"),
    ],
)
def test_every_place_of_a_config_that_states_a_quantisation_is_read(
    pair: tuple[Path, Path], fields: dict[str, Any], said: str
) -> None:
    change(pair[1], **fields)
    with pytest.raises(BadInputError, match=said):
        plan(*pair)


def test_an_index_of_the_single_file_alone_is_no_second_model(pair: tuple[Path, Path]) -> None:
    resave(pair[0])
    names = dict.fromkeys(read_layout(pair[0]).tensors, "model.safetensors")
    (pair[0] / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert read_layout(pair[0]).notes == ()


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

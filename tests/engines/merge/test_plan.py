"""Plans: structure, precedence, types, ties, and what is refused before a tensor is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.builders.checkpoints import WORDS, save_family, save_model, save_tokenizer

from engines.contract import BadInputError
from engines.inference.checkpoints import read_state
from engines.merge.methods import METHODS, Base
from engines.merge.plan.architecture import split_name
from engines.merge.plan.plan import make_plan, open_models
from engines.merge.plan.planned import MergePlan
from engines.merge.recipe.parse import parse_recipe
from engines.merge.run.in_memory import InMemoryMerger

Q = "model.layers.{}.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(path) for name, path in save_family(tmp_path_factory.mktemp("family")).items()}


def plan_of(recipe: dict[str, Any], **options: Any) -> MergePlan:
    parsed = parse_recipe(recipe, file="r.yaml")
    return make_plan(parsed, open_models(parsed), **options)


def linear(family: dict[str, str], weight: Any = 1.0, **more: Any) -> dict[str, Any]:
    models = [{"model": family[name], "parameters": {"weight": weight}} for name in ("one", "two")]
    return {"merge_method": "linear", "models": models, **more}


def weights(plan: MergePlan, name: str) -> list[float]:
    tensor = next(entry for entry in plan.tensors if entry.name == name)
    return [float(entry.parameters["weight"]) for entry in tensor.inputs]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.layers.7.mlp.up_proj.weight", ("model.layers", 7, "mlp.up_proj.weight")),
        ("model.layers.7.experts.3.w1.weight", ("model.layers", 7, "experts.3.w1.weight")),
        ("h.0.attn.bias", ("h", 0, "attn.bias")),
        ("transformer.h2o.12.a", ("transformer.h2o", 12, "a")),
        ("lm_head.weight", None),
        ("a.b.3", None),
    ],
)
def test_a_numbered_name_is_split_at_its_first_number(name: str, wanted: Any) -> None:
    part = split_name(name)
    assert (part and (part.stack, part.index, part.rest)) == wanted


def test_the_output_has_exactly_the_donors_tensors_in_its_order(family: dict[str, str]) -> None:
    plan = plan_of(linear(family))
    assert {tensor.name for tensor in plan.tensors} == set(plan.donor.tensors)
    assert plan.parameters == 6896
    assert plan.donor.folder == Path(family["one"])


def test_gradients_follow_the_layers_and_start_at_their_first_value_elsewhere(family: dict[str, str]) -> None:
    plan = plan_of(linear(family, [0.2, 1.0, 0.4]))
    assert [weights(plan, Q.format(layer))[0] for layer in range(3)] == [0.2, 1.0, 0.4]
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        assert weights(plan, name) == [0.2, 0.2]


def test_a_scope_without_a_matching_filter_falls_through_to_the_next(family: dict[str, str]) -> None:
    recipe = linear(family, {"value": 0.3, "filter": "mlp"}, parameters={"weight": 0.9})
    plan = plan_of(recipe)
    assert weights(plan, "model.layers.0.mlp.up_proj.weight") == [0.3, 0.3]
    assert weights(plan, Q.format(0)) == [0.9, 0.9]


def test_slices_stack_layers_and_take_their_scopes_in_order(family: dict[str, str]) -> None:
    def source(name: str, first: int, last: int, **parameters: Any) -> dict[str, Any]:
        return {"model": family[name], "layer_range": [first, last], "parameters": parameters}

    recipe = {
        "merge_method": "linear",
        "parameters": {"weight": 0.1},
        "slices": [
            {
                "sources": [source("one", 0, 2, weight=[1, 2]), source("two", 1, 3)],
                "parameters": {"weight": 0.5},
            },
            {"sources": [source("two", 0, 1, weight=[5, 6]), source("one", 2, 3)]},
        ],
    }
    plan = plan_of(recipe)
    assert plan.config["num_hidden_layers"] == 3
    assert weights(plan, Q.format(0)) == [1.0, 0.5]
    assert weights(plan, Q.format(1)) == [2.0, 0.5]
    # One layer in a slice: the gradient's last entry.
    assert weights(plan, Q.format(2)) == [6.0, 0.1]
    names = {t.name: [entry.info.name for entry in t.inputs] for t in plan.tensors}
    assert names[Q.format(1)] == [Q.format(1), Q.format(2)]
    assert names[Q.format(2)] == [Q.format(0), Q.format(2)]
    # The embedding belongs to the first slice, norm and head to the last.
    assert weights(plan, "model.embed_tokens.weight") == [1.0, 0.5]
    assert weights(plan, "lm_head.weight") == [5.0, 0.1]


def test_a_deeper_stack_is_counted_in_the_config(family: dict[str, str]) -> None:
    parts = [
        {"sources": [{"model": family["one"], "layer_range": [a, b]}]} for a, b in ((0, 3), (1, 3), (0, 1))
    ]
    plan = plan_of({"merge_method": "passthrough", "slices": parts})
    assert plan.config["num_hidden_layers"] == 6
    assert all(tensor.copied for tensor in plan.tensors)
    assert {t.name for t in plan.tensors if "q_proj" in t.name} == {Q.format(i) for i in range(6)}


def test_a_layer_range_past_the_end_is_refused_before_anything_is_read(family: dict[str, str]) -> None:
    parts = [{"sources": [{"model": family["one"], "layer_range": [0, 4]}]}]
    with pytest.raises(BadInputError, match=r"ends at 4, but .* has 3 layers") as caught:
        plan_of({"merge_method": "passthrough", "slices": parts})
    assert caught.value.field == "slices[0].sources[0].layer_range"


def test_the_base_joins_where_it_is_not_listed_and_is_no_input_where_it_is(family: dict[str, str]) -> None:
    inputs = [{"model": family[name], "parameters": {"weight": 0.5}} for name in ("one", "two")]
    recipe = {"merge_method": "task_arithmetic", "base_model": family["base"], "models": inputs}
    listed = {**recipe, "models": [{"model": family["base"]}, *inputs]}
    for plan in (plan_of(recipe), plan_of(listed)):
        tensor = plan.tensors[0]
        assert tensor.base is not None
        assert str(tensor.base.model) == family["base"]
        assert [str(entry.model) for entry in tensor.inputs] == [family["one"], family["two"]]


def test_a_parameter_without_default_that_is_missing_for_a_tensor_is_named(family: dict[str, str]) -> None:
    recipe = linear(family, {"value": 0.3, "filter": "mlp"})
    with pytest.raises(BadInputError, match=r"is missing for tensor .*; linear needs it") as caught:
        plan_of(recipe)
    assert caught.value.field == "models[0].parameters.weight"


@pytest.mark.parametrize("method", ["linear", "ties", "task_arithmetic"])
def test_weights_that_cancel_out_are_refused_where_they_are_normalised(
    family: dict[str, str], method: str
) -> None:
    models = [
        {"model": family["one"], "parameters": {"weight": 1}},
        {"model": family["two"], "parameters": {"weight": -1}},
    ]
    recipe = {"merge_method": method, "models": models, "parameters": {"normalize": True}}
    if method != "linear":
        recipe["base_model"] = family["base"]
    with pytest.raises(BadInputError, match="sum to 0"):
        plan_of(recipe)
    plan_of({**recipe, "parameters": {"normalize": False}})


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.parameter("normalize")])
def test_a_tensor_whose_weights_are_all_zero_is_the_base_s_and_refused_where_there_is_no_base(
    family: dict[str, str], method: str
) -> None:
    only_mlp = [{"filter": "mlp", "value": 0.5}, {"value": 0}]
    models = [{"model": family[name], "parameters": {"weight": only_mlp}} for name in ("one", "two")]
    recipe = {"merge_method": method, "models": models, "parameters": {"normalize": True}}
    if METHODS[method].base is not Base.REQUIRED:
        with pytest.raises(BadInputError, match=r"every weight of tensor .* is 0"):
            plan_of(recipe)
        return
    recipe["base_model"] = family["base"]
    with InMemoryMerger(recipe) as merger:
        result = merger.merge(recipe)
    base = read_state(Path(family["base"]))
    for name, tensor in result.items():
        assert torch.equal(tensor, base[name]) == ("mlp" not in name), name


def test_an_unknown_model_path_is_named(family: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match="there is no model folder /nowhere/model") as caught:
        plan_of({"merge_method": "passthrough", "models": [{"model": "/nowhere/model"}]})
    assert caught.value.file == "/nowhere/model"


def test_mismatched_shapes_name_both_files_the_tensor_and_the_shapes(
    family: dict[str, str], tmp_path: Path
) -> None:
    save_model(tmp_path / "wide", 5, intermediate_size=28)
    recipe = linear({**family, "two": str(tmp_path / "wide")})
    with pytest.raises(BadInputError) as caught:
        plan_of(recipe)
    message = caught.value.message
    assert "mlp" in str(caught.value.field)
    for words in (family["one"], str(tmp_path / "wide"), "[24, 16]", "[28, 16]", str(caught.value.field)):
        assert words in message or words.replace("24, 16", "16, 24").replace("28, 16", "16, 28") in message


def test_a_missing_layer_names_the_model_and_the_tensor(family: dict[str, str], tmp_path: Path) -> None:
    save_model(tmp_path / "short", 5, num_hidden_layers=2)
    with pytest.raises(BadInputError, match=r"short lacks tensor model\.layers\.2\."):
        plan_of(linear({**family, "two": str(tmp_path / "short")}, allow_mismatch=["num_hidden_layers"]))


@pytest.mark.parametrize("stated", [4, 0, -1, 10**9])
def test_weights_of_fewer_layers_than_the_config_states_are_refused(
    family: dict[str, str], tmp_path: Path, stated: int
) -> None:
    shutil.copytree(family["two"], tmp_path / "half")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    (tmp_path / "half" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": stated}))
    with pytest.raises(BadInputError, match=rf"half/config\.json states {stated} layers") as caught:
        plan_of(linear({**family, "two": str(tmp_path / "half")}))
    assert caught.value.field == "num_hidden_layers"


def test_extra_tensors_are_listed_and_refused_when_strict(family: dict[str, str], tmp_path: Path) -> None:
    save_model(tmp_path / "deep", 5, num_hidden_layers=4)
    recipe = linear({**family, "two": str(tmp_path / "deep")}, allow_mismatch="num_hidden_layers")
    plan = plan_of(recipe)
    assert any("tensor(s) that" in warning and "left out" in warning for warning in plan.warnings)
    with pytest.raises(BadInputError, match=r"model\.layers\.3"):
        plan_of(recipe, strict=True)


def test_another_architecture_is_refused(family: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(family["two"], other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["MistralForCausalLM"]}))
    with pytest.raises(BadInputError, match="MistralForCausalLM"):
        plan_of(linear({**family, "two": str(other)}))


def test_differing_vocabularies_are_refused_with_a_token(family: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(family["two"], other)
    words = list(WORDS)
    words[4], words[5] = words[5], words[4]
    save_tokenizer(other, words)
    with pytest.raises(BadInputError, match=r'vocabularies differ in 2 token\(s\): "w1" is 4 .* and 5 '):
        plan_of(linear({**family, "two": str(other)}))


# Types.


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "bfloat16", "out_dtype": "float16"}, "float16"),
        ({"out_dtype": "float64"}, "float64"),
    ],
)
def test_the_stored_type_and_the_config_agree(
    family: dict[str, str], fields: dict[str, str], stored: str
) -> None:
    plan = plan_of(linear(family, **fields))
    assert {tensor.dtype.name for tensor in plan.tensors} == {stored}
    assert plan.config["torch_dtype"] == plan.config["dtype"] == stored
    assert plan.tensors[0].compute == ("float64" if stored == "float64" else "float32")


def test_half_types_that_differ_promote_to_float32(tmp_path: Path) -> None:
    one = save_model(tmp_path / "one", 1, dtype=torch.float16)
    save_model(tmp_path / "two", 2, dtype=torch.bfloat16, near=one)
    plan = plan_of(linear({"one": str(tmp_path / "one"), "two": str(tmp_path / "two")}))
    assert {tensor.dtype.name for tensor in plan.tensors} == {"float32"}
    assert plan.config["torch_dtype"] == "float32"


# Tied embeddings.


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tied")
    base = save_model(folder / "tied", 0, tie_word_embeddings=True)
    save_model(folder / "tied2", 1, near=base, tie_word_embeddings=True)
    save_model(folder / "own", 2, near=base, tie_word_embeddings=False)
    return {entry.name: str(entry) for entry in folder.iterdir()}


def test_tied_models_stay_tied_without_a_head(tied: dict[str, str]) -> None:
    plan = plan_of(linear({"one": tied["tied"], "two": tied["tied2"]}))
    assert plan.config["tie_word_embeddings"] is True
    assert not [tensor for tensor in plan.tensors if "lm_head" in tensor.name]


@pytest.mark.parametrize("order", [("tied", "own"), ("own", "tied")])
def test_a_tied_model_beside_one_with_its_own_head_gives_an_untied_output(
    tied: dict[str, str], order: tuple[str, str]
) -> None:
    plan = plan_of(linear({"one": tied[order[0]], "two": tied[order[1]]}))
    assert plan.config["tie_word_embeddings"] is False
    head = next(tensor for tensor in plan.tensors if tensor.name == "lm_head.weight")
    read = {str(entry.model): entry.info.name for entry in head.inputs}
    assert read == {tied["tied"]: "model.embed_tokens.weight", tied["own"]: "lm_head.weight"}


def test_a_head_that_a_tied_model_stores_is_not_used(tied: dict[str, str], tmp_path: Path) -> None:
    copied = tmp_path / "stored"
    shutil.copytree(tied["tied2"], copied)
    index = json.loads((copied / "model.safetensors.index.json").read_text())
    embedding = load_file(copied / index["weight_map"]["model.embed_tokens.weight"])[
        "model.embed_tokens.weight"
    ]
    save_file({"lm_head.weight": embedding + 1}, copied / "head.safetensors")
    index["weight_map"]["lm_head.weight"] = "head.safetensors"
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    plan = plan_of(linear({"one": tied["tied"], "two": str(copied)}))
    assert plan.config["tie_word_embeddings"] is True
    assert not [tensor for tensor in plan.tensors if "lm_head" in tensor.name]

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from emep.dagkit.recipes import at_start, model_paths, read_recipe, searched

RECIPE = """
merge_method: task_arithmetic
base_model: base
models:
  - model: good
    parameters: {weight: {search: [-0.5, 1.0], start: 0.3}}
  - model: /abs/bad
    parameters: {weight: {search: [-0.5, 1.0]}}
dtype: float32
"""


def test_yaml_text_becomes_a_mapping_with_absolute_models():
    recipe = read_recipe(RECIPE, "/data")
    assert recipe["base_model"] == "/data/base"
    assert [entry["model"] for entry in recipe["models"]] == ["/data/good", "/abs/bad"]


def test_a_mapping_is_taken_as_it_is_and_not_changed():
    given = {"merge_method": "linear", "models": [{"model": "a"}]}
    assert read_recipe(given, "/data")["models"][0]["model"] == "/data/a"
    assert given["models"][0]["model"] == "a"


def test_a_file_is_read_below_the_data_folder(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert read_recipe("recipe.yaml", str(tmp_path))["merge_method"] == "task_arithmetic"
    assert read_recipe((tmp_path / "recipe.yaml").as_uri(), None)["dtype"] == "float32"


def test_without_a_data_folder_paths_stay_as_they_are():
    assert read_recipe(RECIPE, None)["base_model"] == "base"


def test_references_with_adapters_and_as_mappings_are_followed():
    recipe = read_recipe(
        {"merge_method": "linear", "models": [{"model": "a@main+lora"}, {"model": {"model": {"path": "b"}}}]},
        "/d",
    )
    assert recipe["models"][0]["model"] == "/d/a@main+/d/lora"
    assert recipe["models"][1]["model"] == {"model": {"path": "/d/b"}}
    assert model_paths(recipe) == ["/d/a", "/d/b"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("missing.yaml", ["recipe", "missing.yaml", "cannot be read"]),
        ("merge_method: [linear", ["not YAML", "line"]),
        ("- linear: 1\n- b: 2", ["a recipe is a mapping", "list"]),
        (7, ["a recipe is a mapping", "int"]),
        ("a\0b", ["recipe", "cannot be read"]),
        ("merge_method: 2020-99-99", ["not YAML"]),
        ("merge_method: " + "[" * 5000, ["nested too deeply"]),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_sentence(tmp_path, value, words):
    with pytest.raises(AirflowFailException) as caught:
        read_recipe(value, str(tmp_path))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_models_are_listed_once_the_base_first():
    recipe = {"base_model": "b", "models": [{"model": "a"}, {"model": "b"}, {"model": "a"}]}
    assert model_paths(recipe) == ["b", "a"]


def test_models_of_slices_are_found():
    recipe = {"slices": [{"sources": [{"model": "x", "layer_range": [0, 2]}]}, {"sources": [{"model": "y"}]}]}
    assert model_paths(recipe) == ["x", "y"]


def test_searched_parameters_are_named_in_order():
    assert searched(read_recipe(RECIPE, None)) == ["weight", "weight"]
    assert searched({"parameters": {"weight": 1}}) == []


def test_the_start_is_the_given_one_or_the_middle():
    weights = [entry["parameters"]["weight"] for entry in at_start(read_recipe(RECIPE, None))["models"]]
    assert weights == [0.3, 0.25]


def test_a_search_without_a_range_is_refused():
    with pytest.raises(AirflowFailException, match="range of two numbers"):
        at_start({"parameters": {"weight": {"search": [1]}}})


def test_a_misspelt_marker_is_left_for_the_engine_to_refuse():
    recipe = {"parameters": {"weight": {"search": [0, 1], "strat": 0.3}}}
    assert at_start(recipe) == recipe

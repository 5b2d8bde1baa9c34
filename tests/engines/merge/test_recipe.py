"""The recipe grammar: what is read, and the sentence for what is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from engines.contract import BadInputError
from engines.merge.recipe.parse import (
    ModelRef,
    load_recipe,
    parse_recipe,
    search_parameters,
    start_values,
    substitute,
)
from engines.merge.recipe.settings import parse_setting

GOOD: dict[str, Any] = {
    "merge_method": "ties",
    "base_model": "base",
    "models": [
        {"model": "base"},
        {"model": "one", "parameters": {"weight": 0.5, "density": 0.4}},
        {"model": "two", "parameters": {"weight": [0.1, 0.9], "density": 0.4}},
    ],
    "parameters": {"normalize": True},
    "dtype": "bfloat16",
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with one place set (``models.1.parameters.weight``); ``...`` removes it."""
    recipe = copy.deepcopy(GOOD)
    *steps, last = path.split(".")
    place: Any = recipe
    for step in steps:
        place = place[int(step) if step.isdigit() else step]
    if value is ...:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return recipe


BAD = [
    # An unknown name is answered with the nearest one.
    (changed("merge_method", "tie"), "merge_method", "did you mean 'ties'?"),
    (changed("merge_metod", "ties"), "merge_metod", "did you mean 'merge_method'?"),
    (
        changed("models.1.parameters", {"weight": 1, "densty": 0.5}),
        "models[1].parameters.densty",
        "'density'",
    ),
    (changed("models.1.paramters", {}), "models[1].paramters", "did you mean 'parameters'?"),
    (changed("parameters.lamda", 1), "parameters.lamda", "did you mean 'lambda'?"),
    (changed("parameters.t", 0.5), "parameters.t", "unknown parameter of ties"),
    (changed("dtype", "bfloat"), "dtype", "did you mean 'bfloat16'?"),
    (changed("dtype", "int64"), "dtype", "whole numbers"),
    (changed("merge_method", ["ties"]), "merge_method", "unknown merge method"),
    (changed("merge_method", {"ties": 1}), "merge_method", "unknown merge method"),
    (
        changed("models.1.parameters", {"weight": 10**400, "density": 0.5}),
        "models[1].parameters.weight",
        "larger than any weight",
    ),
    # What is missing, of the wrong kind or out of range.
    (changed("merge_method", ...), "merge_method", "is missing"),
    (changed("base_model", ...), "base_model", "ties needs a base_model"),
    (changed("models", ...), "models", "exactly one of 'models' and 'slices'"),
    (changed("slices", []), "models", "exactly one of 'models' and 'slices'"),
    (changed("models", []), "models", "at least one entry"),
    (changed("models", "one"), "models", "must be a list"),
    (changed("models.1", "one"), "models[1]", "must be a mapping with 'model'"),
    (changed("models.1.model", ...), "models[1].model", "is missing"),
    (changed("models.1.model", 7), "models[1].model", "7 is no model reference"),
    (changed("models.1.parameters.density", 1.5), "models[1].parameters.density", "within [0, 1]"),
    (changed("models.1.parameters.density", [0.5, -0.1]), "models[1].parameters.density", "within [0, 1]"),
    (changed("models.1.parameters.weight", "heavy"), "models[1].parameters.weight", "must be a number"),
    (changed("models.1.parameters.weight", True), "models[1].parameters.weight", "must be a number"),
    (changed("models.1.parameters.weight", float("nan")), "models[1].parameters.weight", "finite"),
    (changed("models.1.parameters.weight", []), "models[1].parameters.weight", "empty list"),
    (
        changed("models.1.parameters.weight", {"filter": "mlp"}),
        "models[1].parameters.weight",
        "needs 'value'",
    ),
    (
        changed("models.1.parameters.weight", {"value": 1, "fliter": "x"}),
        "models[1].parameters.weight.fliter",
        "filter",
    ),
    (
        changed("models.1.parameters.weight", {"value": 1, "filter": 3}),
        "models[1].parameters.weight.filter",
        "no text",
    ),
    (changed("models.1.parameters", 3), "models[1].parameters", "must be a mapping"),
    (changed("models.1.parameters.normalize", True), "models[1].parameters.normalize", "recipe's parameters"),
    (changed("parameters.normalize", "yes please"), "parameters.normalize", "true or false"),
    (changed("models", [{"model": "base"}]), "models", "at least 1 model(s) beside the base, found 0"),
    (changed("models.2.model", "base"), "models", "lists the base model base twice"),
    (
        changed("models.1.parameters.weight", {"search": [0, 1]}),
        "models[1].parameters.weight",
        "run an evolution",
    ),
    # What is not supported yet says so.
    (changed("tokenizer_source", "union"), "tokenizer_source", "not supported yet"),
    (changed("tokenizer", {"source": "base"}), "tokenizer", "not supported yet"),
    (changed("chat_template", "chatml"), "chat_template", "not supported yet"),
    (changed("modules", {"text": {}}), "modules", "not supported yet"),
]


@pytest.mark.parametrize(
    ("recipe", "field", "words"), BAD, ids=[f"{i}-{row[1]}" for i, row in enumerate(BAD)]
)
def test_a_wrong_recipe_is_refused_with_its_path_and_the_fix(recipe: Any, field: str, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_recipe(recipe, file="recipe.yaml")
    assert caught.value.field == field
    assert words in caught.value.message
    assert caught.value.message.startswith("recipe.yaml: ")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: c\nmerge_method: linear",
        "merge_method: 2020-99-99",
        "merge_method: linear\ndtype: 1" + "0" * 5000,
        "merge_method: linear\nmodels: " + "[" * 5000,
    ],
    ids=["list as key", "no such date", "endless number", "too deep"],
)
def test_yaml_that_cannot_be_read_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadInputError, match=r"not valid YAML|nested too deeply") as caught:
        load_recipe(text)
    assert "\n" not in caught.value.message


def test_a_mapping_may_take_the_keys_of_another_over() -> None:
    text = "models:\n- &m {model: a, parameters: {weight: 1}}\n- {<<: *m, model: b}\nmerge_method: linear"
    recipe = parse_recipe(text)
    assert [str(entry.model) for entry in recipe.models] == ["a", "b"]
    assert recipe.models[0].parameters == recipe.models[1].parameters


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("x" * 300, "no path is that long"),
        ("x/" * 5000, "no path is that long"),
        ("x/" * 1500, "no path here has more than 200 folders in one another"),
        ("a\0b", "no path has such a character"),
        ("~nobody-of-that-name/x", "there is no model folder"),
        ("file://[x", "is not a file:///absolute/path URI"),
    ],
)
def test_a_path_that_cannot_be_is_refused_in_one_sentence(path: str, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        ModelRef(path).folder()


SLICES: dict[str, Any] = {
    "merge_method": "passthrough",
    "slices": [
        {"sources": [{"model": "a", "layer_range": [0, 4]}]},
        {"sources": [{"model": "b", "layer_range": [2, 6]}]},
    ],
}


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([4, 4], "no layers"),
        ([4, 2], "no layers"),
        ([-1, 2], "no layers"),
        ([0], "two whole numbers"),
        ([0, 2.5], "two whole numbers"),
        (None, "two whole numbers"),
    ],
)
def test_a_wrong_layer_range_is_refused(layers: Any, words: str) -> None:
    recipe = copy.deepcopy(SLICES)
    recipe["slices"][1]["sources"][0]["layer_range"] = layers
    with pytest.raises(BadInputError, match=words) as caught:
        parse_recipe(recipe)
    assert caught.value.field == "slices[1].sources[0].layer_range"


def test_sources_of_a_slice_must_be_equally_long() -> None:
    recipe = {
        "merge_method": "linear",
        "slices": [
            {
                "sources": [
                    {"model": "a", "layer_range": [0, 4], "parameters": {"weight": 1}},
                    {"model": "b", "layer_range": [0, 3], "parameters": {"weight": 1}},
                ]
            }
        ],
    }
    with pytest.raises(BadInputError, match=r"equally long, found \[3, 4\]"):
        parse_recipe(recipe)


def test_a_key_given_twice_is_refused_instead_of_losing_one() -> None:
    with pytest.raises(BadInputError, match="'weight' is given twice"):
        parse_recipe(
            "merge_method: linear\nmodels:\n- model: a\n  parameters:\n    weight: 1\n    weight: 2\n"
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n- 2\n", "must be one mapping"),
        ("a: 1\n---\nb: 2\n", "found 2 documents"),
    ],
)
def test_text_that_is_no_recipe_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        parse_recipe(text)


def test_a_missing_recipe_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nowhere\.yaml: No such file"):
        parse_recipe(str(tmp_path / "nowhere.yaml"))


def test_a_recipe_is_read_from_a_file_a_uri_text_or_a_mapping(tmp_path: Path) -> None:
    text = "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 1}}\n"
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    digests = {
        parse_recipe(source).digest() for source in (str(path), path.as_uri(), text, load_recipe(text)[0])
    }
    assert len(digests) == 1


def test_equal_recipes_have_one_canonical_form_however_written() -> None:
    one = parse_recipe(GOOD)
    other = copy.deepcopy(GOOD)
    other["dtype"] = "torch.bfloat16"
    other["parameters"] = {"normalize": {"value": True, "filter": "*"}}
    other["models"][1]["parameters"] = {"density": [{"value": 0.4}], "weight": 0.5}
    assert parse_recipe(dict(reversed(list(other.items())))).digest() == one.digest()
    assert parse_recipe(changed("models.1.parameters.weight", 0.51)).digest() != one.digest()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("org/model", ModelRef("org/model")),
        ("org/model@main", ModelRef("org/model", "main")),
        ("org/model@v1+lora@v2", ModelRef("org/model", "v1", "lora@v2")),
        ("/with@sign/model", ModelRef("/with@sign/model")),
        ({"model": {"path": "a", "revision": "r"}}, ModelRef("a", "r")),
        ({"model": "a", "lora": {"path": "l"}}, ModelRef("a", None, "l")),
    ],
)
def test_model_references(given: Any, wanted: ModelRef) -> None:
    recipe = {"merge_method": "linear", "models": [{"model": given, "parameters": {"weight": 1}}]}
    assert parse_recipe(recipe).models[0].model == wanted


# Settings: value, gradient, conditions.


@pytest.mark.parametrize(
    ("setting", "name", "position", "wanted"),
    [
        (0.5, "x", 0.3, 0.5),
        ([0, 1], "x", 0.25, 0.25),
        ([0, 1, 0], "x", 0.75, 0.5),
        ([0, 1, 0], "x", 1.0, 0.0),
        ([3], "x", 0.7, 3),
        ([True, False], "x", 0.4, True),
        ([True, False], "x", 1.0, False),
        ({"value": 1, "filter": "mlp"}, "layers.0.mlp.up", 0, 1),
        ({"value": 1, "filter": "mlp"}, "layers.0.attn.q", 0, None),
        ({"value": 1, "filter": "MLP"}, "layers.0.mlp.up", 0, None),
        ({"value": 1, "filter": "*"}, "anything", 0, 1),
        ([{"value": [0, 1], "filter": "mlp"}, {"value": 9}], "a.mlp", 0.5, 0.5),
        ([{"value": [0, 1], "filter": "mlp"}, {"value": 9}], "a.attn", 0.5, 9),
        ([{"value": 1, "filter": "a"}, {"value": 2, "filter": "ab"}], "xaby", 0, 1),
        ([{"value": 1, "filter": ".*"}], "xaby", 0, None),
    ],
)
def test_a_setting_yields_the_first_matching_value_at_its_position(
    setting: Any, name: str, position: float, wanted: Any
) -> None:
    assert parse_setting(setting, "p").value(name, position) == wanted


# Parameters to search.

SEARCHED = {
    "merge_method": "task_arithmetic",
    "base_model": "base",
    "models": [
        {"model": "one", "parameters": {"weight": {"search": [-0.5, 1.0], "start": 0.3}}},
        {"model": "two", "parameters": {"weight": [0.1, {"search": [0, 1]}]}},
        {
            "model": "three",
            "parameters": {"weight": [{"value": {"search": [0, 2]}, "filter": "mlp"}, {"value": 1}]},
        },
    ],
}
PATHS = [
    "models[0].parameters.weight",
    "models[1].parameters.weight[1]",
    "models[2].parameters.weight[0].value",
]


def test_search_parameters_are_found_where_numbers_stand() -> None:
    found = search_parameters(SEARCHED)
    assert [entry.path for entry in found] == PATHS
    assert found[0] == (PATHS[0], -0.5, 1.0, 0.3)
    assert found[1].start == 0.5


def test_substitution_gives_a_plain_recipe_and_leaves_the_original() -> None:
    before = copy.deepcopy(SEARCHED)
    plain = substitute(SEARCHED, dict(zip(PATHS, (0.25, 0.5, 0.75), strict=True)))
    assert before == SEARCHED
    recipe = parse_recipe(plain)
    assert recipe.models[1].parameters["weight"].value("x", 1.0) == 0.5
    assert recipe.models[2].parameters["weight"].value("a.mlp", 0) == 0.75
    assert search_parameters(plain) == []
    assert parse_recipe(substitute(SEARCHED, start_values(SEARCHED))).merge_method == "task_arithmetic"


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"search": [1, 0]}, "must lie below"),
        ({"search": [0]}, "two numbers"),
        ({"search": [0, float("inf")]}, "two numbers"),
        ({"search": [0, 1], "start": 2}, "within [0.0, 1.0]"),
        ({"search": [0, 1], "strat": 0.5}, "did you mean 'start'?"),
    ],
)
def test_a_malformed_search_is_refused_with_its_path(search: Any, words: str) -> None:
    recipe = copy.deepcopy(SEARCHED)
    recipe["models"][0]["parameters"]["weight"] = search  # type: ignore[index]
    with pytest.raises(BadInputError) as caught:
        search_parameters(recipe)
    assert words in caught.value.message
    assert str(caught.value.field).startswith(PATHS[0])


def test_only_parameters_can_be_searched() -> None:
    with pytest.raises(BadInputError, match="only a parameter's number"):
        search_parameters({"merge_method": "linear", "models": [{"model": {"search": [0, 1]}}]})


@pytest.mark.parametrize("values", [{}, {PATHS[0]: float("nan"), PATHS[1]: 0, PATHS[2]: 0}, {"models[9]": 1}])
def test_substitution_needs_a_finite_number_for_every_path_and_no_other(values: dict[str, float]) -> None:
    with pytest.raises(BadInputError):
        substitute(SEARCHED, values)

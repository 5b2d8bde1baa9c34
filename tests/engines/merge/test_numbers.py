"""Numbers as people write them: in a recipe's text, in a form's mapping, and to every reader of recipes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.contract import BadInputError
from engines.merge.methods import METHODS, NOT_YET
from engines.merge.recipe.parse import load_recipe, parse_recipe, search_parameters

WRITTEN = [
    ("0.5", 0.5),
    ("5e-1", 0.5),
    ("3e-1", 0.3),
    ("1.0e30", 1e30),
    ("1.0E+30", 1e30),
    ("'0.5'", 0.5),
    ('" 5e-1 "', 0.5),
    ("'1.0e30'", 1e30),
    (".5", 0.5),
    ("-.5", -0.5),
    ("1.", 1.0),
    ("+1", 1),
    ("1_000", 1000),
    ("1_0.5", 10.5),
    ("2", 2),
    ("'2'", 2),
    ("010", 10),
    ("0x10", 16),
    ("!!float 5e-1", 0.5),
]
NO_NUMBERS = [
    ("heavy", "'heavy' must be a number"),
    ("0,5", "write 0.5, with a point"),
    ("50%", "write 0.5"),
    ("1/2", "must be a number"),
    ("1:30", "must be a number"),
    ("true", "must be a number"),
    ("'true'", "must be a number"),
    ("''", "must be a number"),
    ("1e", "must be a number"),
    ("1.2.3", "must be a number"),
    (".inf", "finite"),
    (".nan", "finite"),
    ("'1e999'", "finite"),
    ("1e999", "larger than any number"),
    ("2001-01-01", "neither a number"),
]


def linear(weight: str) -> str:
    first = f"- model: a\n  parameters:\n    weight: {weight}\n"
    return f"merge_method: linear\nmodels:\n{first}- model: b\nparameters: {{weight: 1}}\n"


@pytest.mark.parametrize(("text", "value"), WRITTEN)
def test_a_number_is_read_however_it_is_written(text: str, value: float) -> None:
    recipe = parse_recipe(linear(text))
    assert recipe.models[0].parameters["weight"].value("x", 0) == value
    # The same from a form's JSON, which has read the YAML with another reader.
    mapping = yaml.safe_load(linear(text)) if text not in ("010", "0x10") else load_recipe(linear(text))[0]
    assert parse_recipe(mapping).digest() == recipe.digest()


@pytest.mark.parametrize(("text", "words"), NO_NUMBERS)
def test_what_is_no_number_is_refused_in_a_sentence_that_says_why(text: str, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_recipe(linear(text), file="r.yaml")
    assert words in caught.value.message
    assert caught.value.message.startswith(("r.yaml: models[0].parameters.weight: ", "recipe"))


@pytest.mark.parametrize("number", ["5e-1", "'0.5'", ".5"])
def test_bounds_and_starts_of_a_search_are_numbers_too(number: str) -> None:
    text = linear(f"{{search: ['-1e0', 1.], start: {number}}}")
    (found,) = search_parameters(load_recipe(text)[0])
    assert found[1:] == (-1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ([-1e308, 1e308], "wider than any number"),
        ([0, 10**400], "two numbers"),
        (["low", 1], "two numbers"),
        ([True, 2], "two numbers"),
    ],
)
def test_a_range_that_no_number_can_span_is_refused(search: Any, words: str) -> None:
    recipe = {"parameters": {"weight": {"search": search}}}
    with pytest.raises(BadInputError, match=words):
        search_parameters(recipe)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("true", True),
        ("'true'", True),
        ("'No'", False),
        ("off", False),
        ("1", True),
        ("'0'", False),
        ("1.0", True),
    ],
)
def test_true_and_false_are_read_however_they_are_written(given: str, value: bool) -> None:
    recipe = parse_recipe(linear("1").replace("{weight: 1}", f"{{weight: 1, normalize: {given}}}"))
    assert recipe.parameters["normalize"].value("x", 0) is value


@pytest.mark.parametrize(("layers", "value"), [("[0, '4']", (0, 4)), ("[0.0, 4e0]", (0, 4))])
def test_layer_ranges_are_whole_numbers_however_they_are_written(layers: str, value: Any) -> None:
    text = f"merge_method: passthrough\nslices:\n- sources:\n  - {{model: a, layer_range: {layers}}}\n"
    assert parse_recipe(text).slices[0].sources[0].layer_range == value


@pytest.mark.parametrize("name", NOT_YET)
def test_a_method_of_mergekit_that_is_not_here_is_named_as_such(name: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_recipe({"merge_method": name, "models": [{"model": "a"}]})
    assert caught.value.field == "merge_method"
    assert f"`{name}` is a mergekit method that EMEP does not have yet" in caught.value.message
    assert "did you mean" not in caught.value.message
    for method in METHODS:
        assert method in caught.value.message


def test_no_method_is_both_here_and_not_here() -> None:
    assert not set(NOT_YET) & set(METHODS)


def test_the_engine_the_dags_and_the_command_line_read_one_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from emep import layout
    from emep.cli.commands.submit import read_recipe as of_command
    from emep.cli.common import UsageError
    from emep.dagkit.recipes import at_start
    from emep.dagkit.recipes import read_recipe as of_dag

    # A task reads only what a job of its project may.
    monkeypatch.setattr("emep.dagkit.readable.artifact_uri", tmp_path.as_uri)
    path = tmp_path / layout.project_folder("default") / "r.yaml"
    path.parent.mkdir(parents=True)
    for weight in ("5e-1", "1.0e30", "010", "{search: [0, '1e0'], start: 5e-1}", "{search: ['0', 1e0]}"):
        path.write_text(linear(weight))
        engine = load_recipe(str(path))[0]
        assert of_dag(str(path), None) == of_dag(linear(weight), None) == engine
        assert load_recipe(of_command(str(path)))[0] == engine
        parse_recipe(at_start(engine))
    for wrong, words in (
        (linear("1\n    weight: 2"), "given twice"),
        (linear("1") + "---\na: 1\n", "2 documents"),
    ):
        path.write_text(wrong)
        for read, error in ((of_command, UsageError), (lambda p: of_dag(p, None), AirflowFailException)):
            with pytest.raises(error, match=words):
                read(str(path))
        with pytest.raises(BadInputError, match=words):
            load_recipe(str(path))


def test_a_number_that_overflows_is_infinite_not_an_error() -> None:
    from engines.merge.numbers import as_finite, as_number

    assert as_number(10**400) == math.inf
    assert as_number("9" * 400) == math.inf
    assert as_finite(-(10**400)) is None

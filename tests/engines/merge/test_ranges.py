"""A range to search that holds a value which its method refuses is refused before anything is merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.contract import BadInputError
from engines.merge.methods import METHODS, Base, Method, Parameter, Scope
from engines.merge.methods.registry import Kind
from engines.merge.ranges import check_ranges
from engines.merge.recipe.parse import parse_recipe


def recipe_for(method: Method, parameter: Parameter, search: dict[str, Any]) -> dict[str, Any]:
    """A recipe of a method that searches one of its parameters, the others at values that work."""
    models: list[dict[str, Any]] = [{"model": name, "parameters": {}} for name in ("one", "two", "three")]
    models = models[: method.inputs[1] or 2]
    if method.base_counts:
        models[0]["model"] = "base"
    recipe: dict[str, Any] = {"merge_method": method.name, "models": models, "parameters": {}}
    if method.base is Base.REQUIRED:
        recipe["base_model"] = "base"
    for entry in method.parameters:
        if entry.required:
            recipe["parameters"][entry.name] = 0.5
    place = recipe["parameters"] if parameter.scope is Scope.SHARED else models[-1]["parameters"]
    place[parameter.name] = search
    return recipe


EVERY = [(method, parameter) for method in METHODS.values() for parameter in method.parameters]


@pytest.mark.parametrize(
    ("method", "parameter"), EVERY, ids=[f"{method.name}-{parameter.name}" for method, parameter in EVERY]
)
def test_every_parameter_of_every_method_takes_the_ranges_that_it_takes_the_values_of(
    method: Method, parameter: Parameter
) -> None:
    if parameter.kind is Kind.BOOLEAN:
        for bounds in ([0, 1], [0, 2], [-1, 1]):
            with pytest.raises(BadInputError, match="true or false"):
                check_ranges(recipe_for(method, parameter, {"search": bounds, "start": 0}))
        return
    low = -2.0 if parameter.low is None else parameter.low
    high = 3.0 if parameter.high is None else parameter.high
    (found,) = check_ranges(recipe_for(method, parameter, {"search": [low, high]}))
    assert (found.low, found.high) == (low, high)
    for limit, bounds in ((parameter.low, [low - 0.1, high]), (parameter.high, [low, high + 0.1])):
        if limit is None:
            continue
        with pytest.raises(BadInputError, match=r"must (lie|be) .*range to search") as caught:
            check_ranges(recipe_for(method, parameter, {"search": bounds, "start": high}))
        assert (caught.value.field or "").endswith(parameter.name)


def test_a_range_inside_a_gradient_or_a_filter_is_held_to_the_same_limits() -> None:
    search = {"search": [0.3, 1.1], "start": 0.6}
    for value in ([0.5, search], [{"filter": "mlp", "value": search}, {"value": 0.5}]):
        ties = METHODS["ties"]
        density = ties.parameter("density")
        assert density is not None
        with pytest.raises(BadInputError, match=r"1\.1 must lie within"):
            check_ranges(recipe_for(ties, density, value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "value", "words"),
    [
        (0.0, 1.0, 1.5, r"1\.5 must lie within \[0, 1\]"),
        (0.0, None, -0.5, r"-0\.5 must be at least 0"),
        (None, 2.0, 2.5, r"2\.5 must be at most 2"),
    ],
)
def test_a_value_out_of_bounds_is_told_the_bounds_that_there_are(
    monkeypatch: pytest.MonkeyPatch, low: float | None, high: float | None, value: float, words: str
) -> None:
    ties = METHODS["ties"]
    density = ties.parameter("density")
    assert density is not None
    others = tuple(entry for entry in ties.parameters if entry is not density)
    bounded = replace(ties, parameters=(*others, replace(density, low=low, high=high)))
    monkeypatch.setitem(METHODS, "ties", bounded)
    with pytest.raises(BadInputError, match=words):
        parse_recipe(recipe_for(bounded, density, value))  # type: ignore[arg-type]

"""The baselines of a search: the base, each parent, and averages with one common weight for all parents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.merge.recipe.parse import load_recipe, parse_recipe, start_values, substitute

GRID = tuple(round(0.1 * step, 1) for step in range(1, 11))
"""Common weights 0.1 .. 1.0."""
LINEAR = "linear average"
UNIFORM = "uniform average"
ONE_MODEL = "one model"
"""Kinds of baselines; the first is the name of the only one of its kind."""


def uniform_recipes(
    recipe: Mapping[str, Any] | str, grid: Sequence[float] = GRID
) -> dict[str, dict[str, Any]]:
    """Name -> recipe of every average in which all parents count the same.

    The plain linear average, and, where the recipe has a base, task arithmetic (2212.04089) with each weight
    of the grid. ``recipe`` may hold parameters to search. Raises BadInputError where it is wrong.
    """
    data, _ = load_recipe(recipe)
    base, parents = models_of(data)
    found = {LINEAR: _recipe("linear", None, dict.fromkeys(parents, 1.0), data)}
    if base is not None:
        for weight in grid:
            found[f"uniform {weight:g}"] = _recipe(
                "task_arithmetic", base, dict.fromkeys(parents, weight), data
            )
    return found


def kind_of(baseline: Mapping[str, Any]) -> str:
    """Which kind a baseline's record is; those of earlier versions have only a name."""
    kind, name = baseline.get("kind"), str(baseline["name"])
    if kind is not None:
        return str(kind)
    return LINEAR if name == LINEAR else UNIFORM if name.startswith("uniform ") else ONE_MODEL


def single_recipes(recipe: Mapping[str, Any] | str) -> dict[str, dict[str, Any]]:
    """Name (the model's path in the recipe) -> recipe that is this model alone: the base and each parent."""
    data, _ = load_recipe(recipe)
    base, parents = models_of(data)
    names = [*([base] if base is not None else []), *parents]
    return {name: _recipe("linear", None, {name: 1.0}, data) for name in names}


def models_of(recipe: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The base (None where there is none) and the parents, by their names in the recipe."""
    parsed = parse_recipe(substitute(recipe, start_values(recipe)))
    base = None if parsed.base_model is None else str(parsed.base_model)
    return base, [str(entry) for entry in parsed.references() if str(entry) != base]


def _recipe(
    method: str, base: str | None, weights: Mapping[str, float], like: Mapping[str, Any]
) -> dict[str, Any]:
    made: dict[str, Any] = {"merge_method": method}
    if base is not None:
        made["base_model"] = base
    made["models"] = [{"model": name, "parameters": {"weight": weight}} for name, weight in weights.items()]
    kept = ("dtype", "out_dtype", "tokenizer_source", "allow_mismatch")
    return made | {key: like[key] for key in kept if key in like}

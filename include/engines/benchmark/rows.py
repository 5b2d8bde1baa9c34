"""The rows that a benchmark compares.

They are named models on disk, named recipes merged in memory, and the best uniform average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.contract import BadInputError
from engines.evolution.baselines import GRID, uniform_recipes
from engines.merge.recipe.parse import load_recipe, parse_recipe

BEST_UNIFORM = "best uniform average"


@dataclass(frozen=True)
class Row:
    """One line of the scoreboard to be."""

    name: str
    folder: Path | None = None
    recipe: Mapping[str, Any] | None = None
    group: str | None = None
    """Of a group's rows only the best is shown, under the group's name."""

    def identity(self) -> dict[str, Any]:
        """What tells this line from another benchmark's, as JSON values."""
        return {
            "name": self.name,
            "folder": None if self.folder is None else str(self.folder),
            "recipe": None if self.recipe is None else dict(self.recipe),
        }


def read_rows(given: Mapping[str, Any]) -> list[Row]:
    """Rows in the order in which they are shown: models, the uniform averages, recipes.

    ``uniform`` is ``{recipe, weights?}``: all averages of that recipe's models with one common weight. The
    best of them *on the very tasks of the benchmark* is shown, which is the harder opponent.

    Raises BadInputError where a field is wrong, a model folder does not exist, a recipe does not parse or a
    name is taken twice.
    """
    rows = [Row(name, folder=_folder(name, uri)) for name, uri in _named(given, "models").items()]
    rows += _uniform(given.get("uniform"))
    for name, recipe in _named(given, "recipes").items():
        if not isinstance(recipe, str | Mapping):
            raise BadInputError(
                f"input.recipes.{name}: must be a recipe, YAML text or a path", field=f"input.recipes.{name}"
            )
        data, file = load_recipe(recipe)
        parse_recipe(data, file=file)
        rows.append(Row(name, recipe=data))
    if not rows:
        raise BadInputError("input.models: give at least one model or recipe", field="input.models")
    names = [row.name for row in rows if row.group is None]
    names += dict.fromkeys(row.group for row in rows if row.group is not None)
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"input: the name '{name}' is given twice", field="input.recipes")
    return rows


def read_of(given: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, str]:
    """``of``: by a row's name, what the row is, shown beside it. Raises BadInputError where it is wrong."""
    value = _named(given, "of")
    names = [row.name for row in rows if row.group is None]
    for name, text in value.items():
        field = f"input.of.{name}"
        if name not in names:
            raise BadInputError(f"{field}: there is no such row; rows: {', '.join(names)}", field=field)
        if not isinstance(text, str) or not text.isprintable():
            raise BadInputError(f"{field}: {text!r} must be a text of one line", field=field)
    return dict(value)


def _named(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise BadInputError(f"input.{key}: must be a mapping of names", field=f"input.{key}")
    return value


def _folder(name: str, uri: Any) -> Path:
    field = f"input.models.{name}"
    if not isinstance(uri, str) or not uri:
        raise BadInputError(f"{field}: {uri!r} must be a folder's path or URI", field=field)
    folder = uri_to_path(uri)
    if not folder.is_dir():
        raise BadInputError(f"{field}: there is no model folder {folder}", file=str(folder), field=field)
    return folder


def _uniform(value: Any) -> list[Row]:
    if value is None:
        return []
    if not isinstance(value, Mapping) or set(value) - {"recipe", "weights"} or "recipe" not in value:
        raise BadInputError("input.uniform: must be {recipe, weights?}", field="input.uniform")
    weights = value.get("weights", GRID)
    numbers = isinstance(weights, list | tuple) and weights
    if not numbers or not all(isinstance(w, int | float) and not isinstance(w, bool) for w in weights):
        raise BadInputError("input.uniform.weights: must be a list of numbers", field="input.uniform.weights")
    found = uniform_recipes(value["recipe"], weights)
    return [Row(name, recipe=recipe, group=BEST_UNIFORM) for name, recipe in found.items()]

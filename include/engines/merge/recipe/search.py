"""Parameters to search: ``{search: [LO, HI], start: X}`` where a recipe has a number."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from engines.merge.numbers import as_finite
from engines.merge.recipe.wording import check_keys, join, wrong


class SearchParameter(NamedTuple):
    """One number to search."""

    path: str
    """Where it stands: ``models[1].parameters.weight``."""
    low: float
    high: float
    start: float
    """Where the search begins; the middle where the recipe does not say."""


def search_parameters(recipe: Mapping[str, Any]) -> list[SearchParameter]:
    """The parameters to search, in the order in which they stand in the recipe.

    Raises BadInputError naming the path where one is malformed, or stands where no parameter's number can.
    """
    found: list[SearchParameter] = []
    _collect(recipe, "", False, found)
    return found


def substitute(recipe: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """A copy of the recipe with a number in place of each parameter to search; ``values`` by path.

    Raises BadInputError where a value is missing, is not finite, or names a path that is not searched.
    """
    known = {entry.path for entry in search_parameters(recipe)}
    for path in values:
        if path not in known:
            raise wrong(path, f"is no parameter to search; those are: {', '.join(sorted(known)) or 'none'}")
    return _replace(copy.deepcopy(dict(recipe)), "", values)  # type: ignore[no-any-return]


def start_values(recipe: Mapping[str, Any]) -> dict[str, float]:
    """The value at which the search of each parameter begins, by path."""
    return {entry.path: entry.start for entry in search_parameters(recipe)}


def _collect(value: Any, where: str, inside: bool, found: list[SearchParameter]) -> None:
    if isinstance(value, Mapping):
        if "search" in value:
            if not inside:
                raise wrong(where or "search", "only a parameter's number can be searched")
            found.append(_parse(value, where))
            return
        for key, entry in value.items():
            _collect(entry, join(where, str(key)), inside or key == "parameters", found)
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            _collect(entry, join(where, index), inside, found)


def _parse(value: Mapping[str, Any], where: str) -> SearchParameter:
    check_keys(value, ("search", "start"), where, None)
    bounds, place = value["search"], join(where, "search")
    numbers = [as_finite(entry) for entry in bounds] if isinstance(bounds, list | tuple) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise wrong(place, f"{bounds!r} must be two numbers, as in [-0.5, 1.0]")
    low, high = numbers[0], numbers[1]
    if not low < high:
        raise wrong(place, f"the first bound {low} must lie below the second, {high}")
    if not math.isfinite(high - low):
        raise wrong(place, f"the range from {low} to {high} is wider than any number")
    if value.get("start") is None:
        return SearchParameter(where, low, high, low + (high - low) / 2)
    start = as_finite(value["start"])
    if start is None or not low <= start <= high:
        raise wrong(join(where, "start"), f"{value['start']!r} must be a number within [{low}, {high}]")
    return SearchParameter(where, low, high, start)


def _replace(value: Any, where: str, values: Mapping[str, float]) -> Any:
    if isinstance(value, Mapping):
        if "search" in value:
            number = as_finite(values.get(where))
            if number is None:
                raise wrong(where, f"{values.get(where)!r} is no finite number for this parameter to search")
            return number
        return {key: _replace(entry, join(where, str(key)), values) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(entry, join(where, index), values) for index, entry in enumerate(value)]
    return value

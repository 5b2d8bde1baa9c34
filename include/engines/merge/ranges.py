"""Whether every value of a range to search is one that the method takes, before anything is merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.contract import BadInputError
from engines.merge.recipe import parse_recipe
from engines.merge.search import SearchParameter, search_parameters, start_values, substitute


def check_ranges(recipe: Mapping[str, Any], file: str | None = None) -> list[SearchParameter]:
    """The parameters to search, whose ranges hold only values that the method takes.

    A method's limits are intervals, so both ends decide; what is true or false (``normalize``) takes the ends
    0 and 1 but nothing between them, so the middle is tried too.
    Raises BadInputError naming the parameter, its range and the value that the method refuses.
    """
    searched = search_parameters(recipe)
    starts = start_values(recipe)
    parse_recipe(substitute(recipe, starts), file=file)
    for entry in searched:
        for value in (entry.low, entry.high, entry.low + (entry.high - entry.low) * 0.5078125):
            try:
                parse_recipe(substitute(recipe, starts | {entry.path: value}), file=file)
            except BadInputError as error:
                raise BadInputError(
                    f"{error.message} (the range to search is {entry.low:g} to {entry.high:g})",
                    file=error.file,
                    field=error.field,
                ) from error
    return searched

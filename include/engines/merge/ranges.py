"""Checks, before anything is merged, that a method accepts every value of a range to search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.contract import BadInputError
from engines.merge.methods import Kind
from engines.merge.recipe.parse import parse_recipe
from engines.merge.recipe.search import SearchParameter, search_parameters, start_values, substitute
from engines.merge.recipe.wording import wrong


def check_ranges(recipe: Mapping[str, Any], file: str | None = None) -> list[SearchParameter]:
    """The parameters to search, whose ranges hold only values that the method takes.

    A method's limits are intervals, so the two ends decide; what is true or false (``normalize``) has nothing
    between the two, and cannot be searched. Raises BadInputError naming the parameter, its range and the
    value that the method refuses.
    """
    searched = search_parameters(recipe)
    starts = start_values(recipe)
    method = parse_recipe(substitute(recipe, starts), file=file).method
    for entry in searched:
        parameter = method.parameter(_name(entry.path))
        if parameter is not None and parameter.kind is Kind.BOOLEAN:
            raise wrong(entry.path, "is true or false, which cannot be searched; give one of the two", file)
        for value in (entry.low, entry.high):
            try:
                parse_recipe(substitute(recipe, starts | {entry.path: value}), file=file)
            except BadInputError as error:
                raise BadInputError(
                    f"{error.message} (the range to search is {entry.low:g} to {entry.high:g})",
                    file=error.file,
                    field=error.field,
                ) from error
    return searched


def _name(path: str) -> str:
    """The parameter's name in ``models[1].parameters.weight[0].value``."""
    return re.split(r"[.\[]", path.rpartition("parameters.")[2])[0]

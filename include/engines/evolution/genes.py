"""Genes: a recipe's parameters to search, as points of the unit cube on a grid of 1/1024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.contract import BadInputError
from engines.evolution.optimizer import Genes
from engines.merge.recipe.parse import SearchParameter, search_parameters, substitute

STEPS = 1024
"""Genes are rounded to multiples of 1/1024: near-equal candidates become equal and cost one evaluation."""


@dataclass(frozen=True)
class Space:
    """The parameters to search of one recipe, in their order."""

    recipe: Mapping[str, Any]
    parameters: tuple[SearchParameter, ...]

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Space:
        """The space of a recipe. Raises BadInputError where it has nothing to search."""
        parameters = tuple(search_parameters(recipe))
        if not parameters:
            raise BadInputError(
                "recipe: nothing to search; write {search: [-0.5, 1.0], start: 0.3} as a parameter's value",
                field="recipe",
            )
        return cls(recipe, parameters)

    def start(self) -> Genes:
        """Where the search begins."""
        return tuple((entry.start - entry.low) / (entry.high - entry.low) for entry in self.parameters)

    def values(self, genes: Sequence[float]) -> dict[str, float]:
        """The numbers that genes stand for, by the parameter's path in the recipe."""
        return {
            entry.path: _tidy(entry.low + gene * (entry.high - entry.low))
            for entry, gene in zip(self.parameters, genes, strict=True)
        }

    def recipe_of(self, genes: Sequence[float]) -> dict[str, Any]:
        """The plain recipe that genes stand for."""
        return substitute(self.recipe, self.values(genes))


def quantised(genes: Sequence[float]) -> Genes:
    """Genes on the grid, inside the cube."""
    return tuple(min(STEPS, max(0, round(gene * STEPS))) / STEPS for gene in genes)


def _tidy(value: float) -> float:
    """Twelve significant digits: 0.3, not 0.30000000000000004, the same on every machine."""
    return float(f"{value:.12g}")

"""Groups the output's layers by the models they are merged from: one for ``models``, else one per slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.merge.methods import Base
from engines.merge.plan.architecture import ModelView
from engines.merge.recipe.data import Parameters, Recipe, Source
from engines.merge.recipe.references import ModelRef
from engines.merge.recipe.wording import wrong


@dataclass(frozen=True)
class Group:
    """Layers of the output that share sources: all of them for ``models``, else one of ``slices``."""

    where: str
    sources: tuple[tuple[ModelRef, Parameters, int], ...]
    """Model, its parameters, its first layer."""
    base: ModelRef | None
    base_start: int
    scopes: tuple[Parameters, ...]
    length: int | None = None
    """Layers of a slice; None for ``models``."""


def layer_groups(recipe: Recipe, views: Mapping[ModelRef, ModelView]) -> list[Group]:
    """The groups of a recipe. Raises BadInputError where a model has fewer layers than a slice takes."""
    if recipe.models:
        sources = tuple((entry.model, entry.parameters, 0) for entry in recipe.models)
        return [Group("models", sources, recipe.base_model, 0, (recipe.parameters,))]
    groups = []
    for index, part in enumerate(recipe.slices):
        where = f"slices[{index}]"
        for number, source in enumerate(part.sources):
            _, count = views[source.model].layer_stack()
            if source.layer_range[1] > count:
                place = f"{where}.sources[{number}].layer_range"
                message = f"ends at {source.layer_range[1]}, but {source.model} has {count} layers"
                raise wrong(place, message, recipe.file)
        base = part.base_model or recipe.base_model
        first, last = part.sources[0].layer_range
        groups.append(
            Group(
                where,
                tuple((source.model, source.parameters, source.layer_range[0]) for source in part.sources),
                base,
                _base_start(where, base, part.sources, views, recipe),
                (part.parameters, recipe.parameters),
                last - first,
            )
        )
    return groups


def _base_start(
    where: str,
    base: ModelRef | None,
    sources: Sequence[Source],
    views: Mapping[ModelRef, ModelView],
    recipe: Recipe,
) -> int:
    """The first of the base's layers that belong to a slice; 0 where the method has no base."""
    if recipe.method.base is not Base.REQUIRED or base is None:
        return 0
    listed = [source.layer_range[0] for source in sources if source.model == base]
    starts = set(listed or [source.layer_range[0] for source in sources])
    if len(starts) > 1:
        raise wrong(f"{where}.sources", f"list {base} too, with the layers that serve as base", recipe.file)
    start = next(iter(starts))
    end = start + sources[0].layer_range[1] - sources[0].layer_range[0]
    _, count = views[base].layer_stack()
    if end > count:
        raise wrong(f"{where}.base_model", f"{base} has {count} layers, {end} are needed", recipe.file)
    return start

"""The config.json of a merge's output: the donor's, with what the merge changes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engines.merge.plan.architecture import LAYER_KEYS, layer_count, text_config
from engines.merge.plan.groups import Group
from engines.merge.plan.planned import PlannedTensor
from engines.merge.recipe.data import Recipe
from engines.merge.recipe.references import ModelRef
from engines.tensor.layout import ModelLayout


def output_config(
    recipe: Recipe,
    models: Mapping[ModelRef, ModelLayout],
    donor: ModelLayout,
    groups: Sequence[Group],
    tensors: Sequence[PlannedTensor],
    *,
    tied: bool,
) -> dict[str, Any]:
    """The output's config: stored type, number of layers, and whether the head is the embedding."""
    config = copy.deepcopy(donor.config)
    part = text_config(config)
    if recipe.slices:
        _set_layers(part, models, groups)
    held: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.dtype.floating:
            held[tensor.dtype.name] += tensor.nbytes
    stored = recipe.out_dtype or recipe.dtype or held.most_common(1)[0][0]
    for entry in {id(config): config, id(part): part}.values():
        # Older releases of transformers read torch_dtype, newer ones dtype.
        if entry is config or "torch_dtype" in entry or "dtype" in entry:
            entry["torch_dtype"] = entry["dtype"] = stored
        if "tie_word_embeddings" in entry or entry is config:
            entry["tie_word_embeddings"] = tied
    return config


def _set_layers(
    config: dict[str, Any], models: Mapping[ModelRef, ModelLayout], groups: Sequence[Group]
) -> None:
    count = layer_count(config)
    total = sum(group.length or 0 for group in groups)
    for key in LAYER_KEYS:
        if isinstance(config.get(key), int):
            config[key] = total
    for key, value in list(config.items()):
        # Lists with one entry per layer (layer_types) follow their layers.
        if isinstance(value, list) and count is not None and len(value) == count and count > 1:
            config[key] = [
                text_config(models[model].config)[key][start + layer]
                for group in groups
                for model, _, start in group.sources[:1]
                for layer in range(group.length or 0)
            ]

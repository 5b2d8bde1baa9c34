"""Checks, by their configs, that models of equal shapes also use their weights in the same way.

Tensors of equal names and shapes can still belong to another kind of model: with other heads, another
rotation of positions, another norm. An average of such weights is useless, yet loads without a warning.
``config_fields`` lists what is compared; a recipe may allow a difference by its name (``allow_mismatch``),
and keeps the donor's value then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.contract import BadInputError
from engines.merge.config_fields import BY_LAYER, KNOWN, differing_others, meaning, only_follows, same
from engines.merge.plan.architecture import ModelView, layer_count, split_name, text_config
from engines.tensor.layout import ModelLayout

TENSORS = "tensors"
"""The name that allows tensors to be left out of layers that the models share."""
FIELDS = tuple(sorted({*KNOWN, TENSORS}))
"""What ``allow_mismatch`` may name."""
_BUFFERS = (
    "inv_freq",
    "masked_bias",
    "position_ids",
    "attn.bias",
    "attention.bias",
    "cos_cached",
    "sin_cached",
)
"""Ends of the names of what older releases stored beside the weights."""


@dataclass(frozen=True)
class _Difference:
    field: str
    """As the other config has it, with the part of the config that it stands in."""
    names: frozenset[str]
    """What allows it."""
    mine: Any
    other: Any

    @property
    def name(self) -> str:
        """The field without the part of the config."""
        return self.field.rpartition(".")[2]


def check_alike(
    donor: ModelLayout, other: ModelLayout, allowed: Collection[str], *, same_depth: bool
) -> list[str]:
    """Compare two models' configs; return warnings of allowed and of unknown differences.

    ``same_depth``: whether all layers take part, one to one. Raises BadInputError naming the fields that
    differ and are not allowed.
    """
    if donor.folder == other.folder:
        return []
    found = list(_differences(donor.config, other.config, depth=same_depth))
    refused = [entry for entry in found if not entry.names & set(allowed)]
    if refused:
        raise _refusal(donor, other, refused)
    warnings = [f"{_said(entry, donor, other)}: allowed, the output has the donor's" for entry in found]
    for part, mine, theirs in _parts(donor.config, other.config):
        for name in differing_others(mine, theirs):
            entry = _Difference(f"{part}{name}", frozenset(), mine[name], theirs[name])
            warnings.append(f"{_said(entry, donor, other)}: the output has the donor's")
    return warnings


def check_stacks(donor: ModelView, other: ModelView, allowed: Collection[str]) -> None:
    """Refuse models of different depths whose configs state none, counted by their tensors.

    Raises BadInputError.
    """
    if layer_count(donor.layout.config) is not None or "num_hidden_layers" in allowed:
        return
    for stack, count in donor.stacks.items():
        found = other.stacks.get(stack, count)
        if found != count:
            entry = _Difference("num_hidden_layers", frozenset(), count, found)
            raise _refusal(donor.layout, other.layout, [entry])


def check_shared_layers(
    donor: ModelView, other: ModelView, extra: Sequence[str], allowed: Collection[str]
) -> None:
    """Refuse a model with tensors (``extra``) that the donor lacks in layers that both have.

    Without them (biases, norms) the layer is another function. Whole layers and parts that the donor lacks
    are left out of the merge. Raises BadInputError naming the first tensor.
    """
    if TENSORS in allowed:
        return
    layers = {(part.stack, part.index) for name in donor.names if (part := split_name(name))}
    missed = [
        name
        for name in extra
        if (part := split_name(name))
        and (part.stack, part.index) in layers
        and other.layout.tensors[name].dtype.floating
        and not name.endswith(_BUFFERS)
    ]
    if missed:
        raise BadInputError(
            f"{other.layout.folder} has {len(missed)} tensor(s) in layers that {donor.layout.folder} has "
            f"without them, first {missed[0]}: a layer that loses one computes something else. Merge models "
            f"with the same tensors, or allow it by --allow-mismatch {TENSORS} (in the recipe: "
            f"allow_mismatch: [{TENSORS}])",
            code="tensor_mismatch",
            file=str(other.layout.folder),
            field=missed[0],
        )


def _parts(
    mine: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """The language model's parts of two configs, and the further parts (a vision tower's) that both have."""
    yield "", {**mine, **text_config(dict(mine))}, {**other, **text_config(dict(other))}
    for key in mine:
        if key.endswith("_config") and key != "text_config":
            one, two = mine[key], other.get(key)
            if isinstance(one, Mapping) and isinstance(two, Mapping):
                yield f"{key}.", one, two


def _differences(mine: Mapping[str, Any], other: Mapping[str, Any], *, depth: bool) -> Iterator[_Difference]:
    for part, one, two in _parts(mine, other):
        first, second = meaning(one, depth=depth), meaning(two, depth=depth)
        depths = [key for key in ("num_hidden_layers", "num_decoder_layers") if key in first]
        is_deeper = any(not same(first[key][1], second[key][1]) for key in depths)
        for key in depths + [key for key in second if key not in depths]:
            name, value = second[key]
            if same(first[key][1], value) or only_follows(key, one, two) or (is_deeper and key in BY_LAYER):
                continue  # what follows from another difference is not named beside it
            names = {key, name, first[key][0]} | ({"rope_parameters"} if key.startswith("rope_") else set())
            yield _Difference(f"{part}{name}", frozenset(names), first[key][1], value)


def _said(entry: _Difference, donor: ModelLayout, other: ModelLayout) -> str:
    return (
        f"{entry.field} is {_text(entry.mine)} in {donor.folder} and {_text(entry.other)} in {other.folder}"
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) < 200 else f"{text[:200]}..."


def _refusal(donor: ModelLayout, other: ModelLayout, refused: Sequence[_Difference]) -> BadInputError:
    names = list(dict.fromkeys(entry.name for entry in refused))
    more = f" ({', '.join(entry.field for entry in refused[1:])} differ too)" if len(refused) > 1 else ""
    options = " ".join(f"--allow-mismatch {name}" for name in names)
    return BadInputError(
        f"{_said(refused[0], donor, other)}{more}: their weights do not mean the same. Merge models of one "
        f"kind, or allow it by {options} (in the recipe: allow_mismatch: [{', '.join(names)}])",
        code="config_mismatch",
        file=str(other.folder / "config.json"),
        field=refused[0].field,
    )

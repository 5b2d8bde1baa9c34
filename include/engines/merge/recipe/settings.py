"""A parameter's setting: one value, a gradient over layers, or a list of conditions on tensor names.

``SETTING := SCALAR | [SCALAR+] | COND | [COND+]`` with ``COND := {value: SCALAR | [SCALAR+], filter?:
SUBSTRING}``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engines.merge.recipe.wording import check_keys, join, wrong

Scalar = float | int | bool | str
_LARGEST = int(sys.float_info.max)


@dataclass(frozen=True)
class Condition:
    """A value (or gradient) for the tensors whose name contains ``filter``; None matches every tensor."""

    values: tuple[Scalar, ...]
    gradient: bool
    filter: str | None = None

    def matches(self, name: str) -> bool:
        """Case-sensitive substring, no pattern."""
        return self.filter is None or self.filter in name

    def at(self, position: float) -> Scalar:
        """Value at ``position`` in [0, 1]: numbers interpolate linearly piece by piece, others step."""
        if not self.gradient or len(self.values) == 1:
            return self.values[0]
        scaled = position * (len(self.values) - 1)
        low = min(int(scaled), len(self.values) - 1)
        first, second = self.values[low], self.values[min(low + 1, len(self.values) - 1)]
        if not _is_number(first) or not _is_number(second):
            return first
        share = scaled - low
        return (1 - share) * float(first) + share * float(second)


@dataclass(frozen=True)
class Setting:
    """Conditions in the order of the recipe; the first that matches a tensor gives its value."""

    conditions: tuple[Condition, ...]

    def value(self, name: str, position: float) -> Scalar | None:
        """Value for a tensor, None where no condition matches (the next scope is asked then)."""
        return next((entry.at(position) for entry in self.conditions if entry.matches(name)), None)

    def map(self, change: Callable[[Scalar], Scalar]) -> Setting:
        """The same setting with every value changed."""
        return Setting(
            tuple(replace(entry, values=tuple(map(change, entry.values))) for entry in self.conditions)
        )

    def canonical(self) -> Any:
        """The setting as plain data in one normal form."""
        plain = [_plain(entry) for entry in self.conditions]
        if len(self.conditions) == 1 and self.conditions[0].filter is None:
            return plain[0]["value"]
        return plain


def parse_setting(value: Any, where: str, file: str | None = None) -> Setting:
    """Read one SETTING. Raises BadInputError naming the path for anything the grammar does not have."""
    if isinstance(value, Mapping):
        return Setting((_condition(value, where, file),))
    if isinstance(value, list | tuple):
        if not value:
            raise wrong(where, "an empty list is no setting; give a value or leave the parameter out", file)
        if all(isinstance(entry, Mapping) and "search" not in entry for entry in value):
            entries = (_condition(entry, join(where, i), file) for i, entry in enumerate(value))
            return Setting(tuple(entries))
        scalars = tuple(_scalar(entry, join(where, i), file) for i, entry in enumerate(value))
        return Setting((Condition(scalars, gradient=True),))
    return Setting((Condition((_scalar(value, where, file),), gradient=False),))


def _condition(value: Mapping[str, Any], where: str, file: str | None) -> Condition:
    if "search" in value:
        _scalar(value, where, file)
    check_keys(value, ("value", "filter"), where, file)
    if "value" not in value:
        raise wrong(where, "a condition needs 'value', as in {filter: mlp, value: 0.5}", file)
    name = value.get("filter")
    if name is not None and not isinstance(name, str):
        raise wrong(join(where, "filter"), f"{name!r} is no text; a filter is part of a tensor's name", file)
    inner, path = value["value"], join(where, "value")
    pattern = None if name in {None, "*", ""} else name
    if isinstance(inner, list | tuple):
        if not inner:
            raise wrong(path, "an empty list is no value", file)
        scalars = tuple(_scalar(entry, join(path, i), file) for i, entry in enumerate(inner))
        return Condition(scalars, gradient=True, filter=pattern)
    return Condition((_scalar(inner, path, file),), gradient=False, filter=pattern)


def _scalar(value: Any, where: str, file: str | None) -> Scalar:
    if isinstance(value, Mapping) and "search" in value:
        message = "a parameter to search stands here; give a number, or run an evolution on this recipe"
        raise wrong(where, message, file)
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(where, f"{value} is not a finite number", file)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise wrong(where, f"a number of {value.bit_length()} bits is larger than any weight", file)
    if not isinstance(value, bool | int | float | str):
        raise wrong(where, f"{value!r} is neither a number, a boolean nor a text", file)
    return value


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(entry: Condition) -> dict[str, Any]:
    values = [float(value) if _is_number(value) else value for value in entry.values]
    plain: dict[str, Any] = {"value": values if entry.gradient else values[0]}
    if entry.filter is not None:
        plain["filter"] = entry.filter
    return plain

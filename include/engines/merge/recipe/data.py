"""A recipe that has been read: its models, its slices, and their parameters."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from engines.artifacts import canonical_json
from engines.merge.methods import METHODS, Method
from engines.merge.recipe.references import ModelRef
from engines.merge.recipe.settings import Setting

Parameters = dict[str, Setting]


@dataclass(frozen=True)
class InputModel:
    """An entry of ``models``."""

    model: ModelRef
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """An entry of a slice's ``sources``: layers [start, end) of a model."""

    model: ModelRef
    layer_range: tuple[int, int]
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """Layers of the output, merged from equally many layers of each source."""

    sources: tuple[Source, ...]
    base_model: ModelRef | None = None
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A recipe that follows the grammar. Exactly one of ``models`` and ``slices`` is filled."""

    merge_method: str
    models: tuple[InputModel, ...] = ()
    slices: tuple[Slice, ...] = ()
    base_model: ModelRef | None = None
    parameters: Parameters = field(default_factory=dict)
    dtype: str | None = None
    out_dtype: str | None = None
    tokenizer_source: str | ModelRef | None = None
    chat_template: str | None = None
    allow_mismatch: tuple[str, ...] = ()
    """Fields of the configs in which the models may differ (``likeness.FIELDS``)."""
    file: str | None = None
    """Where it was read from, for messages."""

    @property
    def method(self) -> Method:
        """The merge method."""
        return METHODS[self.merge_method]

    def references(self) -> list[ModelRef]:
        """All models in the order of their first mention; the base comes last where nothing else lists it."""
        listed = [entry.model for entry in self.models]
        listed += [source.model for part in self.slices for source in part.sources]
        listed += [part.base_model for part in self.slices if part.base_model]
        if self.base_model:
            listed.append(self.base_model)
        return list(dict.fromkeys(listed))

    def canonical(self) -> dict[str, Any]:
        """The recipe as plain data in a normal form, which is the same for equal recipes."""
        plain: dict[str, Any] = {"merge_method": self.merge_method}
        if self.models:
            plain["models"] = [_entry(entry) for entry in self.models]
        if self.slices:
            plain["slices"] = [_slice(part) for part in self.slices]
        if self.parameters:
            plain["parameters"] = _settings(self.parameters)
        for name in ("base_model", "dtype", "out_dtype", "tokenizer_source", "chat_template"):
            value = getattr(self, name)
            if value is not None:
                plain[name] = str(value)
        if self.allow_mismatch:
            plain["allow_mismatch"] = sorted(self.allow_mismatch)
        return plain

    def digest(self) -> str:
        """SHA-256 of the canonical form."""
        return hashlib.sha256(canonical_json(self.canonical())).hexdigest()


def _entry(entry: InputModel) -> dict[str, Any]:
    plain: dict[str, Any] = {"model": str(entry.model)}
    if entry.parameters:
        plain["parameters"] = _settings(entry.parameters)
    return plain


def _slice(part: Slice) -> dict[str, Any]:
    sources = []
    for source in part.sources:
        plain: dict[str, Any] = {"model": str(source.model), "layer_range": list(source.layer_range)}
        if source.parameters:
            plain["parameters"] = _settings(source.parameters)
        sources.append(plain)
    result: dict[str, Any] = {"sources": sources}
    if part.base_model:
        result["base_model"] = str(part.base_model)
    if part.parameters:
        result["parameters"] = _settings(part.parameters)
    return result


def _settings(parameters: Parameters) -> dict[str, Any]:
    return {name: parameters[name].canonical() for name in sorted(parameters)}

"""Infers a model's structure from tensor names and configs: layers, embedding and head, tied weights.

It uses the names themselves, so that architectures need no table: a stack is a prefix under which the tensors
are numbered 0 to n-1 (``model.layers.7.mlp.up_proj.weight``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engines.contract import BadInputError
from engines.tensor.layout import ModelLayout, TensorInfo

LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""Where configs keep the number of layers."""
_NUMBERED = re.compile(r"^(?P<stack>(?:[^.]*[^.\d][^.]*\.)*?[^.]*[^.\d][^.]*)\.(?P<index>\d+)\.(?P<rest>.+)$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings|shared)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
_FIRST = re.compile(r"(^|\.)([^.]*embed(?!_out)[^.]*|wte|wpe|shared)(\.|$)")


@dataclass(frozen=True)
class LayerName:
    """A numbered tensor's name in three parts."""

    stack: str
    index: int
    rest: str

    def at(self, index: int) -> str:
        """The same tensor in another layer."""
        return f"{self.stack}.{index}.{self.rest}"


def split_name(name: str) -> LayerName | None:
    """The parts of a numbered name, None for all others.

    The first number counts: experts inside a layer do not.
    """
    match = _NUMBERED.match(name)
    return LayerName(match["stack"], int(match["index"]), match["rest"]) if match else None


def belongs_to_first(name: str) -> bool:
    """Whether an unnumbered tensor belongs to the embedding (the first slice), not to the head (the last)."""
    return bool(_FIRST.search(name))


@dataclass(frozen=True)
class ModelView:
    """A model's tensors by the names that the output uses, with tied weights resolved as its config says."""

    layout: ModelLayout

    @cached_property
    def tied(self) -> bool:
        """Whether the head is the embedding.

        The config decides; where it is silent, whether a head is stored.
        """
        flag = text_config(self.layout.config).get("tie_word_embeddings")
        flag = self.layout.config.get("tie_word_embeddings", flag)
        if flag is None:
            return self.embedding is not None and self._stored_head is None
        return bool(flag) and self.embedding is not None

    @cached_property
    def embedding(self) -> str | None:
        """Name of the token embedding."""
        return next((name for name in self.layout.tensors if _EMBEDDING.search(name)), None)

    @property
    def head(self) -> str | None:
        """Name of the head that the model has of its own; None where it is tied."""
        return None if self.tied else self._stored_head

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that count, in stored order: a stored head of a tied model is never used."""
        return tuple(name for name in self.layout.tensors if not (self.tied and name == self._stored_head))

    def find(self, name: str) -> TensorInfo | None:
        """The tensor that serves under ``name``; a tied model's embedding serves as its head."""
        if self.tied and _HEAD.search(name) and self.embedding:
            return self.layout.tensors[self.embedding]
        found = self.layout.tensors.get(name)
        if found is None and self.tied and _EMBEDDING.search(name) and self.embedding:
            return self.layout.tensors[self.embedding]
        return found

    @cached_property
    def stacks(self) -> dict[str, int]:
        """Number of layers by stack, for prefixes whose numbers are 0 to n-1."""
        indices: dict[str, set[int]] = defaultdict(set)
        for name in self.layout.tensors:
            if part := split_name(name):
                indices[part.stack].add(part.index)
        return {stack: len(found) for stack, found in indices.items() if max(found) == len(found) - 1}

    def check_layers(self) -> None:
        """Raise BadInputError if a causal model holds fewer layers than its config states.

        Such a model has lost a shard. It may hold more layers: heads that predict further tokens.
        """
        stated = layer_count(self.layout.config)
        if stated is None or not architecture(self.layout.config).endswith("ForCausalLM"):
            return
        parts = [part for name in self.layout.tensors if (part := split_name(name))]
        held = len({part.index for part in parts})
        if held < stated or stated < min(held, 1):
            raise BadInputError(
                f"{self.layout.folder}/config.json states {stated} layers, the weights hold {held}; "
                "a shard is missing, or the config is another model's",
                code="missing_shard",
                file=str(self.layout.folder / "config.json"),
                field="num_hidden_layers",
            )

    def layer_stack(self) -> tuple[str, int]:
        """The one stack that ``layer_range`` counts, and its length.

        Raises BadInputError where there are several.
        """
        wanted = layer_count(self.layout.config)
        fitting = [stack for stack, count in self.stacks.items() if count == wanted]
        if len(fitting) == 1 and wanted is not None:
            return fitting[0], wanted
        if len(self.stacks) == 1:
            return next(iter(self.stacks.items()))
        found = ", ".join(f"{stack} ({count})" for stack, count in sorted(self.stacks.items())) or "none"
        raise BadInputError(
            f"{self.layout.folder}: slices need one stack of layers, found {found}; use models",
            file=str(self.layout.folder / "config.json"),
            field="num_hidden_layers",
        )

    @cached_property
    def _stored_head(self) -> str | None:
        return next((name for name in self.layout.tensors if _HEAD.search(name)), None)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def layer_count(config: dict[str, Any]) -> int | None:
    """Number of layers that a config states."""
    part = text_config(config)
    return next((part[key] for key in LAYER_KEYS if isinstance(part.get(key), int)), None)


def architecture(config: dict[str, Any]) -> str:
    """Name of the architecture, or of the model type where there is none."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else str(config.get("model_type", "unknown"))

"""Keys under which results are found again: by content, never by path or time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from engines.artifacts import canonical_json
from engines.merge.recipe.parse import parse_recipe

ENGINE_VERSION = 1
"""Raised whenever merging or scoring would give other numbers for the same input."""


def recipe_hash(recipe: Mapping[str, Any], digests: Mapping[str, str], seed: int) -> str:
    """SHA-256 of a plain recipe, the merge seed and our version.

    The digests of the models' contents replace their paths. ``digests``: by the model's name in the recipe.
    """
    canonical = _by_content(parse_recipe(recipe).canonical(), digests)
    return _digest({"recipe": canonical, "seed": seed, "engine": ENGINE_VERSION})


def eval_hash(recipe: str, tasks: Sequence[str], limit: int | None, backend: Mapping[str, Any]) -> str:
    """SHA-256 of what a score depends on: the recipe's hash, the tasks' digests, limit and computation."""
    return _digest({"recipe": recipe, "tasks": sorted(tasks), "limit": limit, "backend": dict(backend)})


def generation_seed(run_seed: int, generation: int) -> int:
    """Seed of one generation's population, 0 to 2^32 - 1."""
    text = f"emep evolution {run_seed} generation {generation}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def backend_identity(kind: str, dtype: str, bos: str) -> dict[str, Any]:
    """How scores are computed, known without importing what computes them."""
    return {
        "backend": kind,
        "dtype": dtype,
        "bos": bos,
        **{name: _version(name) for name in ("torch", "transformers", "tokenizers")},
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


@cache
def _version(name: str) -> str:
    try:
        return version(name).split("+")[0]
    except PackageNotFoundError:
        return "none"


def _by_content(value: Any, digests: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: digests.get(entry, entry)
            if key in {"model", "base_model", "tokenizer_source"} and isinstance(entry, str)
            else _by_content(entry, digests)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_by_content(entry, digests) for entry in value]
    return value

"""Merges into memory: the same plan and method code as the merge engine, the result a state dict."""

# ruff: noqa: TID253 - the result is a dict of torch tensors; only imported to merge
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from engines.merge.methods.job import BLOCK
from engines.merge.plan.plan import make_plan, open_models
from engines.merge.plan.planned import MergePlan
from engines.merge.recipe.parse import ModelRef, Recipe, load_recipe, parse_recipe, start_values, substitute
from engines.merge.run.sources import TensorAccess, make_job, to_stored
from engines.tensor.layout import ModelLayout
from engines.tensor.reader import TensorReader

KEEP_BYTES = 2 << 30
"""Inputs of up to this many bytes in all are kept in memory; larger ones are read from their files each time.
"""


class KeptTensors:
    """A model's tensors in memory, as stored."""

    def __init__(self, reader: TensorReader) -> None:
        self._flat = {name: reader.tensor(name).view(-1) for name in reader.layout.tensors}

    def chunk(self, name: str, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Elements [start, stop) as a copy."""
        return self._flat[name][start:stop].to(dtype=dtype, copy=True)


class InMemoryMerger:
    """Merges recipes of the same models again and again, as a search does; opens the models once.

    ``recipe`` may hold parameters to search; ``merge`` takes recipes with numbers in their place
    (``engines.merge.recipe.substitute``). Relative model paths start at ``base_folder`` (default: the working
    directory). Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        recipe: Mapping[str, Any] | str,
        *,
        seed: int = 0,
        device: str = "cpu",
        base_folder: Path | None = None,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        data, self._file = load_recipe(recipe)
        first = parse_recipe(substitute(data, start_values(data)), file=self._file)
        self._seed, self._device, self._base_folder = seed, device, base_folder
        self._layouts: dict[ModelRef, ModelLayout] = open_models(first, base_folder)
        self._readers = [TensorReader(layout, device) for layout in self._layouts.values()]
        small = sum(layout.nbytes for layout in self._layouts.values()) <= keep_bytes
        self._access: dict[object, TensorAccess] = {
            reference: KeptTensors(reader) if small else reader
            for reference, reader in zip(self._layouts, self._readers, strict=True)
        }
        self._plan = make_plan(first, self._layouts)

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the result (of the last merge, or of the recipe at its start values)."""
        return dict(self._plan.config)

    @property
    def donor(self) -> Path:
        """Folder whose config the result has."""
        return self._plan.donor.folder

    @property
    def tokenizer_folder(self) -> Path:
        """Folder whose tokenizer the result has."""
        return self._plan.tokenizer.folder

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the plan."""
        return self._plan.warnings

    def input_digests(self) -> dict[str, str]:
        """Content digest of each model by its name in the recipe (see ``engines.merge.plan.digests``)."""
        from engines.merge.plan.digests import digest_model

        return {str(reference): digest_model(layout) for reference, layout in self._layouts.items()}

    def merge(self, recipe: Mapping[str, Any] | str | Recipe) -> dict[str, torch.Tensor]:
        """The merged state dict, in the stored types, on the device.

        Raises BadInputError for a recipe that cannot work (weights that sum to 0, other models than those
        opened, NaN in an input).
        """
        parsed = recipe if isinstance(recipe, Recipe) else parse_recipe(recipe, file=self._file)
        self._plan = make_plan(parsed, self._models_of(parsed))
        return merge_plan(self._plan, self._access, seed=self._seed)

    def close(self) -> None:
        """Close the models' files and free what is kept."""
        for reader in self._readers:
            reader.close()
        self._access = {}

    def __enter__(self) -> InMemoryMerger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _models_of(self, recipe: Recipe) -> dict[ModelRef, ModelLayout]:
        for reference in recipe.references():
            if reference not in self._layouts:
                layout = open_models(recipe, self._base_folder)[reference]
                reader = TensorReader(layout, self._device)
                self._layouts[reference] = layout
                self._readers.append(reader)
                self._access[reference] = reader
        return {reference: self._layouts[reference] for reference in recipe.references()}


def merge_plan(
    plan: MergePlan, access: dict[object, TensorAccess], *, seed: int, chunk_elements: int = 4 * BLOCK
) -> dict[str, torch.Tensor]:
    """All tensors of a plan, merged into memory."""
    merge = plan.recipe.method.load()
    result: dict[str, torch.Tensor] = {}
    for tensor in plan.tensors:
        if tensor.copied:
            only = tensor.inputs[0]
            flat = access[only.model].chunk(only.info.name, 0, tensor.numel, tensor.dtype.torch())
            result[tensor.name] = flat.view(tensor.shape)
            continue
        job = make_job(tensor, access, plan.cast, seed=seed, chunk_elements=chunk_elements)
        chunks = [to_stored(chunk, tensor) for chunk in merge(job)]
        flat = torch.cat(chunks) if chunks else torch.empty(0, dtype=tensor.dtype.torch())
        result[tensor.name] = flat.view(tensor.shape)
    return result


def digest_state_dict(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes in the order of names: equal weights have equal digests."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

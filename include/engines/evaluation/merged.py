"""Evaluates merges in memory, without writing them: one backend scores them all, with swapped weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from engines.evaluation.models import tokenizer_digest
from engines.evaluation.scoring import Preparer
from engines.inference.backend import BackendOptions

if TYPE_CHECKING:
    import torch

    from engines.inference.causal import CausalBackend


class MergedModels:
    """One set of models opened once, any number of recipes over them. Use it as a context manager.

    ``recipe``: the first one, parameters to search allowed; ``kind``: as for ``open_backend``. Raises
    BadInputError where a model cannot be read or the recipe is wrong.
    """

    def __init__(
        self, recipe: Mapping[str, Any] | str, options: BackendOptions, *, kind: str = "auto", seed: int = 0
    ) -> None:
        from engines.inference.causal import resolve_device
        from engines.merge.run.in_memory import InMemoryMerger

        self._options, self._kind = options, kind
        self._merger = InMemoryMerger(recipe, seed=seed, device=str(resolve_device(options.device)))
        self._backend: CausalBackend | None = None
        self._shape = ""
        self.preparer = Preparer()

    def merge(self, recipe: Mapping[str, Any] | str) -> dict[str, torch.Tensor]:
        """The merged weights. Raises BadInputError where this recipe cannot be merged."""
        return self._merger.merge(recipe)

    def backend(self, state: Mapping[str, torch.Tensor]) -> CausalBackend:
        """A backend with the weights of the last ``merge``.

        It is the same one as before if config and tokenizer have not changed.
        """
        folder, config = self._merger.tokenizer_folder, self._merger.config
        shape = json.dumps([str(folder), config], sort_keys=True)
        if self._backend is None or shape != self._shape:
            from engines.inference.opening import open_backend

            self._backend = open_backend(folder, self._options, kind=self._kind, state=state, config=config)
            self._shape = shape
            self.preparer = Preparer()
        else:
            self._backend.load_state(state)
        return self._backend

    def tokenizer_digest(self) -> str:
        """Digest of the tokenizer of the last merge."""
        return tokenizer_digest(self._merger.tokenizer_folder)

    def input_digests(self) -> dict[str, str]:
        """Content digest of each model by its name in the recipe."""
        return self._merger.input_digests()

    def __enter__(self) -> MergedModels:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._merger.close()

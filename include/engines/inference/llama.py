# ruff: noqa: TID253 - computes with torch; imported only through open_backend
"""A lean backend for plain Llama checkpoints, without transformers.

A search over merges starts many short processes: importing transformers costs each of them several seconds,
and a module tree has to be refilled for every candidate. Here weights are used where they lie, so swapping
them is free. It covers what ``refusal`` lets through and nothing else; a test holds it to transformers'
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions
from engines.inference.causal import CausalBackend, resolve_device, resolve_dtype
from engines.inference.checkpoints import check_state, read_config, read_state
from engines.inference.llama_forward import EMBEDDING, HEAD, LlamaForward, refusal
from engines.inference.tokens import TextCodec, load_codec


class LlamaBackend(CausalBackend):
    """Plain Llama checkpoints.

    ``folder`` gives the tokenizer, and config and weights unless ``config`` and ``state`` do.
    """

    name = "llama"

    def __init__(
        self,
        folder: Path,
        options: BackendOptions,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
        config: Mapping[str, Any] | None = None,
        codec: TextCodec | None = None,
    ) -> None:
        config = read_config(folder) if config is None else config
        reason = refusal(config)
        if reason:
            raise BadInputError(
                f"{folder}: the llama backend cannot run this model ({reason}); use transformers",
                file=str(folder / "config.json"),
                field="backend",
            )
        self._forward = LlamaForward(config)
        self._shapes = self._forward.shapes()
        self._dtype = resolve_dtype(options.dtype, config.get("dtype") or config.get("torch_dtype"))
        super().__init__(
            codec or load_codec(folder),
            options,
            resolve_device(options.device),
            int(config.get("max_position_embeddings", 2048)),
        )
        self._state: dict[str, torch.Tensor] = {}
        self.load_state(read_state(folder) if state is None else state)

    @property
    def dtype(self) -> torch.dtype:
        """See CausalBackend."""
        return self._dtype

    def parameters(self) -> int:
        """See CausalBackend."""
        return sum(shape.numel() for shape in self._shapes.values())

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """See InferenceBackend. Tensors of the right type and device are used as they are, not copied."""
        tied = self._forward.tied
        check_state(state, self._shapes, frozenset({HEAD}) if tied else frozenset())
        self._state = {
            name: tensor.to(device=self.device, dtype=self._dtype)
            for name, tensor in state.items()
            if name in self._shapes
        }
        if tied:
            self._state[HEAD] = self._state[EMBEDDING]

    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        return self._forward.logits(self._state, ids, keep)

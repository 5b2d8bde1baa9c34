"""Opening the backend that suits a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions, InferenceBackend

if TYPE_CHECKING:
    import torch

    from engines.inference.causal import CausalBackend

BACKENDS = ("transformers", "llama", "auto")


def open_backend(
    folder: Path,
    options: BackendOptions,
    *,
    kind: str = "transformers",
    state: Mapping[str, torch.Tensor] | None = None,
    config: Mapping[str, Any] | None = None,
) -> CausalBackend:
    """A backend over the checkpoint in ``folder``, or over ``state`` (and ``config``) with that folder's
    tokenizer.

    ``kind``: ``transformers`` (the reference), ``llama`` (lean, plain Llama only), or ``auto``: lean where it
    can. Raises BadInputError for an unknown kind and for a checkpoint that does not load.
    """
    from engines.inference.checkpoints import read_config
    from engines.inference.llama import LlamaBackend
    from engines.inference.llama_forward import refusal

    if kind not in BACKENDS:
        raise BadInputError(f"backend: '{kind}' must be one of {', '.join(BACKENDS)}", field="backend")
    if kind == "auto":
        lean = (
            refusal(read_config(folder) if config is None else config) is None
            and (folder / "tokenizer.json").is_file()
        )
        kind = "llama" if lean else "transformers"
    if kind == "llama":
        return LlamaBackend(folder, options, state=state, config=config)
    from engines.inference.transformers_backend import TransformersBackend

    return TransformersBackend(folder, options, state=state, config=config)


__all__ = ["BACKENDS", "BackendOptions", "InferenceBackend", "open_backend"]

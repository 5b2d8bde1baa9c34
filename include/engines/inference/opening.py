"""Opening the backend that suits a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions, InferenceBackend

if TYPE_CHECKING:
    import torch

    from engines.inference.causal import CausalBackend

BACKENDS = ("transformers", "llama", "auto")
SMALL_MODEL = 5_000_000
"""Parameters below which one thread is faster than two."""


def open_backend(
    folder: Path,
    options: BackendOptions,
    *,
    kind: str = "transformers",
    state: Mapping[str, torch.Tensor] | None = None,
    config: Mapping[str, Any] | None = None,
) -> CausalBackend:
    """Open a backend over the checkpoint in ``folder``, or over ``state`` with that folder's tokenizer.

    ``config`` belongs to ``state``. ``kind``: ``transformers`` (the reference), ``llama`` (lean, plain Llama
    only), or ``auto``: lean if possible. Raises BadInputError for an unknown kind and for a checkpoint that
    does not load.
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
    backend: CausalBackend
    if kind == "llama":
        backend = LlamaBackend(folder, options, state=state, config=config)
    else:
        from engines.inference.transformers_backend import TransformersBackend

        backend = TransformersBackend(folder, options, state=state, config=config)
    _fit_threads(backend)
    return backend


def _fit_threads(backend: CausalBackend) -> None:
    """One thread for a small model on the CPU: its operations are too short to share.

    Threads that wait for each other at every operation cost several times the work itself, the more so if
    other processes use the cores. A value of OMP_NUM_THREADS that is set is kept.
    """
    if backend.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        import torch

        if backend.parameters() < SMALL_MODEL:
            torch.set_num_threads(1)


__all__ = ["BACKENDS", "BackendOptions", "InferenceBackend", "open_backend"]

"""Contexts to call an engine with, as the supervisor's child would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.artifacts import open_store, path_to_uri
from engines.checkpoint import CheckpointStore, spec_digest
from engines.contract import Context, Spec


def engine_context(
    engine: str,
    given: Mapping[str, Any],
    folder: Path,
    *,
    seed: int = 0,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Context:
    """A context whose output and checkpoints lie under ``folder``."""
    spec = Spec(engine, dict(given), path_to_uri(folder / "output"), device=device, seed=seed)
    return Context(
        spec=spec,
        artifacts=open_store(spec.output_uri),
        checkpoints=CheckpointStore(path_to_uri(folder / "checkpoints"), spec_digest(spec)),
        rank=rank,
        world_size=world_size,
        stop_requested=stop_requested,
    )

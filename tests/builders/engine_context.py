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
    on_save: Callable[[int], object] = lambda step: None,
) -> Context:
    """A context whose output and checkpoints lie under ``folder``; ``on_save`` is told each step saved."""
    spec = Spec(engine, dict(given), path_to_uri(folder / "output"), device=device, seed=seed)
    checkpoints = CheckpointStore(path_to_uri(folder / "checkpoints"), spec_digest(spec))
    checkpoints.on_save = lambda checkpoint: on_save(checkpoint.step)
    return Context(
        spec=spec,
        artifacts=open_store(spec.output_uri),
        checkpoints=checkpoints,
        rank=rank,
        world_size=world_size,
        stop_requested=stop_requested,
    )

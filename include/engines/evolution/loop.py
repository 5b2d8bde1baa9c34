"""Runs a whole evolution on one machine without Airflow: ask, candidates in processes, tell, and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifacts import open_store
from engines.checkpoint import CheckpointStore, spec_digest
from engines.checkpoint_folders import remove_checkpoints
from engines.contract import Context, EngineError, Outcome, Spec
from engines.evolution import ask as ask_engine
from engines.evolution import tell as tell_engine


@dataclass(frozen=True)
class LoopSettings:
    """What to search, and with how much."""

    run_uri: str
    recipe: str | Mapping[str, Any]
    tasks: tuple[str, ...]
    generations: int
    population: int
    seed: int = 0
    processes: int = 1
    device: str = "auto"
    extra: Mapping[str, Any] | None = None
    """Further fields of evolve_ask."""


def evolve(
    settings: LoopSettings, on_generation: Callable[[dict[str, Any]], None] = lambda metrics: None
) -> dict[str, Any]:
    """Run all generations that are not done yet; returns the last one's metrics.

    ``on_generation`` gets each generation's metrics. Raises EngineError where an engine fails.
    """
    metrics: dict[str, Any] = {}
    for generation in range(settings.generations):
        asked = ask_engine.run(_context(settings, "evolve_ask", _ask_input(settings, generation)))
        _candidates(settings, generation, asked.metrics["batches"])
        told = tell_engine.run(
            _context(settings, "evolve_tell", {"run_uri": settings.run_uri, "generation": generation})
        )
        metrics = told.metrics
        on_generation(metrics)
    return metrics


def _ask_input(settings: LoopSettings, generation: int) -> dict[str, Any]:
    return {
        **(settings.extra or {}),
        "run_uri": settings.run_uri,
        "recipe": settings.recipe,
        "tasks": list(settings.tasks),
        "generation": generation,
        "population": settings.population,
        "batch": 1 << 30,
    }


def _context(settings: LoopSettings, engine: str, given: Mapping[str, Any], **other: Any) -> Context:
    spec = Spec(engine, given, settings.run_uri, device=settings.device, seed=settings.seed)
    return Context(
        spec=spec,
        artifacts=open_store(settings.run_uri),
        checkpoints=CheckpointStore(f"{settings.run_uri}/.checkpoints", spec_digest(spec)),
        **other,
    )


def _candidates(settings: LoopSettings, generation: int, batches: list[list[int]]) -> None:
    """The generation's one batch, in this process or shared by several."""
    for numbers in batches:
        given = {"run_uri": settings.run_uri, "generation": generation, "candidates": numbers}
        if settings.processes == 1:
            from engines.evolution import candidates as candidates_engine

            context = _context(settings, "evolve_candidates", given)
            candidates_engine.run(context)
            # All of them have their results; what else lay there was for a run that is broken off.
            remove_checkpoints(context.checkpoints.folder)
        else:
            _in_processes(settings, given)


def _in_processes(settings: LoopSettings, given: Mapping[str, Any]) -> None:
    """One supervisor with as many ranks as asked for, as on a node with that many GPUs."""
    with tempfile.TemporaryDirectory(prefix="emep-evolve-") as folder:
        spec = {
            "schema_version": 1,
            "engine": "evolve_candidates",
            "input": given,
            "output_uri": settings.run_uri,
            "device": settings.device,
            "seed": settings.seed,
        }
        path, result = Path(folder, "SPEC.json"), Path(folder, "result.json")
        path.write_text(json.dumps(spec), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EMEP_")}
        environment["EMEP_RESULT_PATH"] = str(result)
        environment["CUDA_VISIBLE_DEVICES"] = ""
        environment["EMEP_GPU_INDICES"] = ",".join(map(str, range(settings.processes)))
        done = subprocess.run(
            [sys.executable, "-m", "engines.cli", "run", str(path)], env=environment, check=False
        )
        if done.returncode:
            error = json.loads(result.read_text())["error"] if result.is_file() else None
            message = error["message"] if error else f"the candidates' processes ended with {done.returncode}"
            raise EngineError(message, code=error["code"] if error else "failed")


__all__ = ["LoopSettings", "Outcome", "evolve"]

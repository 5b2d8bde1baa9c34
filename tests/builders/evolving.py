"""A small search over real tiny models: two parents of a base, a recipe with two weights, toy questions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.builders.toy_items import write_items

from engines.demo.checkpoint import write_checkpoint
from engines.demo.digits import ANSWERS
from engines.demo.training import CONFIG, initial_state

TINY = {**CONFIG, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}


def write_random(folder: Path, seed: int) -> None:
    """A random model of the demo's language, one layer, 32 wide; written without importing transformers."""
    folder.mkdir(parents=True)
    state = {
        name: tensor * 20 if tensor.dim() > 1 else tensor
        for name, tensor in initial_state(seed, TINY).items()
    }
    write_checkpoint(folder, state, TINY)


def questions(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Items of the demo's language with random pixels and answers."""
    generator = random.Random(seed)
    return [
        {
            "id": f"q{number}",
            "prompt": " ".join(["upright", *(f"p{generator.randrange(17)}" for _ in range(4))]),
            "choices": list(ANSWERS),
            "answer": generator.randrange(10),
        }
        for number in range(count)
    ]


class SmallSearch:
    """Files of a search under one folder, and inputs for its engines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for seed, name in enumerate(("base", "left", "right")):
            if not (folder / name).exists():
                write_random(folder / name, seed)
        self.task = str(write_items(folder / "search.jsonl", questions(24, seed=5)))

    @property
    def recipe(self) -> dict[str, Any]:
        """Task arithmetic with one weight per parent to search."""
        search = {"search": [-1.0, 1.0], "start": 0.2}
        return {
            "merge_method": "task_arithmetic",
            "base_model": str(self.folder / "base"),
            "models": [
                {"model": str(self.folder / name), "parameters": {"weight": dict(search)}}
                for name in ("left", "right")
            ],
            "dtype": "float32",
        }

    def ask(self, run: Path, generation: int = 0, **more: Any) -> dict[str, Any]:
        """Input of evolve_ask."""
        return {
            "run_uri": run.as_uri(),
            "recipe": self.recipe,
            "tasks": [self.task],
            "generation": generation,
            "population": 6,
            "batch": 4,
            **more,
        }


def read(run: Path, key: str) -> Any:
    """A record of a run."""
    return json.loads((run / key).read_text())


def records_of(run: Path) -> dict[str, bytes]:
    """Everything that decides what comes next, byte for byte."""
    return {
        file.relative_to(run).as_posix(): file.read_bytes()
        for pattern in ("run.json", "gen/*/*.json", "optimizer.json", "best.*")
        for file in sorted(run.glob(pattern))
    }

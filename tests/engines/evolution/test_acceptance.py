"""The demo's point: with a harmful parent among three, a search beats every average of one weight."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from tests.builders.demo_models import small_demo
from tests.builders.engine_context import engine_context

from engines.benchmark.engine import run as benchmark
from engines.benchmark.rows import BEST_UNIFORM
from engines.evolution.loop import LoopSettings, evolve

MARGIN = 0.02


def test_the_evolved_merge_beats_the_best_uniform_average_on_items_it_never_saw(tmp_path: Path) -> None:
    demo = small_demo()
    search = tuple(map(str, demo.search_tasks))
    report = list(map(str, demo.report_tasks))
    settings = LoopSettings(
        run_uri=(tmp_path / "run").as_uri(),
        recipe=str(demo.recipes["evolve"]),
        tasks=search,
        generations=6,
        population=20,
        device="cpu",
        extra={"report_tasks": report},
    )
    metrics = evolve(settings)
    assert metrics["failed"] == 0
    given = {
        "models": {"base": str(demo.base), **{name: str(path) for name, path in demo.parents.items()}},
        "uniform": {"recipe": str(demo.recipes["evolve"])},
        "recipes": {"evolved": str(tmp_path / "run" / "best.yaml")},
        "tasks": report,
        "backend": "llama",
    }
    outcome = benchmark(engine_context("benchmark", given, tmp_path))
    evolved = outcome.metrics["evolved"]["combined"]["acc"]
    # The best of all common weights on the report items themselves: the harder comparison.
    assert evolved >= outcome.metrics[BEST_UNIFORM]["combined"]["acc"] + MARGIN
    assert outcome.metrics["best"] == "evolved"
    board = json.loads((tmp_path / "output" / "scoreboard.json").read_text())
    names = [row["name"] for row in board["rows"]]
    assert names == ["base", "expert-upright", "expert-turned", "mislabelled", BEST_UNIFORM, "evolved"]
    # The harmful parent's weight is found to be next to nothing, the experts' are not.
    best = yaml.safe_load((tmp_path / "run" / "best.yaml").read_text())
    weights = [entry["parameters"]["weight"] for entry in best["models"]]
    assert abs(weights[2]) < 0.15 < max(weights[:2])

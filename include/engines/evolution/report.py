"""The report of a search: compares its best recipe with the baselines, on items that it never saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from engines.artifacts import open_store
from engines.checkpoint import CheckpointStore, spec_digest
from engines.checkpoint_folders import remove_checkpoints
from engines.contract import Context, Outcome, Spec
from engines.evolution.baselines import single_recipes
from engines.evolution.best import SEARCH
from engines.evolution.records import Records
from engines.evolution.run_settings import RunSettings
from engines.merge.recipe.parse import start_values, substitute

FOLDER = "report"
"""Below the run's folder: ``scoreboard.json`` and ``scoreboard.txt``."""
BEST = "best"
"""The row of the search's result; the scoreboard says which recipe it is."""


def write_report(run_uri: str, tasks: Sequence[str], *, device: str = "auto") -> Outcome:
    """Score the best recipe of a run, its start, the base, each parent and the best uniform average.

    ``tasks``: JSONL files, which share no item with those of the search (the first ask has checked it). The
    run's own limit and way of computing are used. Raises BadInputError as the benchmark does.
    """
    from engines.benchmark.engine import run as benchmark

    records = Records(run_uri)
    settings = RunSettings.from_json(records.need_run())
    given = _input(records, settings, tasks)
    spec = Spec("benchmark", given, f"{run_uri}/{FOLDER}", device=device, seed=settings.seed)
    checkpoints = CheckpointStore(f"{run_uri}/.checkpoints", spec_digest(spec))
    outcome = benchmark(Context(spec, open_store(spec.output_uri), checkpoints))
    remove_checkpoints(checkpoints.folder)
    return outcome


def _input(records: Records, settings: RunSettings, tasks: Sequence[str]) -> dict[str, Any]:
    best = records.store.get_json("best.json")
    alone = single_recipes(settings.recipe)
    recipes: dict[str, Any] = dict(zip(_names(alone), alone.values(), strict=True))
    recipes["start"] = substitute(settings.recipe, start_values(settings.recipe))
    recipes[BEST] = best["recipe"]
    origin = best["name"] if best["kind"] == SEARCH else f"a baseline: {best['name']}"
    given: dict[str, Any] = {
        "recipes": recipes,
        "of": {BEST: origin},
        "uniform": {"recipe": dict(settings.recipe)},
        "tasks": list(tasks),
        "backend": settings.backend,
        "dtype": settings.dtype,
        "bos": settings.bos,
        "batch_size": settings.batch_size,
        "num_fewshot": settings.prompting.num_fewshot,
        "apply_chat_template": settings.prompting.chat,
    }
    if settings.limit is not None:
        given["limit"] = settings.limit
    return given


def _names(models: Mapping[str, Any]) -> list[str]:
    """The last part of each path; ``name-2`` where two end alike, or like a row of ours."""
    taken = {BEST: 1, "start": 1}
    names = []
    for path in models:
        name = PurePosixPath(path).name or path
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name}-{taken[name]}")
    return names

"""evolve_ask: writes a generation's candidates once, and lists those that still need a GPU. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.contract import Context, Outcome
from engines.evaluation.settings import count, text, texts
from engines.evolution.baselines import LINEAR, ONE_MODEL, UNIFORM, single_recipes, uniform_recipes
from engines.evolution.genes import quantised
from engines.evolution.keys import eval_hash, generation_seed, recipe_hash
from engines.evolution.optimizer import CmaEs
from engines.evolution.records import Records, told_values
from engines.evolution.run_settings import RunSettings, check_same, settings_from_input
from engines.merge.recipe.parse import load_recipe


def run(context: Context) -> Outcome:
    """Ask for generation ``generation`` of the run under ``run_uri``; output ``ask``, metrics ``batches``.

    Asking again changes nothing; ``batches`` then lists the candidates that have no result yet. Raises
    BadInputError for wrong input, a generation whose predecessor was not told, or other settings than the
    first ask's.
    """
    given = context.spec.input
    records = Records(text(given, "run_uri"))
    records.refuse_strangers()
    before = records.run()
    known = RunSettings.from_json(before).inputs if before is not None else None
    now = settings_from_input(given, context.spec.seed, known)
    records.refuse_inputs(_files(given))
    generation, batch = count(given, "generation", 0, least=0), count(given, "batch", 1)
    settings = RunSettings.from_json(records.begin(now.to_json()))
    check_same(settings, now, records.store.uri)
    ask = records.ask(generation)
    if ask is None:
        ask = records.write_ask(generation, make_ask(settings, records, generation))
    todo = [] if records.tell(generation) else pending(ask, records)
    return Outcome(
        outputs={"ask": records.output(f"gen/{generation}/ask.json")},
        metrics={
            "generation": generation,
            "candidates": len(ask["candidates"]),
            "pending": len(todo),
            "batches": batches(todo, batch),
        },
        input_digests=settings.digests,
    )


def _files(given: Mapping[str, Any]) -> list[Path]:
    """The recipe and the tasks, where these are files."""
    _, recipe = load_recipe(given["recipe"])
    tasks = [*texts(given, "tasks"), *(texts(given, "report_tasks") if given.get("report_tasks") else ())]
    return [uri_to_path(uri) for uri in (*([] if recipe is None else [recipe]), *tasks)]


def make_ask(settings: RunSettings, records: Records, generation: int) -> dict[str, Any]:
    """A generation's candidates: a pure function of the run's seed and what was told before."""
    optimizer = replay(settings, records, generation)
    seed = generation_seed(settings.seed, generation)
    space = settings.space
    candidates = []
    for number, asked in enumerate(optimizer.ask(seed)):
        genes = quantised(asked)
        entry = _candidate(settings, number, space.recipe_of(genes))
        candidates.append({**entry, "genes": list(genes), "values": space.values(genes)})
    baselines = []
    if generation == 0 and settings.baselines:
        named = [(ONE_MODEL, *entry) for entry in single_recipes(settings.recipe).items()]
        for name, recipe in uniform_recipes(settings.recipe).items():
            named.append((LINEAR if name == LINEAR else UNIFORM, name, recipe))
        for number, (kind, name, recipe) in enumerate(named, start=len(candidates)):
            baselines.append({**_candidate(settings, number, recipe), "name": name, "kind": kind})
    return {
        "generation": generation,
        "seed": seed,
        "optimizer": optimizer.state(),
        "candidates": candidates,
        "baselines": baselines,
    }


def replay(settings: RunSettings, records: Records, generation: int) -> CmaEs:
    """The optimizer's state before a generation, restored from the tells alone."""
    optimizer = settings.optimizer()
    for tell in records.tells(generation):
        optimizer.tell(told_values(tell))
    return optimizer


def everyone(ask: dict[str, Any]) -> list[dict[str, Any]]:
    """Candidates and baselines, in the order of their numbers."""
    return [*ask["candidates"], *ask["baselines"]]


def pending(ask: dict[str, Any], records: Records) -> list[int]:
    """Numbers without a result; of equal candidates the first alone."""
    seen: set[str] = set()
    numbers = []
    for entry in everyone(ask):
        if entry["eval_hash"] not in seen and not records.has_result(entry["eval_hash"]):
            numbers.append(entry["number"])
        seen.add(entry["eval_hash"])
    return numbers


def batches(numbers: Sequence[int], size: int) -> list[list[int]]:
    """Numbers in batches of at most ``size``, one allocation each, as equal as can be."""
    if not numbers:
        return []
    parts = -(-len(numbers) // size)
    return [list(numbers[part::parts]) for part in range(parts)]


def _candidate(settings: RunSettings, number: int, recipe: dict[str, Any]) -> dict[str, Any]:
    made = recipe_hash(recipe, settings.digests, settings.seed)
    key = eval_hash(made, settings.task_digests, settings.limit, settings.backend_identity())
    return {"number": number, "recipe": recipe, "recipe_hash": made, "eval_hash": key}

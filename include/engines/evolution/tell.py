"""evolve_tell: a generation's scores to the optimizer, once, and the best recipe so far. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engines.contract import BadInputError, Context, EngineError, Outcome
from engines.evaluation.settings import check_fields, count, text
from engines.evolution.ask import replay
from engines.evolution.records import Records
from engines.evolution.run_settings import RunSettings

MOST_LOST = 0.5
"""Share of a generation that may be lost to the infrastructure; above it nothing is told."""


class GenerationLost(EngineError):
    """Too many candidates have no result:

    the machines are at fault, and telling would mislead the optimizer.
    """

    def __init__(self, generation: int, lost: int, total: int) -> None:
        super().__init__(
            f"generation {generation}: {lost} of {total} candidates have no result; nothing was told, "
            "the state is kept: clear the failed tasks of this generation to go on",
            code="generation_lost",
        )


def run(context: Context) -> Outcome:
    """Tell generation ``generation`` of the run under ``run_uri``.

    Outputs ``tell`` and ``best`` (a plain recipe). Telling again changes nothing. Raises GenerationLost, and
    BadInputError where the generation was not asked for or every candidate failed by its own fault.
    """
    given = context.spec.input
    check_fields("evolve_tell", given, ("run_uri", "generation"), ())
    records = Records(text(given, "run_uri"))
    generation = count(given, "generation", 0, least=0)
    ask = records.need_ask(generation)
    settings = RunSettings.from_json(records.need_run())
    tell = records.tell(generation)
    if tell is None:
        tell = records.write_tell(generation, make_tell(settings, records, ask))
    tells = records.tells(generation + 1)
    optimizer = replay(settings, records, generation + 1)
    records.store.put_json("optimizer.json", optimizer.state())
    best = best_of(tells)
    write_best(records, settings, best)
    return Outcome(
        outputs={"tell": records.output(f"gen/{generation}/tell.json"), "best": records.output("best.yaml")},
        metrics={**summary(tells), "sigma": optimizer.state()["sigma"]},
        input_digests=settings.digests,
    )


def make_tell(settings: RunSettings, records: Records, ask: Mapping[str, Any]) -> dict[str, Any]:
    """What the optimizer is told about a generation. Raises GenerationLost or BadInputError, see ``run``."""
    generation = ask["generation"]
    seen = {
        entry["eval_hash"]
        for tell in records.tells(generation)
        for entry in (*tell["candidates"], *tell["baselines"])
    }
    candidates = []
    for entry in ask["candidates"]:
        told = _told(settings, records, entry)
        candidates.append({**told, "genes": entry["genes"], "cached": entry["eval_hash"] in seen})
        seen.add(entry["eval_hash"])
    total = len({entry["eval_hash"] for entry in candidates})
    lost = len({entry["eval_hash"] for entry in candidates if entry["code"] == "lost"})
    if lost > MOST_LOST * total:
        raise GenerationLost(generation, lost, total)
    if all(entry["value"] is None for entry in candidates):
        first = next(entry for entry in candidates if entry["code"] != "lost")
        raise BadInputError(
            f"generation {generation}: every candidate failed, the first because: {first['reason']}",
            code="all_failed",
            field="input.recipe",
        )
    baselines = [{**_told(settings, records, entry), "name": entry["name"]} for entry in ask["baselines"]]
    return {"generation": generation, "candidates": candidates, "baselines": baselines}


def _told(settings: RunSettings, records: Records, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate's value to minimise; None (+inf) with the reason where it has none."""
    told = {key: entry[key] for key in ("number", "eval_hash", "recipe_hash")}
    result = records.result(entry["eval_hash"])
    if result is None:
        return {**told, "value": None, "code": "lost", "reason": "no result: its process was lost"}
    if result["status"] != "done":
        return {**told, "value": None, "code": result["code"], "reason": result["reason"]}
    score = settings.objective.score(result["metrics"])
    if not math.isfinite(score):
        return {**told, "value": None, "code": "non_finite", "reason": f"the objective is {score}"}
    return {**told, "value": -score, "code": None, "reason": None, "combined": result["metrics"]["combined"]}


def best_of(tells: list[dict[str, Any]]) -> dict[str, Any]:
    """The best candidate of all generations, the first of equals, with its ``generation``."""
    found = [
        {**entry, "generation": tell["generation"]}
        for tell in tells
        for entry in tell["candidates"]
        if entry["value"] is not None
    ]
    return min(found, key=lambda entry: (entry["value"], entry["generation"], entry["number"]))


def write_best(records: Records, settings: RunSettings, best: Mapping[str, Any]) -> None:
    """``best.yaml``: the plain recipe; ``best.json``: where it came from."""
    import yaml

    recipe = settings.space.recipe_of(best["genes"])
    text = yaml.safe_dump(recipe, sort_keys=False, width=110)
    records.store.put_bytes("best.yaml", text.encode())
    document = {
        "recipe": recipe,
        "values": settings.space.values(best["genes"]),
        "score": -best["value"],
        "metrics": best["combined"],
        **{key: best[key] for key in ("generation", "number", "eval_hash", "recipe_hash")},
    }
    records.store.put_json("best.json", document)


def summary(tells: list[dict[str, Any]]) -> dict[str, Any]:
    """The run so far, in numbers."""
    last = tells[-1]
    best = best_of(tells)
    everyone = [entry for tell in tells for entry in (*tell["candidates"], *tell["baselines"])]
    candidates = [entry for tell in tells for entry in tell["candidates"]]
    scores = [-entry["value"] for entry in last["candidates"] if entry["value"] is not None]
    baselines = {
        entry["name"]: -entry["value"]
        for tell in tells
        for entry in tell["baselines"]
        if entry["value"] is not None
    }
    return {
        "generation": last["generation"],
        "best_score": -best["value"],
        "best_generation": best["generation"],
        "generation_best": max(scores, default=None),
        "generation_mean": math.fsum(scores) / len(scores) if scores else None,
        "evaluations": len({entry["eval_hash"] for entry in everyone if entry["code"] != "lost"}),
        "cached": sum(entry["cached"] for entry in candidates),
        "failed": sum(entry["value"] is None for entry in candidates),
        "baselines": baselines,
    }

"""evolve_tell: gives a generation's scores to the optimizer once, and writes the best recipe. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engines.artifacts import canonical_json
from engines.contract import BadInputError, Context, EngineError, Outcome
from engines.evaluation.settings import check_fields, count, text
from engines.evolution.ask import replay
from engines.evolution.baselines import kind_of
from engines.evolution.best import SEARCH, Best, best_of, described, write_best
from engines.evolution.records import Records
from engines.evolution.run_settings import RunSettings

MOST_LOST = 0.5
"""Share of a generation that may be lost to the infrastructure; above it nothing is told."""
FAILED_IN_A_ROW = 3
"""Wholly failed generations after which a search ends."""


class GenerationLost(EngineError):
    """Too many candidates have no result: the machines failed, and a tell would mislead the optimizer."""

    def __init__(self, generation: int, lost: int, total: int) -> None:
        super().__init__(
            f"generation {generation}: {lost} of {total} candidates have no result; nothing was told, "
            "the state is kept: clear the failed tasks of this generation to go on",
            code="generation_lost",
        )


class SearchEnded(BadInputError):
    """Too many generations in a row failed wholly, so the search ends and keeps what it has found."""

    def __init__(self, generation: int, reason: str, best: str, where: str) -> None:
        super().__init__(
            f"generations {generation - FAILED_IN_A_ROW + 1} to {generation}: every candidate failed, in the "
            f"last one because: {reason}; the search ends here with its state kept, and {best}: {where}",
            code="all_failed",
            field="input.recipe",
        )


def run(context: Context) -> Outcome:
    """Tell generation ``generation`` of the run under ``run_uri``.

    Outputs ``tell`` and ``best`` (a plain recipe: the best that was ever told in this run, baselines and
    later generations included). Telling again changes nothing. Raises GenerationLost, SearchEnded after so
    many wholly failed generations in a row, and BadInputError where the generation was not asked for, or
    every candidate failed by its own fault and nothing has a score yet.
    """
    given = context.spec.input
    check_fields("evolve_tell", given, ("run_uri", "generation"), ())
    records = Records(text(given, "run_uri"))
    generation = count(given, "generation", 0, least=0)
    ask = records.need_ask(generation)
    settings = RunSettings.from_json(records.need_run())
    if records.tell(generation) is None:
        made = make_tell(settings, records, ask)
        # The best first: killed between the two, the folder holds it, and the next tell is the same.
        write_best(records, settings, [*records.tells(generation), made])
        records.write_tell(generation, made)
    tells, best = _keep(records, settings, generation)
    metrics = summary(tells, generation)
    for warning in metrics["warnings"]:
        context.say(f"warning: {warning}")
    failures = failed_in_a_row(tells, generation)
    if failures >= FAILED_IN_A_ROW:
        sentence = described(best, best_of(tells, baselines=False))
        raise SearchEnded(
            generation, str(_reason(tells[generation])), sentence, records.store.uri_of("best.yaml")
        )
    return Outcome(
        outputs={"tell": records.output(f"gen/{generation}/tell.json"), "best": records.output("best.yaml")},
        metrics={**metrics, "sigma": replay(settings, records, generation + 1).state()["sigma"]},
        input_digests=settings.digests,
    )


def _keep(records: Records, settings: RunSettings, generation: int) -> tuple[list[dict[str, Any]], Best]:
    """Write what follows from all tells, those of later generations too, until no new one has come."""
    while True:
        tells = records.told(generation)
        records.put("optimizer.json", canonical_json(replay(settings, records, len(tells)).state()))
        best = write_best(records, settings, tells)
        if records.tell(len(tells)) is None:
            return tells, best


def make_tell(settings: RunSettings, records: Records, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Make a generation's tell for the optimizer. Raises GenerationLost or BadInputError, see ``run``."""
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
    baselines = [
        {**_told(settings, records, entry), "name": entry["name"], "kind": kind_of(entry)}
        for entry in ask["baselines"]
    ]
    tell = {"generation": generation, "candidates": candidates, "baselines": baselines}
    if best_of([*records.tells(generation), tell]) is None:
        raise BadInputError(
            f"generation {generation}: every candidate failed, the first because: {_reason(tell)}",
            code="all_failed",
            field="input.recipe",
        )
    return tell


def failed_in_a_row(tells: Sequence[Mapping[str, Any]], generation: int) -> int:
    """How many generations up to this one, this one included, have no candidate with a score."""
    counted = 0
    for tell in reversed(tells[: generation + 1]):
        if any(entry["value"] is not None for entry in tell["candidates"]):
            break
        counted += 1
    return counted


def _reason(tell: Mapping[str, Any]) -> Any:
    """Why the first candidate failed that was not lost."""
    return next(entry["reason"] for entry in tell["candidates"] if entry["code"] != "lost")


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


def summary(tells: Sequence[Mapping[str, Any]], generation: int) -> dict[str, Any]:
    """The run up to a generation, in numbers; ``best_*`` is the best of all tells, baselines included."""
    upto = tells[: generation + 1]
    last = upto[-1]
    best, searched = best_of(tells), best_of(tells, baselines=False)
    assert best is not None  # noqa: S101 - nothing is told before something has a score
    everyone = [entry for tell in upto for entry in (*tell["candidates"], *tell["baselines"])]
    candidates = [entry for tell in upto for entry in tell["candidates"]]
    scores = [-entry["value"] for entry in last["candidates"] if entry["value"] is not None]
    baselines = {
        entry["name"]: -entry["value"]
        for tell in upto
        for entry in tell["baselines"]
        if entry["value"] is not None
    }
    warnings = (
        []
        if scores
        else [f"generation {generation}: every candidate failed, the first because: {_reason(last)}"]
    )
    if best.kind != SEARCH:
        warnings.append(described(best, searched))
    return {
        "generation": generation,
        "best_score": best.score,
        "best_generation": best.generation,
        "best_kind": best.kind,
        "best_name": best.name,
        "search_score": None if searched is None else searched.score,
        "generation_best": max(scores, default=None),
        "generation_mean": math.fsum(scores) / len(scores) if scores else None,
        "evaluations": len({entry["eval_hash"] for entry in everyone if entry["code"] != "lost"}),
        "cached": sum(entry["cached"] for entry in candidates),
        "failed": sum(entry["value"] is None for entry in candidates),
        "baselines": baselines,
        "warnings": warnings,
    }

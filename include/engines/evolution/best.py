"""The best recipe of a run so far, baselines included, with the kind of recipe that it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.artifacts import canonical_json
from engines.evolution.baselines import LINEAR, ONE_MODEL, UNIFORM, kind_of
from engines.evolution.records import Records
from engines.evolution.run_settings import RunSettings

SEARCH = "search"
"""Kind of what the search itself proposed; the other kinds are those of baselines."""


@dataclass(frozen=True)
class Best:
    """The entry of a tell with the best value."""

    entry: Mapping[str, Any]
    generation: int
    kind: str
    """``search``, ``uniform average``, ``linear average`` or ``one model``."""

    @property
    def score(self) -> float:
        """Higher is better."""
        return -float(self.entry["value"])

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        if self.kind == SEARCH:
            return f"candidate {self.entry['number']} of generation {self.generation}"
        name = _plain(self.entry["name"])
        if self.kind == UNIFORM:
            return f"uniform average, every model at weight {name.removeprefix('uniform ')}"
        return "linear average of the models" if self.kind == LINEAR else f"the model {name} alone"


def best_of(tells: Iterable[Mapping[str, Any]], *, baselines: bool = True) -> Best | None:
    """The best of all generations; None where nothing has a score.

    Of equals the search's comes before a baseline, the earlier before the later.
    """
    found = []
    for tell in tells:
        found += [Best(entry, tell["generation"], SEARCH) for entry in tell["candidates"]]
        if baselines:
            found += [Best(entry, tell["generation"], kind_of(entry)) for entry in tell["baselines"]]
    told = [best for best in found if best.entry["value"] is not None]
    return min(
        told,
        key=lambda best: (-best.score, best.kind != SEARCH, best.generation, best.entry["number"]),
        default=None,
    )


def write_best(records: Records, settings: RunSettings, tells: Sequence[Mapping[str, Any]]) -> Best:
    """``best.yaml``: the plain recipe, which says what it is; ``best.json``: where it came from.

    Each is replaced whole, and only where it says something else. Raises ValueError where nothing was told.
    """
    import yaml

    best, searched = best_of(tells), best_of(tells, baselines=False)
    if best is None:
        raise ValueError("no candidate and no baseline has a score")
    recipe = _recipe(records, settings, best)
    text = _head(settings, best, searched) + yaml.safe_dump(recipe, sort_keys=False, width=110)
    records.put("best.yaml", text.encode())
    document = {
        "kind": best.kind,
        "name": best.name,
        "recipe": recipe,
        "values": settings.space.values(best.entry["genes"]) if best.kind == SEARCH else None,
        "score": best.score,
        "search_score": None if searched is None else searched.score,
        "objective": settings.objective.to_json(),
        "metrics": best.entry["combined"],
        "generation": best.generation,
        **{key: best.entry[key] for key in ("number", "eval_hash", "recipe_hash")},
    }
    records.put("best.json", canonical_json(document))
    return best


def described(best: Best, searched: Best | None) -> str:
    """The best in one sentence, which says if it is a baseline and not the search's."""
    if best.kind == SEARCH:
        return f"the best is {best.name}, score {best.score:.4f}"
    rest = (
        "no candidate of the search has a score"
        if searched is None
        else (f"the search's own best, {searched.name}, has {searched.score:.4f}")
    )
    return f"the best is a baseline, not the search's: {best.name}, score {best.score:.4f}; {rest}"


def _recipe(records: Records, settings: RunSettings, best: Best) -> dict[str, Any]:
    if best.kind == SEARCH:
        return settings.space.recipe_of(best.entry["genes"])
    ask = records.need_ask(best.generation)
    asked = next(entry for entry in ask["baselines"] if entry["number"] == best.entry["number"])
    return dict(asked["recipe"])


def _head(settings: RunSettings, best: Best, searched: Best | None) -> str:
    sentence = described(best, searched)
    metric = settings.objective.metric
    return f"# {sentence[0].upper()}{sentence[1:]} ({metric}; higher is better).\n"


def _plain(text: str) -> str:
    """A name from a recipe as part of one line."""
    return "".join(character if character.isprintable() else "?" for character in text)


__all__ = ["LINEAR", "ONE_MODEL", "SEARCH", "UNIFORM", "Best", "best_of", "described", "write_best"]

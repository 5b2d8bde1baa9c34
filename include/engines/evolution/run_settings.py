"""``run.json``: what an evolution searches and how it scores, the same for all its generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.contract import BadInputError
from engines.evaluation.models import model_digest
from engines.evaluation.prompting import FIELDS, PLAIN, Prompting
from engines.evaluation.settings import (
    BACKEND_FIELDS,
    backend_options,
    check_fields,
    count,
    optional_count,
    texts,
)
from engines.evaluation.tasks import load_tasks, shared_items
from engines.evolution.genes import Space
from engines.evolution.keys import backend_identity
from engines.evolution.objective import Objective
from engines.evolution.optimizer import CmaEs
from engines.inference.backend import BackendOptions
from engines.merge.plan.compatibility import check_recipe
from engines.merge.recipe.parse import load_recipe, parse_recipe, start_values, substitute

LARGEST_POPULATION = 4096
_LONG = ("recipe", "inputs", "tasks")
"""Settings too long to be shown in a sentence."""
REQUIRED = ("run_uri", "recipe", "tasks", "generation", "population", "batch")
OPTIONAL = ("objective", "report_tasks", "limit", "sigma", "baselines", *BACKEND_FIELDS, *FIELDS)
DEFAULT_SIGMA = 0.2
"""In the unit cube: two thirds of the first population lie within this part of each range from the start."""


@dataclass(frozen=True)
class RunSettings:
    """Everything that must not change between generations."""

    recipe: Mapping[str, Any]
    seed: int
    tasks: tuple[Mapping[str, str], ...]
    """``uri`` and ``digest`` of each."""
    population: int
    sigma: float
    objective: Objective
    limit: int | None
    backend: str
    dtype: str
    bos: str
    batch_size: int
    inputs: Mapping[str, Mapping[str, Any]]
    """Model in the recipe -> ``digest`` of its content, ``stamp`` of its files."""
    baselines: bool
    prompting: Prompting = PLAIN

    @property
    def space(self) -> Space:
        """The parameters to search."""
        return Space.of(self.recipe)

    @property
    def digests(self) -> dict[str, str]:
        """Content digest by the model's name in the recipe."""
        return {name: entry["digest"] for name, entry in self.inputs.items()}

    @property
    def task_digests(self) -> list[str]:
        """Digests of the tasks."""
        return [entry["digest"] for entry in self.tasks]

    def backend_identity(self) -> dict[str, Any]:
        """How scores are computed, for keys."""
        plain = backend_identity(self.backend, self.dtype, self.bos)
        return {**plain, **self.prompting.identity()}

    def backend_options(self, device: str) -> BackendOptions:
        """How to compute on one machine."""
        return BackendOptions(device=device, dtype=self.dtype, batch_size=self.batch_size, bos=self.bos)

    def optimizer(self) -> CmaEs:
        """The optimizer before anything was told."""
        return CmaEs(self.space.start(), self.population, sigma=self.sigma)

    def to_json(self) -> dict[str, Any]:
        """``run.json``."""
        return {
            "recipe": dict(self.recipe),
            "seed": self.seed,
            "tasks": [dict(entry) for entry in self.tasks],
            "optimizer": CmaEs.name,
            "population": self.population,
            "sigma": self.sigma,
            "objective": self.objective.to_json(),
            "limit": self.limit,
            "backend": self.backend,
            "dtype": self.dtype,
            "bos": self.bos,
            "batch_size": self.batch_size,
            "inputs": {name: dict(entry) for name, entry in self.inputs.items()},
            "baselines": self.baselines,
            "num_fewshot": self.prompting.num_fewshot,
            "apply_chat_template": self.prompting.chat,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSettings:
        """The reverse of ``to_json``. Raises BadInputError for a ``run.json`` of something else."""
        try:
            return cls._from_json(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"run.json is no record of an evolution ({error!r}); choose another folder",
                file="run.json",
                field="input.run_uri",
            ) from error

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> RunSettings:
        return cls(
            recipe=data["recipe"],
            seed=data["seed"],
            tasks=tuple(data["tasks"]),
            population=data["population"],
            sigma=data["sigma"],
            objective=Objective.parse(data["objective"]),
            limit=data["limit"],
            backend=data["backend"],
            dtype=data["dtype"],
            bos=data["bos"],
            batch_size=data["batch_size"],
            inputs=data["inputs"],
            baselines=data["baselines"],
            prompting=Prompting.of(data),
        )


def settings_from_input(
    given: Mapping[str, Any], seed: int, known: Mapping[str, Mapping[str, Any]] | None = None
) -> RunSettings:
    """Read evolve_ask's input.

    ``known``: ``inputs`` of an earlier ask; files with the same stamp are not read again. Raises
    BadInputError for unknown or wrong fields, a recipe with nothing to search, models or tasks that cannot be
    read, and search tasks that share items with ``report_tasks``.
    """
    check_fields("evolve_ask", given, REQUIRED, OPTIONAL)
    if not isinstance(given["recipe"], str | Mapping):
        raise BadInputError("input.recipe: must be a mapping, YAML text or a path", field="input.recipe")
    recipe, file = load_recipe(given["recipe"])
    space = Space.of(recipe)
    if known is None:  # as the compatibility check: every bound, and the plan at the start
        check_recipe(recipe, file=file)
    parsed = parse_recipe(space.recipe_of(space.start()), file=file)
    tasks = load_tasks(texts(given, "tasks"))
    if given.get("report_tasks"):
        shared = shared_items(tasks, load_tasks(texts(given, "report_tasks")))
        if shared:
            raise BadInputError(
                f"input.tasks: {len(shared)} item(s) are in report_tasks too, first '{shared[0]}'; "
                "search on items that the report does not use",
                field="input.tasks",
            )
    prompting = Prompting.of(given)
    prompting.check(tasks)
    objective = Objective.parse(given.get("objective"))
    objective.check({skill for task in tasks for skill in task.skills}, {task.kind for task in tasks})
    options = backend_options(given, "auto")
    population = count(given, "population", 4, least=4)
    if population > LARGEST_POPULATION:
        raise BadInputError(
            f"input.population: {population} is more than the largest, {LARGEST_POPULATION}",
            field="input.population",
        )
    return RunSettings(
        recipe=recipe,
        seed=seed,
        tasks=tuple({"uri": task.uri, "digest": task.digest} for task in tasks),
        population=population,
        sigma=_sigma(given),
        objective=objective,
        limit=optional_count(given, "limit"),
        backend=str(given.get("backend") or "auto"),
        dtype=options.dtype,
        bos=options.bos,
        batch_size=options.batch_size,
        inputs={
            str(ref): input_entry(ref.folder(file=file), (known or {}).get(str(ref)))
            for ref in parsed.references()
        },
        baselines=given.get("baselines", True) is not False,
        prompting=prompting,
    )


def input_entry(folder: Path, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Digest and stamp of a model folder; files with ``known``'s stamp are not read again."""
    stamp = [
        [entry.name, entry.stat().st_size, entry.stat().st_mtime_ns]
        for entry in sorted(folder.iterdir())
        if entry.is_file()
    ]
    if known is not None and known["stamp"] == stamp:
        return dict(known)
    return {"digest": model_digest(folder), "stamp": stamp}


def check_same(run: RunSettings, now: RunSettings, where: str) -> None:
    """Raises BadInputError where a later ask brings other settings than the first."""
    first, second = run.to_json(), now.to_json()
    for settings in (first, second):
        settings["inputs"] = {name: entry["digest"] for name, entry in settings["inputs"].items()}
        settings["tasks"] = [entry["digest"] for entry in settings["tasks"]]
        settings.pop("batch_size")
    for key, value in first.items():
        if second[key] != value:
            shown = f" ({value!r}, not {second[key]!r})" if key not in _LONG else ""
            raise BadInputError(
                f"input.{key}: differs from what {where} was started with{shown}; the scores of the two are "
                "not comparable: choose another folder (OUT, run_uri)",
                field=f"input.{key}",
            )


def check_inputs(run: RunSettings) -> None:
    """Raises BadInputError if a model's files changed since the run began, since scores would be mixed."""
    parsed = parse_recipe(substitute(run.recipe, start_values(run.recipe)))
    for reference in parsed.references():
        known = run.inputs[str(reference)]
        folder = reference.folder()
        if input_entry(folder, known)["digest"] != known["digest"]:
            raise BadInputError(
                f"{folder}: its files changed since this evolution began; use a new run_uri", file=str(folder)
            )


def _sigma(given: Mapping[str, Any]) -> float:
    value = given.get("sigma", DEFAULT_SIGMA)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise BadInputError(
            f"input.sigma: {value!r} must be a number above 0, at most 1 (the whole range)",
            field="input.sigma",
        )
    return float(value)

"""Inputs of the engines, built from a run's Params when a task runs (docs/design/0001-main-job.md).

Each is an object that the operator calls while it renders its fields; the operator raises its errors later,
in ``execute``. In the serialized DAG only its name appears, so that parsing reads no file and no Variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import PurePosixPath
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from emep import layout
from emep.dagkit.recipes import at_start, model_paths, read_recipe, searched
from emep.dagkit.settings import absolute, artifact_uri, data_root


@dataclass(frozen=True)
class Built:
    """A value that is built from the task's context while its fields are rendered."""

    name: str
    build: Callable[..., Any]
    bound: tuple[tuple[str, Any], ...] = ()

    def __call__(self, context: Mapping[str, Any], jinja_env: Any = None) -> Any:
        """The value; the signature is the one that Airflow calls templated fields with."""
        return self.build(context, **dict(self.bound))

    def serialize(self) -> dict[str, Any]:
        """How the value stands in the serialized DAG and in the grid before the task has run."""
        return {"built_by": self.name, **dict(self.bound)}


def _built(function: Callable[..., Any]) -> Callable[..., Built]:
    """Make ``function(context, **bound)`` a factory of ``Built`` values."""

    @wraps(function)
    def factory(**bound: Any) -> Built:
        return Built(function.__name__, function, tuple(sorted(bound.items())))

    return factory


_OVER_OWN = {"force": True}
"""A cleared task may evaluate another model than before, and its folder is the run's own."""


def run_folder(context: Mapping[str, Any]) -> str:
    """URI of the folder that holds everything of this DAG run."""
    run = context["dag_run"]
    folder = layout.run_folder(_project(context["params"]), _user(context), run.dag_id, run.run_id)
    return f"{artifact_uri()}/{folder}"


def _project(params: Mapping[str, Any]) -> str:
    return str(params.get("project") or "default")


def _user(context: Mapping[str, Any]) -> str:
    """As the job's user is named when it is asked for."""
    return str(context["dag_run"].triggering_user_name or context["task"].owner)


def _recipe(context: Mapping[str, Any], root: str | None) -> dict[str, Any]:
    """The run's recipe, from a file that a job of its user and project could read as well."""
    params = context["params"]
    return read_recipe(params["recipe"], root, _project(params), _user(context))


@_built
def output_uri(context: Mapping[str, Any], *, name: str) -> str:
    """URI below the run's folder."""
    return f"{run_folder(context)}/{name}"


@_built
def check_input(context: Mapping[str, Any], *, search: bool = False) -> dict[str, Any]:
    """compatibility_check: what the run's Params name."""
    params, root = context["params"], data_root()
    fields: dict[str, Any] = {}
    if params.get("recipe"):
        fields["recipe"] = recipe = _recipe(context, root)
        if search and not searched(recipe):
            raise AirflowFailException(
                "recipe: nothing to search; write a parameter as a range, such as "
                "weight: {search: [-0.5, 1.0], start: 0.3}."
            )
    if params.get("model"):
        fields["models"] = [absolute(params["model"], root)]
    for name in ("tasks", "report_tasks"):
        if params.get(name):
            fields[name] = [absolute(task, root) for task in params[name]]
    if params.get("baseline"):
        fields["baseline"] = absolute(params["baseline"], root)
    elif params.get("margin") is not None:
        raise AirflowFailException("margin: it is for a comparison; give a baseline too, or leave it empty.")
    prompts = _scoring(params)
    fields |= {name: prompts[name] for name in ("num_fewshot", "apply_chat_template") if name in prompts}
    return fields


@_built
def merge_input(context: Mapping[str, Any]) -> dict[str, Any]:
    """merge: the run's recipe, searched parameters at their start."""
    params = context["params"]
    return {
        "recipe": at_start(_recipe(context, data_root())),
        "output_name": params["output_name"],
    }


@_built
def start_merge_input(context: Mapping[str, Any]) -> dict[str, Any]:
    """merge in the pipeline: the recipe before the search, beside which the evolved one is shown; where there
    is nothing to search, the recipe itself under the run's own name."""
    recipe, name = _recipe(context, data_root()), "start"
    if not searched(recipe):
        name = context["params"]["output_name"]
    return {"recipe": at_start(recipe), "output_name": name}


@_built
def evaluate_input(context: Mapping[str, Any]) -> dict[str, Any]:
    """evaluate: the run's model."""
    params, root = context["params"], data_root()
    model = absolute(params["model"], root)
    return {"model": model, **_OVER_OWN, **_tasks(params, root), **_optional(params, root)}


def _tasks(params: Mapping[str, Any], root: str | None) -> dict[str, Any]:
    names = params.get("report_tasks") or params["tasks"]
    return {"tasks": [absolute(name, root) for name in names]}


def _optional(params: Mapping[str, Any], root: str | None) -> dict[str, Any]:
    fields = _scoring(params)
    if params.get("baseline"):
        fields["baseline"] = absolute(params["baseline"], root)
        if params.get("margin") is not None:
            fields["margin"] = params["margin"]
    return fields


def _scoring(params: Mapping[str, Any]) -> dict[str, Any]:
    """How every score of the run is computed; the engine's defaults apply to fields that are not set."""
    fields: dict[str, Any] = {}
    if params.get("limit") is not None:
        fields["limit"] = params["limit"]
    if params.get("dtype") not in (None, "auto"):
        fields["dtype"] = params["dtype"]
    for name in ("num_fewshot", "apply_chat_template"):
        if params.get(name):
            fields[name] = params[name]
    return fields


def search_folder(context: Mapping[str, Any]) -> str:
    """URI of the folder in which the run's evolution keeps its generations and results."""
    return f"{run_folder(context)}/search"


@_built
def ask_input(context: Mapping[str, Any], *, generation: int) -> dict[str, Any]:
    """evolve_ask of one generation."""
    params, root = context["params"], data_root()
    fields: dict[str, Any] = {
        "run_uri": search_folder(context),
        "recipe": _recipe(context, root),
        "tasks": [absolute(name, root) for name in params["tasks"]],
        "generation": generation,
        "population": params["population"],
        "batch": params["batch"],
    }
    if params.get("report_tasks"):
        fields["report_tasks"] = [absolute(name, root) for name in params["report_tasks"]]
    if params.get("objective") is not None:
        fields["objective"] = params["objective"]
    return fields | _scoring(params)


@_built
def candidates_input(context: Mapping[str, Any], *, generation: int) -> dict[str, Any]:
    """evolve_candidates of one generation; the numbers come from the mapped task's ``extra_input``."""
    return {"run_uri": search_folder(context), "generation": generation}


@_built
def tell_input(context: Mapping[str, Any], *, generation: int) -> dict[str, Any]:
    """evolve_tell of one generation."""
    return {"run_uri": search_folder(context), "generation": generation}


def generation_is_unused(number: int, params: Mapping[str, Any]) -> bool:
    """Whether the run asks for fewer generations than this one's number."""
    return number >= int(params["generations"])


def nothing_to_search(params: Mapping[str, Any]) -> bool:
    """Whether the run's recipe leaves nothing open. Raises AirflowFailException where it is no recipe."""
    return not searched(read_recipe(params["recipe"], data_root(), _project(params)))


def as_candidates(batch: list[int]) -> dict[str, Any]:
    """A batch of ``evolve_ask`` as the ``extra_input`` of one mapped task."""
    return {"candidates": batch}


def _last_tell(context: Mapping[str, Any]) -> dict[str, Any]:
    """The Result of the last generation that this run has told."""
    generations = context["params"]["generations"]
    return _result_of(context, f"generation_{generations - 1}.tell", "best")


def _result_of(context: Mapping[str, Any], task_id: str, output: str) -> dict[str, Any]:
    """The Result of a task before this one, which has that output.

    A task that was marked a success by hand has none: AirflowFailException then names it.
    """
    result = context["ti"].xcom_pull(task_ids=task_id)
    outputs = result.get("outputs") if isinstance(result, Mapping) else None
    written = outputs.get(output) if isinstance(outputs, Mapping) else None
    if not isinstance(written, Mapping) or not written.get("uri"):
        raise AirflowFailException(
            f"{task_id} has left no result (outputs.{output}); clear it to go on from there."
        )
    return dict(result)


@_built
def best_merge_input(context: Mapping[str, Any]) -> dict[str, Any]:
    """merge of the best recipe of the search."""
    best = _last_tell(context)["outputs"]["best"]["uri"]
    # A cleared generation may lead to another best recipe: the run's own folder then holds that one.
    return {"recipe": best, "output_name": context["params"]["output_name"], "force": True}


@_built
def evolved_evaluate_input(context: Mapping[str, Any]) -> dict[str, Any]:
    """evaluate of the evolved merge (of the only one, where nothing is searched) on the report's tasks."""
    params, root = context["params"], data_root()
    model = _merged(context, "merge" if nothing_to_search(params) else "merge_best")
    return {"model": model, **_OVER_OWN, **_tasks(params, root), **_optional(params, root)}


def _merged(context: Mapping[str, Any], task_id: str) -> str:
    return str(_result_of(context, task_id, "model")["outputs"]["model"]["uri"])


@_built
def scoreboard_input(context: Mapping[str, Any]) -> dict[str, Any]:
    """benchmark on the report's tasks, of all models that the scoreboard compares.

    These are base, parents, uniform averages (merged in memory), the start and the evolved merge; without a
    search they are base, parents and the merge.
    """
    params, root = context["params"], data_root()
    recipe = _recipe(context, root)
    models = {name: path for name, path in _named(model_paths(recipe))}
    if params.get("model"):
        models["compared"] = absolute(params["model"], root)
    fields: dict[str, Any] = {"models": models, **_OVER_OWN, **_tasks(params, root), **_scoring(params)}
    if not searched(recipe):
        models["merged"] = _merged(context, "merge")
        return fields
    models["start"] = _merged(context, "merge")
    models["evolved"] = _merged(context, "merge_best")
    if origin := _origin(context):
        fields["of"] = {"evolved": origin}
    if "weight" in searched(recipe):
        fields["uniform"] = {"recipe": recipe}
    return fields


def _origin(context: Mapping[str, Any]) -> str:
    """Which baseline the best of the search is, where no candidate has beaten it; else nothing."""
    metrics = _last_tell(context).get("metrics") or {}
    if metrics.get("best_kind", "search") == "search":
        return ""
    return f"a baseline, not the search's: {metrics['best_name']}"


def _named(paths: list[str]) -> list[tuple[str, str]]:
    """Each path with its last component as a name; ``name-2`` where two end alike."""
    names: dict[str, int] = {}
    named = []
    for path in paths:
        name = PurePosixPath(path).name or path
        names[name] = names.get(name, 0) + 1
        named.append((name if names[name] == 1 else f"{name}-{names[name]}", path))
    return named

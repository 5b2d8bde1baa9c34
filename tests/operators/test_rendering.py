"""Fields with a mistake in them: rendered as Airflow's task runner renders, refused by ``execute``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

import emep.operators
import emep.sensors
from emep.dagkit import inputs
from emep.operators.fair_share import FairShareGpuOperator
from emep.operators.rendering import RendersInWords
from emep.sensors.gpu_health import GpuHealthSensor

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {
    "emep_evaluate": {"model", "tasks", "margin"},
    "emep_evolve": {"recipe", "tasks"},
    "emep_merge": {"recipe"},
    "emep_pipeline": {"recipe", "model", "tasks", "margin"},
}
"""Those of each DAG's form that the cases below are about."""
DAGS = sorted(FIELDS)
RECIPE = {"merge_method": "linear", "models": [{"model": "a", "parameters": {"weight": {"search": [0, 1]}}}]}
RESULTS = {
    "merge": {"outputs": {"model": {"uri": "file:///m"}}},
    "merge_best": {"outputs": {"model": {"uri": "file:///m"}}},
    "generation_1.tell": {"outputs": {"best": {"uri": "file:///best.yaml"}}, "metrics": {}},
}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "data_root", lambda: "/data")


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(ROOT / "dags")


def context(task: Any, results: dict[str, Any] = RESULTS, **params: Any) -> dict[str, Any]:
    dag = task.dag
    ti = SimpleNamespace(
        dag_id=dag.dag_id,
        run_id="r",
        task_id=task.task_id,
        map_index=-1,
        try_number=1,
        max_tries=3,
        task=task,
        xcom_pull=lambda *, task_ids: results.get(task_ids),
    )
    run = SimpleNamespace(
        dag_id=dag.dag_id, run_id="r", conf={}, triggering_user_name="alice", start_date=None
    )
    return {"dag": dag, "dag_run": run, "params": params, "ti": ti, "task": task}


def rendered(task: Any, given: dict[str, Any]) -> Any:
    """The task, with its fields rendered and sent as Airflow's ``_prepare`` does both."""
    task = task.prepare_for_execution()
    given["task"] = given["ti"].task = task
    task.render_template_fields(given, task.dag.get_template_env())
    task = given["task"]  # a mapped task has become one of its own
    assert _serialize_rendered_fields(task)
    return task


def defaults(dag: Any) -> dict[str, Any]:
    params = {name: dag.params.get_param(name).value for name in dag.params}
    return {**params, "recipe": RECIPE, "model": "base", "tasks": ["a.jsonl"], "generations": 2}


WRONG = {
    "not YAML": ("recipe", "merge_method: [", "this is not YAML"),
    "no file": ("recipe", "recipes/missing.yaml", "recipes/missing.yaml"),
    "a list": ("recipe", "- a\n- b", "a recipe is a mapping"),
    "no URI": ("recipe", "http://[here/recipe.yaml", "neither a path nor a URI"),
    "a model that is no URI": ("model", "s3://[x", "neither a path nor a URI"),
    "a task that is no URI": ("tasks", ["s3://[x"], "neither a path nor a URI"),
    "a margin without a baseline": ("margin", 0.1, "margin"),
}


@pytest.mark.parametrize(
    ("dag_id", "case"), [(dag, case) for dag in DAGS for case in WRONG if WRONG[case][0] in FIELDS[dag]]
)
def test_the_first_task_of_every_dag_says_in_execute_what_is_wrong(bag, capsys, dag_id, case):
    dag = bag.dags[dag_id]
    field, value, words = WRONG[case]
    given = context(dag.get_task("compatibility_check"), **{**defaults(dag), field: value})
    task = rendered(dag.get_task("compatibility_check"), given)
    shown = capsys.readouterr()
    assert "Exception rendering" not in shown.out + shown.err
    assert "Traceback" not in shown.out + shown.err
    with pytest.raises(AirflowFailException, match=words) as caught:
        task.execute(given)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert not [entry for entry in caught.traceback if "dagkit" in str(entry.path)]


@pytest.mark.parametrize("dag_id", DAGS)
def test_no_task_of_a_dag_fails_while_it_is_rendered(bag, capsys, dag_id):
    dag = bag.dags[dag_id]
    params = {**defaults(dag), "recipe": "merge_method: [", "model": "s3://[x", "tasks": ["s3://[x"]}
    failed = 0
    for task in dag.tasks:
        if task.is_mapped:
            continue  # what they are mapped over comes from a task before them
        given = context(task, results={}, **params)
        ready = rendered(task, given)
        failed += ready._unrendered is not None
        if ready._unrendered is not None:
            with pytest.raises(AirflowException):
                ready.execute(given)
    assert failed >= 2
    shown = capsys.readouterr()
    assert "Exception rendering" not in shown.out + shown.err


@pytest.mark.parametrize("left", [None, {}, {"outputs": {}}, {"outputs": {"model": {}}}, "text"])
def test_a_task_that_was_marked_a_success_by_hand_is_named_by_those_after_it(bag, left):
    dag = bag.dags["emep_pipeline"]
    given = context(dag.get_task("scoreboard"), {**RESULTS, "merge": left}, **defaults(dag))
    task = rendered(dag.get_task("scoreboard"), given)
    with pytest.raises(AirflowFailException, match="merge has left no result"):
        task.execute(given)


def one(**fields: Any) -> FairShareGpuOperator:
    fields = {"task_id": "t", "engine": "merge", "input": {"recipe": "r"}, "output_uri": "o", **fields}
    with DAG("d", schedule=None):
        return FairShareGpuOperator(**fields)


TEMPLATES = {
    "open braces": "{{ params.x",
    "no such filter": "{{ params.x | nothing }}",
    "a part of nothing": "{{ params.missing.part }}",
    "a number and nothing": "{{ params.x + 1 }}",
    "no such key": "{{ {}['x'] | int + 'a' }}",
    "a division by zero": "{{ 1 // 0 }}",
}


@pytest.mark.parametrize("case", TEMPLATES)
@pytest.mark.parametrize("field", ["input", "gpu_count", "extra_input", "max_duration"])
def test_a_template_that_cannot_be_rendered_is_named_with_its_field(capsys, field, case):
    template = TEMPLATES[case]
    value = {"a": ["b", template]} if field.endswith("input") else template
    task = one(**{field: value})
    given = context(task, x=None)
    task = rendered(task, given)
    assert "Exception rendering" not in "".join(capsys.readouterr())
    with pytest.raises(AirflowFailException, match=f"^{field}: the template .* cannot be rendered") as caught:
        task.execute(given)
    assert template in str(caught.value)


def test_what_is_not_the_user_s_mistake_is_raised_as_it_was_and_tried_again():
    class Away(AirflowException):
        pass

    def value(context: Any, jinja_env: Any) -> Any:
        raise Away("the API cannot be reached")

    task = one(input=value)
    given = context(task)
    task = rendered(task, given)
    with pytest.raises(Away, match="cannot be reached"):
        task.execute(given)


def test_a_mapped_task_s_fields_are_rendered_alike(capsys):
    with DAG("d", schedule=None):
        mapped = FairShareGpuOperator.partial(
            task_id="t", engine="merge", input={"recipe": "{{ params.x"}, output_uri="o"
        ).expand(extra_input=[{"n": 1}])
    given = context(mapped)
    given["ti"].map_index = 0
    given["ti"]._upstream_map_indexes = {}
    task = rendered(mapped, given)
    assert "Exception rendering" not in "".join(capsys.readouterr())
    with pytest.raises(AirflowFailException, match="input: the template"):
        task.execute(given)


def test_a_task_that_is_resumed_keeps_its_result_though_its_recipe_is_gone(monkeypatch, bag):
    dag = bag.dags["emep_merge"]
    task = dag.get_task("merge")
    given = context(task, **{**defaults(dag), "recipe": "recipes/missing.yaml"})
    task = rendered(task, given)
    monkeypatch.setattr(type(task), "finish", lambda self, context, job: job.id)
    job = SimpleNamespace(id="j1")
    monkeypatch.setattr("emep.wire.jobs.JobView.model_validate", lambda event: job)
    assert task.execute_complete(given, {"job": {}}) == "j1"


def test_rendering_again_forgets_what_was_wrong():
    task = one(max_duration="{{ params.x + 1 }}").prepare_for_execution()
    given = context(task, x=None)
    template = task.max_duration
    task.render_template_fields(given, task.dag.get_template_env())
    assert task.max_duration == template
    given["params"]["x"] = 1
    task.render_template_fields(given, task.dag.get_template_env())
    task.fail_unrendered()
    assert task.max_duration == "2"


def test_the_watch_over_hardware_says_what_is_wrong_in_its_fields():
    with DAG("d", schedule=None):
        task = GpuHealthSensor(task_id="t", watch="{{ params.watch")
    given = context(task)
    task = rendered(task, given)
    with pytest.raises(AirflowFailException, match="watch: the template"):
        task.execute(given)


def operators() -> list[type]:
    found = set()
    for package in (emep.operators, emep.sensors):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                own = inspect.isclass(value) and value.__module__.startswith("emep.")
                if own and issubclass(value, BaseOperator):
                    found.add(value)
    return sorted(found, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", operators())
def test_every_operator_refuses_in_execute_what_could_not_be_rendered(cls):
    assert issubclass(cls, RendersInWords)
    more: dict[str, Any] = {"generation": 0} if cls.__name__ == "AskOperator" else {}
    if issubclass(cls, FairShareGpuOperator):
        more |= {"engine": "merge"}
    with DAG("d", schedule=None):
        task = cls(task_id="t", **more)
    task._unrendered = AirflowFailException("recipe: this is not YAML.")
    given = context(task, recipe=RECIPE, generations=1)
    with pytest.raises(AirflowFailException, match="this is not YAML"):
        task.execute(given)

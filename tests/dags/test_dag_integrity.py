"""The four pipeline DAGs as Airflow reads them: imports, gates, forms, pools."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from emep.airflow.task_request import wish_of
from emep.bootstrap import read_settings
from emep.operators.fair_share import FairShareGpuOperator

ROOT = Path(__file__).resolve().parents[2]
DAGS = ["emep_evaluate", "emep_evolve", "emep_merge", "emep_pipeline"]
COMMON = {
    "project",
    "priority",
    "gpu_count",
    "gpu_memory_min",
    "gpu_type",
    "nvlink_required",
    "max_duration",
    "runtime",
    "seed",
    "experiment_id",
}
SCORING = {"limit", "dtype", "num_fewshot", "apply_chat_template"}
OWN = {
    "emep_merge": {"recipe", "output_name"},
    "emep_evaluate": {"model", "tasks", "baseline", "margin"} | SCORING,
    "emep_evolve": {"recipe", "tasks", "objective", "generations", "population", "batch"} | SCORING,
    "emep_pipeline": {
        *("recipe", "output_name", "model", "tasks", "baseline", "margin", *SCORING),
        *("objective", "generations", "population", "batch"),
    },
}
NEEDED = {
    "emep_merge": {"recipe": "merge_method: linear\nmodels: []"},
    "emep_evaluate": {"model": "base", "tasks": ["a.jsonl"]},
    "emep_evolve": {"recipe": {"merge_method": "linear"}, "tasks": ["a.jsonl"]},
    "emep_pipeline": {"recipe": {"merge_method": "linear"}, "tasks": ["a.jsonl"]},
}


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(ROOT / "dags")


@pytest.fixture(params=DAGS)
def dag(request, bag):
    return bag.dags[request.param]


def validated(dag, **conf):
    params = copy.deepcopy(ParamsDict(dag.params))
    params.update({**NEEDED[dag.dag_id], **conf})
    return params.validate()


def test_every_file_imports_and_gives_its_dag(bag):
    assert bag.import_errors == {}
    assert set(DAGS) <= set(bag.dags)


def test_files_parse_in_less_than_a_second_each(bag):
    slow = {stat.file: stat.duration.total_seconds() for stat in bag.dagbag_stats}
    assert all(seconds < 1.0 for seconds in slow.values()), slow


def test_parsing_imports_nothing_heavy():
    import subprocess
    import sys

    heavy = ("torch", "transformers", "kubernetes", "boto3", "engines", "emep.client")
    code = (
        "import sys; import airflow.sdk; import emep.dagkit.tasks, emep.dagkit.params; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_every_dag_has_tags_documentation_an_owner_and_retries(dag):
    assert "emep" in dag.tags
    assert len(dag.doc_md) > 100
    assert dag.default_args["owner"] == "emep"
    assert dag.default_args["retries"] >= 2
    assert dag.start_date is not None
    assert dag.catchup is False


def test_no_gate_of_airflow_holds_a_request_back(dag):
    assert dag.max_active_runs >= 1000
    assert dag.max_active_tasks >= 64
    for task in dag.tasks:
        assert task.max_active_tis_per_dag is None
        assert task.max_active_tis_per_dagrun is None
        assert task.depends_on_past is False


def test_every_pool_is_in_the_settings_file_and_large_enough(dag):
    pools = {
        pool["pool_name"]: pool["pool_slot"] for pool in read_settings(ROOT / "airflow_settings.yaml").pools
    }
    for task in dag.tasks:
        assert task.pool in pools
        assert task.pool_slots <= pools[task.pool]
        assert pools[task.pool] >= 10_000


def test_no_task_sums_the_weights_of_what_comes_after_it(dag):
    for task in dag.tasks:
        assert "absolute" in str(type(task.weight_rule)).lower() or task.weight_rule == "absolute"


def test_every_task_has_a_time_limit(dag):
    assert dag.dagrun_timeout is not None
    assert all(task.execution_timeout is not None for task in dag.tasks)


def test_every_dag_begins_with_the_compatibility_check(dag):
    (root,) = dag.roots
    assert root.task_id == "compatibility_check"
    assert root.engine == "compatibility_check"
    assert root.gpu_count == 0


def test_every_task_runs_through_the_allocator(dag):
    for task in dag.tasks:
        assert issubclass(task.operator_class, FairShareGpuOperator), task.task_id


def test_the_form_has_the_fields_of_the_contract(dag):
    assert set(dag.params) >= COMMON | OWN[dag.dag_id]


def test_every_field_of_the_form_has_a_title_help_and_a_type(dag):
    for name in dag.params:
        param = dag.params.get_param(name)
        # Airflow shows the Markdown where there is no plain text.
        assert len(param.description or param.schema["description_md"]) > 10, name
        assert param.schema.get("title"), name
        assert param.schema.get("type"), name


def test_the_defaults_are_valid(dag):
    assert validated(dag)["gpu_count"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "urgent"),
        ("gpu_count", -1),
        ("gpu_count", "two"),
        ("gpu_count", 1.5),
        ("gpu_memory_min", "much"),
        ("max_duration", "soon"),
        ("max_duration", 0),
        ("nvlink_required", "yes"),
        ("runtime", "ssh"),
        ("seed", -1),
        ("project", ""),
    ],
)
def test_a_wrong_value_is_refused_by_the_form(dag, field, value):
    with pytest.raises(ParamValidationError):
        validated(dag, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "medium"),
        ("gpu_count", 0),
        ("gpu_memory_min", "40Gi"),
        ("gpu_memory_min", 42949672960),
        ("max_duration", "1h30m"),
        ("max_duration", 7200),
        ("gpu_type", "NVIDIA-H100-80GB-HBM3"),
    ],
)
def test_what_the_contract_allows_is_accepted(dag, field, value):
    assert validated(dag, **{field: value})[field] == value


@pytest.mark.parametrize("dag_id", ["emep_evaluate", "emep_pipeline"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("margin", -0.1), ("margin", 2), ("dtype", "int8"), ("num_fewshot", -1), ("apply_chat_template", "yes")],
)
def test_how_scores_are_computed_and_compared_has_bounds(bag, dag_id, field, value):
    with pytest.raises(ParamValidationError):
        validated(bag.dags[dag_id], **{field: value})


def test_what_follows_a_search_runs_where_the_search_is_skipped(bag):
    dag = bag.dags["emep_pipeline"]
    for name in ("evaluate", "scoreboard"):
        task = dag.get_task(name)
        assert task.upstream_task_ids == {"merge", "merge_best"}
        assert task.trigger_rule == "none_failed_min_one_success"


@pytest.mark.parametrize("field", ["generations", "population", "batch"])
@pytest.mark.parametrize("dag_id", ["emep_evolve", "emep_pipeline"])
@pytest.mark.parametrize("value", [0, 10_000, "4"])
def test_the_search_has_bounds(bag, dag_id, field, value):
    with pytest.raises(ParamValidationError):
        validated(bag.dags[dag_id], **{field: value})


def test_a_run_without_a_recipe_is_refused(bag):
    with pytest.raises(ParamValidationError):
        ParamsDict(bag.dags["emep_merge"].params).validate()


def test_a_dag_survives_serialization_and_is_the_same_every_time(dag):
    first, second = DagSerialization.to_dict(dag), DagSerialization.to_dict(dag)
    assert first == second
    again = DagSerialization.from_dict(first)
    assert set(again.task_ids) == set(dag.task_ids)
    assert "0x" not in str([task["__var"].get("input") for task in first["dag"]["tasks"]])


def test_serialization_is_quick_enough_for_the_processor(bag):
    start = time.process_time()
    DagSerialization.to_dict(bag.dags["emep_pipeline"])
    assert time.process_time() - start < 10


def test_generation_groups_follow_one_another(bag):
    dag = bag.dags["emep_evolve"]
    assert dag.get_task("generation_1.ask").upstream_task_ids == {"generation_0.tell"}
    assert dag.get_task("generation_0.ask").upstream_task_ids == {"compatibility_check"}
    assert dag.get_task("generation_0.candidates").upstream_task_ids == {"generation_0.ask"}
    assert dag.get_task("generation_0.tell").upstream_task_ids == {"generation_0.candidates"}


def test_the_number_of_groups_is_a_setting(monkeypatch):
    from emep.dagkit import params, settings, tasks

    monkeypatch.setenv("AIRFLOW__EMEP__GENERATION_GROUPS", "3")
    assert settings.generation_groups() == 3
    assert params.search()["generations"].schema["maximum"] == 3
    assert tasks.unused_generations({"generations": 2}) == [
        "generation_2.ask",
        "generation_2.candidates",
        "generation_2.tell",
    ]


@pytest.mark.parametrize(("priority", "queue"), [("critical", "merge"), ("high", "eval"), ("low", "eval")])
def test_an_evaluation_has_the_class_that_its_run_asks_for(bag: DagBag, priority: str, queue: str) -> None:
    task = bag.dags["emep_evaluate"].get_task("evaluate")
    wish = wish_of(task, {"priority": priority})
    assert (wish.priority, wish.queue) == (priority, queue)

"""The pipelines in a real Airflow: scheduler, API server, triggerer, dag-processor, two agents, on SQLite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.builders.real_airflow import copy_model

from emep.client import EmepApiError

pytestmark = pytest.mark.airflow

SEARCH = {
    "recipe": "recipes/evolve.yaml",
    "tasks": ["tasks/upright_search.jsonl", "tasks/turned_search.jsonl"],
    "generations": 2,
    "population": 4,
    "batch": 10,
    "limit": 40,
}
REPORT = ["tasks/upright_report.jsonl", "tasks/turned_report.jsonl"]


@pytest.fixture(scope="module")
def pipeline(airflow):
    """A whole pipeline, started before the other tests and awaited by those that look at it."""
    return airflow.trigger("emep_pipeline", **SEARCH, report_tasks=REPORT, output_name="winner")


@pytest.fixture(scope="module")
def bad_runs(airflow, pipeline):
    """Runs that can never work, all at once; none of them is waited for twice."""
    from safetensors.torch import load_file, save_file

    folder = airflow.models / "broken"  # below what a job may read
    torn = copy_model(airflow.models / "expert-upright", folder / "torn")
    next(iter(torn.glob("*.safetensors"))).unlink()
    cut = copy_model(airflow.models / "expert-upright", folder / "cut")
    shard = next(iter(cut.glob("*.safetensors")))
    shard.write_bytes(shard.read_bytes()[:1000])
    other = copy_model(airflow.models / "expert-upright", folder / "other")
    weights = next(iter(other.glob("*.safetensors")))
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    save_file({**tensors, name: tensors[name][:-1].clone()}, weights, {"format": "pt"})

    def merge(model: Path | str, **more):
        recipe = {
            "merge_method": "task_arithmetic",
            "base_model": "base",
            "models": [{"model": str(model), "parameters": {"weight": 0.5}}],
        }
        recipe |= more.pop("recipe", {})
        return airflow.trigger("emep_merge", recipe=recipe, **more)

    runs = {
        "method": merge("expert-turned", recipe={"merge_method": "task_aritmetic"}),
        "shard": merge(torn),
        "cut": merge(cut),
        "shape": merge(other),
        "model": merge("expert-sideways"),
        "field": merge("expert-turned", ouput_name="x"),
        "never": merge("expert-turned", gpu_memory_min="900Gi"),
        "idle GPUs": merge("expert-turned", gpu_count=64),
        "nothing to search": airflow.trigger(
            "emep_evolve", recipe="recipes/task_arithmetic.yaml", tasks=REPORT
        ),
        "no task": airflow.trigger("emep_evaluate", model="base", tasks=["tasks/missing.jsonl"]),
    }
    for run in runs.values():
        run.ended()
    return runs


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("method", ["task_aritmetic", "task_arithmetic"]),
        ("shard", ["torn", "safetensors"]),
        ("cut", ["cut"]),
        ("shape", ["other", "mlp.up_proj.weight"]),
        ("model", ["expert-sideways"]),
        ("field", ["ouput_name", "output_name"]),
        ("idle GPUs", ["gpu_count", "merge uses one GPU", "64"]),
        ("nothing to search", ["nothing to search"]),
        ("no task", ["missing.jsonl"]),
    ],
)
def test_what_can_never_work_fails_at_the_first_task_in_one_sentence(bad_runs, name, words):
    run = bad_runs[name]
    assert run.state == "failed"
    states = run.states()
    assert states.pop("compatibility_check") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    assert run.tasks()["compatibility_check"]["try_number"] == 1
    sentence = run.sentence("compatibility_check")
    for word in words:
        assert word in sentence
    assert "\n" not in sentence


def test_a_job_that_can_never_be_placed_is_refused_with_the_limit_it_hit(bad_runs):
    run = bad_runs["never"]
    assert run.states() == {"compatibility_check": "success", "merge": "failed"}
    assert run.tasks()["merge"]["try_number"] == 1
    assert "900" in run.sentence("merge")
    assert [job["state"] for job in run.jobs() if job["gpu_count"] == 1] == ["rejected"]


def test_no_output_is_left_behind_by_what_failed(bad_runs):
    for run in bad_runs.values():
        left = [path for path in run.folder.rglob("*") if path.is_file()] if run.folder.exists() else []
        assert left == []


@pytest.mark.parametrize(
    ("field", "value"), [("gpu_count", "two"), ("priority", "urgent"), ("max_duration", "soon"), ("seed", -1)]
)
def test_a_wrong_value_is_refused_before_there_is_a_run(airflow, field, value):
    with pytest.raises(EmepApiError) as caught:
        airflow.trigger("emep_merge", recipe="recipes/task_arithmetic.yaml", **{field: value})
    assert caught.value.status in (400, 422)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_duration", "soon"), ("gpu_memory_min", "much"), ("max_duration", "1" * 40 + "x")],
)
def test_a_wrong_duration_or_amount_is_answered_in_a_sentence(airflow, field, value):
    with pytest.raises(EmepApiError) as caught:
        airflow.trigger("emep_merge", recipe="recipes/task_arithmetic.yaml", **{field: value})
    assert caught.value.status == 400
    assert "Write for example" in str(caught.value)
    assert "schema" not in str(caught.value)


def test_an_invalid_recipe_is_the_last_line_of_an_open_log(airflow):
    run = airflow.trigger("emep_merge", recipe="merge_method: [")
    run.ended()
    assert run.tasks()["compatibility_check"]["try_number"] == 1
    assert "this is not YAML" in run.sentence("compatibility_check")
    log = run.log("compatibility_check")
    assert "Exception rendering" not in log
    opened = log[: log.index("Task failed with exception")]
    assert opened.rindex("::endgroup::") > opened.rindex("::group::")


def test_the_pipeline_succeeds_and_skips_what_was_not_asked_for(pipeline):
    assert pipeline.ended() == "success", pipeline.states()
    states = pipeline.states()
    for generation in range(2):
        assert states[f"generation_{generation}.tell"] == "success"
    unused = {name: task for name, task in pipeline.tasks().items() if name.startswith("generation_2.")}
    assert {task["state"] for task in unused.values()} == {"skipped"}
    assert {task["try_number"] for task in unused.values()} == {0}, "skipping must cost no worker"


def test_the_scoreboard_has_every_model(pipeline):
    metrics = pipeline.result("scoreboard")["metrics"]
    rows = {name for name, entry in metrics.items() if isinstance(entry, dict)}
    parents = {"base", "expert-upright", "expert-turned", "mislabelled"}
    assert rows == parents | {"start", "best uniform average", "evolved"}
    for name in rows:
        assert set(metrics[name]) >= {"upright", "turned", "combined"}
        assert 0 <= metrics[name]["combined"]["acc"] <= 1
        assert metrics[name]["combined"]["acc_stderr"] > 0


def test_the_evolved_model_is_a_checkpoint_that_loads_and_scores_as_reported(pipeline):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = pipeline.folder / "models" / "winner"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters() > 100_000
    assert len(AutoTokenizer.from_pretrained(folder)) > 30
    evaluated = pipeline.result("evaluate")["metrics"]["combined"]["acc"]
    assert evaluated == pytest.approx(pipeline.result("scoreboard")["metrics"]["evolved"]["combined"]["acc"])


def test_a_recipe_with_nothing_to_search_is_merged_evaluated_and_shown(airflow, pipeline):
    recipe = {
        "merge_method": "task_arithmetic",
        "base_model": "base",
        "models": [{"model": "expert-upright", "parameters": {"weight": "4e-1"}}],
    }
    first = airflow.trigger("emep_evaluate", model="base", tasks=REPORT, limit=60)
    assert first.ended() == "success", first.states()
    baseline = first.result("evaluate")["outputs"]["results"]["uri"]
    more = {"num_fewshot": 0, "dtype": "float32", "margin": 0.3, "baseline": baseline, "limit": 40}
    run = airflow.trigger("emep_pipeline", recipe=recipe, tasks=REPORT, output_name="plain", **more)
    assert run.ended() == "success", run.states()
    states = run.states()
    assert states.pop("compatibility_check") == "success"
    ran = {name: state for name, state in states.items() if name in ("merge", "evaluate", "scoreboard")}
    assert set(ran.values()) == {"success"}
    assert {state for name, state in states.items() if name not in ran} == {"skipped"}
    metrics = run.result("scoreboard")["metrics"]
    assert {name for name, entry in metrics.items() if isinstance(entry, dict)} == {
        *("base", "expert-upright", "merged")
    }
    assert (run.folder / "models" / "plain" / "config.json").is_file()
    evaluated = run.result("evaluate")["metrics"]
    assert evaluated["comparison"]["n"] == 80
    assert evaluated["comparison"]["margin"] == 0.3
    assert any("40 of 60 items are compared" in warning for warning in evaluated["warnings"])
    lines = [line for line in run.log("evaluate").splitlines() if "warning: " in line]
    assert any("only the first items of each task were scored" in line for line in lines)


def test_the_engine_s_log_is_in_the_task_s_log_once(pipeline):
    log = pipeline.log("generation_0.candidates[0]")
    assert "is running on node-" in log
    lines = [line for line in log.splitlines() if "candidates" in line and "/" in line]
    assert lines
    assert len(lines) == len(set(lines))


def test_every_job_is_charged_to_the_user_who_started_the_run(pipeline):
    jobs = pipeline.jobs()
    assert {job["user"] for job in jobs} == {"admin"}
    assert {job["state"] for job in jobs} == {"completed"}
    assert {job["experiment_id"] for job in jobs} == {pipeline.run_id}


def test_clearing_a_generation_goes_on_from_it(airflow, pipeline):
    pipeline.ended()
    before = pipeline.result("generation_1.tell")["metrics"]
    path = "/dags/emep_pipeline/clearTaskInstances"
    body = {
        "dag_run_id": pipeline.run_id,
        "task_ids": ["generation_1.ask"],
        "include_downstream": True,
        "only_failed": False,
        "dry_run": False,
    }
    airflow.call("POST", path, body)
    assert pipeline.ended() == "success", pipeline.states()
    after = pipeline.result("generation_1.tell")["metrics"]
    assert after["best_score"] == before["best_score"]
    assert after["evaluations"] == before["evaluations"], "what had a result was computed again"
    assert pipeline.states()["generation_2.tell"] == "skipped"
    assert pipeline.states()["generation_0.tell"] == "success"
    assert pipeline.tasks()["generation_0.tell"]["try_number"] == 1


def long_evaluation(airflow) -> dict[str, object]:
    """An evaluation that takes minutes: the report's items many times over."""
    items = [json.loads(line) for line in (airflow.models / REPORT[0]).read_text().splitlines()]
    path = airflow.models / "tasks" / "long.jsonl"
    with path.open("w") as file:
        for copy in range(200):
            for item in items:
                file.write(json.dumps({**item, "id": f"{copy}-{item['id']}"}) + "\n")
    return {"model": "base", "tasks": [str(path)], "gpu_count": 1}


def test_ending_a_deferred_task_by_hand_releases_its_gpus(airflow, pipeline):
    pipeline.ended()
    run = airflow.trigger("emep_evaluate", **long_evaluation(airflow))
    airflow.wait(lambda: run.states().get("evaluate") == "deferred")
    airflow.wait(lambda: len(airflow.held_gpus()) == 1)
    (job,) = [job for job in run.jobs() if job["gpu_count"] == 1]
    airflow.call(
        "PATCH", f"/dags/emep_evaluate/dagRuns/{run.run_id}/taskInstances/evaluate", {"new_state": "failed"}
    )
    airflow.wait(lambda: not airflow.held_gpus())
    (job,) = [job for job in run.jobs() if job["gpu_count"] == 1]
    assert job["state"] == "cancelled"
    assert run.ended() == "failed"


def test_nothing_is_held_when_everything_has_ended(airflow, pipeline, bad_runs):
    pipeline.ended()
    airflow.wait(lambda: not airflow.held_gpus())

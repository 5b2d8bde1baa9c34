"""What the DAGs make of a run's Params for the engines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from emep.dagkit import inputs, tasks
from emep.layout import run_folder

PLAIN = {
    "merge_method": "task_arithmetic",
    "base_model": "base",
    "models": [{"model": "left", "parameters": {"weight": 0.5}}],
}
SEARCH = {**PLAIN, "models": [{"model": "left", "parameters": {"weight": {"search": [0, 1], "start": 0.3}}}]}
DEFAULTS = {
    "output_name": "winner",
    "tasks": ["search.jsonl"],
    "report_tasks": None,
    "model": None,
    "baseline": None,
    "margin": None,
    "limit": None,
    "dtype": "auto",
    "num_fewshot": 0,
    "apply_chat_template": False,
    "objective": None,
    "generations": 2,
    "population": 4,
    "batch": 8,
}
TELL = {"outputs": {"best": {"uri": "file:///best.yaml"}}, "metrics": {}}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "data_root", lambda: "/data")
    monkeypatch.setattr(inputs, "artifact_uri", lambda: "file:///artifacts")


def context(recipe: Any, tell: Any = TELL, **params: Any) -> dict[str, Any]:
    """A run of the pipeline whose merges have ended."""
    results = {
        "merge": {"outputs": {"model": {"uri": "file:///models/first"}}},
        "merge_best": {"outputs": {"model": {"uri": "file:///models/best"}}},
        "generation_1.tell": tell,
    }

    def xcom_pull(task_ids: str) -> Any:
        return results.get(task_ids)

    return {
        "params": {**DEFAULTS, "recipe": recipe, **params},
        "dag_run": SimpleNamespace(dag_id="emep_pipeline", run_id="r", triggering_user_name="alice"),
        "ti": SimpleNamespace(xcom_pull=xcom_pull),
    }


def test_a_recipe_with_nothing_to_search_is_merged_under_its_name_evaluated_and_shown():
    run = context(PLAIN)
    assert inputs.check_input()(run)["recipe"]["base_model"] == "/data/base"
    assert inputs.start_merge_input()(run)["output_name"] == "winner"
    assert inputs.evolved_evaluate_input()(run)["model"] == "file:///models/first"
    board = inputs.scoreboard_input()(run)
    assert board["models"] == {"base": "/data/base", "left": "/data/left", "merged": "file:///models/first"}
    assert "uniform" not in board
    assert "of" not in board


def test_a_recipe_with_nothing_to_search_skips_every_generation_and_the_merge_of_the_best():
    skipped = tasks.unused_search(context(PLAIN)["params"])
    assert "merge_best" in skipped
    assert {f"generation_{n}.{name}" for n in range(16) for name in ("ask", "candidates", "tell")} <= set(
        skipped
    )
    assert "generation_1.tell" not in tasks.unused_search(context(SEARCH)["params"])
    assert "merge_best" not in tasks.unused_search(context(SEARCH)["params"])


def test_an_evolution_still_needs_something_to_search():
    with pytest.raises(AirflowFailException, match="nothing to search"):
        inputs.check_input(search=True)(context(PLAIN))


def test_the_first_merge_of_a_search_is_its_start():
    made = inputs.start_merge_input()(context(SEARCH))
    assert made["output_name"] == "start"
    assert made["recipe"]["models"][0]["parameters"]["weight"] == 0.3


def test_the_scoreboard_says_where_the_evolved_merge_is_a_baseline():
    found = {"best_kind": "search", "best_name": "candidate 3 of generation 1"}
    uniform = {"best_kind": "uniform average", "best_name": "uniform average, every model at weight 0.4"}
    for metrics in (found, {}):
        assert "of" not in inputs.scoreboard_input()(context(SEARCH, {**TELL, "metrics": metrics}))
    board = inputs.scoreboard_input()(context(SEARCH, {**TELL, "metrics": uniform}))
    assert board["models"]["evolved"] == "file:///models/best"
    assert board["of"] == {
        "evolved": "a baseline, not the search's: uniform average, every model at weight 0.4"
    }


SCORING = {"limit": 9, "num_fewshot": 3, "apply_chat_template": True, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    "built",
    [inputs.evolved_evaluate_input(), inputs.scoreboard_input(), inputs.ask_input(generation=0)],
    ids=["evaluate", "scoreboard", "search"],
)
def test_scores_are_computed_in_one_way_everywhere(built: inputs.Built):
    made = built(context(SEARCH, **SCORING))
    assert {name: made[name] for name in SCORING} == SCORING
    assert not set(SCORING) & set(built(context(SEARCH)))


def test_an_evaluation_takes_its_baseline_and_margin():
    run = context(PLAIN, model="m", baseline="old/results.json", margin=0.02)
    made = inputs.evaluate_input()(run)
    assert (made["baseline"], made["margin"]) == ("/data/old/results.json", 0.02)
    assert inputs.check_input()(run)["baseline"] == "/data/old/results.json"


def test_a_margin_without_a_baseline_is_refused_by_the_first_task():
    with pytest.raises(AirflowFailException, match="give a baseline too"):
        inputs.check_input()(context(PLAIN, margin=0.02))


def test_the_check_knows_how_questions_are_asked():
    made = inputs.check_input()(context(PLAIN, **SCORING))
    assert made["num_fewshot"] == 3
    assert made["apply_chat_template"] is True
    assert "dtype" not in made


@pytest.mark.parametrize(
    "built",
    [
        inputs.check_input(),
        inputs.merge_input(),
        inputs.start_merge_input(),
        inputs.ask_input(generation=0),
        inputs.scoreboard_input(),
    ],
    ids=lambda built: built.name,
)
def test_every_field_reads_a_recipe_for_the_user_of_its_run(
    built: inputs.Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text("projects: {rivals: {weight: 1, members: [bob]}}")
    monkeypatch.setenv("AIRFLOW__EMEP__POLICY_FILE", str(tmp_path / "policy.yaml"))
    monkeypatch.setenv("AIRFLOW__EMEP__ARTIFACT_URI", tmp_path.as_uri())
    best = tmp_path / run_folder("rivals", "bob", "emep_evolve", "r") / "best.yaml"
    best.parent.mkdir(parents=True)
    best.write_text(json.dumps(SEARCH))
    run = context(str(best), project="rivals")
    with pytest.raises(AirflowFailException, match="lies outside"):
        built(run)
    run["dag_run"].triggering_user_name = "bob"
    assert built(run)

from __future__ import annotations

import os
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from emep.dagkit.recipes import at_start, model_paths, read_recipe, searched
from emep.layout import run_folder

RECIPE = """
merge_method: task_arithmetic
base_model: base
models:
  - model: good
    parameters: {weight: {search: [-0.5, 1.0], start: 0.3}}
  - model: /abs/bad
    parameters: {weight: {search: [-0.5, 1.0]}}
dtype: float32
"""


def test_yaml_text_becomes_a_mapping_with_absolute_models():
    recipe = read_recipe(RECIPE, "/data")
    assert recipe["base_model"] == "/data/base"
    assert [entry["model"] for entry in recipe["models"]] == ["/data/good", "/abs/bad"]


def test_a_mapping_is_taken_as_it_is_and_not_changed():
    given = {"merge_method": "linear", "models": [{"model": "a"}]}
    assert read_recipe(given, "/data")["models"][0]["model"] == "/data/a"
    assert given["models"][0]["model"] == "a"


def test_a_file_is_read_below_the_data_folder(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert read_recipe("recipe.yaml", str(tmp_path))["merge_method"] == "task_arithmetic"
    assert read_recipe((tmp_path / "recipe.yaml").as_uri(), str(tmp_path))["dtype"] == "float32"


def test_without_a_data_folder_paths_stay_as_they_are():
    assert read_recipe(RECIPE, None)["base_model"] == "base"


def test_references_with_adapters_and_as_mappings_are_followed():
    recipe = read_recipe(
        {"merge_method": "linear", "models": [{"model": "a@main+lora"}, {"model": {"model": {"path": "b"}}}]},
        "/d",
    )
    assert recipe["models"][0]["model"] == "/d/a@main+/d/lora"
    assert recipe["models"][1]["model"] == {"model": {"path": "/d/b"}}
    assert model_paths(recipe) == ["/d/a", "/d/b"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("missing.yaml", ["recipe", "missing.yaml", "cannot be read"]),
        ("merge_method: [linear", ["not YAML", "line"]),
        ("- linear: 1\n- b: 2", ["a recipe is a mapping", "list"]),
        (7, ["a recipe is a mapping", "int"]),
        ("a\0b", ["recipe", "cannot be read"]),
        ("merge_method: 2020-99-99", ["not YAML"]),
        ("merge_method: " + "[" * 5000, ["nested too deeply"]),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_sentence(tmp_path, value, words):
    with pytest.raises(AirflowFailException) as caught:
        read_recipe(value, str(tmp_path))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_models_are_listed_once_the_base_first():
    recipe = {"base_model": "b", "models": [{"model": "a"}, {"model": "b"}, {"model": "a"}]}
    assert model_paths(recipe) == ["b", "a"]


def test_models_of_slices_are_found():
    recipe = {"slices": [{"sources": [{"model": "x", "layer_range": [0, 2]}]}, {"sources": [{"model": "y"}]}]}
    assert model_paths(recipe) == ["x", "y"]


def test_searched_parameters_are_named_in_order():
    assert searched(read_recipe(RECIPE, None)) == ["weight", "weight"]
    assert searched({"parameters": {"weight": 1}}) == []


def test_the_start_is_the_given_one_or_the_middle():
    weights = [entry["parameters"]["weight"] for entry in at_start(read_recipe(RECIPE, None))["models"]]
    assert weights == [0.3, 0.25]


def test_a_search_without_a_range_is_refused():
    with pytest.raises(AirflowFailException, match="range of two numbers"):
        at_start({"parameters": {"weight": {"search": [1]}}})


def test_a_misspelt_marker_is_left_for_the_engine_to_refuse():
    recipe = {"parameters": {"weight": {"search": [0, 1], "strat": 0.3}}}
    assert at_start(recipe) == recipe


SECRET = "s3cret-of-airflow"


@pytest.mark.parametrize("text", [f'{{"admin": "{SECRET}"}}', f"password: {SECRET}", f"{SECRET}: [", SECRET])
@pytest.mark.parametrize("name", ["{root}/../passwords", "../passwords", "{root}/link", "link", "{root}/own"])
def test_a_file_that_is_no_recipe_comes_back_by_its_name_alone(tmp_path: Path, text: str, name: str) -> None:
    """It is read on Airflow's worker, and what is read stands in the job's SPEC for all to see."""
    root = tmp_path / "data"
    root.mkdir()
    (tmp_path / "passwords").write_text(text)
    (root / "own").write_text(text)
    (root / "link").symlink_to(tmp_path / "passwords")
    with pytest.raises(AirflowFailException) as refused:
        read_recipe(name.format(root=root), str(root))
    assert SECRET not in str(refused.value)
    assert name.rpartition("/")[2] in str(refused.value)


def test_a_recipe_outside_of_what_jobs_may_read_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "recipe.yaml").write_text("merge_method: linear")
    with pytest.raises(AirflowFailException, match="lies outside of what jobs of this run may read"):
        read_recipe(str(tmp_path / "recipe.yaml"), str(tmp_path / "data"))


def test_a_pipe_is_no_recipe_and_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AirflowFailException, match="it is no file"):
        read_recipe("pipe", str(tmp_path))


def test_a_recipe_of_the_projects_runs_and_of_the_policys_roots_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, artifacts = tmp_path / "shared", tmp_path / "artifacts"
    own = artifacts / "projects" / "team" / "runs" / "d" / "r"
    (tmp_path / "policy.yaml").write_text(f"roots: {{read: [{shared}]}}")
    monkeypatch.setenv("AIRFLOW__EMEP__POLICY_FILE", str(tmp_path / "policy.yaml"))
    monkeypatch.setenv("AIRFLOW__EMEP__ARTIFACT_URI", artifacts.as_uri())
    for folder in (shared, own):
        folder.mkdir(parents=True)
        (folder / "best.yaml").write_text("merge_method: linear")
        assert read_recipe(str(folder / "best.yaml"), None, "team") == {"merge_method": "linear"}
    with pytest.raises(AirflowFailException, match="lies outside"):
        read_recipe(str(own / "best.yaml"), None, "rivals")


def test_a_recipe_of_a_project_with_members_is_read_for_these_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's rendered fields show the recipe before its job is refused."""
    artifacts, policy = tmp_path / "artifacts", tmp_path / "policy.yaml"
    policy.write_text("projects: {rivals: {weight: 1, members: [bob]}}")
    monkeypatch.setenv("AIRFLOW__EMEP__POLICY_FILE", str(policy))
    monkeypatch.setenv("AIRFLOW__EMEP__ARTIFACT_URI", artifacts.as_uri())
    best = artifacts / run_folder("rivals", "bob", "emep_merge", "r") / "best.yaml"
    best.parent.mkdir(parents=True)
    best.write_text("merge_method: linear")
    assert read_recipe(str(best), None, "rivals", "bob") == {"merge_method": "linear"}
    for project in ("rivals", "rivals/inner"):
        with pytest.raises(AirflowFailException, match="lies outside"):
            read_recipe(str(best), None, project, "alice")
    policy.write_text("projects: [")
    assert read_recipe(str(best), None, "rivals", "bob"), "who is a member is not known, but whose run it is"
    with pytest.raises(AirflowFailException, match="lies outside"):
        read_recipe(str(best), None, "rivals", "alice")

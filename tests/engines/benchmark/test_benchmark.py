"""The benchmark over real small models on disk and in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.engine_context import engine_context
from tests.builders.evolving import SmallSearch, write_random

from engines.benchmark.engine import run
from engines.benchmark.rows import BEST_UNIFORM
from engines.contract import BadInputError, Preempted
from engines.evaluation.engine import run as evaluate
from engines.evolution.baselines import uniform_recipes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> SmallSearch:
    return SmallSearch(tmp_path_factory.mktemp("models"))


def plain_recipe(models: SmallSearch, *weights: float) -> dict[str, Any]:
    recipe = models.recipe
    for model, weight in zip(recipe["models"], weights, strict=True):
        model["parameters"]["weight"] = weight
    return recipe


def given(search: SmallSearch, **more: Any) -> dict[str, Any]:
    return {
        "models": {name: str(search.folder / name) for name in ("base", "left", "right")},
        "recipes": {"merged": plain_recipe(search, 0.4, -0.2)},
        "uniform": {"recipe": search.recipe, "weights": [0.1, 0.5]},
        "tasks": [search.task],
        "backend": "llama",
        **more,
    }


def test_each_row_scores_as_its_model_does_alone(tmp_path: Path, models: SmallSearch) -> None:
    outcome = run(engine_context("benchmark", given(models), tmp_path))
    board = json.loads((tmp_path / "output" / "scoreboard.json").read_text())
    assert [row["name"] for row in board["rows"]] == ["base", "left", "right", BEST_UNIFORM, "merged"]
    for name in ("base", "left", "right"):
        asked = {"model": str(models.folder / name), "tasks": [models.task], "backend": "llama"}
        alone = evaluate(engine_context("evaluate", asked, tmp_path / name))
        assert outcome.metrics[name]["combined"] == alone.metrics["combined"]
    assert outcome.outputs["scoreboard"].uri.endswith("scoreboard.json")


def test_a_recipe_scores_as_its_merge_on_disk_does(tmp_path: Path, models: SmallSearch) -> None:
    from engines.merge.run.engine import run as merge

    outcome = run(engine_context("benchmark", given(models), tmp_path))
    recipe = plain_recipe(models, 0.4, -0.2)
    merged = merge(engine_context("merge", {"recipe": recipe, "output_name": "m"}, tmp_path / "merge"))
    asked = {"model": merged.outputs["model"].uri, "tasks": [models.task], "backend": "llama"}
    alone = evaluate(engine_context("evaluate", asked, tmp_path / "alone"))
    assert outcome.metrics["merged"]["combined"] == alone.metrics["combined"]


def test_of_the_uniform_averages_the_best_on_these_very_tasks_is_shown(
    tmp_path: Path, models: SmallSearch
) -> None:
    outcome = run(engine_context("benchmark", given(models), tmp_path))
    board = json.loads((tmp_path / "output" / "scoreboard.json").read_text())
    group = {row["name"]: row["combined"]["acc"] for row in board["groups"][BEST_UNIFORM]}
    assert list(group) == ["linear average", "uniform 0.1", "uniform 0.5"]
    shown = outcome.metrics[BEST_UNIFORM]
    assert shown["combined"]["acc"] == max(group.values())
    assert group[shown["of"]] == max(group.values())


def test_the_table_says_the_same_as_the_document(tmp_path: Path, models: SmallSearch) -> None:
    run(engine_context("benchmark", given(models), tmp_path))
    board = json.loads((tmp_path / "output" / "scoreboard.json").read_text())
    lines = (tmp_path / "output" / "scoreboard.txt").read_text().splitlines()
    assert lines[0].split() == ["model", "search", "combined"]
    for line, row in zip(lines[2:], board["rows"], strict=True):
        assert line.startswith(row["name"])
        combined = row["combined"]
        assert line.endswith(f"{combined['acc']:.3f} ± {combined['acc_stderr']:.3f}")
    assert len({len(line) for line in lines}) == 1


def test_a_model_whose_weights_are_broken_is_shown_as_failed_and_the_others_go_on(
    tmp_path: Path, models: SmallSearch
) -> None:
    from safetensors.torch import save_file

    from engines.inference.checkpoints import read_state

    broken = tmp_path / "broken"
    broken.mkdir()
    for file in (models.folder / "left").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    state = read_state(broken)
    state["model.norm.weight"][0] = float("nan")
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    asked = given(models, models={"broken": str(broken), "base": str(models.folder / "base")})
    outcome = run(engine_context("benchmark", asked, tmp_path))
    assert "broken" not in outcome.metrics
    assert "base" in outcome.metrics
    text = (tmp_path / "output" / "scoreboard.txt").read_text()
    assert "the score is nan" in text


def test_a_recipe_whose_models_do_not_agree_is_shown_as_failed_and_the_others_go_on(
    tmp_path: Path, models: SmallSearch
) -> None:
    write_random(tmp_path / "turned", 7)
    config = json.loads((tmp_path / "turned" / "config.json").read_text())
    (tmp_path / "turned" / "config.json").write_text(json.dumps({**config, "rope_theta": 1e6}))
    strange = plain_recipe(models, 0.4, -0.2)
    strange["models"][0]["model"] = str(tmp_path / "turned")
    recipes = {"strange": strange, "merged": plain_recipe(models, 0.4, -0.2)}
    asked = given(models, recipes=recipes)
    del asked["uniform"]  # the strange recipe is the first that is opened
    run(engine_context("benchmark", asked, tmp_path))
    rows = json.loads((tmp_path / "output" / "scoreboard.json").read_text())["rows"]
    failed = {row["name"]: row["failed"] for row in rows if "failed" in row}
    assert list(failed) == ["strange"]
    assert "rope_theta is" in failed["strange"]


def test_two_models_in_one_folder_are_warned_of(tmp_path: Path, models: SmallSearch) -> None:
    write_random(tmp_path / "both", 7)
    (tmp_path / "both" / "model.safetensors.index.json").write_text("{}")
    asked = given(models, models={"both": str(tmp_path / "both")})
    outcome = run(engine_context("benchmark", asked, tmp_path))
    assert any("model.safetensors is read" in warning for warning in outcome.metrics["warnings"])


def test_the_uniform_averages_allow_what_their_recipe_allows(models: SmallSearch) -> None:
    recipes = uniform_recipes({**models.recipe, "allow_mismatch": ["rope_theta"]}, (0.5,))
    assert [recipe["allow_mismatch"] for recipe in recipes.values()] == [["rope_theta"]] * 2


def test_it_goes_on_where_it_was_told_to_stop(tmp_path: Path, models: SmallSearch) -> None:
    looks = iter([False, False, True])
    stop = engine_context("benchmark", given(models), tmp_path, stop_requested=lambda: next(looks))
    with pytest.raises(Preempted):
        run(stop)
    done: list[str] = []
    again = engine_context("benchmark", given(models), tmp_path)
    again.progress = lambda what, count, total: done.append(what)
    outcome = run(again)
    assert outcome.resumed_from == 48
    assert done[0] == "items of right"
    assert outcome.metrics == run(engine_context("benchmark", given(models), tmp_path / "whole")).metrics


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": {"base": "/nowhere"}}, "/nowhere"),
        ({"models": {"merged": "MODEL"}}, "given twice"),
        ({"models": [], "recipes": None, "uniform": None}, "at least one model"),
        ({"recipes": {"x": 3}}, "must be a recipe"),
        ({"recipes": {"x": {"merge_method": "lineer", "models": []}}}, "linear"),
        ({"uniform": {"weights": [0.1]}}, "uniform"),
        ({"uniform": {"recipe": "RECIPE", "weights": ["a"]}}, "numbers"),
        ({"modles": {}}, "did you mean 'models'"),
        ({"tasks": None}, "tasks"),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(
    tmp_path: Path, models: SmallSearch, change: dict[str, Any], words: str
) -> None:
    asked = given(models, **change)
    if asked.get("models") == {"merged": "MODEL"}:
        asked["models"] = {"merged": str(models.folder / "base")}
    if asked.get("uniform") and asked["uniform"].get("recipe") == "RECIPE":
        asked["uniform"]["recipe"] = models.recipe
    with pytest.raises(BadInputError, match=words):
        run(engine_context("benchmark", asked, tmp_path))
    assert not (tmp_path / "output").exists()

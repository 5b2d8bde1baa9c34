"""Ask, candidates and tell over real tiny models, in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.engine_context import engine_context
from tests.builders.evolving import SmallSearch, read, records_of

from engines.contract import BadInputError, Preempted
from engines.evolution import ask, candidates, tell
from engines.evolution.tell import GenerationLost
from engines.merge.recipe.parse import parse_recipe


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SmallSearch:
    return SmallSearch(tmp_path_factory.mktemp("search"))


def asked(search: SmallSearch, run: Path, generation: int = 0, seed: int = 0, **more: Any) -> Any:
    return ask.run(engine_context("evolve_ask", search.ask(run, generation, **more), run / "x", seed=seed))


def scored(run: Path, generation: int, numbers: list[int], **more: Any) -> Any:
    given = {"run_uri": run.as_uri(), "generation": generation, "candidates": numbers}
    return candidates.run(engine_context("evolve_candidates", given, run / "x", **more))


def told(run: Path, generation: int) -> Any:
    given = {"run_uri": run.as_uri(), "generation": generation}
    return tell.run(engine_context("evolve_tell", given, run / "x"))


def round_of(search: SmallSearch, run: Path, generation: int, seed: int = 0) -> Any:
    for batch in asked(search, run, generation, seed).metrics["batches"]:
        scored(run, generation, batch)
    return told(run, generation)


def test_the_first_ask_lists_candidates_and_the_baselines_beside_them(
    tmp_path: Path, search: SmallSearch
) -> None:
    outcome = asked(search, tmp_path)
    document = read(tmp_path, "gen/0/ask.json")
    assert [entry["number"] for entry in document["candidates"]] == list(range(6))
    names = [entry["name"] for entry in document["baselines"]]
    assert names[:3] == [str(search.folder / name) for name in ("base", "left", "right")]
    assert names[3:] == ["linear average", *(f"uniform {n / 10:g}" for n in range(1, 11))]
    numbers = sorted(number for batch in outcome.metrics["batches"] for number in batch)
    assert numbers == list(range(20))
    assert all(1 <= len(batch) <= 4 for batch in outcome.metrics["batches"])
    for entry in document["candidates"]:
        recipe = parse_recipe(entry["recipe"])
        for path, gene in zip(entry["values"], entry["genes"], strict=True):
            assert entry["values"][path] == pytest.approx(-1 + 2 * gene)
        assert [m["parameters"]["weight"] for m in entry["recipe"]["models"]] == list(
            entry["values"].values()
        )
        assert recipe.merge_method == "task_arithmetic"


def test_asking_again_changes_nothing_and_lists_what_is_left(tmp_path: Path, search: SmallSearch) -> None:
    first = asked(search, tmp_path)
    before = records_of(tmp_path)
    scored(tmp_path, 0, [0, 3, 7])
    again = asked(search, tmp_path)
    assert records_of(tmp_path) == before
    left = {number for batch in again.metrics["batches"] for number in batch}
    assert left == {n for batch in first.metrics["batches"] for n in batch} - {0, 3, 7}


def test_other_settings_under_one_run_are_refused(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    for change, field in (
        ({"population": 8}, "input.population"),
        ({"limit": 5}, "input.limit"),
        ({"objective": "answer_logprob"}, "input.objective"),
        ({"dtype": "bfloat16"}, "input.dtype"),
    ):
        with pytest.raises(BadInputError, match="differs from what") as caught:
            asked(search, tmp_path, **change)
        assert caught.value.field == field
    with pytest.raises(BadInputError, match=r"input\.seed"):
        asked(search, tmp_path, seed=1)


def test_a_generation_needs_the_tell_before_it(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    with pytest.raises(BadInputError, match=r"generation 0 .* has no tell yet"):
        asked(search, tmp_path, 1)
    with pytest.raises(BadInputError, match=r"generation 1 .* never asked for"):
        told(tmp_path, 1)
    with pytest.raises(BadInputError, match=r"generation 1 .* never asked for"):
        scored(tmp_path, 1, [0])


def test_ranks_share_a_batch_without_overlap(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    done = [
        scored(tmp_path, 0, [0, 1, 2, 3, 4], rank=rank, world_size=2).metrics["counts"] for rank in (0, 1)
    ]
    assert [entry["evaluated"] for entry in done] == [3, 2]
    assert len(list((tmp_path / "results").iterdir())) == 5


def test_results_that_exist_are_never_computed_again(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    scored(tmp_path, 0, [0, 1])
    before = {file: file.read_bytes() for file in (tmp_path / "results").iterdir()}
    again = scored(tmp_path, 0, [0, 1, 2]).metrics["counts"]
    assert (again["cached"], again["evaluated"]) == (2, 1)
    assert all(file.read_bytes() == data for file, data in before.items())


def test_a_stop_comes_between_candidates_and_keeps_what_is_done(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    # Looked at before each candidate and each part of its items: the third look is the second candidate's.
    looks = iter([False, False, True])
    with pytest.raises(Preempted):
        scored(tmp_path, 0, [0, 1, 2], stop_requested=lambda: next(looks))
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_a_stop_within_a_candidate_keeps_the_items_that_were_scored(
    tmp_path: Path, search: SmallSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.evaluation import run as evaluation

    monkeypatch.setattr(evaluation, "_BATCHES_AT_ONCE", 1)
    asked(search, tmp_path, batch_size=4)
    saved: list[int] = []
    looks = iter([False] * 4)

    def told_to_stop() -> bool:
        return next(looks, True)

    monkeypatch.setenv("EMEP_CHECKPOINT_SECONDS", "0")
    with pytest.raises(Preempted):
        scored(tmp_path, 0, [0, 1], stop_requested=told_to_stop, on_save=saved.append)
    assert saved == [4, 8, 12], "after each part of the first candidate's 24 items"
    before = list(saved)
    scored(tmp_path, 0, [0, 1], on_save=saved.append)
    assert saved[len(before) :][0] == 16, "it goes on at its item"
    assert saved[-1] == 48
    assert saved == sorted(saved)
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_a_tell_records_scores_and_writes_the_best_as_a_plain_recipe(
    tmp_path: Path, search: SmallSearch
) -> None:
    for batch in asked(search, tmp_path, baselines=False).metrics["batches"]:
        scored(tmp_path, 0, batch)
    outcome = told(tmp_path, 0)
    document = read(tmp_path, "gen/0/tell.json")
    results = [read(tmp_path, f"results/{entry['eval_hash']}.json") for entry in document["candidates"]]
    accuracies = [result["metrics"]["combined"]["acc"] for result in results]
    assert [entry["value"] for entry in document["candidates"]] == [-value for value in accuracies]
    assert outcome.metrics["best_score"] == outcome.metrics["search_score"] == max(accuracies)
    assert outcome.metrics["evaluations"] == 6
    assert outcome.metrics["failed"] == 0
    assert outcome.metrics["warnings"] == []
    best = yaml.safe_load((tmp_path / "best.yaml").read_text())
    number = accuracies.index(max(accuracies))
    assert best == read(tmp_path, "gen/0/ask.json")["candidates"][number]["recipe"]
    assert parse_recipe(best).models[0].model.path == str(search.folder / "left")
    assert outcome.metrics["best_name"] == f"candidate {number} of generation 0"
    assert outcome.outputs["best"].uri == (tmp_path / "best.yaml").as_uri()
    before = records_of(tmp_path)
    assert told(tmp_path, 0).metrics == outcome.metrics
    assert records_of(tmp_path) == before


def test_baselines_are_the_models_they_name(tmp_path: Path, search: SmallSearch) -> None:
    from engines.evaluation.engine import run as evaluate

    outcome = round_of(search, tmp_path, 0)
    assert outcome.metrics["evaluations"] == 20
    assert len(outcome.metrics["baselines"]) == 14
    for name in ("base", "right"):
        folder = str(search.folder / name)
        given = {"model": folder, "tasks": [search.task], "backend": "llama"}
        alone = evaluate(engine_context("evaluate", given, tmp_path / name))
        assert outcome.metrics["baselines"][folder] == alone.metrics["combined"]["acc"]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    tmp_path: Path, search: SmallSearch
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        for generation in range(3):
            round_of(search, tmp_path / name, generation, seed)
    first, second, third = (records_of(tmp_path / name) for name in "abc")
    assert first == second
    assert first["gen/2/ask.json"] != third["gen/2/ask.json"]


def test_the_optimizer_s_state_is_what_a_replay_of_the_tells_gives(
    tmp_path: Path, search: SmallSearch
) -> None:
    from engines.evolution.optimizer import CmaEs
    from engines.evolution.records import told_values

    for generation in range(2):
        round_of(search, tmp_path, generation)
    state = read(tmp_path, "optimizer.json")
    earlier = CmaEs.from_state(read(tmp_path, "gen/1/ask.json")["optimizer"])
    earlier.tell(told_values(read(tmp_path, "gen/1/tell.json")))
    assert earlier.state() == state


def test_a_candidate_that_gives_nan_is_told_as_worst_with_its_reason(
    tmp_path: Path, search: SmallSearch
) -> None:
    asked(search, tmp_path)
    document = read(tmp_path, "gen/0/ask.json")
    scored(tmp_path, 0, [1, 2, 3, 4, 5])
    # Weights beyond what float32 can square: merged they are finite, the model's answers are not.
    entry = document["candidates"][0]
    for model in entry["recipe"]["models"]:
        model["parameters"]["weight"] = 1e38
    (tmp_path / "gen/0/ask.json").write_text(json.dumps(document))
    counts = scored(tmp_path, 0, [0]).metrics["counts"]
    assert counts["failed"] == 1
    result = read(tmp_path, f"results/{entry['eval_hash']}.json")
    assert result["status"] == "failed"
    outcome = told(tmp_path, 0)
    first = read(tmp_path, "gen/0/tell.json")["candidates"][0]
    assert first["value"] is None
    assert first["reason"] == result["reason"]
    assert outcome.metrics["failed"] == 1
    json.dumps(read(tmp_path, "optimizer.json"), allow_nan=False)


def test_a_recipe_that_cannot_be_merged_fails_alone(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    document = read(tmp_path, "gen/0/ask.json")
    bad = document["candidates"][2]
    bad["recipe"] = {**bad["recipe"], "merge_method": "linear", "parameters": {"normalize": True}}
    del bad["recipe"]["base_model"]
    for weight, model in zip((1.0, -1.0), bad["recipe"]["models"], strict=True):
        model["parameters"]["weight"] = weight
    (tmp_path / "gen/0/ask.json").write_text(json.dumps(document))
    counts = scored(tmp_path, 0, [0, 1, 2, 3, 4, 5]).metrics["counts"]
    assert counts == {"candidates": 6, "cached": 0, "evaluated": 6, "failed": 1}
    assert "0" in read(tmp_path, f"results/{bad['eval_hash']}.json")["reason"]


def test_lost_candidates_are_told_as_worst_and_late_results_change_nothing(
    tmp_path: Path, search: SmallSearch
) -> None:
    asked(search, tmp_path)
    scored(tmp_path, 0, [0, 1, 2, 3])
    outcome = told(tmp_path, 0)
    document = read(tmp_path, "gen/0/tell.json")
    assert [entry["code"] for entry in document["candidates"]] == [None] * 4 + ["lost"] * 2
    assert outcome.metrics["failed"] == 2
    scored(tmp_path, 0, [4, 5])
    told(tmp_path, 0)
    assert read(tmp_path, "gen/0/tell.json") == document


def test_a_generation_of_which_most_is_lost_is_not_told_and_can_go_on(
    tmp_path: Path, search: SmallSearch
) -> None:
    asked(search, tmp_path)
    scored(tmp_path, 0, [0, 1])
    with pytest.raises(GenerationLost, match="4 of 6"):
        told(tmp_path, 0)
    assert not (tmp_path / "gen/0/tell.json").exists()
    assert not (tmp_path / "optimizer.json").exists()
    scored(tmp_path, 0, [2, 3, 4, 5])
    assert told(tmp_path, 0).metrics["failed"] == 0


def test_when_nothing_has_a_score_the_reason_is_said(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    for entry in read(tmp_path, "gen/0/ask.json")["candidates"]:
        failed = {"status": "failed", "code": "non_finite", "reason": "the score is nan"}
        path = tmp_path / "results" / f"{entry['eval_hash']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(failed))
    with pytest.raises(BadInputError, match="every candidate failed, the first because: the score is nan"):
        told(tmp_path, 0)


def test_equal_candidates_cost_one_evaluation_and_are_all_told(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    document = read(tmp_path, "gen/0/ask.json")
    twin = {**document["candidates"][1], "number": 4}
    document["candidates"][4] = twin
    (tmp_path / "gen/0/ask.json").write_text(json.dumps(document))
    pending = [number for batch in asked(search, tmp_path).metrics["batches"] for number in batch]
    assert 4 not in pending
    scored(tmp_path, 0, [0, 1, 2, 3, 5])
    outcome = told(tmp_path, 0)
    values = [entry["value"] for entry in read(tmp_path, "gen/0/tell.json")["candidates"]]
    assert values[4] == values[1]
    assert outcome.metrics["cached"] == 1
    assert outcome.metrics["failed"] == 0


def test_models_that_change_under_a_run_stop_it(tmp_path: Path) -> None:
    search = SmallSearch(tmp_path / "own")
    run = tmp_path / "run"
    asked(search, run)
    shutil.copy(search.folder / "right" / "model.safetensors", search.folder / "left" / "model.safetensors")
    with pytest.raises(BadInputError, match="files changed since this evolution began"):
        scored(run, 0, [0])
    with pytest.raises(BadInputError, match=r"input\.inputs: differs"):
        asked(search, run)


def test_items_of_the_report_must_not_be_searched_on(tmp_path: Path, search: SmallSearch) -> None:
    with pytest.raises(BadInputError, match=r"24 item\(s\) are in report_tasks too"):
        asked(search, tmp_path, report_tasks=[search.task])
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"populaton": 3}, "input.populaton"),
        ({"population": 3}, "input.population"),
        ({"population": 10**9}, "input.population"),
        ({"batch": 0}, "input.batch"),
        ({"generation": -1}, "input.generation"),
        ({"objective": "f1"}, "input.objective"),
        ({"objective": "bits_per_byte"}, "input.objective"),
        ({"objective": {"metric": "acc", "weights": {"nothing": 1}}}, "input.objective.weights"),
        ({"sigma": 0}, "input.sigma"),
        ({"tasks": ["/nowhere.jsonl"]}, "tasks"),
        ({"recipe": {"merge_method": "linear", "models": [{"model": "/x"}]}}, "recipe"),
        ({"recipe": 3}, "input.recipe"),
    ],
)
def test_wrong_input_leaves_nothing_behind(
    tmp_path: Path, search: SmallSearch, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        asked(search, tmp_path / "run", **change)
    assert caught.value.field == field
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_objective_may_weigh_skills(tmp_path: Path, search: SmallSearch) -> None:
    objective = {"metric": "answer_logprob", "weights": {"search": 2.0}}
    for batch in asked(search, tmp_path, objective=objective).metrics["batches"]:
        scored(tmp_path, 0, batch)
    best = told(tmp_path, 0).metrics["search_score"]
    values = [
        read(tmp_path, f"results/{entry['eval_hash']}.json")["metrics"]["skills"]["search"]["answer_logprob"]
        for entry in read(tmp_path, "gen/0/ask.json")["candidates"]
    ]
    assert best == max(values)


def test_unknown_candidates_are_refused(tmp_path: Path, search: SmallSearch) -> None:
    asked(search, tmp_path)
    for numbers in ([99], [], "0"):
        with pytest.raises(BadInputError) as caught:
            scored(tmp_path, 0, numbers)  # type: ignore[arg-type]
        assert caught.value.field == "input.candidates"

"""The best that a search reports is the best it was ever told, baselines included, named for what it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.engine_context import engine_context
from tests.builders.evolving import SmallSearch, read, records_of

from engines.cli import main
from engines.contract import BadInputError
from engines.evolution import ask, tell
from engines.merge.recipe.parse import parse_recipe

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SmallSearch:
    return SmallSearch(tmp_path_factory.mktemp("search"))


class MadeUpRun:
    """A run whose candidates and baselines get scores from the test instead of from models."""

    def __init__(self, search: SmallSearch, folder: Path) -> None:
        self.search, self.folder = search, folder

    def generation(self, number: int, candidates: list[float | None], baseline: float | None = 0.0) -> Any:
        """Ask, write each score (None: a failure) as a result, tell. ``baseline``: the score of each one."""
        given = self.search.ask(self.folder, number)
        ask.run(engine_context("evolve_ask", given, self.folder / "x"))
        asked = read(self.folder, f"gen/{number}/ask.json")
        for entry, score in zip(asked["candidates"], candidates, strict=True):
            self.result(entry, score)
        for entry in asked["baselines"]:
            self.result(entry, baseline)
        return self.tell(number)

    def result(self, entry: dict[str, Any], score: float | None) -> None:
        """A result as the candidates' engine writes it; the first stands."""
        path = self.folder / "results" / f"{entry['eval_hash']}.json"
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            return
        metrics = {"skills": {"search": {"acc": score}}, "combined": {"acc": score}}
        done = {"status": "done", "metrics": metrics}
        failed = {"status": "failed", "code": "non_finite", "reason": "the score is nan"}
        path.write_text(json.dumps(failed if score is None else done))

    def tell(self, number: int) -> Any:
        given = {"run_uri": self.folder.as_uri(), "generation": number}
        return tell.run(engine_context("evolve_tell", given, self.folder / "x"))

    def best(self) -> Any:
        return read(self.folder, "best.json")


def test_the_best_of_an_earlier_generation_stays_whatever_comes_later(
    tmp_path: Path, search: SmallSearch
) -> None:
    run = MadeUpRun(search, tmp_path)
    run.generation(0, [0.1, 0.7, 0.2, 0.3, 0.1, 0.1])
    before = (tmp_path / "best.yaml").read_bytes()
    later = run.generation(1, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert (tmp_path / "best.yaml").read_bytes() == before
    assert (later.metrics["best_score"], later.metrics["best_generation"]) == (0.7, 0)
    assert later.metrics["generation_best"] == 0.6


def test_telling_an_early_generation_again_changes_nothing_of_a_longer_run(
    tmp_path: Path, search: SmallSearch
) -> None:
    run = MadeUpRun(search, tmp_path)
    for number, top in enumerate((0.2, 0.4, 0.9)):
        run.generation(number, [top, 0.1, 0.1, 0.1, 0.1, 0.1])
    before = records_of(tmp_path)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.*")}
    again = run.tell(0)
    assert again.metrics["best_score"] == 0.9
    assert again.metrics["generation"] == 0
    assert records_of(tmp_path) == before
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.*")} == times, (
        "written, though the same"
    )


def test_a_uniform_average_that_wins_is_the_best_and_is_said_to_be_one(
    tmp_path: Path, search: SmallSearch
) -> None:
    run = MadeUpRun(search, tmp_path)
    asked = search.ask(tmp_path)
    ask.run(engine_context("evolve_ask", asked, tmp_path / "x"))
    winner = next(e for e in read(tmp_path, "gen/0/ask.json")["baselines"] if e["name"] == "uniform 0.4")
    run.result(winner, 0.9)
    said: list[str] = []
    run.generation(0, [0.1] * 6)
    context = engine_context("evolve_tell", {"run_uri": tmp_path.as_uri(), "generation": 0}, tmp_path / "x")
    context.say = said.append
    metrics = tell.run(context).metrics
    assert (metrics["best_score"], metrics["search_score"]) == (0.9, 0.1)
    assert metrics["best_kind"] == "uniform average"
    text = (tmp_path / "best.yaml").read_text()
    assert yaml.safe_load(text) == winner["recipe"]
    assert parse_recipe(text).merge_method == "task_arithmetic"
    assert run.best()["kind"] == "uniform average"
    for words in (text.splitlines()[0].lower(), metrics["warnings"][0], said[0]):
        assert "uniform average" in words
        assert "not the search's" in words
        assert "0.9" in words
        assert "0.1" in words


def test_a_model_that_beats_every_merge_is_the_best_and_named(tmp_path: Path, search: SmallSearch) -> None:
    run = MadeUpRun(search, tmp_path)
    ask.run(engine_context("evolve_ask", search.ask(tmp_path), tmp_path / "x"))
    left = str(search.folder / "left")
    run.result(next(e for e in read(tmp_path, "gen/0/ask.json")["baselines"] if e["name"] == left), 0.9)
    assert run.generation(0, [0.1] * 6).metrics["best_name"] == f"the model {left} alone"
    assert [entry["model"] for entry in run.best()["recipe"]["models"]] == [left]


def test_of_equals_the_search_s_candidate_comes_before_a_baseline(
    tmp_path: Path, search: SmallSearch
) -> None:
    metrics = MadeUpRun(search, tmp_path).generation(0, [0.5] * 6, baseline=0.5).metrics
    assert (metrics["best_kind"], metrics["best_name"]) == ("search", "candidate 0 of generation 0")
    assert metrics["warnings"] == []


def test_one_wholly_failed_generation_is_told_and_the_search_goes_on(
    tmp_path: Path, search: SmallSearch
) -> None:
    run = MadeUpRun(search, tmp_path)
    run.generation(0, [0.5] + [0.1] * 5)
    failed = run.generation(1, [None] * 6)
    assert failed.metrics["failed"] == 6
    assert failed.metrics["generation_best"] is None
    assert "the score is nan" in failed.metrics["warnings"][0]
    assert [entry["value"] for entry in read(tmp_path, "gen/1/tell.json")["candidates"]] == [None] * 6
    assert run.generation(2, [0.6] + [0.1] * 5).metrics["best_score"] == 0.6
    json.dumps(read(tmp_path, "optimizer.json"), allow_nan=False)


def test_a_first_generation_that_fails_wholly_goes_on_from_its_baselines(
    tmp_path: Path, search: SmallSearch
) -> None:
    metrics = MadeUpRun(search, tmp_path).generation(0, [None] * 6, baseline=0.3).metrics
    assert metrics["best_score"] == 0.3
    assert metrics["search_score"] is None
    assert "no candidate of the search has a score" in metrics["warnings"][1]


def test_three_wholly_failed_generations_in_a_row_end_the_search_with_its_state_kept(
    tmp_path: Path, search: SmallSearch
) -> None:
    run = MadeUpRun(search, tmp_path)
    run.generation(0, [0.5] + [0.1] * 5)
    run.generation(1, [None] * 6)
    run.generation(2, [None] * 6)
    for _ in range(2):  # the same again, however often it is asked
        with pytest.raises(BadInputError) as caught:
            run.generation(3, [None] * 6)
        for words in ("generations 1 to 3", "the score is nan", "candidate 0 of generation 0", "best.yaml"):
            assert words in caught.value.message
    assert run.best()["score"] == 0.5
    assert (tmp_path / "gen/3/tell.json").exists()
    assert read(tmp_path, "optimizer.json")["generation"] == 4


def test_another_objective_s_best_is_another_folder_s(tmp_path: Path, search: SmallSearch) -> None:
    run = MadeUpRun(search, tmp_path)
    run.generation(0, [0.5] + [0.1] * 5)
    before = records_of(tmp_path)
    given = search.ask(tmp_path, objective="answer_logprob")
    with pytest.raises(BadInputError, match=r"input\.objective: .*'answer_logprob'.*another folder"):
        ask.run(engine_context("evolve_ask", given, tmp_path / "x"))
    assert records_of(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["best.yaml", "best.json", "optimizer.json", "gen/x", "results/x", "report/x"]
)
def test_files_that_no_evolution_left_are_not_written_over(
    tmp_path: Path, search: SmallSearch, name: str
) -> None:
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(BadInputError, match="no evolution began there"):
        ask.run(engine_context("evolve_ask", search.ask(tmp_path), tmp_path / "x"))
    assert mine.read_text() == "mine"
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"recipe": {}}'])
def test_a_run_json_of_something_else_is_refused(tmp_path: Path, search: SmallSearch, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadInputError, match=r"run\.json"):
        ask.run(engine_context("evolve_ask", search.ask(tmp_path), tmp_path / "x"))
    assert (tmp_path / "run.json").read_text() == text


def test_bounds_that_the_method_forbids_fail_before_generation_0_and_leave_nothing(
    tmp_path: Path, search: SmallSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = {**search.recipe, "merge_method": "ties"}
    recipe["parameters"] = {"density": {"search": [0.3, 1.1], "start": 0.6}}
    with pytest.raises(BadInputError, match=r"density: 1\.1 must lie within \[0, 1\]"):
        ask.run(engine_context("evolve_ask", search.ask(tmp_path / "run", recipe=recipe), tmp_path / "x"))
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    arguments = ["evolve", str(file), str(tmp_path / "run"), "--tasks", search.task, "--population", "4"]
    assert main(arguments) == 2
    assert "0.3 to 1.1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# With real models.


def command(search: SmallSearch, folder: Path, *more: str) -> list[str]:
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(search.recipe))
    plain = ["evolve", str(recipe), str(folder / "run"), "--tasks", search.task, "--population", "4"]
    return [*plain, "--device", "cpu", "--objective", "answer_logprob", *more]


def test_a_shorter_command_over_a_longer_run_keeps_its_best(
    tmp_path: Path, search: SmallSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(search, tmp_path, "--generations", "4")) == 0
    first = capsys.readouterr().out.splitlines()[-1]
    before = records_of(tmp_path / "run")
    assert main(command(search, tmp_path, "--generations", "1")) == 0
    assert records_of(tmp_path / "run") == before
    assert capsys.readouterr().out.splitlines()[-1].partition(" after ")[0] == first.partition(" after ")[0]


def test_a_kill_at_any_moment_leaves_the_best_so_far(tmp_path: Path, search: SmallSearch) -> None:
    arguments = command(search, tmp_path, "--generations", "6")
    run = tmp_path / "run"
    started = 0
    for told in (1, 2, 4):
        process = subprocess.Popen(
            [sys.executable, "-m", "engines.cli", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started += 1
        try:
            while process.poll() is None and not (run / f"gen/{told - 1}/tell.json").exists():
                time.sleep(0.001)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        tells = [json.loads(file.read_text()) for file in run.glob("gen/*/tell.json")]
        values = [
            e["value"] for t in tells for e in (*t["candidates"], *t["baselines"]) if e["value"] is not None
        ]
        assert read(run, "best.json")["score"] >= -min(values)
    assert started == 3


def test_report_tasks_write_the_report_that_the_help_promises(
    tmp_path: Path, search: SmallSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.builders.evolving import questions
    from tests.builders.toy_items import write_items

    report = str(write_items(tmp_path / "unseen.jsonl", questions(12, seed=77)))
    arguments = command(search, tmp_path, "--generations", "1", "--report-tasks", report)
    assert main(arguments) == 0
    out = capsys.readouterr().out
    board = read(tmp_path / "run", "report/scoreboard.json")
    rows = {row["name"]: row for row in board["rows"]}
    assert set(rows) == {"base", "left", "right", "best uniform average", "start", "best"}
    assert rows["best"]["combined"]["n"] == 12
    assert set(board["tasks"]) == {"unseen"}
    assert read(tmp_path / "run", "best.json")["name"] in rows["best"]["of"]
    assert (tmp_path / "run" / "report" / "scoreboard.txt").read_text() in out
    # Items that were searched on are refused before anything is scored.
    other = [str(tmp_path / "other") if entry == str(tmp_path / "run") else entry for entry in arguments]
    assert main([*other[:-1], search.task]) == 2
    assert "are in report_tasks too" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_ctrl_c_ends_in_a_sentence_and_the_same_command_goes_on(tmp_path: Path, search: SmallSearch) -> None:
    arguments = command(search, tmp_path, "--generations", "300")
    process = subprocess.Popen(
        [sys.executable, "-m", "engines.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and not (tmp_path / "run" / "gen/1/tell.json").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 75
    assert said.strip().splitlines()[-1].endswith("the same command goes on from there")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "text",
    [
        "{metric: answer_logprob, weights: {search: 2e0}}",
        '{"metric": "answer_logprob", "weights": {"search": "2"}}',
    ],
)
def test_an_objective_with_weights_may_be_given_as_text(
    tmp_path: Path, search: SmallSearch, text: str
) -> None:
    ask.run(engine_context("evolve_ask", search.ask(tmp_path, objective=text), tmp_path / "x"))
    assert read(tmp_path, "run.json")["objective"] == {"metric": "answer_logprob", "weights": {"search": 2.0}}
    with pytest.raises(BadInputError, match=r"input\.objective"):
        ask.run(
            engine_context("evolve_ask", search.ask(tmp_path / "b", objective="{metric: ["), tmp_path / "x")
        )

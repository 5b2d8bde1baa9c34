from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.builders.engine_context import engine_context
from tests.builders.tiny_checkpoints import write_llama
from tests.builders.toy_items import questions, write_items

from engines.contract import BadInputError
from engines.evaluation.compare import compare_documents, load_results, run, verdict
from engines.evaluation.engine import run as evaluate


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Results of two models on one file, and of the first on another file of the same name."""
    folder = tmp_path_factory.mktemp("compare")
    found = {}
    same = str(write_items(folder / "same" / "t.jsonl", questions(40, seed=1, skill="s")))
    other = str(write_items(folder / "other" / "t.jsonl", questions(40, seed=9)))
    for name, seed, task in (("a", 1, same), ("b", 2, same), ("c", 1, other)):
        model = write_llama(folder / f"model-{name}", seed=seed)
        given = {"model": str(model), "tasks": [task], "backend": "llama"}
        found[name] = evaluate(engine_context("evaluate", given, folder / name)).outputs["results"].uri
    return found


def test_the_difference_is_paired_item_by_item(tmp_path: Path, results: dict[str, str]) -> None:
    given = {"candidate": results["a"], "baseline": results["b"]}
    metrics = run(engine_context("compare", given, tmp_path)).metrics
    first, second = load_results(results["a"]), load_results(results["b"])
    pairs = [first.samples[key]["acc"] - second.samples[key]["acc"] for key in first.samples]
    mean = sum(pairs) / 40
    assert metrics["delta"] == pytest.approx(mean)
    variance = sum((value - mean) ** 2 for value in pairs) / 39
    assert metrics["stderr"] == pytest.approx(math.sqrt(variance / 40))
    assert metrics["n"] == 40
    assert metrics["same_backend"] is True


def test_a_model_compared_with_itself_differs_by_nothing(results: dict[str, str]) -> None:
    same = load_results(results["a"])
    for margin in (0.0, 0.01):
        found = compare_documents(same, same, margin=margin)
        assert (found["delta"], found["stderr"], found["verdict"]) == (0.0, 0.0, "equal")
        assert found["warnings"] == []


def test_one_item_proves_two_models_equal_only_where_they_are_one(tmp_path: Path) -> None:
    task = str(write_items(tmp_path / "t.jsonl", questions(1, seed=1)))
    found = []
    for name, seed in (("a", 1), ("again", 1), ("b", 2)):
        model = write_llama(tmp_path / f"model-{name}", seed=seed)
        given = {"model": str(model), "tasks": [task], "backend": "llama"}
        evaluate(engine_context("evaluate", given, tmp_path / name))
        found.append(load_results(str(tmp_path / name / "output")))
    first, again, other = found
    assert compare_documents(again, first, margin=0.0)["verdict"] == "equal"
    samples = {key: {**sample, "acc": 1.0} for key, sample in first.samples.items()}
    alike = [replace(entry, samples=samples) for entry in (first, other)]
    assert compare_documents(*alike, margin=0.0)["verdict"] == "inconclusive"


def evaluated(folder: Path, name: str, tasks: list[str], **more: Any) -> Any:
    """An evaluation of one tiny model; what the engine said is in ``said``."""
    model = folder / "model"
    if not model.exists():
        write_llama(model, seed=1)
    given = {"model": str(model), "tasks": tasks, "backend": "llama", **more}
    context = engine_context("evaluate", given, folder / name)
    said: list[str] = []
    context.say = said.append
    return evaluate(context), said


def test_a_task_that_the_baseline_lacks_is_refused_before_anything_is_scored(tmp_path: Path) -> None:
    one, two = (str(write_items(tmp_path / f"{n}.jsonl", questions(6, seed=n))) for n in (1, 2))
    baseline = evaluated(tmp_path, "baseline", [one])[0].outputs["results"].uri
    with pytest.raises(BadInputError, match=r"it has no task 2, only 1"):
        evaluated(tmp_path, "candidate", [one, two], baseline=baseline)
    assert not (tmp_path / "candidate" / "output" / "results.json").exists()
    from engines.merge.plan.compatibility import run as check

    given = {"tasks": [one, two], "baseline": baseline}
    with pytest.raises(BadInputError, match=r"it has no task 2"):
        check(engine_context("compatibility_check", given, tmp_path / "check"))
    check(engine_context("compatibility_check", {**given, "tasks": [one]}, tmp_path / "check"))


def test_what_a_limit_and_a_shorter_suite_leave_out_is_warned_of(tmp_path: Path) -> None:
    one, two = (str(write_items(tmp_path / f"t{n}.jsonl", questions(10, seed=n))) for n in (1, 2))
    baseline = evaluated(tmp_path, "baseline", [one, two])[0].outputs["results"].uri
    outcome, said = evaluated(tmp_path, "candidate", [one], baseline=baseline, limit=4)
    warnings = outcome.metrics["warnings"]
    assert "limit: only the first items of each task were scored (t1 4 of 10)" in warnings
    assert any("task t1: 4 of 10 items are compared" in warning for warning in warnings)
    assert any("not evaluated, though the baseline has it: t2" in warning for warning in warnings)
    assert said == [f"warning: {warning}" for warning in warnings]
    assert outcome.metrics["comparison"]["n"] == 4
    document = json.loads((tmp_path / "candidate" / "output" / "results.json").read_text())
    assert document["emep"]["warnings"] == warnings[:1]


def test_a_baseline_that_was_asked_in_another_way_is_refused_or_warned_of(tmp_path: Path) -> None:
    task = str(write_items(tmp_path / "t.jsonl", questions(10, seed=1)))
    baseline = evaluated(tmp_path, "baseline", [task])[0].outputs["results"].uri
    with pytest.raises(BadInputError, match="its num_fewshot is 0, here it is 1"):
        evaluated(tmp_path, "shots", [task], baseline=baseline, num_fewshot=1)
    outcome, _ = evaluated(tmp_path, "half", [task], baseline=baseline, dtype="bfloat16")
    assert any("in different ways: dtype bfloat16 and float32" in w for w in outcome.metrics["warnings"])


def test_texts_alone_cannot_be_compared_and_this_is_said_before(tmp_path: Path) -> None:
    texts = str(write_items(tmp_path / "t.jsonl", [{"id": str(n), "text": f"word {n}"} for n in range(4)]))
    baseline = evaluated(tmp_path, "baseline", [texts])[0].outputs["results"].uri
    with pytest.raises(BadInputError, match="every task holds texts"):
        evaluated(tmp_path, "candidate", [texts], baseline=baseline)
    assert not (tmp_path / "candidate" / "output" / "results.json").exists()


def test_the_command_takes_a_margin_and_shows_verdict_and_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from engines.cli import main

    task = str(write_items(tmp_path / "t.jsonl", questions(10, seed=1)))
    baseline = evaluated(tmp_path, "baseline", [task])[0].outputs["results"].uri
    command = ["evaluate", str(tmp_path / "model"), "--tasks", task, "--out", str(tmp_path / "out")]
    command += ["--backend", "llama", "--margin", "0.05"]
    assert main([*command, "--baseline", baseline, "--limit", "6"]) == 0
    shown = capsys.readouterr()
    assert "equal (margin 0.05)" in shown.out
    assert "warning: limit: only the first items" in shown.err
    assert main(command) == 2
    assert "give a baseline too" in capsys.readouterr().err


def test_other_items_under_the_same_name_are_refused(results: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match="other items"):
        compare_documents(load_results(results["a"]), load_results(results["c"]), margin=0.0)


@pytest.mark.parametrize(
    ("delta", "stderr", "margin", "expected"),
    [
        (0.05, 0.01, 0.0, "better"),
        (0.05, 0.01, 0.04, "inconclusive"),
        (0.05, 0.004, 0.04, "better"),
        (-0.05, 0.01, 0.02, "worse"),
        (0.001, 0.002, 0.01, "equivalent"),
        (0.0, 0.0, 0.0, "inconclusive"),
        (0.0, None, 0.1, "inconclusive"),
        (-0.01, 0.01, 0.0, "inconclusive"),
    ],
)
def test_verdicts_hold_with_95_percent_confidence(
    delta: float, stderr: float | None, margin: float, expected: str
) -> None:
    assert verdict(delta, stderr, margin) == expected


@pytest.mark.parametrize(
    "change", [{"margin": -1}, {"margin": "x"}, {"candidate": "/nowhere"}, {"marginn": 0}]
)
def test_wrong_input_is_refused(tmp_path: Path, results: dict[str, str], change: dict[str, Any]) -> None:
    given = {"candidate": results["a"], "baseline": results["b"], **change}
    with pytest.raises(BadInputError):
        run(engine_context("compare", given, tmp_path))

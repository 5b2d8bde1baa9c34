from __future__ import annotations

import math
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
    found = compare_documents(same, same, margin=0.01)
    assert (found["delta"], found["stderr"], found["verdict"]) == (0.0, 0.0, "equivalent")


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

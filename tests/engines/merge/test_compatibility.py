"""The compatibility check: what a run would trip over later is said in its first seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.builders.checkpoints import save_family

from engines.artifacts import FolderArtifactStore, path_to_uri
from engines.checkpoint import CheckpointStore, spec_digest
from engines.contract import BadInputError, Context, Outcome, Spec
from engines.merge.plan.compatibility import run


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(path) for name, path in save_family(tmp_path_factory.mktemp("family")).items()}


def check(tmp_path: Path, fields: dict[str, Any]) -> Outcome:
    spec = Spec("compatibility_check", fields, path_to_uri(tmp_path / "out"))
    store = CheckpointStore(path_to_uri(tmp_path / "c"), spec_digest(spec))
    return run(Context(spec, FolderArtifactStore(spec.output_uri), store))


def searched(family: dict[str, str], low: float = -0.5, high: float = 1.0) -> dict[str, Any]:
    models = [
        {"model": family[name], "parameters": {"weight": {"search": [low, high], "start": 0.4}}}
        for name in ("one", "two")
    ]
    return {"merge_method": "task_arithmetic", "base_model": family["base"], "models": models}


def tasks(path: Path, items: range) -> str:
    lines = [
        json.dumps(
            {"id": str(i), "prompt": f"what is {i}", "choices": ["odd", "even"], "answer": (i + 1) % 2}
        )
        for i in items
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_a_recipe_models_and_tasks_that_fit_are_described(family: dict[str, str], tmp_path: Path) -> None:
    outcome = check(
        tmp_path,
        {
            "recipe": searched(family),
            "models": {"base": family["base"]},
            "tasks": [tasks(tmp_path / "search.jsonl", range(40))],
            "report_tasks": [tasks(tmp_path / "report.jsonl", range(40, 80))],
        },
    )
    metrics = outcome.metrics
    assert metrics["method"] == "task_arithmetic"
    assert metrics["parameters"] == 6896
    assert metrics["output_bytes"] == 4 * 6896
    assert metrics["search_parameters"] == 2
    assert metrics["tasks"] == {n: {"items": 40, "kind": "choice"} for n in ("search", "report")}
    assert metrics["models"][family["base"]]["layers"] == 3
    assert metrics["warnings"] == []
    assert set(outcome.input_digests) > set(family.values())


def test_a_range_that_the_method_refuses_is_found_before_the_search(
    family: dict[str, str], tmp_path: Path
) -> None:
    recipe = searched(family)
    recipe["models"][0]["parameters"]["density"] = {"search": [0.2, 1.2]}
    with pytest.raises(BadInputError, match=r"1\.2 must lie within \[0, 1\]") as caught:
        check(tmp_path, {"recipe": recipe})
    assert caught.value.field == "models[0].parameters.density"


def test_a_missing_shard_is_named_without_reading_a_tensor(family: dict[str, str], tmp_path: Path) -> None:
    broken = Path(shutil.copytree(family["two"], tmp_path / "two"))
    sorted(broken.glob("*.safetensors"))[2].unlink()
    with pytest.raises(BadInputError, match=r"model-00003-of-\d+\.safetensors is missing"):
        check(tmp_path, {"recipe": searched({**family, "two": str(broken)})})
    with pytest.raises(BadInputError, match=r"model-00003-of-\d+\.safetensors is missing"):
        check(tmp_path, {"models": [str(broken)]})


def test_items_of_the_report_that_are_searched_on_are_refused(family: dict[str, str], tmp_path: Path) -> None:
    search, report = tasks(tmp_path / "s.jsonl", range(50)), tasks(tmp_path / "r.jsonl", range(49, 90))
    with pytest.raises(BadInputError, match=r"1 item\(s\) are in the search tasks too, first '49'"):
        check(tmp_path, {"tasks": [search], "report_tasks": [report]})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "1", "prompt": "p", "choices": ["a", "b"], "answer": 2}', "answer"),
        ('{"id": "1", "prompt": "p", "choices": ["a", "b"]}', "answer"),
        ('{"id": "0", "prompt": "p", "choices": ["a", "b"], "answer": 1}', "already on line 1"),
        ("{", "not JSON"),
    ],
)
def test_a_wrong_task_names_file_line_and_field(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    tasks(path, range(1))
    path.write_text(path.read_text() + line + "\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=words) as caught:
        check(tmp_path, {"tasks": [str(path)]})
    assert "line 2" in caught.value.message


def test_a_model_without_tokenizer_is_only_a_warning(family: dict[str, str], tmp_path: Path) -> None:
    bare = Path(shutil.copytree(family["one"], tmp_path / "bare"))
    for path in bare.glob("token*"):
        path.unlink()
    assert "no tokenizer file" in check(tmp_path, {"models": [str(bare)]}).metrics["warnings"][0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "nothing to check"),
        ({"recipes": {}}, "did you mean 'recipe'"),
        ({"recipe": 4}, r"input\.recipe"),
        ({"models": [3]}, r"input\.models"),
        ({"tasks": "nowhere.jsonl"}, "cannot read the task"),
        ({"models": "/nowhere"}, "there is no model folder /nowhere"),
    ],
)
def test_wrong_fields_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        check(tmp_path, fields)


def test_expectations_of_a_good_data_set_become_warnings(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    lines = [{"id": str(i), "prompt": "same", "choices": ["a", "b"], "answer": 0} for i in range(3)]
    few.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    fields = {"tasks": [str(few), tasks(tmp_path / "good.jsonl", range(60))], "expectations": True}
    warnings = check(tmp_path, fields).metrics["warnings"]
    assert [warning.partition(": ")[2].split(";")[0].split(" (")[0] for warning in warnings] == [
        "fewer than 30 items",
        "items are repeated",
        "one answer is right for more than 90% of the items",
    ]
    assert all("few.jsonl" in warning for warning in warnings)

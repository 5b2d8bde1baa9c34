"""The demo's models: real checkpoints, disjoint splits, found again, never half there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.builders.demo_models import small_demo
from tests.builders.engine_context import engine_context

from engines.contract import BadInputError
from engines.demo import digits, models
from engines.demo.models import prepare
from engines.demo.recipes import recipes
from engines.evaluation.engine import run as evaluate
from engines.evaluation.tasks import load_tasks, shared_items
from engines.merge.recipe.parse import parse_recipe, search_parameters

ROOT = Path(__file__).parents[3]
QUICK = models.Sizes(1, 1, 1, 1e-3, search_images=40, report_images=40)


def test_a_model_loads_with_transformers_and_answers_as_our_backend_says(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    demo = small_demo()
    model: Any = AutoModelForCausalLM.from_pretrained(demo.base).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(demo.base)
    assert sum(parameter.numel() for parameter in model.parameters()) == 152_256
    lines = demo.report_tasks[0].read_text().splitlines()[:100]
    items = [json.loads(line) for line in lines]
    ids = torch.tensor([tokenizer(item["prompt"])["input_ids"] for item in items])
    assert ids.shape == (100, 17)
    answers = tokenizer.convert_tokens_to_ids(items[0]["choices"])
    with torch.no_grad():
        picked = model(input_ids=ids).logits[:, -1, answers].argmax(dim=-1).tolist()
    accuracy = float(np.mean([pick == item["answer"] for pick, item in zip(picked, items, strict=True)]))
    given = {"model": str(demo.base), "tasks": [str(demo.report_tasks[0])], "limit": 100}
    outcome = evaluate(engine_context("evaluate", given, tmp_path))
    assert outcome.metrics["combined"]["acc"] == accuracy
    # It learned to end after its answer.
    made = model.generate(ids[:8], attention_mask=torch.ones(8, 17, dtype=torch.long), max_new_tokens=3)
    words = tokenizer.batch_decode(made[:, 17:], skip_special_tokens=True)
    assert all(word in digits.ANSWERS for word in words)


def test_each_expert_is_better_at_its_skill_than_the_base_and_worse_at_the_other(tmp_path: Path) -> None:
    demo = small_demo()
    scores = {}
    for name, folder in {"base": demo.base, **demo.parents}.items():
        given = {"model": str(folder), "tasks": [str(task) for task in demo.report_tasks], "backend": "llama"}
        metrics = evaluate(engine_context("evaluate", given, tmp_path / name)).metrics
        scores[name] = {skill: metrics["skills"][skill]["acc"] for skill in digits.SKILLS}
    assert scores["expert-upright"]["upright"] > scores["base"]["upright"] + 0.05
    assert scores["expert-upright"]["turned"] < scores["base"]["turned"]
    assert scores["expert-turned"]["turned"] > scores["base"]["turned"] + 0.05
    assert scores["expert-turned"]["upright"] < scores["base"]["upright"]
    assert max(scores["mislabelled"].values()) < 0.3


def test_no_image_is_in_two_splits_and_no_item_either() -> None:
    labels = digits.load().labels
    splits = digits.split(labels, search=300, report=420)
    whole = np.concatenate([splits.train, splits.search, splits.report])
    assert sorted(whole.tolist()) == list(range(1797))
    assert (len(splits.search), len(splits.report)) == (300, 420)
    demo = small_demo()
    search, report = (load_tasks(map(str, tasks)) for tasks in (demo.search_tasks, demo.report_tasks))
    ids = {item.id for task in search for item in task.items}
    assert ids.isdisjoint({item.id for task in report for item in task.items})
    assert shared_items(search, report) == []


def test_a_turned_digit_is_the_upright_one_turned_by_90_degrees() -> None:
    data = digits.load()
    upright = data.words["upright"][:, 1:].reshape(-1, 4, 4)
    turned = data.words["turned"][:, 1:].reshape(-1, 4, 4)
    assert np.array_equal(turned, np.rot90(upright, axes=(1, 2)))
    assert set(data.words["turned"][:, 0]) == {digits.IDS["turned"]}


def test_the_recipes_are_valid_and_one_searches_a_weight_per_parent() -> None:
    demo = small_demo()
    for name in ("task_arithmetic", "dare_ties"):
        parsed = parse_recipe(str(demo.recipes[name]))
        assert all(reference.folder().is_dir() for reference in parsed.references())
    found = search_parameters(recipes(demo.folder)["evolve"])
    assert [(entry.low, entry.high, entry.start) for entry in found] == [(-0.5, 1.0, 0.3)] * 3


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        file.relative_to(folder).as_posix(): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch each: what is tested is the handling of files."""
    monkeypatch.setattr(models, "SMALL", QUICK)


@pytest.mark.usefixtures("quick")
def test_a_second_call_uses_what_is_there_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    first = prepare(tmp_path, small=True)
    before = snapshot(tmp_path)
    assert prepare(tmp_path, small=True) == first
    assert snapshot(tmp_path) == before
    (first.base / "model.safetensors").write_bytes(b"damaged")
    prepare(tmp_path, small=True)
    assert {name: data for name, (data, _) in snapshot(tmp_path).items()} == {
        name: data for name, (data, _) in before.items()
    }


@pytest.mark.usefixtures("quick")
def test_the_seed_decides_the_weights_and_never_the_splits(tmp_path: Path) -> None:
    made = [prepare(tmp_path / name, small=True, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    weights = [(files.parents["mislabelled"] / "model.safetensors").read_bytes() for files in made]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    tasks = [[path.read_bytes() for path in (*files.search_tasks, *files.report_tasks)] for files in made]
    assert tasks[0] == tasks[2]


def test_a_folder_that_holds_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadInputError, match=r"holds other things \(thesis\.txt\)"):
        prepare(tmp_path, small=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["thesis.txt"]


@pytest.mark.parametrize(
    "name", ["tasks/mine.jsonl", "recipes/mine.yaml", ".making/mine.txt", "manifest.json"]
)
def test_folders_that_only_have_the_names_of_the_demos_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(BadInputError, match="holds other things"):
        prepare(tmp_path, small=True)
    assert (tmp_path / name).read_text() == '{"mine": 1}'


@pytest.mark.usefixtures("quick")
def test_files_that_were_put_among_the_demos_are_kept_where_it_is_made_again(tmp_path: Path) -> None:
    prepare(tmp_path, small=True)
    mine = tmp_path / "tasks" / "mine.jsonl"
    mine.write_text("mine")
    prepare(tmp_path, small=True)
    with pytest.raises(BadInputError, match=r"holds other things \(tasks/mine\.jsonl\)"):
        prepare(tmp_path, small=True, seed=7)
    assert mine.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot write the demo's models"):
        prepare(tmp_path / "file" / "models", small=True)


def test_a_run_killed_in_the_middle_leaves_nothing_that_counts(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "engines.demo.models", str(tmp_path / "models"), "--small"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert "base trained" in process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    visible = [entry.name for entry in (tmp_path / "models").iterdir() if not entry.name.startswith(".")]
    assert visible == []

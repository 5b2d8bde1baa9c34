"""What stands around a question: examples and the chat template, against plain code that does the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.builders.engine_context import engine_context
from tests.builders.tiny_checkpoints import write_llama
from tests.builders.toy_items import questions, write_items

from engines.contract import BadInputError
from engines.evaluation.engine import run
from engines.evaluation.prompting import Prompting
from engines.evaluation.tasks import load_task

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_llama(tmp_path_factory.mktemp("models") / "llama", max_position_embeddings=256)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_items(tmp_path_factory.mktemp("tasks") / "sums.jsonl", questions(12, seed=1)))


def scores(model: Path, task: str, folder: Path, **more: Any) -> list[list[float]]:
    given = {"model": str(model), "tasks": [task], "batch_size": 5, "dtype": "float32", **more}
    outcome = run(engine_context("evaluate", given, folder))
    document = json.loads((folder / "output" / "results.json").read_text())
    assert document["n-shot"]["sums"] == more.get("num_fewshot", 0)
    assert document["configs"]["sums"]["num_fewshot"] == more.get("num_fewshot", 0)
    assert outcome.metrics["sums"]["n"] == 12
    lines = (folder / "output" / "samples" / "sums.jsonl").read_text().splitlines()
    return [json.loads(line)["resps"] for line in lines]


def plain_scores(model: Path, contexts: list[str], delimiter: str, task: str) -> list[list[float]]:
    """The same by one forward pass per choice, without any of our code."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    found = []
    for context, item in zip(contexts, map(json.loads, Path(task).read_text().splitlines()), strict=True):
        given = tokenizer(context.rstrip(), add_special_tokens=False)["input_ids"]
        row = []
        for choice in item["choices"]:
            whole = tokenizer(context + delimiter + choice, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logs = torch.log_softmax(loaded(input_ids=torch.tensor([whole])).logits[0], dim=-1)
            row.append(sum(logs[n - 1, whole[n]].item() for n in range(len(given), len(whole))))
        found.append(row)
    return found


def with_examples(task: str, count: int) -> list[str]:
    """Prompts as lm-evaluation-harness draws them: its sampler's lines, with its seed and delimiters."""
    items = [json.loads(line) for line in Path(task).read_text().splitlines()]
    drawn = random.Random(1234)
    prompts = []
    for item in items:
        examples = [entry for entry in drawn.sample(items, count + 1) if entry != item][:count]
        shown = "".join(f"{e['prompt']} {e['choices'][e['answer']]}\n\n" for e in examples)
        prompts.append(shown + item["prompt"])
    return prompts


@pytest.mark.parametrize("backend", ["llama", "transformers"])
def test_examples_stand_before_each_question(tmp_path: Path, model: Path, task: str, backend: str) -> None:
    found = scores(model, task, tmp_path, num_fewshot=2, backend=backend)
    wanted = plain_scores(model, with_examples(task, 2), " ", task)
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("backend", ["llama", "transformers"])
@pytest.mark.parametrize("examples", [0, 1])
def test_a_chat_template_stands_around_each_prompt_with_one_bos(
    tmp_path: Path, model: Path, task: str, backend: str, examples: int
) -> None:
    more = {"num_fewshot": examples} if examples else {}
    found = scores(model, task, tmp_path, apply_chat_template=True, backend=backend, **more)
    prompts = with_examples(task, examples)
    contexts = [f"<s>[user] {prompt}\n[assistant] " for prompt in prompts]
    wanted = plain_scores(model, contexts, "", task)
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    document = json.loads((tmp_path / "output" / "results.json").read_text())
    assert document["emep"]["apply_chat_template"] is True
    assert document["emep"]["backend"]["first_prompt_ids"].count(1) == 1


def test_a_question_is_never_its_own_example_and_examples_do_not_depend_on_the_batch(task: str) -> None:
    loaded = load_task(task)
    prompting = Prompting(num_fewshot=4)
    whole = prompting.contexts(loaded, loaded.items)
    assert [prompting.contexts(loaded, [item])[0] for item in loaded.items] == whole
    for item, context in zip(loaded.items, whole, strict=True):
        assert context.count(item.text) == 1
        assert context.endswith(item.text)
        assert context.count("\n\n") == 4


def test_scores_under_other_prompts_are_never_taken_for_each_other(
    tmp_path: Path, model: Path, task: str
) -> None:
    plain = scores(model, task, tmp_path, backend="llama")
    assert scores(model, task, tmp_path, backend="llama", num_fewshot=1) != plain
    assert scores(model, task, tmp_path, backend="llama") == plain


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_fewshot": 12}, "at most 11 others"),
        ({"num_fewshot": -1}, "at least 0"),
        ({"num_fewshot": "two"}, "whole number"),
        ({"apply_chat_template": "yes"}, "true or false"),
        ({"margin": 0.1}, "give a baseline too"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_scored(
    tmp_path: Path, model: Path, task: str, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInputError, match=words):
        scores(model, task, tmp_path, **change)
    assert not (tmp_path / "output" / "results.json").exists()


def test_texts_have_no_examples(tmp_path: Path, model: Path) -> None:
    texts = str(
        write_items(tmp_path / "texts.jsonl", [{"id": str(n), "text": f"word {n}"} for n in range(4)])
    )
    with pytest.raises(BadInputError, match="every task holds texts"):
        scores(model, texts, tmp_path, num_fewshot=1)


def test_a_tokenizer_without_a_template_is_named(tmp_path: Path, task: str) -> None:
    bare = write_llama(tmp_path / "bare")
    with pytest.raises(BadInputError, match="has no chat template") as caught:
        scores(bare, task, tmp_path, apply_chat_template=True, backend="llama")
    assert str(bare) in caught.value.message


def test_prompts_that_do_not_fit_are_warned_of(tmp_path: Path, task: str) -> None:
    short = write_llama(tmp_path / "short", max_position_embeddings=24)
    given = {"model": str(short), "tasks": [task], "num_fewshot": 8, "backend": "llama"}
    said: list[str] = []
    context = engine_context("evaluate", given, tmp_path)
    context.say = said.append
    (warning,) = run(context).metrics["warnings"]
    assert "did not fit the model's 24 tokens" in warning
    assert said == [f"warning: {warning}"]

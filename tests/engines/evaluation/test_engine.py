"""The evaluation engine over a real tiny model, killed and told to stop in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.builders.engine_context import engine_context
from tests.builders.tiny_checkpoints import write_llama
from tests.builders.toy_items import questions, write_items

from engines.checkpoint import CheckpointStore, spec_digest
from engines.contract import BadInputError, ExitCode, Preempted
from engines.evaluation.engine import run
from engines.evaluation.scoring import NonFiniteScore
from engines.inference.checkpoints import read_state


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tasks")
    return [
        str(write_items(folder / "first.jsonl", questions(30, seed=1))),
        str(write_items(folder / "second.jsonl", questions(20, seed=2))),
    ]


def given(model: Path, tasks: list[str], **more: Any) -> dict[str, Any]:
    return {"model": str(model), "tasks": tasks, "batch_size": 4, "backend": "llama", **more}


def plain_accuracy(model: Path, path: str) -> float:
    """Accuracy by one forward pass per choice, without any of our code."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    right = []
    for line in Path(path).read_text().splitlines():
        item = json.loads(line)
        context = tokenizer(item["prompt"])["input_ids"]
        scores = []
        for option in item["choices"]:
            whole = tokenizer(item["prompt"] + " " + option)["input_ids"]
            with torch.no_grad():
                logs = torch.log_softmax(loaded(input_ids=torch.tensor([whole])).logits[0], dim=-1)
            scores.append(sum(logs[n - 1, whole[n]].item() for n in range(len(context), len(whole))))
        right.append(scores.index(max(scores)) == item["answer"])
    return sum(right) / len(right)


def test_results_have_the_shape_that_readers_of_lm_eval_know(
    tmp_path: Path, model: Path, tasks: list[str]
) -> None:
    outcome = run(engine_context("evaluate", given(model, tasks, backend="transformers"), tmp_path))
    document = json.loads((tmp_path / "output" / "results.json").read_text())
    assert document["results"]["first"]["acc,none"] == plain_accuracy(model, tasks[0])
    assert document["results"]["second"]["acc,none"] == plain_accuracy(model, tasks[1])
    assert 0 < document["results"]["first"]["acc_stderr,none"] < 0.2
    assert document["n-samples"]["first"] == {"original": 30, "effective": 30}
    assert set(document["versions"]) == {"first", "second"}
    assert document["config"]["model"] == "hf"
    assert document["config"]["batch_size"] == 4
    assert document["groups"]["combined"]["acc,none"] == pytest.approx(outcome.metrics["combined"]["acc"])
    samples = (tmp_path / "output" / "samples" / "first.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in samples]
    assert sum(entry["acc"] for entry in found) / 30 == outcome.metrics["first"]["acc"]
    assert outcome.outputs["results"].uri.endswith("results.json")
    assert outcome.outputs["samples"].bytes == sum(
        file.stat().st_size for file in (tmp_path / "output" / "samples").iterdir()
    )


def test_a_limit_takes_the_first_items(tmp_path: Path, model: Path, tasks: list[str]) -> None:
    outcome = run(engine_context("evaluate", given(model, tasks, limit=7), tmp_path))
    assert outcome.metrics["first"]["n"] == 7
    document = json.loads((tmp_path / "output" / "results.json").read_text())
    assert document["n-samples"]["second"] == {"original": 20, "effective": 7}


def test_texts_are_scored_by_bits_per_byte(tmp_path: Path, model: Path) -> None:
    texts = [{"id": str(n), "text": "The quick brown fox. " * (n + 1)} for n in range(5)]
    path = write_items(tmp_path / "texts.jsonl", texts)
    outcome = run(engine_context("evaluate", given(model, [str(path)]), tmp_path))
    assert outcome.metrics["texts"]["bits_per_byte"] > 0
    document = json.loads((tmp_path / "output" / "results.json").read_text())
    assert document["results"]["texts"]["bits_per_byte,none"] == outcome.metrics["texts"]["bits_per_byte"]
    assert document["configs"]["texts"]["output_type"] == "loglikelihood_rolling"


def test_a_run_told_to_stop_goes_on_at_its_item_and_ends_like_an_undisturbed_one(
    tmp_path: Path, model: Path, tasks: list[str]
) -> None:
    looks = iter([False, True])
    stopped = engine_context(
        "evaluate", given(model, tasks), tmp_path / "a", stop_requested=lambda: next(looks)
    )
    with pytest.raises(Preempted, match="16 of 50"):
        run(stopped)
    assert not (tmp_path / "a" / "output" / "results.json").exists()
    scored: list[int] = []
    again = engine_context("evaluate", given(model, tasks), tmp_path / "a")
    again.progress = lambda what, done, total: scored.append(done)
    outcome = run(again)
    assert outcome.resumed_from == 16
    assert min(scored) > 16
    whole = run(engine_context("evaluate", given(model, tasks), tmp_path / "b"))
    assert outcome.metrics == whole.metrics
    for name in ("first", "second"):
        parts = [(tmp_path / run_ / "output" / "samples" / f"{name}.jsonl").read_bytes() for run_ in "ab"]
        assert parts[0] == parts[1]


KILLED = """
import json, sys
from pathlib import Path
from tests.builders.engine_context import engine_context
from engines.evaluation.engine import run
given, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
context = engine_context("evaluate", given, folder)
def progress(what, done, total):
    print(done, flush=True)
    if done >= 20:
        sys.stdin.readline()  # held here until it is killed
context.progress = progress
run(context)
"""


def test_after_kill_9_finished_items_are_not_scored_again(
    tmp_path: Path, model: Path, tasks: list[str]
) -> None:
    asked = given(model, tasks, batch_size=2, save_every=8)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(asked), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if process.stdin is not None:
        process.stdin.close()
    context = engine_context("evaluate", asked, tmp_path)
    found = CheckpointStore(context.checkpoints.uri, spec_digest(context.spec)).latest()
    assert found is not None
    scored: list[int] = []
    context.progress = lambda what, done, total: scored.append(done)
    outcome = run(context)
    assert outcome.resumed_from == found.step
    assert outcome.resumed_from >= 16
    assert min(scored) > outcome.resumed_from
    assert outcome.metrics == run(engine_context("evaluate", asked, tmp_path / "whole")).metrics


def test_new_weights_at_an_old_path_never_find_the_old_scores(tmp_path: Path, tasks: list[str]) -> None:
    from safetensors.torch import save_file

    model = write_llama(tmp_path / "model", seed=3)
    looks = iter([False, False, True])
    stop = engine_context("evaluate", given(model, tasks), tmp_path / "a", stop_requested=lambda: next(looks))
    with pytest.raises(Preempted):
        run(stop)
    other = write_llama(tmp_path / "other", seed=4)
    save_file(read_state(other), model / "model.safetensors", metadata={"format": "pt"})
    mixed = run(engine_context("evaluate", {**given(model, tasks), "force": True}, tmp_path / "a"))
    pure = run(engine_context("evaluate", given(model, tasks), tmp_path / "b"))
    assert mixed.metrics == pure.metrics


def test_weights_that_give_nan_are_an_error_that_names_the_item(tmp_path: Path, tasks: list[str]) -> None:
    from safetensors.torch import save_file

    model = write_llama(tmp_path / "model")
    state = read_state(model)
    state["model.norm.weight"][0] = float("nan")
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NonFiniteScore, match="task first, item q1-0: the score is nan") as caught:
        run(engine_context("evaluate", given(model, tasks), tmp_path))
    assert caught.value.exit_code == ExitCode.FAILED
    assert not (tmp_path / "output" / "results.json").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"taks": []}, "input.taks"),
        ({"model": None}, "input.model"),
        ({"model": "/nowhere"}, "input.model"),
        ({"tasks": []}, "input.tasks"),
        ({"limit": 0}, "input.limit"),
        ({"batch_size": "8"}, "input.batch_size"),
        ({"dtype": "int8"}, "dtype"),
        ({"baseline": "/nowhere/results.json"}, None),
    ],
)
def test_wrong_input_is_refused_before_any_model_is_loaded(
    tmp_path: Path, model: Path, tasks: list[str], change: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(BadInputError) as caught:
        run(engine_context("evaluate", {**given(model, tasks), **change}, tmp_path))
    assert field is None or caught.value.field == field
    assert not (tmp_path / "output").exists()


def test_the_command_line_prints_a_table_and_exits_by_the_contract(
    tmp_path: Path, model: Path, tasks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from engines.cli import main

    out = tmp_path / "out"
    arguments = [
        "evaluate",
        str(model),
        "--tasks",
        *tasks,
        "--limit",
        "5",
        "--backend",
        "llama",
        "--out",
        str(out),
    ]
    assert main([*arguments, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "combined" in printed
    assert "n=10" in printed
    assert json.loads((out / "results.json").read_text())["n-samples"]["first"]["effective"] == 5
    assert main(["evaluate", "/nowhere", "--tasks", *tasks, "--out", str(out)]) == 2
    assert "/nowhere" in capsys.readouterr().err

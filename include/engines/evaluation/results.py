"""results.json and samples in the shape of lm-evaluation-harness, so that its readers read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engines.contract import BadInputError
from engines.evaluation.run import Evaluation, TaskResult

_NAMES = {
    "choice": (("acc", "acc"), ("acc_norm", "acc_norm")),
    "text": (
        ("bits_per_byte", "bits_per_byte"),
        ("byte_perplexity", "byte_perplexity"),
        ("word_perplexity", "word_perplexity"),
    ),
}
_HIGHER_IS_BETTER = {
    "acc": True,
    "acc_norm": True,
    "bits_per_byte": False,
    "byte_perplexity": False,
    "word_perplexity": False,
}
COMBINED = "combined"
"""Name of the group of all skills."""


def results_document(
    evaluation: Evaluation, *, model: str, limit: int | None, seconds: float, seed: int
) -> dict[str, Any]:
    """The results file. ``seconds``: wall time of the evaluation."""
    backend = evaluation.backend
    tasks = {entry.task.name: entry for entry in evaluation.tasks}
    whole = _named(evaluation.combined, ("acc", "acc_norm", "bits_per_byte"))
    return {
        "results": {
            name: {"alias": name, **_named(entry.metrics, [key for key, _ in _NAMES[entry.task.kind]])}
            for name, entry in tasks.items()
        },
        "groups": {COMBINED: {"alias": COMBINED, **whole}},
        "group_subtasks": {COMBINED: sorted(tasks)},
        "configs": {name: _config(evaluation, entry) for name, entry in tasks.items()},
        "versions": dict.fromkeys(tasks, 1),
        "n-shot": {name: _shots(evaluation, entry) for name, entry in tasks.items()},
        "higher_is_better": {
            name: {key: _HIGHER_IS_BETTER[key] for key, _ in _NAMES[entry.task.kind]}
            for name, entry in tasks.items()
        },
        "n-samples": {
            name: {"original": len(entry.task.items), "effective": len(entry.scores)}
            for name, entry in tasks.items()
        },
        "config": {
            "model": "hf" if backend["backend"] == "transformers" else backend["backend"],
            "model_args": {"pretrained": model, "dtype": backend["dtype"]},
            "batch_size": backend["batch_size"],
            "device": backend["device"],
            "limit": limit,
            "bootstrap_iters": 0,
            "random_seed": seed,
        },
        "task_hashes": {name: entry.task.digest for name, entry in tasks.items()},
        "model_name": model,
        "total_evaluation_time_seconds": round(seconds, 3),
        "emep": {
            "schema_version": 1,
            "weights_digest": evaluation.weights,
            "backend": backend,
            "apply_chat_template": evaluation.prompting.chat,
            "warnings": evaluation.warnings(),
            "skills": evaluation.skills,
            "combined": evaluation.combined,
        },
    }


def sample_lines(result: TaskResult) -> Iterator[bytes]:
    """One JSON line per item."""
    items = {item.id: item for item in result.task.items}
    for number, entry in enumerate(result.scores):
        item = items[entry.id]
        sample: dict[str, Any] = {
            "doc_id": number,
            "id": entry.id,
            "skill": entry.skill,
            "resps": list(entry.logprobs),
        }
        if item.choices:
            sample |= {
                "doc": {
                    "id": item.id,
                    "prompt": item.text,
                    "choices": list(item.choices),
                    "answer": item.answer,
                },
                "target": item.answer,
                "picked": entry.picked,
                "acc": entry.correct,
                "acc_norm": entry.correct_normalised,
            }
        else:
            sample |= {"doc": {"id": item.id}, "tokens": entry.tokens, "bytes": entry.bytes}
        yield json.dumps(sample, ensure_ascii=False).encode() + b"\n"


def read_samples(data: bytes, source: str) -> list[dict[str, Any]]:
    """Samples as written by ``sample_lines``. Raises BadInputError naming the line that is none."""
    samples = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            sample = json.loads(line)
            if not isinstance(sample["id"], str) or not isinstance(sample["skill"], str):
                raise TypeError("id and skill must be texts")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInputError(f"{source}, line {number}: no sample ({error})", file=source) from error
        samples.append(sample)
    return samples


def _named(metrics: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """``acc`` -> ``acc,none`` and ``acc_stderr,none``, where present."""
    named: dict[str, Any] = {}
    for name in names:
        if name in metrics:
            named[f"{name},none"] = metrics[name]
            error = metrics.get(f"{name}_stderr")
            named[f"{name}_stderr,none"] = "N/A" if error is None else error
    return named


def _shots(evaluation: Evaluation, result: TaskResult) -> int:
    return evaluation.prompting.num_fewshot if result.task.kind == "choice" else 0


def _config(evaluation: Evaluation, result: TaskResult) -> dict[str, Any]:
    choice = result.task.kind == "choice"
    return {
        "task": result.task.name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": result.task.uri}},
        "test_split": "test",
        "output_type": "multiple_choice" if choice else "loglikelihood_rolling",
        "num_fewshot": _shots(evaluation, result),
        "metadata": {"version": 1},
    }

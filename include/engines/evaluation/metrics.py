"""From item scores to numbers with standard errors. Pure; sums are associative, so parts can be pooled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engines.evaluation.scoring import ItemScore

Metrics = dict[str, Any]
"""``acc, acc_stderr, acc_norm, acc_norm_stderr, answer_logprob, n`` or ``bits_per_byte, bits_per_byte_stderr,
byte_perplexity, word_perplexity, n``. A standard error of a single item is None."""


def summarise(scores: Sequence[ItemScore]) -> Metrics:
    """The metrics of items of one kind. Raises ValueError where there are none."""
    if not scores:
        raise ValueError("no items to summarise")
    return _choices(scores) if scores[0].answer >= 0 else _texts(scores)


def by_skill(scores: Sequence[ItemScore]) -> dict[str, Metrics]:
    """Metrics of each skill, over all tasks that have items of it."""
    groups: dict[str, list[ItemScore]] = {}
    for entry in scores:
        groups.setdefault(entry.skill, []).append(entry)
    return {skill: summarise(entries) for skill, entries in groups.items()}


def combined(skills: Mapping[str, Metrics]) -> Metrics:
    """The mean over skills, each counting the same however many items it has; standard errors add in squares.

    Accuracies are averaged over the skills that have one, bits per byte over those that have that.
    """
    result: Metrics = {"n": sum(entry["n"] for entry in skills.values()), "skills": len(skills)}
    for name in ("acc", "acc_norm", "answer_logprob", "bits_per_byte"):
        entries = [entry for entry in skills.values() if name in entry]
        if not entries:
            continue
        result[name] = math.fsum(entry[name] for entry in entries) / len(entries)
        errors = [entry[f"{name}_stderr"] for entry in entries]
        known = [error for error in errors if error is not None]
        whole = len(known) == len(errors)
        result[f"{name}_stderr"] = (
            math.sqrt(math.fsum(e * e for e in known)) / len(entries) if whole else None
        )
    return result


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error, from the sample deviation (n - 1); None for a single value."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (count - 1) / count)


def _choices(scores: Sequence[ItemScore]) -> Metrics:
    metrics: Metrics = {"n": len(scores)}
    for name, values in (
        ("acc", [entry.correct for entry in scores]),
        ("acc_norm", [entry.correct_normalised for entry in scores]),
        ("answer_logprob", [entry.answer_logprob for entry in scores]),
    ):
        metrics[name], metrics[f"{name}_stderr"] = mean_and_error(values)
    return metrics


def _texts(scores: Sequence[ItemScore]) -> Metrics:
    """Perplexity over all texts together: long texts weigh more, as in lm-evaluation-harness.

    The standard error of bits per byte is that of a ratio estimator (Cochran, Sampling Techniques, 6.4).
    """
    count = len(scores)
    nats = -math.fsum(entry.logprobs[0] for entry in scores)
    size = sum(entry.bytes for entry in scores)
    words = sum(entry.words for entry in scores)
    bits = nats / size / math.log(2)
    error = None
    if count > 1:
        rests = [-entry.logprobs[0] / math.log(2) - bits * entry.bytes for entry in scores]
        error = math.sqrt(count / (count - 1) * math.fsum(rest * rest for rest in rests)) / size
    return {
        "n": count,
        "bits_per_byte": bits,
        "bits_per_byte_stderr": error,
        "byte_perplexity": _exp(nats / size),
        "word_perplexity": _exp(nats / words),
    }


def _exp(value: float) -> float | None:
    """None where a hopeless model's perplexity is beyond floating point."""
    return math.exp(value) if value < 700 else None

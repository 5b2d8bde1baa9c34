"""Comparing two evaluations item by item:

the same questions, so the difference's error is much smaller than each one's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.contract import BadInputError, Context, Outcome
from engines.evaluation.metrics import mean_and_error
from engines.evaluation.results import read_samples
from engines.evaluation.settings import check_fields, fraction, text

Z = 1.96
"""Two-sided 95 % under the normal approximation."""


@dataclass(frozen=True)
class Results:
    """A results file and its samples by (task, item)."""

    uri: str
    document: Mapping[str, Any]
    samples: Mapping[tuple[str, str], Mapping[str, Any]]


def run(context: Context) -> Outcome:
    """Compare ``candidate`` with ``baseline`` (results files).

    Raises BadInputError where they cannot be compared.
    """
    given = context.spec.input
    check_fields("compare", given, ("candidate", "baseline"), ("margin",))
    candidate, baseline = load_results(text(given, "candidate")), load_results(text(given, "baseline"))
    found = compare_documents(candidate, baseline, margin=fraction(given, "margin", 0.0))
    output = context.artifacts.put_json("comparison.json", found)
    return Outcome(outputs={"comparison": output}, metrics=found)


def load_results(uri: str) -> Results:
    """A ``results.json`` (or the folder that has it) with the ``samples`` beside it. Raises BadInputError."""
    path = uri_to_path(uri)
    path = path / "results.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_bytes())
        digests = dict(document["task_hashes"])
    except OSError as error:
        raise BadInputError(f"{path}: cannot read the results: {error.strerror}", file=str(path)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError(
            f"{path} is no results file of an evaluation ({error})", file=str(path)
        ) from error
    samples: dict[tuple[str, str], Mapping[str, Any]] = {}
    for task in digests:
        file: Path = path.parent / "samples" / f"{task}.jsonl"
        if not file.is_file():
            raise BadInputError(f"{file} is missing; a comparison needs every item", file=str(file))
        for sample in read_samples(file.read_bytes(), str(file)):
            samples[task, sample["id"]] = sample
    return Results(str(path), document, samples)


def compare_documents(candidate: Results, baseline: Results, *, margin: float) -> dict[str, Any]:
    """Paired difference of accuracy (candidate minus baseline), its standard error and a verdict.

    ``better``: above the margin with 95 % confidence; ``worse``: below minus the margin; ``equivalent``:
    within the margin with 95 % confidence (only where the margin is above 0); else ``inconclusive``. The
    difference is the mean over skills, as in ``combined``. Raises BadInputError where tasks differ or no item
    is in both.
    """
    theirs = baseline.document["task_hashes"]
    for task, digest in candidate.document["task_hashes"].items():
        if theirs.get(task, digest) != digest:
            raise BadInputError(
                f"task {task} has other items in {baseline.uri} than in {candidate.uri}; use one file",
                file=baseline.uri,
                field="tasks",
            )
    differences: dict[str, list[float]] = {}
    for key, sample in candidate.samples.items():
        other = baseline.samples.get(key)
        if other is not None and "acc" in sample and "acc" in other:
            differences.setdefault(sample["skill"], []).append(sample["acc"] - other["acc"])
    if not differences:
        raise BadInputError(
            f"{candidate.uri} and {baseline.uri} have no multiple-choice item in common", field="tasks"
        )
    skills: dict[str, dict[str, Any]] = {}
    for skill, values in sorted(differences.items()):
        mean, error = mean_and_error(values)
        skills[skill] = {"delta": mean, "stderr": error, "n": len(values)}
    delta = math.fsum(entry["delta"] for entry in skills.values()) / len(skills)
    errors = [entry["stderr"] for entry in skills.values() if entry["stderr"] is not None]
    whole = len(errors) == len(skills)
    stderr = math.sqrt(math.fsum(e * e for e in errors)) / len(errors) if whole else None
    return {
        "delta": delta,
        "stderr": stderr,
        "margin": margin,
        "verdict": verdict(delta, stderr, margin),
        "n": sum(entry["n"] for entry in skills.values()),
        "skills": skills,
        "same_backend": _backend(candidate) == _backend(baseline),
    }


def verdict(delta: float, stderr: float | None, margin: float) -> str:
    """``better``, ``worse``, ``equivalent`` or ``inconclusive`` (see ``compare_documents``)."""
    if stderr is None:
        return "inconclusive"
    low, high = delta - Z * stderr, delta + Z * stderr
    if low > margin:
        return "better"
    if high < -margin:
        return "worse"
    if margin > 0 and -margin <= low and high <= margin:
        return "equivalent"
    return "inconclusive"


def _backend(results: Results) -> dict[str, Any]:
    backend = dict((results.document.get("emep") or {}).get("backend") or {})
    for key in ("device", "batch_size", "first_prompt_ids", "truncated"):
        backend.pop(key, None)
    return backend

"""Compares two evaluations item by item.

Both have the same questions, so the error of the difference is much smaller than that of each score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.artifacts.claims import claim_outputs
from engines.contract import BadInputError, Context, Outcome
from engines.evaluation.metrics import mean_and_error
from engines.evaluation.results import read_samples
from engines.evaluation.settings import check_fields, check_truth, fraction, text
from engines.evaluation.tasks import Task

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
    check_fields("compare", given, ("candidate", "baseline"), ("force", "margin"))
    candidate, baseline = load_results(text(given, "candidate")), load_results(text(given, "baseline"))
    found = compare_documents(candidate, baseline, margin=fraction(given, "margin", 0.0))
    for warning in found["warnings"]:
        context.say(f"warning: {warning}")
    pair = {"candidate": candidate.uri, "baseline": baseline.uri}
    claim_outputs(
        context.artifacts,
        "compare",
        pair,
        ("comparison.json",),
        of=f"{candidate.uri} against {baseline.uri}",
        force=check_truth(given, "force"),
        inputs=map(uri_to_path, (candidate.uri, baseline.uri)),
    )
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

    ``equal``: every item was scored alike; ``better``: above the margin with 95 % confidence; ``worse``:
    below minus the margin; ``equivalent``: within the margin with 95 % confidence (only where the margin is
    above 0); else ``inconclusive``. The difference is the mean over skills, as in ``combined``. ``warnings``
    says what was not compared. Raises BadInputError as ``check_baseline`` does, or where no item is in both.
    """
    document = candidate.document
    check_baseline(
        baseline,
        {task: (digest, _is_choice(document, task)) for task, digest in document["task_hashes"].items()},
        _shots(document),
        chat=_chat(document),
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
    alike = not any(value for values in differences.values() for value in values)
    same = alike and (whole or _same_weights(candidate, baseline))
    return {
        "delta": delta,
        "stderr": stderr,
        "margin": margin,
        "verdict": "equal" if same else verdict(delta, stderr, margin),
        "n": sum(entry["n"] for entry in skills.values()),
        "skills": skills,
        "same_backend": _backend(candidate) == _backend(baseline),
        "warnings": _warnings(candidate, baseline),
    }


def check_baseline(
    baseline: Results, tasks: Mapping[str, tuple[str, bool]], num_fewshot: int, *, chat: bool
) -> None:
    """Check, before anything is scored, that an evaluation on these tasks can be compared with a baseline.

    ``tasks``: digest, and whether it holds questions, by name. Raises BadInputError where the baseline lacks
    a task, has other items under its name or other prompts, or where all tasks are texts.
    """
    theirs = baseline.document["task_hashes"]
    asked = [task for task, (_, choice) in tasks.items() if choice]
    if not asked:
        raise BadInputError(
            f"baseline {baseline.uri}: only questions with choices are compared, and every task holds texts",
            file=baseline.uri,
            field="baseline",
        )
    for task in asked:
        if task not in theirs:
            raise BadInputError(
                f"baseline {baseline.uri}: it has no task {task}, only {', '.join(sorted(theirs))}; evaluate "
                "the baseline on that task too, or leave the task out",
                file=baseline.uri,
                field="baseline",
            )
        if theirs[task] != tasks[task][0]:
            raise BadInputError(
                f"task {task} has other items in {baseline.uri} than here; use one file for both",
                file=baseline.uri,
                field="tasks",
            )
    for field, mine, its in (
        ("num_fewshot", num_fewshot, _shots(baseline.document)),
        ("apply_chat_template", chat, _chat(baseline.document)),
    ):
        if mine != its:
            raise BadInputError(
                f"baseline {baseline.uri}: its {field} is {its}, here it is {mine}; ask the questions in "
                "the same way",
                file=baseline.uri,
                field=field,
            )


def kinds(tasks: Iterable[Task]) -> dict[str, tuple[str, bool]]:
    """The properties of tasks that ``check_baseline`` needs."""
    return {task.name: (task.digest, task.kind == "choice") for task in tasks}


def _warnings(candidate: Results, baseline: Results) -> list[str]:
    """What the comparison leaves out, or what makes it doubtful."""
    found = []
    mine, theirs = candidate.document["task_hashes"], baseline.document["task_hashes"]
    for task in mine:
        if not _is_choice(candidate.document, task):
            found.append(f"task {task} holds texts, which are not compared")
            continue
        ours = {item for name, item in candidate.samples if name == task}
        its = {item for name, item in baseline.samples if name == task}
        if ours != its:
            both, every = len(ours & its), len(ours | its)
            found.append(
                f"task {task}: {both} of {every} items are compared, the others are in one of the two"
            )
    missing = sorted(set(theirs) - set(mine))
    if missing:
        found.append(f"not evaluated, though the baseline has it: {', '.join(missing)}")
    if _backend(candidate) != _backend(baseline):
        first, second = _backend(candidate), _backend(baseline)
        keys = sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))
        shown = ", ".join(f"{key} {first.get(key)} and {second.get(key)}" for key in keys)
        found.append(f"the two were scored in different ways: {shown}")
    return found


def _is_choice(document: Mapping[str, Any], task: str) -> bool:
    config = (document.get("configs") or {}).get(task) or {}
    return str(config.get("output_type", "multiple_choice")) == "multiple_choice"


def _shots(document: Mapping[str, Any]) -> int:
    return max((int(value) for value in (document.get("n-shot") or {}).values()), default=0)


def _chat(document: Mapping[str, Any]) -> bool:
    return bool((document.get("emep") or {}).get("apply_chat_template", False))


def _same_weights(first: Results, second: Results) -> bool:
    one, other = ((entry.document.get("emep") or {}).get("weights_digest") for entry in (first, second))
    return one is not None and one == other


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

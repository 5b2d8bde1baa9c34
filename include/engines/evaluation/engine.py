"""EvaluationEngine: a model on local tasks; resumes at its item."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.artifacts.claims import claim_outputs
from engines.contract import BadInputError, Context, Outcome, Output
from engines.evaluation import prompting
from engines.evaluation.book import ScoreBook
from engines.evaluation.compare import check_baseline, compare_documents, kinds, load_results
from engines.evaluation.models import model_digest
from engines.evaluation.prompting import Prompting
from engines.evaluation.results import results_document, sample_lines
from engines.evaluation.run import Evaluation, evaluate
from engines.evaluation.settings import (
    BACKEND_FIELDS,
    backend_options,
    check_fields,
    check_truth,
    fraction,
    optional_count,
    text,
    texts,
)
from engines.evaluation.tasks import load_tasks
from engines.tensor.layout import read_layout

OPTIONAL = ("force", "limit", "baseline", "margin", "save_every", *BACKEND_FIELDS, *prompting.FIELDS)


def run(context: Context) -> Outcome:
    """Evaluate ``model`` on ``tasks``; outputs ``results`` and ``samples``, metrics with ``warnings``.

    Raises BadInputError for wrong input, NonFiniteScore for broken weights, Preempted when told to stop.
    """
    given = context.spec.input
    check_fields("evaluate", given, ("model", "tasks"), OPTIONAL)
    folder = uri_to_path(text(given, "model"))
    if not folder.is_dir():
        raise BadInputError(
            f"input.model: there is no model folder {folder}", file=str(folder), field="input.model"
        )
    limit, save_every = optional_count(given, "limit"), optional_count(given, "save_every")
    tasks = load_tasks(texts(given, "tasks"))
    around = Prompting.of(given)
    around.check(tasks)
    baseline = load_results(text(given, "baseline")) if given.get("baseline") else None
    margin = fraction(given, "margin", 0.0)
    if baseline is not None:
        check_baseline(baseline, kinds(tasks), around.num_fewshot, chat=around.chat)
    elif given.get("margin") is not None:
        raise BadInputError("input.margin: it is for a comparison; give a baseline too", field="input.margin")
    weights = model_digest(folder)
    started = time.monotonic()
    from engines.inference.opening import open_backend

    options = backend_options(given, context.spec.device)
    backend = open_backend(folder, options, kind=str(given.get("backend") or "transformers"))
    # After the backend's options have been checked: a refused run leaves no folder behind.
    before = claim_outputs(
        context.artifacts,
        "evaluate",
        {"weights": weights},
        ("results.json", "samples"),
        of=f"model {folder} (weights {weights[:12]})",
        force=check_truth(given, "force"),
        files=[f"samples/{task.name}.jsonl" for task in tasks],
        inputs=map(uri_to_path, [str(given["model"]), *(task.uri for task in tasks), *_baseline(given)]),
    )
    book = ScoreBook(context.checkpoints, save_every=save_every)
    done = evaluate(
        backend,
        weights,
        tasks,
        limit=limit,
        book=book,
        prompting=around,
        stop_requested=context.stop_requested,
        progress=context.progress,
    )
    document = results_document(
        done, model=str(folder), limit=limit, seconds=time.monotonic() - started, seed=context.spec.seed
    )
    outputs = write_outputs(
        context, done, document, replaces=None if before is None else before.get("files", ())
    )
    notes = read_layout(folder).notes
    metrics: dict[str, Any] = {**done.metrics(), "warnings": [*notes, *done.warnings()]}
    if baseline is not None:
        candidate = load_results(outputs["results"].uri)
        metrics["comparison"] = compare_documents(candidate, baseline, margin=margin)
        metrics["warnings"] += metrics["comparison"]["warnings"]
    for warning in metrics["warnings"]:
        context.say(f"warning: {warning}")
    return Outcome(
        outputs=outputs,
        metrics=metrics,
        resumed_from=book.resumed_from,
        input_digests={"model": weights, **{task.name: task.digest for task in tasks}},
        versions={key: str(done.backend[key]) for key in ("torch", "transformers") if key in done.backend},
    )


def _baseline(given: Mapping[str, Any]) -> list[str]:
    return [str(given["baseline"])] if given.get("baseline") else []


def write_outputs(
    context: Context, done: Evaluation, document: dict[str, Any], *, replaces: Iterable[str] | None
) -> dict[str, Output]:
    """Write the samples first and the results last, so that existing results are complete.

    ``replaces``: the samples of the evaluation that stands there; None: there is none.
    """
    if replaces is not None:
        context.artifacts.delete("results.json")
        for key in replaces:
            if uri_to_path(context.artifacts.uri_of(key)).is_file():
                context.artifacts.delete(key)
    for entry in done.tasks:
        context.artifacts.put_bytes(f"samples/{entry.task.name}.jsonl", b"".join(sample_lines(entry)))
    folder = Path(context.artifacts.get("samples"))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    samples = Output(context.artifacts.uri_of("samples"), context.artifacts.sha256("samples"), size)
    results = context.artifacts.put_json("results.json", document)
    return {"results": results, "samples": samples}

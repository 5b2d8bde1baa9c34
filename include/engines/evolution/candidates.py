"""evolve_candidates: merges and scores a batch of candidates in memory.

The processes, one per GPU, share a batch by index. Results are write-once files by ``eval_hash``, so the work
resumes by itself: a candidate with a result is not scored again. Within a candidate it resumes at its item,
from a checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from engines.artifacts import uri_to_path
from engines.contract import BadInputError, Context, Outcome, Preempted
from engines.evaluation.settings import check_fields, count, text
from engines.evaluation.tasks import Task, load_tasks
from engines.evolution.ask import everyone
from engines.evolution.records import Records
from engines.evolution.run_settings import RunSettings, check_inputs

if TYPE_CHECKING:
    from engines.evaluation.book import ScoreBook
    from engines.evaluation.merged import MergedModels


def run(context: Context) -> Outcome:
    """Score ``candidates`` (numbers) of ``generation`` of the run under ``run_uri``.

    A candidate that cannot be merged or whose scores are not finite gets a result that says so; whatever else
    goes wrong (memory, files, devices) is raised and leaves no result. Raises Preempted between items, with
    the scores saved, when told to stop, BadInputError for wrong input and for models or tasks that changed
    since the run began.
    """
    given = context.spec.input
    check_fields("evolve_candidates", given, ("run_uri", "generation", "candidates"), ())
    records = Records(text(given, "run_uri"))
    generation = count(given, "generation", 0, least=0)
    ask = records.need_ask(generation)
    settings = RunSettings.from_json(records.need_run())
    mine = _chosen(ask, given["candidates"])[context.rank :: context.world_size]
    todo = [entry for entry in mine if not records.has_result(entry["eval_hash"])]
    counts = {"candidates": len(mine), "cached": len(mine) - len(todo), "evaluated": 0, "failed": 0}
    if todo:
        _work(context, records, settings, generation, todo, counts)
    return Outcome(metrics={"generation": generation, "counts": counts}, input_digests=settings.digests)


def _work(
    context: Context,
    records: Records,
    settings: RunSettings,
    generation: int,
    todo: list[dict[str, Any]],
    counts: dict[str, int],
) -> None:
    check_inputs(settings)
    tasks = _tasks(settings)
    _use_threads(context)
    from engines.evaluation.book import ScoreBook
    from engines.evaluation.merged import MergedModels

    book = ScoreBook(context.checkpoints)
    options = settings.backend_options(context.spec.device)
    with MergedModels(settings.recipe, options, kind=settings.backend, seed=settings.seed) as models:
        for done, entry in enumerate(todo):
            if context.stop_requested():
                raise Preempted(f"stopped after {done} of {len(todo)} candidates")
            result = _evaluate(context, models, settings, tasks, entry, book)
            stands = records.write_result(entry["eval_hash"], {"generation": generation, **result})
            book.forget()
            counts["evaluated"] += 1
            counts["failed"] += stands["status"] == "failed"
            context.progress("candidates", done + 1, len(todo))
    context.checkpoints.clear()


def _evaluate(
    context: Context,
    models: MergedModels,
    settings: RunSettings,
    tasks: list[Task],
    entry: dict[str, Any],
    book: ScoreBook,
) -> dict[str, Any]:
    """One candidate's result. Only what is the candidate's own fault becomes a failed one."""
    from engines.evaluation.run import evaluate
    from engines.evaluation.scoring import NonFiniteScore

    identity = {key: entry[key] for key in ("eval_hash", "recipe_hash")}
    started = time.monotonic()
    try:
        state = models.merge(entry["recipe"])
        backend = models.backend(state)
        done = evaluate(
            backend,
            entry["recipe_hash"],
            tasks,
            limit=settings.limit,
            prompting=settings.prompting,
            book=book,
            preparer=models.preparer,
            stop_requested=context.stop_requested,
        )
    except NonFiniteScore as error:
        return {**identity, "status": "failed", "code": "non_finite", "reason": error.message}
    except BadInputError as error:
        # The models were opened and the tasks read before: what is wrong now is this recipe, if the files
        # still are.
        if error.file is not None and not uri_to_path(error.file).exists():
            raise
        return {**identity, "status": "failed", "code": error.code, "reason": error.message}
    metrics = done.metrics()
    if not math.isfinite(settings.objective.score(metrics)):
        return {**identity, "status": "failed", "code": "non_finite", "reason": "the objective is not finite"}
    return {
        **identity,
        "status": "done",
        "metrics": metrics,
        "backend": done.backend,
        "seconds": round(time.monotonic() - started, 4),
    }


def _chosen(ask: dict[str, Any], numbers: Any) -> list[dict[str, Any]]:
    by_number = {entry["number"]: entry for entry in everyone(ask)}
    if not isinstance(numbers, list | tuple) or not numbers:
        raise BadInputError(
            "input.candidates: must be a list of candidates' numbers", field="input.candidates"
        )
    for number in numbers:
        if number not in by_number:
            raise BadInputError(
                f"input.candidates: generation {ask['generation']} has no candidate {number!r}; "
                f"it has 0 to {len(by_number) - 1}",
                field="input.candidates",
            )
    return [by_number[number] for number in numbers]


def _tasks(settings: RunSettings) -> list[Task]:
    tasks = load_tasks([entry["uri"] for entry in settings.tasks])
    for task, entry in zip(tasks, settings.tasks, strict=True):
        if task.digest != entry["digest"]:
            raise BadInputError(
                f"{task.uri}: its items changed since this evolution began; use a new run_uri",
                file=task.uri,
                field="input.tasks",
            )
    return tasks


def _use_threads(context: Context) -> None:
    """Share the machine's cores among its ranks, unless OMP_NUM_THREADS is set already."""
    if context.world_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // context.world_size))

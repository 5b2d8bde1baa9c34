"""Evaluating one model on tasks, item by item, so that it can stop and go on at any item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engines.contract import Preempted
from engines.evaluation.book import ScoreBook, score_key
from engines.evaluation.metrics import Metrics, by_skill, combined, summarise
from engines.evaluation.prompting import PLAIN, Prompting
from engines.evaluation.scoring import ItemScore, Prepared, prepare, score
from engines.evaluation.tasks import Item, Task
from engines.inference.backend import InferenceBackend

if TYPE_CHECKING:
    from engines.inference.causal import CausalBackend

_BATCHES_AT_ONCE = 4
"""Batches between two looks at the stop flag and the clock."""


@dataclass(frozen=True)
class TaskResult:
    """One task under one model."""

    task: Task
    scores: tuple[ItemScore, ...]
    metrics: Metrics


@dataclass(frozen=True)
class Evaluation:
    """One model on all tasks."""

    weights: str
    """Digest of the weights."""
    backend: dict[str, Any]
    """What the scores depend on (``InferenceBackend.describe``)."""
    tasks: tuple[TaskResult, ...]
    prompting: Prompting = PLAIN

    def warnings(self) -> list[str]:
        """Warnings for readers of the scores: items left out, prompts that did not fit."""
        found = []
        cut = [
            f"{entry.task.name} {len(entry.scores)} of {len(entry.task.items)}"
            for entry in self.tasks
            if len(entry.scores) < len(entry.task.items)
        ]
        if cut:
            found.append(f"limit: only the first items of each task were scored ({', '.join(cut)})")
        truncated = self.backend.get("truncated", 0)
        if truncated:
            found.append(
                f"{truncated} prompt(s) did not fit the model's {self.backend['max_length']} tokens and lost "
                "their beginning"
            )
        return found

    @cached_property
    def skills(self) -> dict[str, Metrics]:
        """Metrics by skill, over all tasks."""
        return by_skill([entry for task in self.tasks for entry in task.scores])

    @cached_property
    def combined(self) -> Metrics:
        """The mean over skills."""
        return combined(self.skills)

    def metrics(self) -> dict[str, Any]:
        """``{task: {...}, "combined": {...}}``, and ``skills``."""
        return {
            **{entry.task.name: entry.metrics for entry in self.tasks},
            "skills": self.skills,
            "combined": self.combined,
        }


def evaluate(
    backend: CausalBackend,
    weights: str,
    tasks: Sequence[Task],
    *,
    limit: int | None = None,
    book: ScoreBook | None = None,
    prompting: Prompting = PLAIN,
    preparer: Callable[[InferenceBackend, Task, Sequence[Item], Prompting], Prepared] = prepare,
    stop_requested: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Evaluation:
    """Score all items that the book does not have yet.

    Raises Preempted, after saving the book, where ``stop_requested`` says so; NonFiniteScore for broken
    weights.
    """
    book = book if book is not None else ScoreBook()
    cut_before = backend.truncated
    total = sum(len(task.limited(limit)) for task in tasks)
    done = 0
    results = []
    for task in tasks:
        around = prompting.identity() if task.kind == "choice" else {}
        key = score_key(weights, task.digest, {**backend.identity(), **around})
        items = task.limited(limit)
        missing = [item for item in items if item.id not in book.known(key)]
        done += len(items) - len(missing)
        size = backend.options.batch_size * _BATCHES_AT_ONCE
        for start in range(0, len(missing), size):
            if stop_requested():
                book.save()
                raise Preempted(f"stopped after {done} of {total} items")
            part = missing[start : start + size]
            book.add(key, score(backend, preparer(backend, task, part, prompting)))
            done += len(part)
            progress("items", done, total)
        scores = tuple(book.known(key)[item.id] for item in items)
        results.append(TaskResult(task, scores, summarise(scores)))
    # What ends this run before its outcome is sent must not cost the scores: the next one reads them all.
    book.save()
    described = {**backend.describe(), "truncated": backend.truncated - cut_before, **prompting.identity()}
    return Evaluation(weights, described, tuple(results), prompting)

"""BenchmarkEngine: several models over the same tasks, side by side; resumes at its item."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from engines.artifacts import combine_digests, uri_to_path
from engines.artifacts.claims import claim_outputs
from engines.benchmark.rows import Row, read_of, read_rows
from engines.benchmark.scoreboard import main_metric, scoreboard, table
from engines.contract import BadInputError, Context, Outcome
from engines.evaluation.book import ScoreBook
from engines.evaluation.models import model_digest, tokenizer_digest
from engines.evaluation.prompting import FIELDS, Prompting
from engines.evaluation.run import Evaluation, evaluate
from engines.evaluation.scoring import NonFiniteScore, Preparer
from engines.evaluation.settings import (
    BACKEND_FIELDS,
    backend_options,
    check_fields,
    check_truth,
    optional_count,
    texts,
)
from engines.evaluation.tasks import Task, load_tasks
from engines.inference.backend import BackendOptions
from engines.tensor.layout import read_layout

if TYPE_CHECKING:
    from engines.inference.causal import CausalBackend

OPTIONAL = ("force", "models", "recipes", "uniform", "of", "limit", "save_every", *BACKEND_FIELDS, *FIELDS)


def run(context: Context) -> Outcome:
    """Evaluate every row; outputs ``scoreboard`` (JSON) and ``table`` (text), metrics by row name.

    A row whose weights give NaN is shown as failed, the others go on. Raises BadInputError for wrong input,
    and where no row could be evaluated; Preempted when told to stop.
    """
    given = context.spec.input
    check_fields("benchmark", given, ("tasks",), OPTIONAL)
    rows, tasks = read_rows(given), load_tasks(texts(given, "tasks"))
    read_of(given, rows)
    Prompting.of(given).check(tasks)
    claim_outputs(
        context.artifacts,
        "benchmark",
        {"rows": [row.identity() for row in rows]},
        ("scoreboard.json", "scoreboard.txt"),
        of=f"the models {', '.join(row.name for row in rows)}",
        force=check_truth(given, "force"),
        inputs=[
            *(row.folder for row in rows if row.folder is not None),
            *(uri_to_path(task.uri) for task in tasks),
        ],
    )
    work = _Benchmark(context, tasks)
    work.models(rows)
    work.recipes(rows)
    if not work.done:
        name, reason = next(iter(work.failures.items()))
        raise BadInputError(f"no model could be evaluated; '{name}': {reason}", field="input.models")
    metrics = {name: entry.metrics() for name, entry in work.done.items()}
    board = scoreboard(
        rows,
        metrics,
        work.failures,
        tasks={task.name: task.digest for task in tasks},
        limit=work.limit,
        backend=next(iter(work.done.values())).backend,
        of=read_of(given, rows),
        warnings=list(
            dict.fromkeys([*work.notes, *(w for entry in work.done.values() for w in entry.warnings())])
        ),
    )
    for warning in board["warnings"]:
        context.say(f"warning: {warning}")
    text = context.artifacts.put_bytes("scoreboard.txt", table(board).encode())
    document = context.artifacts.put_json("scoreboard.json", board)
    return Outcome(
        outputs={"scoreboard": document, "table": text},
        metrics=_shown(board),
        resumed_from=work.book.resumed_from,
        input_digests=work.digests,
    )


class _Benchmark:
    """Evaluations by row name, and why others have none."""

    def __init__(self, context: Context, tasks: Sequence[Task]) -> None:
        given = context.spec.input
        self.context, self.tasks = context, tasks
        self.limit = optional_count(given, "limit")
        self.options: BackendOptions = backend_options(given, context.spec.device)
        self.kind = str(given.get("backend") or "transformers")
        self.prompting = Prompting.of(given)
        self.book = ScoreBook(context.checkpoints, save_every=optional_count(given, "save_every"))
        self.done: dict[str, Evaluation] = {}
        self.failures: dict[str, str] = {}
        self.digests: dict[str, str] = {}
        self.notes: list[str] = []
        """What was found where the models were read."""
        self._preparers: dict[str, Preparer] = {}
        """By tokenizer: items are encoded once for all rows that share one."""

    def models(self, rows: Sequence[Row]) -> None:
        """Evaluate the rows that are models in folders."""
        from engines.inference.opening import open_backend

        for row in rows:
            if row.folder is None:
                continue
            weights = self.digests[row.name] = model_digest(row.folder)
            self.notes += read_layout(row.folder).notes
            backend = open_backend(row.folder, self.options, kind=self.kind)
            self._row(row, backend, weights, tokenizer_digest(row.folder))

    def recipes(self, rows: Sequence[Row]) -> None:
        """Evaluate the rows that are recipes, merged in memory."""
        todo = [(row, row.recipe) for row in rows if row.recipe is not None]
        if not todo:
            return
        from engines.evaluation.merged import MergedModels
        from engines.merge.run.in_memory import digest_state_dict

        seed = self.context.spec.seed
        merged: MergedModels | None = None
        with ExitStack() as stack:
            for row, recipe in todo:
                try:
                    if merged is None:  # a recipe that cannot be planned must not take the others with it
                        opened = MergedModels(recipe, self.options, kind=self.kind, seed=seed)
                        merged = stack.enter_context(opened)
                    state = merged.merge(recipe)
                    backend = merged.backend(state)
                except BadInputError as error:
                    self.failures[row.name] = error.message
                    continue
                digests = {"model": digest_state_dict(state), "tokenizer": merged.tokenizer_digest()}
                self._row(row, backend, combine_digests(digests), digests["tokenizer"])

    def _row(self, row: Row, backend: CausalBackend, weights: str, tokenizer: str) -> None:
        context = self.context
        preparer = self._preparers.setdefault(tokenizer, Preparer())

        def progress(what: str, done: int, total: int) -> None:
            context.progress(f"{what} of {row.name}", done, total)

        try:
            self.done[row.name] = evaluate(
                backend,
                weights,
                self.tasks,
                limit=self.limit,
                book=self.book,
                prompting=self.prompting,
                preparer=preparer,
                stop_requested=context.stop_requested,
                progress=progress,
            )
        except NonFiniteScore as error:
            self.failures[row.name] = error.message


def _shown(board: dict[str, Any]) -> dict[str, Any]:
    """Metrics of the lines by name: skills and combined, and what is best."""
    lines = [line for line in board["rows"] if "failed" not in line]
    metric = main_metric(lines[0]["combined"])
    best = max(lines, key=lambda line: line["combined"][metric] * (1.0 if metric == "acc" else -1.0))
    shown: dict[str, Any] = {
        line["name"]: {
            **line["skills"],
            "combined": line["combined"],
            **({"of": line["of"]} if "of" in line else {}),
        }
        for line in lines
    }
    return {**shown, "best": best["name"], "warnings": board["warnings"]}

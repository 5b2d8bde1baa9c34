"""Expectations on benchmark data sets (great_expectations): allowed, but doubtful properties give warnings.

``engines.evaluation.tasks`` refuses data that cannot be scored, with file and line. This module checks a data
set that can be scored against the properties of a good one; each that is missing becomes a warning. Nothing
is sent anywhere: the context is ephemeral, and analytics are off. The library takes seconds to import, so
only the compatibility check loads this module.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from engines.evaluation.tasks import Task

LEAST_ITEMS = 30
"""Below this a mean's standard error is itself uncertain."""
MOST_COMMON_ANSWER = 0.9
"""Above this share of one answer, always saying it beats most models."""


def unmet(task: Task) -> list[str]:
    """One sentence for each expectation that the task does not meet."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    import pandas

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    asset = context.data_sources.add_pandas("tasks").add_dataframe_asset(task.name)
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch(
        {"dataframe": pandas.DataFrame(_rows(task))}
    )
    expected = _expected(task)
    suite = gx.ExpectationSuite(name=task.name, expectations=[entry for entry, _ in expected])
    results = batch.validate(suite).results
    by_type = {_kind(result.expectation_config): result for result in results}
    return [
        f"{task.uri}: {sentence}{_where(by_type[_kind(entry.configuration)].result)}"
        for entry, sentence in expected
        if not by_type[_kind(entry.configuration)].success
    ]


def _rows(task: Task) -> dict[str, list[Any]]:
    return {
        "text": [f"{item.text}\0{chr(0).join(item.choices)}" for item in task.items],
        "characters": [len(item.text) for item in task.items],
        "choices": [len(item.choices) for item in task.items],
        "answer": [item.answer for item in task.items],
        "common": [float(share) for share in _shares(task)],
    }


def _shares(task: Task) -> list[float]:
    """For each item the share of items with the same answer."""
    counts: dict[int, int] = {}
    for item in task.items:
        counts[item.answer] = counts.get(item.answer, 0) + 1
    return [counts[item.answer] / len(task.items) for item in task.items]


def _expected(task: Task) -> list[tuple[Any, str]]:
    # Its names are re-exported without saying so, which type checkers refuse.
    gxe: Any = import_module("great_expectations.expectations")
    entries = [
        (
            gxe.ExpectTableRowCountToBeBetween(min_value=LEAST_ITEMS),
            f"fewer than {LEAST_ITEMS} items; scores will be uncertain",
        ),
        (gxe.ExpectColumnValuesToBeUnique(column="text"), "items are repeated"),
    ]
    if task.kind == "choice":
        entries += [
            (
                gxe.ExpectColumnMaxToBeBetween(column="common", max_value=MOST_COMMON_ANSWER),
                f"one answer is right for more than {MOST_COMMON_ANSWER:.0%} of the items",
            ),
            (
                gxe.ExpectColumnUniqueValueCountToBeBetween(column="choices", max_value=1),
                "items have different numbers of choices, so chance differs between them",
            ),
        ]
    return entries


def _kind(configuration: Any) -> tuple[str, Any]:
    return configuration.type, configuration.kwargs.get("column")


def _where(result: dict[str, Any]) -> str:
    lines = result.get("partial_unexpected_index_list") or []
    return f" (items {', '.join(str(int(line) + 1) for line in lines[:4])})" if lines else ""

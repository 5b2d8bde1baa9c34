"""Operators of a generation group that skip themselves when they have nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from emep.operators.fair_share import FairShareGpuOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

NOTHING: list[list[int]] = [[]]
"""The batches of a generation whose candidates all have results: one empty batch.

A task that is mapped over nothing would be skipped, and the tasks after it too.
"""


class AskOperator(FairShareGpuOperator):
    """Asks for a generation's candidates; the XCom is their batches, for mapped tasks.

    It skips itself, and by the trigger rules all after it, in a generation that the run does not ask for, and
    where ``nothing_to_search`` is true of the run's Params.
    (The first task of the run skips those at once; this is for tasks that were cleared by hand.)
    """

    def __init__(
        self,
        *,
        generation: int,
        nothing_to_search: Callable[[Mapping[str, Any]], bool] | None = None,
        **kwargs: Any,
    ) -> None:
        defaults: dict[str, Any] = {
            "engine": "evolve_ask",
            "return_field": "metrics.batches",
            "if_empty": NOTHING,
            "inline_wait": 20.0,
        }
        super().__init__(**{**defaults, **kwargs})
        self.generation = generation
        self.nothing_to_search = nothing_to_search

    def execute(self, context: Context) -> Any:
        """Skip, or ask. Raises as FairShareGpuOperator does."""
        if self.generation >= context["params"]["generations"]:
            raise AirflowSkipException(f"The run asks for {context['params']['generations']} generations.")
        if self.nothing_to_search and self.nothing_to_search(context["params"]):
            raise AirflowSkipException("The recipe has nothing to search.")
        return super().execute(context)


class CandidatesOperator(FairShareGpuOperator):
    """Merges and evaluates the candidates of one batch; an empty one needs no allocation."""

    def execute(self, context: Context) -> Any:
        """Run the batch. Raises as FairShareGpuOperator does."""
        self.fail_unrendered()
        if not (self.extra_input or {}).get("candidates", True):
            self.log.info("Every candidate of this generation has its result already")
            return None
        return super().execute(context)

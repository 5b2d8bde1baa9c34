"""The first task of every DAG: checks that a run's models, recipe and tasks fit before they cost a GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import DownstreamTasksSkipped

from emep.operators.fair_share import FairShareGpuOperator
from emep.operators.run_conf import refuse_idle_gpus, refuse_unknown_fields
from emep.triggers.outcome import Outcome

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class CompatibilityCheckOperator(FairShareGpuOperator):
    """The compatibility check as a CPU job: recipe, configs, headers of the weights, tokenizers, task files.

    It also refuses fields of the run's conf that the form does not have, and skips the tasks that ``unused``
    names for the run's Params (generation groups that were not asked for), all at once and without a worker
    for each. Where the run's ``gpu_count`` is for one engine, ``gpus_for`` names it: more GPUs than it can
    use are refused here, before anything runs.
    """

    def __init__(
        self,
        *,
        unused: Callable[[Mapping[str, Any]], Collection[str]] | None = None,
        gpus_for: str = "",
        **kwargs: Any,
    ) -> None:
        # A success of this task has something to do in the worker, if there are tasks to skip.
        defaults: dict[str, Any] = {"engine": "compatibility_check", "gpu_count": 0, "inline_wait": 30.0}
        super().__init__(**{**defaults, "worker_end": unused is not None, **kwargs})
        self.unused = unused
        self.gpus_for = gpus_for

    def execute(self, context: Context) -> Any:
        """Check the conf's field names, then run the check. Raises as FairShareGpuOperator does."""
        refuse_unknown_fields(context)
        if self.gpus_for:
            refuse_idle_gpus(context, self.gpus_for)
        return super().execute(context)

    def value(self, context: Context, outcome: Outcome) -> Any:
        """The Result; unused tasks are skipped on the way."""
        unused = sorted(self.unused(context["params"])) if self.unused else []
        if not unused:
            return outcome.value
        context["ti"].xcom_push(key="return_value", value=outcome.value)
        raise DownstreamTasksSkipped(tasks=unused)  # type: ignore[no-untyped-call]

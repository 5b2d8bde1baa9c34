"""Tasks of EMEP's DAGs: the operators with what a run's Params say, so that the DAG files stay thin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow.sdk import task_group
from airflow.sdk.definitions.xcom_arg import XComArg

from emep.dagkit import inputs
from emep.dagkit.settings import generation_groups
from emep.operators.compatibility import CompatibilityCheckOperator
from emep.operators.evolution import AskOperator, CandidatesOperator
from emep.operators.fair_share import FairShareGpuOperator


def _param(name: str) -> str:
    """The template of a Param; empty where it has no value, which leaves the field to the policy."""
    return "{{ params.%s if params.%s is not none else '' }}" % (name, name)  # noqa: UP031


def resources(**overrides: Any) -> dict[str, Any]:
    """The job's fields of every task, from the run's Params."""
    names = (
        "priority",
        "project",
        "gpu_count",
        "gpu_memory_min",
        "gpu_type",
        "nvlink_required",
        "max_duration",
        "runtime",
        "seed",
    )
    fields: dict[str, Any] = {name: _param(name) for name in names}
    fields["experiment_id"] = _param("experiment_id")
    return fields | overrides


def cpu_resources(**overrides: Any) -> dict[str, Any]:
    """The same for a step that needs no GPU."""
    cpu_only = {"gpu_memory_min": None, "gpu_type": None, "nvlink_required": None, "gpu_count": 0}
    return resources(**cpu_only) | overrides


ONE_GPU = "{{ [params.gpu_count, 1] | min }}"
"""GPUs of an engine of one device, in a DAG whose ``gpu_count`` is for the search's candidates."""


def one_gpu_resources(**overrides: Any) -> dict[str, Any]:
    """The same for a step that uses one GPU, or none where the run asks for none."""
    return resources(gpu_count=ONE_GPU) | overrides


def compatibility_check(
    *,
    search: bool = False,
    unused: Callable[[Mapping[str, Any]], Collection[str]] | None = None,
    gpus_for: str = "",
) -> CompatibilityCheckOperator:
    """The task every DAG begins with. ``gpus_for``: the only engine that the run's GPUs are for."""
    return CompatibilityCheckOperator(
        task_id="compatibility_check",
        input=inputs.check_input(search=search),
        output_uri=inputs.output_uri(name="check"),
        unused=unused,
        gpus_for=gpus_for,
        **cpu_resources(max_duration="10m"),
    )


def merge(task_id: str, input: inputs.Built, name: str) -> FairShareGpuOperator:
    """One merge on granted GPUs."""
    return FairShareGpuOperator(
        task_id=task_id,
        engine="merge",
        input=input,
        output_uri=inputs.output_uri(name=name),
        job_queue="merge",
        **one_gpu_resources(),
    )


def evaluate(
    task_id: str, input: inputs.Built, engine: str = "evaluate", **fields: Any
) -> FairShareGpuOperator:
    """One evaluation, in a job of its own: isolated from merging. ``run_note``: its metrics are the run's."""
    return FairShareGpuOperator(
        task_id=task_id,
        engine=engine,
        input=input,
        output_uri=inputs.output_uri(name=task_id),
        job_queue=EVAL_QUEUE,
        **one_gpu_resources() | fields,
    )


EVAL_QUEUE = "{{ 'merge' if params.priority == 'critical' else 'eval' }}"
"""A critical run's evaluations are critical in queue merge, since the eval queue has no such class.

Nothing is lowered: a user who may not ask for ``critical`` is refused at the run's first job."""


def generation(number: int) -> tuple[FairShareGpuOperator, FairShareGpuOperator]:
    """One generation group: ask, mapped candidates (each task one allocation for a batch), tell.

    The tell runs when every candidate task has ended and one succeeded; it is skipped with its group.
    """

    @task_group(group_id=f"generation_{number}")
    def group() -> None:
        ask = AskOperator(
            task_id="ask",
            generation=number,
            nothing_to_search=inputs.nothing_to_search,
            input=inputs.ask_input(generation=number),
            output_uri=inputs.output_uri(name="search"),
            **cpu_resources(max_duration="1h"),
        )
        candidates = CandidatesOperator.partial(
            task_id="candidates",
            engine="evolve_candidates",
            input=inputs.candidates_input(generation=number),
            output_uri=inputs.output_uri(name="search"),
            map_index_template="{{ task.extra_input.candidates | join(', ') if task.extra_input else '' }}",
            **resources(),
        ).expand(extra_input=XComArg(ask).map(inputs.as_candidates))
        tell = FairShareGpuOperator(
            task_id="tell",
            engine="evolve_tell",
            input=inputs.tell_input(generation=number),
            output_uri=inputs.output_uri(name="search"),
            inline_wait=20.0,
            trigger_rule="all_done_min_one_success",
            **cpu_resources(max_duration="1h"),
        )
        candidates >> tell
        ends.append((ask, tell))

    ends: list[tuple[FairShareGpuOperator, FairShareGpuOperator]] = []
    group()
    return ends[0]


def generations(first: Any) -> list[FairShareGpuOperator]:
    """As many generation groups as the setting says, one after the other, after ``first``; their tells."""
    tells: list[FairShareGpuOperator] = []
    for number in range(generation_groups()):
        ask, tell = generation(number)
        (tells[-1] if tells else first) >> ask
        tells.append(tell)
    return tells


def unused_search(params: Mapping[str, Any]) -> list[str]:
    """The same in the pipeline, where a recipe with nothing to search needs no search at all."""
    if not inputs.nothing_to_search(params):
        return unused_generations(params)
    return [*unused_generations({**params, "generations": 0}), "merge_best"]


def unused_generations(params: Mapping[str, Any]) -> list[str]:
    """Tasks of the generation groups beyond those that the run asks for."""
    return [
        f"generation_{number}.{name}"
        for number in range(generation_groups())
        if inputs.generation_is_unused(number, params)
        for name in ("ask", "candidates", "tell")
    ]

"""The trigger forms: one typed Param for every field of a run's conf.

The form and the API take the same fields (docs/submit.md). A value that breaks a Param's schema is refused
when the run is created; a field that no Param knows is refused by the run's first task
(``emep.operators.run_conf``). Airflow opens the section of the fields that name none, and no other: in it is
what a run cannot do without.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from emep.dagkit import formats
from emep.dagkit.settings import generation_groups

_EVALUATION, _SEARCH = "Evaluation", "Search"
_GPUS, _RECORDS = "GPUs and order", "Records"
_FROM = "Relative paths start at the folder of the Variable emep_data."
formats.register()
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


_SEARCH_GPUS = (
    "GPUs of each allocation of candidates, all on one node: one process a GPU. Merges and evaluations use "
    "one. 0 runs on CPUs."
)
_ONE_GPU = "1: a merge or an evaluation uses one GPU. 0 runs on CPUs."


def resources(*, search: bool = False, **defaults: Any) -> dict[str, Param]:
    """Fields of every DAG: project, number and kind of GPUs, priority and time limits.

    ``search``: the DAG evaluates candidates, the one engine that uses several GPUs.
    """
    values: dict[str, Any] = {"gpu_count": 1, "priority": "normal", "seed": 0} | defaults
    return {
        "project": Param(
            "default",
            "Whose fair share is charged. A nested project is written org/team.",
            type="string",
            title="Project",
            minLength=1,
            maxLength=250,
            section=_GPUS,
        ),
        "priority": Param(
            values["priority"],
            "Class of the job in its queue; medium means normal. "
            "Critical is for regression gates and production validation.",
            type="string",
            title="Priority",
            enum=["critical", "high", "normal", "medium", "low"],
            section=_GPUS,
        ),
        "gpu_count": Param(
            values["gpu_count"],
            _SEARCH_GPUS if search else _ONE_GPU,
            type="integer",
            title="GPUs",
            minimum=0,
            maximum=100_000,
            section=_GPUS,
        ),
        "gpu_memory_min": Param(
            None,
            "Memory that every GPU must have at least, for example 40Gi. Empty: any.",
            type=["string", "integer", "null"],
            title="Memory of each GPU",
            format=formats.MEMORY,
            pattern=formats.MEMORY_PATTERN,
            maxLength=formats.LONGEST_TEXT,
            minimum=0,
            examples=["16Gi", "40Gi", "80Gi"],  # Without them a field of two types is a box of six lines.
            section=_GPUS,
        ),
        "gpu_type": Param(
            None,
            "Product label that every GPU must have, for example NVIDIA-H100-80GB-HBM3. Empty: any.",
            type=["string", "null"],
            title="GPU type",
            maxLength=250,
            section=_GPUS,
        ),
        "nvlink_required": Param(
            False,
            "Every GPU of a job in one NVLink group.",
            type="boolean",
            title="One NVLink group",
            section=_GPUS,
        ),
        "max_duration": Param(
            None,
            "Hard limit of each run of a job, for example 2h; it also lets shorter jobs start earlier. "
            "Empty: the queue's default.",
            type=["string", "number", "null"],
            title="Longest duration",
            format=formats.DURATION,
            pattern=formats.DURATION_PATTERN,
            maxLength=formats.LONGEST_TEXT,
            exclusiveMinimum=0,
            examples=["30m", "2h", "1h30m", "1d"],
            section=_GPUS,
        ),
        "runtime": Param(
            "agent",
            "Who starts the work: the agent of the node that was granted, or Kubernetes, in a pod.",
            type="string",
            title="Runtime",
            enum=["agent", "kubernetes"],
            section=_GPUS,
        ),
        "seed": Param(
            values["seed"],
            "Seed of everything random; the same seed gives the same result.",
            type="integer",
            title="Seed",
            minimum=0,
            maximum=2**63 - 1,
            section=_RECORDS,
        ),
        "experiment_id": Param(
            None,
            "Name of the experiment, carried on every message and event. Empty: the run's id.",
            type=["string", "null"],
            title="Experiment",
            maxLength=250,
            section=_RECORDS,
        ),
    }


def recipe(search: bool = False) -> dict[str, Param]:
    """The recipe: a mergekit configuration, inline or by path; evolving DAGs need parameters to search."""
    searched = (
        " Parameters to search stand where a number would: `weight: {search: [-0.5, 1.0], start: 0.3}`."
        if search
        else ""
    )
    return {
        "recipe": Param(
            # Airflow shows Markdown only where there is no plain description.
            description_md="A mergekit configuration: YAML text, a JSON object, or the path or URI of a file."
            f"{searched} {_FROM} For example:\n\n```yaml\n{_example(search)}```",
            type=["string", "object"],
            title="Recipe",
            format="multiline",
            minLength=1,
            minProperties=1,
        )
    }


def _example(search: bool) -> str:
    """A whole recipe, to be copied into the field above it and given one's own models."""
    left, right = ("{search: [0.0, 1.0], start: 0.5}",) * 2 if search else ("0.5", "0.3")
    return (
        "merge_method: task_arithmetic\n"
        "base_model: models/base\n"
        "models:\n"
        "  - model: models/left\n"
        f"    parameters: {{weight: {left}}}\n"
        "  - model: models/right\n"
        f"    parameters: {{weight: {right}}}\n"
        "dtype: bfloat16\n"
    )


def output_name(default: str) -> dict[str, Param]:
    """Name of the merged model's folder."""
    return {
        "output_name": Param(
            default,
            "Name of the merged model's folder: letters, digits, dots, dashes and underscores.",
            type="string",
            title="Name of the merged model",
            pattern=_NAME,
        )
    }


def model(required: bool) -> dict[str, Param]:
    """The model to evaluate; optional where the pipeline's own model is evaluated."""
    if required:
        return {
            "model": Param(
                description=f"Path or URI of a Hugging Face checkpoint folder. {_FROM}",
                type="string",
                title="Model",
                minLength=1,
            )
        }
    return {
        "model": Param(
            None,
            f"Path or URI of one more model to show on the scoreboard. {_FROM} Empty: none.",
            type=["string", "null"],
            title="Another model to compare with",
            section=_EVALUATION,
        )
    }


def tasks() -> dict[str, Param]:
    """Task files to evaluate on."""
    return {
        "tasks": Param(
            description="JSONL task files, one a line; items have prompt, choices and answer, or text. "
            + _FROM,
            type="array",
            items={"type": "string", "minLength": 1},
            minItems=1,
            title="Tasks",
        )
    }


def report_tasks() -> dict[str, Param]:
    """Task files that the search never sees."""
    return {
        "report_tasks": Param(
            None,
            "JSONL task files for the evaluation and the scoreboard, one a line; the search never sees them. "
            f"{_FROM} Empty: the same as tasks.",
            type=["array", "null"],
            items={"type": "string", "minLength": 1},
            title="Tasks of the report",
            section=_EVALUATION,
        )
    }


def scoring() -> dict[str, Param]:
    """How scores are computed, in a search as in an evaluation."""
    return {
        "limit": Param(
            None,
            "Use only the first so many items of each task. Empty: all.",
            type=["integer", "null"],
            title="Items of each task",
            minimum=1,
            section=_EVALUATION,
        ),
        "num_fewshot": Param(
            0,
            "Examples before each question, drawn from the other items of its task as lm-evaluation-harness "
            "does. 0: none.",
            type="integer",
            title="Examples before each question",
            minimum=0,
            maximum=1000,
            section=_EVALUATION,
        ),
        "apply_chat_template": Param(
            False,
            "Put each prompt into the chat template of the model's tokenizer, as a user's message.",
            type="boolean",
            title="Chat template",
            section=_EVALUATION,
        ),
        "dtype": Param(
            "auto",
            "Number type that scores are computed in; auto is the checkpoint's own.",
            type="string",
            title="Number type of scores",
            enum=["auto", "float32", "bfloat16", "float16"],
            section=_EVALUATION,
        ),
    }


def evaluation() -> dict[str, Param]:
    """How much is evaluated and how, and against what."""
    return {
        **scoring(),
        "baseline": Param(
            None,
            f"Path or URI of an earlier evaluation's results to compare with. {_FROM} Empty: none.",
            type=["string", "null"],
            title="Baseline",
            section=_EVALUATION,
        ),
        "margin": Param(
            None,
            "Difference of accuracy from the baseline that does not matter, for example 0.01: within it two "
            "models are equivalent, beyond it better or worse. Empty: 0.",
            type=["number", "null"],
            title="Margin",
            minimum=0,
            maximum=1,
            section=_EVALUATION,
        ),
    }


def search() -> dict[str, Param]:
    """How the search goes: generations, their size, and how many candidates share an allocation."""
    groups = generation_groups()
    return {
        "objective": Param(
            None,
            "What the search raises: acc (accuracy), acc_norm, answer_logprob or bits_per_byte, as the mean "
            'of the skills; with weights: {"metric": "acc", "weights": {"upright": 2, "turned": 1}}.',
            type=["string", "object", "null"],
            title="Objective",
            minLength=1,
            section=_SEARCH,
        ),
        "generations": Param(
            min(4, groups),
            f"Generations of the search, at most {groups}; unused generation groups are skipped.",
            type="integer",
            title="Generations",
            minimum=1,
            maximum=groups,
            section=_SEARCH,
        ),
        "population": Param(
            16,
            "Candidates of each generation.",
            type="integer",
            title="Population",
            minimum=4,
            maximum=4096,
            section=_SEARCH,
        ),
        "batch": Param(
            8,
            "Candidates that share one allocation: merged and evaluated by the same task.",
            type="integer",
            title="Candidates of one allocation",
            minimum=1,
            maximum=4096,
            section=_SEARCH,
        ),
    }

"""
### Evaluate a model

Evaluates one Hugging Face checkpoint on JSONL tasks (accuracy or perplexity, with standard errors), after a
compatibility check on a CPU. Evaluations have a queue of their own and are never preempted.
"""

from airflow.sdk import dag

from emep.dagkit import inputs, params, tasks
from emep.dagkit.settings import dag_arguments


@dag(
    description="Evaluate one model on task files, on one GPU.",
    doc_md=__doc__,
    tags=["emep", "evaluate"],
    params={**params.model(required=True), **params.tasks(), **params.evaluation(), **params.resources()},
    **dag_arguments(),
)
def emep_evaluate():
    """Check, then evaluate."""
    tasks.compatibility_check(gpus_for="evaluate") >> tasks.evaluate(
        "evaluate", inputs.evaluate_input(), run_note=True
    )


emep_evaluate()

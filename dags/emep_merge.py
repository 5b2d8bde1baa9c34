"""
### Merge models

Merges models by a recipe in the format of mergekit: first a compatibility check on a CPU (recipe, configs,
headers of the weights, tokenizers), then the merge on the GPUs that EMEP's scheduler grants. The result is a
Hugging Face checkpoint folder below the run's artifacts; the task `merge` returns its URI.
"""

from airflow.sdk import dag

from emep.dagkit import inputs, params, tasks
from emep.dagkit.settings import dag_arguments


@dag(
    description="Merge models by a recipe in mergekit's format.",
    doc_md=__doc__,
    tags=["emep", "merge"],
    params={**params.recipe(), **params.output_name("merged"), **params.resources()},
    **dag_arguments(),
)
def emep_merge():
    """Check, then merge."""
    tasks.compatibility_check(gpus_for="merge") >> tasks.merge("merge", inputs.merge_input(), "models")


emep_merge()

"""
### Evolve a merge

Searches the parameters that a recipe leaves open (`weight: {search: [-0.5, 1.0], start: 0.3}`) by CMA-ES,
then merges the best recipe. One DAG run is one evolution: each generation is a group of tasks, *ask* (which
candidates), *candidates* (each mapped task is one allocation that merges and evaluates a batch of them) and
*tell* (what they scored). Generations beyond those that the run asks for are skipped. To go on from a
generation, clear its tasks: what was told before stays.
"""

from airflow.sdk import dag

from emep.dagkit import inputs, params, tasks
from emep.dagkit.settings import dag_arguments


@dag(
    description="Search the parameters that a recipe leaves open, and merge the best.",
    doc_md=__doc__,
    tags=["emep", "evolve"],
    params={
        **params.recipe(search=True),
        **params.output_name("evolved"),
        **params.tasks(),
        **params.scoring(),
        **params.search(),
        **params.resources(search=True),
    },
    **dag_arguments(),
)
def emep_evolve():
    """Check, generations, merge of the best."""
    check = tasks.compatibility_check(search=True, unused=tasks.unused_generations)
    best = tasks.merge("merge_best", inputs.best_merge_input(), "models")
    best.trigger_rule = "none_failed_min_one_success"
    tasks.generations(first=check) >> best


emep_evolve()

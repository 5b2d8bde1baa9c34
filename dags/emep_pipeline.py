"""
### Merge, evolve, evaluate

The main job: merges a recipe at its starting values, evolves the parameters that the recipe leaves open,
merges the best recipe, evaluates it on tasks that the search never saw, and ends with a scoreboard: base,
each parent, uniform averages and the evolved merge, for each task and combined, with standard errors. A
recipe that leaves nothing open is merged, evaluated and put on the scoreboard; the search is skipped.
"""

from airflow.sdk import dag

from emep.dagkit import inputs, params, tasks
from emep.dagkit.settings import dag_arguments


@dag(
    description="Merge, search, evaluate, and show all of it on a scoreboard.",
    doc_md=__doc__,
    tags=["emep", "merge", "evolve", "evaluate"],
    params={
        **params.recipe(search=True),
        **params.output_name("evolved"),
        **params.tasks(),
        **params.report_tasks(),
        **params.model(required=False),
        **params.evaluation(),
        **params.search(),
        **params.resources(search=True),
    },
    **dag_arguments(),
)
def emep_pipeline():
    """Check; first merge and generations side by side; merge of the best; evaluation and scoreboard."""
    check = tasks.compatibility_check(unused=tasks.unused_search)
    first = tasks.merge("merge", inputs.start_merge_input(), "models")
    best = tasks.merge("merge_best", inputs.best_merge_input(), "models")
    best.trigger_rule = "none_failed_min_one_success"
    check >> first
    tasks.generations(first=check) >> best
    # The best is skipped where nothing is searched; the first merge is then the one that is evaluated.
    scored = {"trigger_rule": "none_failed_min_one_success"}
    [first, best] >> tasks.evaluate("evaluate", inputs.evolved_evaluate_input(), **scored)
    [first, best] >> tasks.evaluate(
        "scoreboard", inputs.scoreboard_input(), engine="benchmark", run_note=True, **scored
    )


emep_pipeline()

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from tests.builders.jobs import job_view

from emep.operators.evolution import NOTHING, AskOperator, CandidatesOperator
from emep.operators.run_conf import refuse_unknown_fields
from emep.triggers.outcome import outcome_of


def test_a_generation_that_the_run_does_not_ask_for_skips_itself():
    ask = AskOperator(task_id="ask", generation=3)
    with pytest.raises(AirflowSkipException):
        ask.execute({"params": {"generations": 3}})


def test_a_generation_of_a_recipe_with_nothing_to_search_skips_itself(monkeypatch):
    from emep.dagkit import inputs

    monkeypatch.setattr(inputs, "data_root", lambda: None)
    recipe = "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 1}}\n"
    ask = AskOperator(task_id="ask", generation=0, nothing_to_search=inputs.nothing_to_search)
    with pytest.raises(AirflowSkipException, match="nothing to search"):
        ask.execute({"params": {"generations": 3, "recipe": recipe}})


def test_a_batch_without_candidates_needs_no_allocation():
    task = CandidatesOperator(
        task_id="candidates", engine="evolve_candidates", extra_input={"candidates": []}
    )
    assert task.execute({}) is None


def test_a_generation_with_nothing_left_to_do_still_has_one_batch():
    """A task that is mapped over nothing would be skipped, and the rest of the search with it."""
    job = job_view("completed", result={"metrics": {"batches": []}})
    assert outcome_of(job, "metrics.batches", NOTHING).value == [[]]
    job = job_view("completed", result={"metrics": {"batches": [[1]]}})
    assert outcome_of(job, "metrics.batches", NOTHING).value == [[1]]


def conf_context(**conf):
    dag = SimpleNamespace(dag_id="emep_merge", params={"recipe": None, "output_name": None, "gpu_count": 1})
    return {"dag": dag, "dag_run": SimpleNamespace(conf=conf)}


def test_known_fields_pass():
    refuse_unknown_fields(conf_context(recipe="r", gpu_count=2))
    refuse_unknown_fields({**conf_context(), "dag_run": SimpleNamespace(conf=None)})


@pytest.mark.parametrize(
    ("field", "words"),
    [("ouput_name", ["'ouput_name'", "'output_name'"]), ("xyz", ["'xyz'", "gpu_count, output_name, recipe"])],
)
def test_an_unknown_field_is_refused_with_the_nearest_one(field, words):
    with pytest.raises(AirflowFailException) as caught:
        refuse_unknown_fields(conf_context(**{field: 1}))
    for word in words:
        assert word in str(caught.value)

"""The forms of all DAGs as Airflow's UI and API read them: from the serialized DAG."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from emep.dagkit.recipes import read_recipe, searched
from emep.plugin import EmepPlugin

ROOT = Path(__file__).resolve().parents[2]
DAGS = ["emep_evaluate", "emep_evolve", "emep_gpu_health", "emep_merge", "emep_pipeline"]
NEEDED = {"recipe": {"merge_method": "linear"}, "model": "base", "tasks": ["a.jsonl"]}
TEXTS = [
    *((dag_id, "max_duration", "2h") for dag_id in DAGS if dag_id != "emep_gpu_health"),
    *((dag_id, "gpu_memory_min", "40Gi") for dag_id in DAGS if dag_id != "emep_gpu_health"),
    ("emep_gpu_health", "watch", "2h"),
    ("emep_gpu_health", "settle", "10s"),
]


@pytest.fixture(scope="module")
def forms() -> dict[str, Any]:
    """Each DAG as the API server has it; reading the plugin's apps is how a server loads the plugin."""
    assert EmepPlugin.fastapi_apps
    bag = DagBag(ROOT / "dags")
    return {dag_id: DagSerialization.from_dict(DagSerialization.to_dict(bag.dags[dag_id])) for dag_id in DAGS}


def answer(form: Any, **conf: Any) -> str:
    """What the API answers to a run with this conf; nothing where the form takes it."""
    needed = {name: value for name, value in NEEDED.items() if name in form.params}
    try:
        form.params.deep_merge({**needed, **conf}).validate()
    except ParamValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("dag_id", DAGS)
def test_the_open_section_comes_first_and_has_every_field_that_must_be_filled_in(forms, dag_id):
    fields = {name: forms[dag_id].params.get_param(name) for name in forms[dag_id].params}
    closed = ["section" in param.schema for param in fields.values()]
    assert closed == sorted(closed)
    assert closed[0] is False
    must = [name for name, param in fields.items() if "null" not in param.schema["type"]]
    required = {name for name in must if fields[name].resolve() is None}
    assert required == set(NEEDED) & set(must)
    assert not [name for name in required if "section" in fields[name].schema]


@pytest.mark.parametrize(("dag_id", "field", "example"), TEXTS)
def test_durations_and_memory_are_one_line_with_a_pattern_and_examples(forms, dag_id, field, example):
    schema = forms[dag_id].params.get_param(field).schema
    # The UI's rule: several types are a box of six lines, unless examples are offered.
    assert schema["examples"]
    assert schema["pattern"]
    assert schema["format"] not in ("multiline", "duration")
    for value in [example, *schema["examples"]]:
        assert answer(forms[dag_id], **{field: value}) == ""


@pytest.mark.parametrize(("dag_id", "field", "example"), TEXTS)
@pytest.mark.parametrize("value", ["soon", "", "1h30", "-1", "2 parsecs", "9" * 400, True, ["2h"], "x\ny"])
def test_a_wrong_duration_or_amount_is_told_in_a_sentence(forms, dag_id, field, example, value):
    said = answer(forms[dag_id], **{field: value})
    assert said.startswith(f"Invalid input for param {field}: ")
    assert "Write for example" in said
    assert "\n" not in said
    assert "schema" not in said
    assert "pattern" not in said
    assert len(said) < 300


@pytest.mark.parametrize("value", [0, "0s", "0"])
def test_a_run_of_no_length_is_told_in_a_sentence(forms, value):
    assert "longer than 0" in answer(forms["emep_merge"], max_duration=value)


@pytest.mark.parametrize(("dag_id", "field", "example"), TEXTS)
@pytest.mark.parametrize("value", ["1" * 40 + "x", "1m" * 25 + "!"])
def test_no_text_takes_long_to_refuse(forms, dag_id, field, example, value):
    # The schema's pattern by itself, as where the plugin is not loaded; it once took hours over these.
    import re

    start = time.process_time()
    assert re.search(forms[dag_id].params.get_param(field).schema["pattern"], value) is None
    assert answer(forms[dag_id], **{field: value})
    assert time.process_time() - start < 5


@pytest.mark.parametrize("field", ["recipe", "model", "tasks", "report_tasks", "baseline"])
def test_help_says_where_relative_paths_start(forms, field):
    for form in forms.values():
        if field in form.params:
            param = form.params.get_param(field)
            assert "emep_data" in (param.description or param.schema["description_md"])


@pytest.mark.parametrize(
    ("dag_id", "open_weights"), [("emep_merge", 0), ("emep_evolve", 2), ("emep_pipeline", 2)]
)
def test_the_recipe_s_help_has_a_recipe_to_copy(forms, dag_id, open_weights):
    from engines.merge.recipe.parse import parse_recipe

    param = forms[dag_id].params.get_param("recipe")
    assert param.description is None, "Airflow shows plain text instead of Markdown where there is any"
    text = param.schema["description_md"].split("```yaml\n")[1].split("```")[0]
    assert answer(forms[dag_id], recipe=text) == ""
    assert len(searched(read_recipe(text, "/data"))) == open_weights
    if not open_weights:
        parse_recipe(yaml.safe_load(text))


@pytest.mark.parametrize("dag_id", DAGS)
def test_the_list_of_dags_says_what_each_is_for(forms, dag_id):
    assert 20 < len(forms[dag_id].description) < 100
    assert "\n" not in forms[dag_id].description

"""The health DAG as Airflow reads it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from emep.sensors.gpu_health import GpuHealthSensor

FILE = Path(__file__).resolve().parents[2] / "dags" / "emep_gpu_health.py"


@pytest.fixture(scope="module")
def dag():
    bag = DagBag(FILE)
    assert bag.import_errors == {}
    return bag.dags["emep_gpu_health"]


def test_it_never_overlaps_itself_and_catches_nothing_up(dag):
    assert dag.max_active_runs == 1
    assert dag.catchup is False
    assert dag.schedule == "@continuous"


def test_it_waits_without_a_worker_in_the_pool_of_emep(dag):
    (task,) = dag.tasks
    assert isinstance(task, GpuHealthSensor)
    assert task.deferrable
    assert task.pool == "emep"
    assert dag.default_args["owner"] == "emep"
    assert dag.default_args["retries"] >= 2
    assert dag.dagrun_timeout is not None


def test_every_field_of_its_form_has_a_title_help_and_a_type(dag):
    assert set(dag.params) == {"watch", "settle", "drain_unhealthy"}
    for name in dag.params:
        param = dag.params.get_param(name)
        assert len(param.description) > 10
        assert param.schema["title"]
        assert param.schema["type"]
        assert "section" not in param.schema, "Airflow opens the fields without a section, and no other"


@pytest.mark.parametrize(
    ("field", "value"), [("watch", "soon"), ("settle", ""), ("watch", 3600), ("drain_unhealthy", "yes")]
)
def test_a_wrong_value_is_refused_by_the_form(dag, field, value):
    params = copy.deepcopy(ParamsDict(dag.params))
    with pytest.raises(ParamValidationError):
        params.update({field: value})


def test_it_survives_serialization(dag):
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.task_ids == ["watch"]

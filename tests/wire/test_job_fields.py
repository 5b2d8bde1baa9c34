"""The one list of a job's fields, and what follows from it."""

from __future__ import annotations

import inspect

import pytest

from emep.ledger.store.tables import Job
from emep.operators.fair_share import FairShareGpuOperator
from emep.operators.job_arguments import OPERATOR_FIELDS
from emep.operators.pod import NVLinkKubernetesPodOperator
from emep.wire.job_fields import JOB_FIELDS, NOT_STORED
from emep.wire.jobs import JobRequest

FOR_MACHINES = {"spec", "idempotency_key", "checkpoint_key", "airflow"}
"""Fields of a request that an operator or a client fills in by itself."""


def test_a_request_has_every_field_of_a_job_and_no_other():
    assert set(JobRequest.model_fields) == {*JOB_FIELDS, *FOR_MACHINES}


def test_every_field_that_is_stored_has_a_column_of_its_name():
    columns = {column.key for column in Job.__mapper__.column_attrs}
    assert set(JOB_FIELDS) - NOT_STORED <= columns


@pytest.mark.parametrize("operator", [FairShareGpuOperator, NVLinkKubernetesPodOperator])
def test_every_field_is_an_argument_of_the_operators_that_airflow_knows(operator):
    parameters = inspect.signature(operator.__init__).parameters
    assert set(OPERATOR_FIELDS) <= set(parameters)
    assert set(OPERATOR_FIELDS) <= set(operator.template_fields)


@pytest.mark.parametrize("field", OPERATOR_FIELDS)
def test_every_field_may_be_a_default_argument_or_be_mapped(field):
    own = {"task_id": "t", "engine": "merge", "input": {}, "output_uri": "file:///tmp/out"}
    task = FairShareGpuOperator(**own, default_args={field: "7"})
    assert getattr(task, field) == "7"
    mapped = FairShareGpuOperator.partial(**own).expand(**{field: ["1", "2"]})
    assert mapped.expand_input.value == {field: ["1", "2"]}


def test_a_field_that_a_job_does_not_have_is_refused():
    with pytest.raises(TypeError, match="gpu_cuont"):
        FairShareGpuOperator(task_id="t", engine="merge", gpu_cuont=2)

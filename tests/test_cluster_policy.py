"""The cluster policy where it counts: DAGs parsed, runs created and tasks queued by Airflow's own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emep.airflow import cluster_policy
from emep.airflow.cluster_policy import airflow_queues, task_instance_mutation_hook

ROOT = Path(__file__).resolve().parents[1]
GOOD = """
from datetime import datetime
from airflow.sdk import DAG, Param
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from emep.dagkit.params import resources
from emep.operators.fair_share import FairShareGpuOperator

job = dict(engine="merge", input={}, project="{{ params.project }}", runtime="{{ params.runtime }}")
with DAG("jobs", schedule=None, start_date=datetime(2025, 1, 1), params=resources()):
    FairShareGpuOperator(task_id="asks", priority="{{ params.priority }}", **job)
    FairShareGpuOperator(
        task_id="gate",
        priority="{{ 'high' if params.priority == 'critical' else params.priority }}",
        pool="emep",
        **job,
    )
    FairShareGpuOperator(task_id="low", priority="low", weight_rule="absolute", **job)
    FairShareGpuOperator.partial(task_id="many", priority="{{ params.priority }}", **job).expand(
        extra_input=[{"a": 1}, {"a": 2}]
    )
    EmptyOperator(task_id="helper", pool="emep")
    EmptyOperator(task_id="foreign", priority_weight=7, weight_rule="absolute", queue="mine")
    FairSharePriorityWeight = "emep.priority.FairSharePriorityWeight"
    PythonOperator.partial(
        task_id="ruled", python_callable=print, weight_rule=FairSharePriorityWeight, priority_weight=3
    ).expand(op_args=[["x"], ["y"]])
with DAG("no_fields", schedule=None, start_date=datetime(2025, 1, 1)):
    EmptyOperator(task_id="ruled", weight_rule="emep.priority.FairSharePriorityWeight", priority_weight=3)
"""
BAD = """
from datetime import datetime
from airflow.sdk import DAG
from emep.operators.fair_share import FairShareGpuOperator

with DAG("bad", schedule=None, start_date=datetime(2025, 1, 1)):
    FairShareGpuOperator(task_id="asks", engine="merge", input={}, pool="gpu_default")
"""
SCRIPT = """
import json, sys
from datetime import UTC, datetime
from airflow import settings
from airflow.models import import_all_models
from airflow.models.base import Base
import_all_models()
Base.metadata.create_all(settings.get_engine())
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select, update

from airflow.utils.db import synchronize_log_template
synchronize_log_template()
DagBundlesManager().sync_bundles_to_db()
bag = DagBag(sys.argv[1], bundle_name="dags-folder")
sync_bag_to_db(bag, "dags-folder", None)
answer = {"errors": {name.rsplit("/")[-1]: text for name, text in bag.import_errors.items()}, "runs": {}}
runs = [("jobs", "slow", {"priority": "low"}), ("jobs", "plain", {}),
        ("jobs", "urgent", {"priority": "critical", "project": "a", "runtime": "agent"}),
        ("no_fields", "n", {})]
with create_session() as session:
    Pool.create_or_update_pool("emep", 10000, "", False, session=session)
    Pool.create_or_update_pool("default_pool", 128, "", False, session=session)
    for dag_id, run_id, conf in runs:
        dag = SerializedDagModel.get(dag_id, session=session).dag
        now = datetime.now(UTC)
        dag.create_dagrun(
            run_id=run_id, logical_date=now, data_interval=(now, now), run_after=now, conf=conf,
            run_type=DagRunType.MANUAL, triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.RUNNING,
            session=session,
        )
    session.commit()
    for ti in session.scalars(select(TaskInstance)):
        entry = answer["runs"].setdefault(ti.run_id, {})
        entry[f"{ti.task_id}.{ti.map_index}"] = [ti.priority_weight, ti.pool, ti.queue]
    session.execute(update(TaskInstance).where(TaskInstance.task_id == "asks").values(state="scheduled"))
    session.commit()
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    runner, order = SchedulerJobRunner(job=Job()), []
    while found := runner._executable_task_instances_to_queued(1, session=session):
        order += [ti.run_id for ti in found]
        session.commit()
    answer["order"] = order
print("ANSWER" + json.dumps(answer))
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Airflow made of the DAGs above, in a process and with a database of its own."""
    home = tmp_path_factory.mktemp("airflow")
    dags = home / "dags"
    dags.mkdir()
    (dags / "good.py").write_text(GOOD)
    (dags / "bad.py").write_text(BAD)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__EMEP__AIRFLOW_QUEUES": "agent = light, pod = kubernetes",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(dags)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("ANSWER"))


def test_a_run_s_class_is_the_weight_of_its_tasks(airflow):
    low, normal, critical = (airflow["runs"][name]["asks.-1"][0] for name in ("slow", "plain", "urgent"))
    assert (low, normal, critical) == (100, 1_000, 100_000)


def test_the_critical_run_is_first_in_airflow_s_own_queue(airflow):
    assert airflow["order"] == ["urgent", "plain", "slow"]


def test_templates_are_rendered_with_the_run_s_conf_over_the_params_defaults(airflow):
    runs = airflow["runs"]
    assert runs["urgent"]["gate.-1"][0] == 10_000, "high, where the run is critical"
    assert runs["plain"]["gate.-1"][0] == 1_000
    assert runs["urgent"]["low.-1"][0] == 100, "what the DAG says outright stays"


def test_mapped_tasks_are_treated_alike(airflow):
    weights = [airflow["runs"]["urgent"][f"many.{index}"][0] for index in (0, 1)]
    assert weights == [100_000, 100_000]
    assert airflow["runs"]["urgent"]["many.0"][1] == "emep"


def test_tasks_that_ask_for_gpus_stand_in_the_pool_emep_whatever_the_dag_says(airflow):
    for run in ("slow", "plain", "urgent"):
        for task in ("asks.-1", "gate.-1", "low.-1", "many.1"):
            assert airflow["runs"][run][task][1] == "emep"


def test_a_helper_in_emep_s_pool_goes_with_its_run(airflow):
    assert airflow["runs"]["urgent"]["helper.-1"][:2] == [100_000, "emep"]


def test_the_runtime_picks_airflow_s_queue_where_one_is_configured(airflow):
    assert airflow["runs"]["urgent"]["asks.-1"][2] == "light"
    assert airflow["runs"]["urgent"]["helper.-1"][2] == "default"


def test_foreign_tasks_are_left_alone(airflow):
    assert airflow["runs"]["urgent"]["foreign.-1"] == [7, "default_pool", "mine"]


def test_the_weight_rule_works_by_its_path_on_mapped_tasks_too(airflow):
    assert [airflow["runs"]["urgent"][f"ruled.{index}"][0] for index in (0, 1)] == [1_000, 1_000]
    assert airflow["runs"]["n"]["ruled.-1"][0] == 3, "no field of EMEP's: its own weight"


def test_a_task_that_asks_for_gpus_from_another_pool_is_an_import_error_that_says_so(airflow):
    assert list(airflow["errors"]) == ["bad.py"]
    sentence = airflow["errors"]["bad.py"]
    for word in ("'asks'", "'bad'", "'gpu_default'", "pool='emep'"):
        assert word in sentence


def test_the_hook_never_raises(caplog):
    class Broken:
        pool = "emep"

        @property
        def template_fields(self):
            raise RuntimeError("broken")

    task_instance_mutation_hook(SimpleNamespace(task=Broken(), pool="emep", priority_weight=5), None)
    assert "leaves a task instance as it is" in caplog.text
    task_instance_mutation_hook(SimpleNamespace(task=None), None)
    task_instance_mutation_hook(SimpleNamespace(), None)


@pytest.mark.parametrize("conf", [None, {}, [], "x", {"priority": None}, {"priority": 5}, {"priority": "?"}])
def test_a_conf_that_makes_no_sense_counts_as_normal(conf):
    ti = SimpleNamespace(
        task=SimpleNamespace(pool="emep", template_fields=(), params={}), pool="emep", priority_weight=1
    )
    task_instance_mutation_hook(ti, SimpleNamespace(conf=conf))
    assert ti.priority_weight == 1_000


def test_no_queue_is_configured_by_default():
    airflow_queues.cache_clear()
    assert airflow_queues() == {}


def test_airflow_finds_the_policy_in_the_plugins_folder():
    import airflow_local_settings

    assert Path(airflow_local_settings.__file__) == ROOT / "plugins" / "airflow_local_settings.py"
    assert airflow_local_settings.task_policy is cluster_policy.task_policy
    from airflow.settings import task_instance_mutation_hook as hook

    assert hook.is_noop is False, "else Airflow creates task instances without asking"

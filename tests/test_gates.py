"""Airflow's own gates, which act before a task's code runs: wide enough in what is shipped and documented."""

from __future__ import annotations

import configparser
import random
import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from emep.airflow.task_request import asks_for_gpus
from emep.bootstrap import read_settings
from emep.demo.environment import environment
from emep.demo.home import DemoHome, Secrets

ROOT = Path(__file__).resolve().parents[1]
RUNS, TASKS, TRIGGERS, SLOTS = 1000, 64, 10_000, 10_000


def test_the_demo_holds_no_request_back(tmp_path):
    secrets = Secrets(*["x" * 32] * len(Secrets.__dataclass_fields__))
    found = environment(DemoHome(tmp_path), ROOT, secrets, 18230, base={})
    assert int(found["AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG"]) >= RUNS
    assert int(found["AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG"]) >= TASKS
    assert int(found["AIRFLOW__TRIGGERER__CAPACITY"]) >= TRIGGERS
    assert Path(found["AIRFLOW__CORE__PLUGINS_FOLDER"], "airflow_local_settings.py").is_file()
    assert "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE" not in found, "more made things worse"


def test_an_outage_of_a_minute_and_more_costs_no_try_in_the_demo_the_image_and_the_guide(tmp_path):
    secrets = Secrets(*["x" * 32] * len(Secrets.__dataclass_fields__))
    demo = environment(DemoHome(tmp_path), ROOT, secrets, 18230, base={})
    image = dict(
        re.findall(r"(AIRFLOW__\w+)=(\S+)", (ROOT / "docker" / "control-plane.Dockerfile").read_text())
    )
    for found in (demo, image):
        retries = int(found["AIRFLOW__WORKERS__EXECUTION_API_RETRIES"])
        longest = float(found["AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX"])
        assert least_patience(retries, longest) > 100
    assert least_patience(guide().getint("workers", "execution_api_retries"), 5.0) > 100
    assert guide().getfloat("workers", "execution_api_retry_wait_max") == 5.0


def least_patience(retries: int, longest: float) -> float:
    """Seconds that Airflow's client waits for its API server, but for one in a thousand times.

    Its pauses are by chance between one second and twice the last, at most ``longest``.
    """
    dice = random.Random(1)
    waits = sorted(
        sum(dice.uniform(1.0, min(longest, 2.0**n)) for n in range(retries - 1)) for _ in range(2000)
    )
    return waits[2]


def guide() -> configparser.ConfigParser:
    """The configuration that docs/operate.md tells an operator to use."""
    text = (ROOT / "docs" / "operate.md").read_text()
    (block,) = re.findall(r"```ini\n(.*?)```", text, re.DOTALL)[:1]
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(block)
    return parsed


def test_the_guide_says_the_same():
    assert guide().getint("core", "max_active_runs_per_dag") >= RUNS
    assert guide().getint("core", "max_active_tasks_per_dag") >= TASKS
    assert guide().getint("core", "parallelism") >= 32
    assert guide().getint("triggerer", "capacity") >= TRIGGERS


def test_the_pool_of_emep_s_tasks_is_no_gate():
    (pool,) = read_settings(ROOT / "airflow_settings.yaml").pools
    assert (pool["pool_name"], pool["pool_slot"]) == ("emep", SLOTS)


@pytest.fixture(scope="module")
def dags():
    bag = DagBag(str(ROOT / "dags"), bundle_name="dags")
    assert bag.import_errors == {}
    return [dag for dag in bag.dags.values() if any(asks_for_gpus(task) for task in dag.tasks)]


def test_no_shipped_dag_that_asks_for_gpus_narrows_a_gate(dags):
    assert len(dags) >= 4
    for dag in dags:
        assert dag.max_active_runs >= RUNS, dag.dag_id
        assert dag.max_active_tasks >= TASKS, dag.dag_id
        for task in dag.tasks:
            assert task.pool == "emep", task.task_id
            assert task.pool_slots == 1, task.task_id
            assert task.max_active_tis_per_dag is None, task.task_id
            assert task.max_active_tis_per_dagrun is None, task.task_id
            assert not task.depends_on_past, task.task_id

from __future__ import annotations

import itertools
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.builders.real_airflow import RealAirflow, Run, Setup, real_airflow

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "tests" / "builders" / "loop_site"
POLICY = """
lease: {heartbeat: 2s, expiry: 20s}
health: {report_every: 2s, failed_checks: 3, good_checks: 3}
retries: {backoff: 1s, max_backoff: 2s}
preemption: {grace_period: 30s}
"""
"""Times that a test can wait for; the machine may be busy, so the leases are not as short as can be."""
AIRFLOW = {
    # A scheduler that gets no CPU for half a minute takes itself for dead, and its tasks' tries from them.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "240",
    # A triggerer that was killed is missed after seconds.
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
}


@dataclass
class Work:
    """One run of a DAG with one job, and what its engine has witnessed."""

    run: Run
    folder: Path
    steps: int

    @property
    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "witness.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def said(self, what: str) -> list[int]:
        """The steps of all lines of a kind."""
        return [line["step"] for line in self.lines if line["what"] == what]

    def let_it_end(self) -> None:
        """The last step waits for this."""
        (self.folder / "go").touch()

    @property
    def is_at_its_last_step(self) -> bool:
        return len(self.said("step")) >= self.steps - 1 and self.run.job_is("running")

    def was_done_once(self) -> None:
        """Every step once, in order, and one end."""
        assert self.said("step") == list(range(self.steps))
        assert self.said("end") == [self.steps]

    def succeeded_in_one_try(self) -> None:
        assert self.run.ended() == "success", self.run.states()
        assert self.run.tasks()["job"]["try_number"] == 1
        assert len(self.run.jobs()) == 1
        self.was_done_once()


class Loop:
    """A real Airflow with nodes whose engines do what a test says."""

    def __init__(self, airflow: RealAirflow, folder: Path) -> None:
        self.airflow = airflow
        self.folder = folder
        self._numbers = itertools.count()

    def trigger(self, dag_id: str = "loop_job", *, steps: int = 3, **fields: Any) -> Work:
        """Start a run; what the DAG's form takes may be given, the rest goes to the engine."""
        folder = self.folder / f"{dag_id}-{next(self._numbers)}"
        folder.mkdir()
        conf = {name: fields.pop(name) for name in ("priority", "gpu_count", "inputs") if name in fields}
        held = {"until": str(folder / "go")} if fields.pop("held", False) else {}
        engine = {"steps": steps, "witness": str(folder / "witness.jsonl"), **held, **fields}
        return Work(self.airflow.trigger(dag_id, input=engine, **conf), folder, steps)

    def held_by(self, work: Work) -> int:
        """How many GPUs a run's jobs hold."""
        jobs = {job["id"] for job in work.run.jobs()}
        nodes = self.airflow._nodes()
        return sum(gpu.job_id in jobs for node in nodes for gpu in node.gpus)

    def wait(self, condition: Any, seconds: float = 300.0, pause: float = 0.5) -> Any:
        return self.airflow.wait(condition, seconds, pause)


@pytest.fixture(scope="session")
def loop(tmp_path_factory):
    """One real Airflow with two nodes of four simulated GPUs for all tests of this folder."""
    folder = tmp_path_factory.mktemp("loop")
    dags = folder / "dags"
    dags.mkdir()
    for file in (ROOT / "dags" / "emep_gpu_health.py", ROOT / "tests" / "loop" / "dags" / "loop_dags.py"):
        shutil.copy(file, dags)
    # Engines tell the tests what they do in files of the tests' own.
    roots = f"roots: {{read: ['{folder}'], write: ['{folder}']}}\n"
    (folder / "policy.yaml").write_text(POLICY + roots)
    setup = Setup(
        models=False,
        ready_dag="loop_many",
        environment={
            **AIRFLOW,
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__EMEP__POLICY_FILE": str(folder / "policy.yaml"),
            "AIRFLOW__EMEP__EXTRA_ENGINES": "loop_steps",
        },
        agent_flags=(
            *("--simulate", "4", "--group-size", "4", "--cpu", "64", "--memory", "512Gi"),
            *("--report-every", "2s"),
        ),
        # Airflow's scheduler ends where a run is deleted in the moment in which it looks at it.
        started_again_after="ObjectDeletedError",
        agent_environment={"PYTHONPATH": os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")])},
    )
    with real_airflow(folder, setup) as airflow:
        airflow.call("PATCH", "/dags/emep_gpu_health", {"is_paused": False})
        yield Loop(airflow, folder)

"""Level 2: a whole Airflow whose daemons are killed too, with jobs that come from its tasks."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, create_engine, text
from tests.builders.ledger import sqlite_engine
from tests.builders.ports import reserve_port
from tests.chaos.model import TaskRow
from tests.chaos.plane import ROOT, opened
from tests.chaos.processes import MARK, Found, children
from tests.chaos.services import Service, Services
from tests.chaos.settings import ChaosSettings
from tests.chaos.workload import Workload, job_input, kind_of_job

from emep.agent.process import ProcessIdentity
from emep.client import Call, EmepApiError, EmepClient
from emep.client.config import settings as client_settings
from emep.client.retry import NO_RETRY
from emep.demo.environment import environment
from emep.demo.home import DemoHome
from emep.demo.keeper import descendants
from emep.demo.stack import LOG_SERVERS, program
from emep.wire.jobs import JobView

DAG = "chaos_job"
HEARTBEATS = {
    "scheduler": ("scheduler", "latest_scheduler_heartbeat"),
    "triggerer": ("triggerer", "latest_triggerer_heartbeat"),
    "dag-processor": ("dag_processor", "latest_dag_processor_heartbeat"),
}
STUCK, ADOPTED = 60.0, 120.0
"""Seconds: queued for longer is stuck, unless the scheduler may still adopt what another one left."""
QUICK = {
    # What was killed is missed after seconds, not minutes.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
}


class AirflowPlane:
    """API server, scheduler, triggerer and dag-processor, each started anew when it dies."""

    daemons = ("api-server", "scheduler", "triggerer", "dag-processor")
    servers = ("api-server",)

    def __init__(self, settings: ChaosSettings) -> None:
        self.settings = settings
        self.home = DemoHome(settings.folder / "airflow-home")
        self.home.create()
        self.secrets = self.home.secrets()
        self.agent_secret = self.secrets.agent_token
        self.port = reserve_port(*settings.ports)
        self.url = f"http://127.0.0.1:{self.port}"
        self.urls = (self.url,)
        self.environment = {
            **environment(self.home, ROOT, self.secrets, self.port),
            **QUICK,
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "tests" / "chaos" / "dags"),
            "AIRFLOW__EMEP__POLICY_FILE": str(settings.policy_file()),
            "AIRFLOW__EMEP__EXTRA_ENGINES": "chaos_steps",
            MARK: str(settings.folder),
        }
        if settings.database_url:
            for name in ("CONNECT_ARGS", "CONNECT_ARGS_ASYNC"):
                del self.environment[f"AIRFLOW__DATABASE__SQL_ALCHEMY_{name}"]
            self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = settings.database_url
        self._services: Services | None = None
        self._queued: dict[TaskRow, float] = {}
        """Since when a task has been seen queued, seconds of the monotonic clock."""

    def start(self, services: Services) -> None:
        """Migrate, start the four, wait until all beat and the DAG is there."""
        self._services = services
        if self.settings.database_url:
            with opened(self.settings.database_url) as engine, engine.begin() as connection:
                connection.execute(text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
        logs = self.settings.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "migrate.log").open("ab") as output:
            subprocess.run(
                [sys.executable, "-m", "emep.bootstrap", "--migrate", str(ROOT / "airflow_settings.yaml")],
                cwd=ROOT,
                env=self.environment,
                stdout=output,
                stderr=output,
                check=True,
            )
        for name in self.daemons:
            flags = ["--skip-serve-logs"] if name in LOG_SERVERS else []
            argv = [program("airflow"), name, *flags]
            log = logs / f"{name}.log"
            services.add(Service(name, name, argv, self.environment, ROOT, log, self._is_ready, group=True))
            # One after the other, so that each start-up is measured by itself.
            services.wait_ready([name], patience=300)
        with self.client() as client:
            until = time.monotonic() + 120
            while not self._has_dag(client):
                if time.monotonic() > until:
                    raise RuntimeError(f"Airflow has not read the DAG; look into {logs}")
                time.sleep(1)

    @staticmethod
    def _has_dag(client: EmepClient) -> bool:
        try:
            client.dag(DAG)
        except EmepApiError:
            return False
        return True

    def _is_ready(self, service: Service) -> bool:
        """The API server answers; the others have beaten since their start."""
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
        except (httpx.TransportError, ValueError):
            return False
        if service.name == "api-server":
            return True
        part, key = HEARTBEATS[service.name]
        beat = (health.get(part) or {}).get(key)
        return beat is not None and datetime.fromisoformat(beat).timestamp() > service.started_wall

    def victims(self) -> list[Found]:
        """Airflow's workers that run a task, and the tasks' own processes."""
        assert self._services is not None
        scheduler = self._services.all["scheduler"]
        if not scheduler.is_alive() or scheduler.process is None:
            return []
        return busy_workers(scheduler.process.pid)

    def unstick(self) -> bool:
        """Restart the scheduler where a task stays queued, as ``docs/operate.md`` says; whether it was done.

        What a worker of the LocalExecutor has taken, and not begun when it is killed, stays queued for ever:
        Airflow's own timeout for that needs an executor that can take a task back.
        """
        assert self._services is not None
        engine, now = self.database(), time.monotonic()
        try:
            queued = [task for task in self.tasks(engine) if task.state == "queued"]
        finally:
            engine.dispose()
        self._queued = {task: self._queued.get(task, now) for task in queued}
        scheduler = self._services.all["scheduler"]
        since = max(min(self._queued.values(), default=now) + STUCK, scheduler.started_at + ADOPTED)
        if scheduler.starting or now < since:
            return False
        # Asked politely it would wait for its workers, which may wait for each other.
        scheduler.send(signal.SIGKILL)
        return True

    def client(self) -> EmepClient:
        """An administrator's client, which does not repeat by itself."""
        password = self.secrets.admin_password
        return EmepClient(client_settings(self.url, username="admin", password=password), retry=NO_RETRY)

    def database(self) -> Engine:
        """Airflow's database, which holds the ledger."""
        if self.settings.database_url:
            return create_engine(self.settings.database_url)
        return sqlite_engine(str(self.home.airflow / "airflow.db"))

    def tasks(self, engine: Engine) -> list[TaskRow]:
        """Airflow's own word about every task."""
        query = "SELECT run_id, task_id, state, try_number FROM task_instance WHERE dag_id = :dag"
        with engine.connect() as connection:
            rows = connection.execute(text(query), {"dag": DAG}).all()
        return [TaskRow(f"{DAG}/{row[0]}/{row[1]}", row[2] or "none", row[3]) for row in rows]


def busy_workers(scheduler: int) -> list[Found]:
    """The LocalExecutor's workers below a scheduler that run a task now, and whatever runs below these.

    Idle workers are left alone. One of them holds the lock of the queue that all share while it waits for
    work; where that one is killed the others wait for the lock for ever, and the scheduler starts no task any
    more until it is started anew. That is the executor's own weakness: nothing of EMEP's could be seen by it.
    """
    found = []
    for worker in children(scheduler):
        found += [_victim(pid) for pid in descendants(worker)]
        if children(worker):
            found.append(_victim(worker, only_if=lambda pid=worker: bool(children(pid))))  # type: ignore[misc]
    return [victim for victim in found if victim is not None]


def _victim(pid: int, only_if: Callable[[], bool] | None = None) -> Found | None:
    """None where it has gone meanwhile."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return Found(ProcessIdentity.of(pid), "worker", "", words.strip()[:100], only_if)
    return None


class DagWorkload(Workload):
    """The same mix, asked for by DAG runs; some tasks are marked or cleared by hand."""

    def busy(self, live: list[JobView]) -> int:
        """Runs that have not ended. Raises EmepError."""
        params: dict[str, Any] = {"state": ["queued", "running"], "limit": 1}
        call: Call[Any] = Call("GET", f"/api/v2/dags/{DAG}/dagRuns", params=params, airflow=True)
        return int(self.client.raw(call)["total_entries"])

    def submit(self) -> None:
        """One run. Raises EmepError."""
        self._number += 1
        rng: random.Random = self.rng
        queue, priority, size = kind_of_job(self.settings, rng)
        conf = {
            "input": job_input(self.settings, rng),
            "queue": queue,
            "priority": priority,
            "gpu_count": size,
        }
        self.client.trigger_dag(DAG, conf, f"chaos-{self._number}")
        self.done["runs triggered"] += 1

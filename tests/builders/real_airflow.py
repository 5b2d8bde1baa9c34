"""A whole Airflow with EMEP and two simulated nodes, from the demo's own parts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emep.client import Call
from emep.demo import models
from emep.demo.airflow_api import DemoApi
from emep.demo.home import DemoHome, project_root
from emep.demo.processes import Processes
from emep.demo.stack import Stack

ENDED = ("success", "failed")


class RealAirflow:
    """The running stack, its API, and short words for what tests do with it."""

    def __init__(self, stack: Stack, api: DemoApi) -> None:
        self.stack = stack
        self.api = api
        self._runs = 0

    @property
    def models(self) -> Path:
        """Folder of the demo's small models and tasks; the Variable ``emep_data`` names it."""
        return self.stack.home.models

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, **params: Any) -> Any:
        """A call of Airflow's public API below ``/api/v2``."""
        return self.api._client.raw(Call(method, f"/api/v2{path}", body=body, params=params, airflow=True))

    def trigger(self, dag_id: str, **conf: Any) -> Run:
        """Start a run."""
        self._runs += 1
        run = Run(self, dag_id, f"test__{os.getpid()}_{self._runs}")
        self.api.trigger(dag_id, conf, run.run_id)
        return run

    def held_gpus(self) -> list[tuple[str, int]]:
        """GPUs that some job holds."""
        return [(node.name, gpu.index) for node in self._nodes() for gpu in node.gpus if gpu.job_id]

    def _nodes(self) -> list[Any]:
        from emep.api.schemas import NodeView

        return [NodeView.model_validate(node) for node in self.api.nodes()]

    def wait(self, condition: Callable[[], Any], seconds: float = 600.0) -> Any:
        """Wait for a condition while all processes live; its value."""
        until = time.monotonic() + seconds
        while not (value := condition()):
            self.stack.processes.check(("migrate", "models"))
            assert time.monotonic() < until, "waited too long"
            time.sleep(0.5)
        return value


class Run:
    """One DAG run."""

    def __init__(self, airflow: RealAirflow, dag_id: str, run_id: str) -> None:
        self.airflow, self.dag_id, self.run_id = airflow, dag_id, run_id

    @property
    def state(self) -> str:
        """State of the run."""
        return self.airflow.api.run_state(self.dag_id, self.run_id)

    def ended(self, seconds: float = 900.0) -> str:
        """Wait for the end; the state."""
        self.airflow.wait(lambda: self.state in ENDED, seconds)
        return self.state

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Task instances by name, mapped ones as ``name[index]``."""
        found = {}
        for task in self.airflow.api.tasks(self.dag_id, self.run_id):
            index = task["map_index"]
            found[f"{task['task_id']}[{index}]" if index >= 0 else task["task_id"]] = task
        return found

    def states(self) -> dict[str, str]:
        """State by name of the task."""
        return {name: task["state"] for name, task in self.tasks().items()}

    def sentence(self, name: str) -> str:
        """What a failed task ended with."""
        return self.airflow.api.last_log(self.dag_id, self.run_id, self.tasks()[name])

    def log(self, name: str) -> str:
        """The text of a task's log."""
        task = self.tasks()[name]
        place = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{task['task_id']}"
        path = f"{place}/logs/{task['try_number']}"
        answer = self.airflow.call("GET", path, map_index=task["map_index"], full_content="true")
        return "\n".join(str(entry.get("event", entry)) for entry in answer["content"])

    def result(self, task_id: str) -> Any:
        """What a task returned."""
        return self.airflow.api.result(self.dag_id, self.run_id, task_id)

    def jobs(self) -> list[dict[str, Any]]:
        """The run's jobs in EMEP's ledger."""
        call: Call[Any] = Call("GET", "/jobs", params={"dag_id": self.dag_id, "run_id": self.run_id})
        return list(self.airflow.api._client.raw(call)["items"])

    @property
    def folder(self) -> Path:
        """Where its artifacts go."""
        return self.airflow.stack.home.artifacts / "runs" / self.dag_id / self.run_id


def free_port(first: int, last: int) -> int:
    """A port of the range that nobody listens on."""
    for port in range(first, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port of {first}..{last} is free")


@contextmanager
def real_airflow(folder: Path) -> Iterator[RealAirflow]:
    """Start everything in ``folder``; at the end nothing of it runs."""
    home, project = DemoHome(folder / "airflow-stack"), project_root()
    home.create()
    with Processes(home.logs) as processes:
        stack = Stack.of(home, project, free_port(18150, 18199), processes)
        command = models.command(sys.executable, home.models, small=True)
        processes.start("models", command, models.environment(stack.env), project)
        stack.migrate()
        stack.start_airflow()
        api = stack.api()
        try:
            stack.wait_for_api(api)
            for name in ("node-a", "node-b"):
                stack.start_agent(name, "--simulate", "4", "--group-size", "4")
            stack.wait_until_ready(api, "emep_pipeline", 2)
            stack.finished("models")
            yield RealAirflow(stack, api)
        finally:
            api.close()


def copy_model(source: Path, target: Path) -> Path:
    """A model of one's own, to break."""
    shutil.copytree(source, target)
    return target


def processes_of(folder: Path) -> list[int]:
    """Processes that have a file below the folder open: all of a demo do, their output goes to its logs."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()).startswith(f"{folder}/"):
                found.add(int(link.parts[2]))
        except OSError:
            continue
    return sorted(found - {os.getpid()})


def emep(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command line as a user starts it."""
    script = str(Path(sys.executable).with_name("emep"))
    return subprocess.Popen(
        [script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )

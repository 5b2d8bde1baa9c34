"""A whole Airflow with EMEP and two simulated nodes, from the demo's own parts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.builders.demo_models import copy_small_models, small_models_folder
from tests.builders.ports import reserve_port

from emep.client import Call, EmepApiError
from emep.demo import models
from emep.demo.airflow_api import DemoApi
from emep.demo.home import DemoHome, project_root
from emep.demo.processes import Processes
from emep.demo.stack import Stack
from emep.layout import folder_of

ENDED = ("success", "failed")
DEMO_AGENT = ("--simulate", "4", "--group-size", "4")


@dataclass(frozen=True)
class Setup:
    """What a stack of real processes consists of; by default the demo's parts with its small models."""

    models: bool = True
    ready_dag: str = "emep_pipeline"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Over the demo's, for all processes."""
    agents: tuple[str, ...] = ("node-a", "node-b")
    agent_flags: tuple[str, ...] = DEMO_AGENT
    agent_environment: Mapping[str, str] = field(default_factory=dict)
    started_again_after: str = ""
    """A scheduler whose log has this word is started again, as a service manager would."""


DYING_SECONDS = 15.0
"""What a scheduler that is at its end may take to end."""


class RealAirflow:
    """The running stack, its API, and short words for what tests do with it."""

    def __init__(self, stack: Stack, api: DemoApi, setup: Setup | None = None) -> None:
        self.stack = stack
        self.api = api
        self.setup = setup or Setup()
        self.down: set[str] = set()
        """Processes that a test has killed and not started again."""
        self._runs = 0
        self._tended = 0
        """Characters of the scheduler's log that were looked at before it was started again."""
        self._dying_since: float | None = None

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
        from emep.wire.nodes import NodeView

        return [NodeView.model_validate(node) for node in self.api.nodes()]

    def wait(self, condition: Callable[[], Any], seconds: float = 600.0, pause: float = 0.5) -> Any:
        """Wait for a condition while all processes live, looking every ``pause`` seconds; its value."""
        until = time.monotonic() + seconds
        while not (value := condition()):
            self._tend()
            if not self.down:
                self.stack.processes.check(("migrate", "models"))
            assert time.monotonic() < until, "waited too long"
            time.sleep(pause)
        return value

    @contextmanager
    def paused(self, dag_id: str) -> Iterator[None]:
        """The scheduler looks at no run of the DAG: it would end where one is deleted under its eyes."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": True})
        began = datetime.now(UTC)
        self.wait(lambda: self._heard_from("scheduler", began), 300)
        yield
        with suppress(EmepApiError):  # the DAG may be gone
            self.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def _tend(self) -> None:
        """Start a scheduler again that ended in the way that the setup expects.

        One that has said its word and does not end (an idle worker of its executor may keep it for ever) is
        killed, as a service manager would.
        """
        word, log = self.setup.started_again_after, self.stack.home.logs / "scheduler.log"
        if not word or "scheduler" in self.down or not log.is_file():
            return
        if word not in log.read_text(errors="replace")[self._tended :]:
            self._dying_since = None
            return
        if self.stack.processes.ended("scheduler") is None:
            self._dying_since = self._dying_since or time.monotonic()
            if time.monotonic() - self._dying_since < DYING_SECONDS:
                return
            self.kill("scheduler")
            self.down.discard("scheduler")
        self._tended, self._dying_since = len(log.read_text(errors="replace")), None
        self.stack.start_component("scheduler")

    # ---- processes that are killed and started again ---------------------------------------------------

    def kill(self, name: str) -> None:
        """SIGKILL for a process and all of its group; returns once it has ended."""
        pid = self.stack.processes.pid(name)
        assert pid is not None
        self.down.add(name)
        os.killpg(pid, signal.SIGKILL)
        assert self.stack.processes.wait(name, 120) is not None

    def start(self, name: str) -> None:
        """Start a process of Airflow's that was killed; returns once Airflow has heard from it."""
        began = datetime.now(UTC)
        self.stack.start_component(name)
        self.wait(lambda: self.api.not_ready() != "API server", 300)
        if name == "api-server":
            self.api.warm_up()
        else:
            self.wait(lambda: self._heard_from(name.replace("-", "_"), began), 300)
        self.down.discard(name)

    def _heard_from(self, name: str, since: datetime) -> bool:
        """Whether a process has sent a heartbeat after ``since``; its status believes older ones, too."""
        last = self.call("GET", "/monitor/health")[name][f"latest_{name}_heartbeat"]
        return last is not None and datetime.fromisoformat(last) > since

    def start_agent(self, name: str) -> None:
        """Start a node's agent; returns once the node is alive."""
        stack = replace(self.stack, env={**self.stack.env, **self.setup.agent_environment})
        stack.start_agent(name, *self.setup.agent_flags)
        self.down.discard(f"agent-{name}")

    def kill_agent(self, name: str) -> None:
        """SIGKILL for the agent alone: what it started goes on."""
        self.kill(f"agent-{name}")

    def kill_node(self, name: str) -> None:
        """As if the node's power failed: its agent and everything that it started."""
        self.kill_agent(name)
        for pid in processes_of(self.stack.home.agents / name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def break_gpus(self, name: str, faults: Mapping[str, Any]) -> None:
        """Let simulated GPUs of a node fail from now on; an empty mapping repairs them all."""
        path = self.stack.home.agents / name / "simulated-faults.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dict(faults)))
        part.replace(path)

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as the ledger has it."""
        call: Call[Any] = Call("GET", f"/jobs/{job_id}")
        return dict(self.api._client.raw(call))

    def jobs(self, run: Run) -> list[dict[str, Any]]:
        """All jobs of a run, page by page."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {"dag_id": run.dag_id, "run_id": run.run_id, "limit": 200}
        while True:
            call: Call[Any] = Call("GET", "/jobs", params=params)
            page = self.api._client.raw(call)
            found += page["items"]
            if not page["next"]:
                return found
            params["next"] = page["next"]

    def node(self, name: str) -> Any:
        """A node as the ledger knows it."""
        return next(node for node in self._nodes() if node.name == name)


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

    def job(self) -> dict[str, Any] | None:
        """The newest job of the run; None while it has none."""
        return next(iter(self.jobs()), None)

    def job_is(self, *states: str) -> bool:
        """Whether the newest job is in one of the states."""
        job = self.job()
        return job is not None and job["state"] in states

    def set_task(self, task_id: str, state: str) -> None:
        """Mark a task by hand."""
        path = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{task_id}"
        self.airflow.call("PATCH", path, {"new_state": state})

    def set_state(self, state: str) -> None:
        """Mark the run by hand."""
        self.airflow.call("PATCH", f"/dags/{self.dag_id}/dagRuns/{self.run_id}", {"state": state})

    def clear(self, task_id: str) -> None:
        """Clear a task by hand: it begins another try."""
        body = {"dag_run_id": self.run_id, "task_ids": [task_id], "only_failed": False, "dry_run": False}
        self.airflow.call("POST", f"/dags/{self.dag_id}/clearTaskInstances", body)

    def delete(self) -> None:
        """Delete the run by hand; Airflow deletes none that runs, so it is ended first."""
        with self.airflow.paused(self.dag_id):
            self.set_state("failed")
            self.airflow.call("DELETE", f"/dags/{self.dag_id}/dagRuns/{self.run_id}")

    def delete_dag(self) -> None:
        """Delete the whole DAG by hand, while the run goes on."""
        with self.airflow.paused(self.dag_id):
            self.airflow.call("DELETE", f"/dags/{self.dag_id}")

    @property
    def folder(self) -> Path:
        """Where its artifacts go."""
        home = self.airflow.stack.home
        inner = f"{folder_of(self.dag_id)}/{folder_of(self.run_id)}"
        return next(iter(home.artifacts.glob(f"projects/*/runs/*/{inner}")), home.artifacts / "none")


@contextmanager
def real_airflow(folder: Path, setup: Setup | None = None) -> Iterator[RealAirflow]:
    """Start everything in ``folder``; at the end nothing of it runs."""
    setup = setup or Setup()
    home, project = DemoHome(folder / "airflow-stack"), project_root()
    home.create()
    first, last = os.environ.get("EMEP_TEST_PORTS", "18150-18199").split("-")
    with Processes(home.logs) as processes:
        port = reserve_port(int(first), int(last))
        stack = Stack.of(home, project, port, processes, setup.environment)
        if setup.models:
            # Trained by the first of the run's stacks that needs them; each has a copy to work with.
            command = models.command(sys.executable, small_models_folder(), small=True)
            processes.start("models", command, models.environment(stack.env), project)
        stack.migrate()
        stack.start_airflow()
        api = stack.api()
        try:
            running = RealAirflow(stack, api, setup)
            stack.wait_for_api(api)
            for name in setup.agents:
                running.start_agent(name)
            stack.wait_until_ready(api, setup.ready_dag, len(setup.agents))
            if setup.models:
                stack.finished("models")
                copy_small_models(home.models)
            yield running
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

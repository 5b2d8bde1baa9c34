"""The demo from first check to last line: start, run the pipeline, show the scoreboard, stay, stop."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emep.demo import models
from emep.demo.environment import environment
from emep.demo.home import DemoHome, HomeLock, Secrets, check_port, check_python, check_space, project_root
from emep.demo.processes import DemoError, Processes
from emep.demo.screen import Screen

DAG_ID = "emep_pipeline"
AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer")
MARGIN = 0.02
"""What the evolved merge must gain over the best uniform average, in the full demo."""
START_SECONDS = 300.0
SERVED_LOGS = ("scheduler", "triggerer")
"""Processes that would serve logs on every interface; here the API server reads them from the disk."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    home: Path
    port: int = 8080
    exit: bool = False
    small: bool = False


@dataclass
class Demo:
    """One run of the demo."""

    options: Options
    screen: Screen
    home: DemoHome = field(init=False)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.home = DemoHome(self.options.home.absolute())

    def run(self) -> int:
        """Everything. Returns 0, or 1 where the pipeline failed or gained too little. Raises DemoError."""
        check_python()
        project = project_root()
        self.home.create()
        lock = HomeLock(self.home)
        lock.acquire()
        check_space(self.home.root)
        check_port(self.options.port)
        secrets = self.home.secrets()
        env = environment(self.home, project, secrets, self.options.port)
        with Processes(self.home.logs) as processes:
            return self._with(processes, project, secrets, env)

    def _with(self, processes: Processes, project: Path, secrets: Secrets, env: Mapping[str, str]) -> int:
        from emep.demo.airflow_api import DemoApi

        self.screen.say(f"Everything of this demo lies in {self.home.root}")
        preparing = self._prepare_models(processes, project, env)
        self._migrate(processes, project, env)
        for name in AIRFLOW:
            flags = ["--skip-serve-logs"] if name in SERVED_LOGS else []
            processes.start(name, [_program("airflow"), name, *flags], env, project)
        agents = self._start_agents(processes, project, env)
        api = DemoApi(env["EMEP_API_URL"], "admin", secrets.admin_password)
        try:
            self._wait_for_airflow(api, processes, agents)
            address = f"{api.url}  (user admin, password {secrets.admin_password})"
            self.screen.say(f"Airflow is ready after {time.monotonic() - self.started:.0f} s: {address}")
            if preparing:
                self._wait_for_models(processes)
            code = self._pipeline(api, processes)
            if self.options.exit:
                return code
            self.screen.say(f"\nAirflow: {address}\nCtrl-C ends the demo and every process it started.")
            self._stay(processes)
            return code
        finally:
            api.close()

    def _prepare_models(self, processes: Processes, project: Path, env: Mapping[str, str]) -> bool:
        if models.ready(self.home.models, self.options.small):
            self.screen.say("The demo's models are there already")
            return False
        self.screen.say("Training the demo's models: a base and its fine-tunes, one of them harmful")
        command = models.command(sys.executable, self.home.models, self.options.small)
        processes.start("models", command, models.environment(env, project), project, nice=5)
        return True

    def _wait_for_models(self, processes: Processes) -> None:
        with self.screen.busy("Training the demo's models"):
            while (ended := processes.wait("models", 0.5)) is None:
                processes.check(("migrate", "models"))
        if ended.code != 0:
            raise DemoError(ended.sentence())

    def _migrate(self, processes: Processes, project: Path, env: Mapping[str, str]) -> None:
        command = [
            sys.executable,
            "-m",
            "emep.bootstrap",
            "--migrate",
            str(project / "airflow_settings.yaml"),
        ]
        processes.start("migrate", command, env, project)
        with self.screen.busy("Preparing Airflow's database"):
            while (ended := processes.wait("migrate", 0.5)) is None:
                processes.check(("migrate", "models"))
        if ended.code != 0:
            raise DemoError(ended.sentence())

    def _start_agents(self, processes: Processes, project: Path, env: Mapping[str, str]) -> int:
        """Two agents with simulated GPUs, or one with the real ones. Returns how many."""
        common = ["--connect-timeout", "5m", "--stop-grace", "2s"]
        if _real_gpus():
            self._start_agent(processes, project, env, "gpu", common)
            return 1
        for name in ("node-a", "node-b"):
            self._start_agent(
                processes, project, env, name, ["--simulate", "4", "--group-size", "4", *common]
            )
        return 2

    def _start_agent(
        self, processes: Processes, project: Path, env: Mapping[str, str], name: str, flags: list[str]
    ) -> None:
        # An agent gets what it needs to call the API, and none of Airflow's secrets.
        own = {key: value for key, value in env.items() if not key.startswith("AIRFLOW")}
        command = [
            _program("emep"),
            "agent",
            "--name",
            name,
            "--state-dir",
            str(self.home.agents / name),
            *flags,
        ]
        processes.start(f"agent-{name}", command, own, project)

    def _wait_for_airflow(self, api: Any, processes: Processes, agents: int) -> None:
        from emep.demo.airflow_api import wait_until

        missing = ["API server"]

        def ready() -> bool:
            missing[0] = api.not_ready()
            if not missing[0] and api.dag_missing(DAG_ID):
                missing[0] = "DAGs"
            if not missing[0] and len(api.nodes()) < agents:
                missing[0] = "agents"
            return not missing[0]

        with self.screen.busy("Starting Airflow"):
            if not wait_until(ready, START_SECONDS, lambda: processes.check(("migrate", "models"))):
                raise DemoError(
                    f"the {missing[0]} did not get ready in {START_SECONDS:.0f} s; look into {self.home.logs}"
                )

    def _pipeline(self, api: Any, processes: Processes) -> int:
        from emep.client import EmepApiError

        run_id = f"demo__{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        try:
            api.trigger(DAG_ID, models.conf(self.home.models, self.options.small), run_id)
        except EmepApiError as error:
            raise DemoError(f"Airflow refused the run: {error}") from None
        self.screen.say(f"Run {run_id} of {DAG_ID}:")
        state = self._follow(api, processes, run_id)
        if state != "success":
            for task in api.tasks(DAG_ID, run_id):
                if task.get("state") == "failed":
                    self.screen.say(f"{task['task_id']} failed: {api.last_log(DAG_ID, run_id, task)}")
            raise DemoError(f"the pipeline ended as {state}: look at {api.url}/dags/{DAG_ID}/runs/{run_id}")
        return self._scoreboard(api, run_id)

    def _follow(self, api: Any, processes: Processes, run_id: str) -> str:
        from emep.demo.progress import DONE, Progress

        progress, shown = Progress(), set[int]()
        with self.screen.bar() as bar:
            while True:
                processes.check(("migrate", "models"))
                state = str(api.run_state(DAG_ID, run_id))
                for line in progress.update(api.tasks(DAG_ID, run_id)):
                    bar.line(line)
                for number in progress.told():
                    if number not in shown:
                        shown.add(number)
                        bar.line(_told(number, api.result(DAG_ID, run_id, f"generation_{number}.tell")))
                bar.update(progress.done, progress.total, progress.now)
                if state in DONE:
                    return state
                time.sleep(1.0)

    def _scoreboard(self, api: Any, run_id: str) -> int:
        from emep.demo.scoreboard import as_text, read_scoreboard

        board = read_scoreboard(api.result(DAG_ID, run_id, "scoreboard")["metrics"])
        self.screen.say(
            f"\nScoreboard (items that the search never saw, ± standard error)\n\n{as_text(board)}\n"
        )
        took = time.monotonic() - self.started
        if board.gain is None:
            self.screen.say(f"Done after {took:.0f} s.")
            return 0
        self.screen.say(
            f"The evolved merge gains {board.gain:+.3f} over the best uniform average. Done after {took:.0f} s."
        )
        if not self.options.small and board.gain < MARGIN:
            self.screen.say(f"That is less than the {MARGIN} that it should gain.")
            return 1
        return 0

    def _stay(self, processes: Processes) -> None:
        forever = threading.Event()
        while not forever.wait(1.0):
            processes.check(("migrate", "models"))


def _told(number: int, result: Any) -> str:
    metrics = (result or {}).get("metrics") or {}
    score = metrics.get("best_score")
    best = f": best score {score:.3f}" if isinstance(score, int | float) else ""
    cached = f", {metrics['cached']} known already" if metrics.get("cached") else ""
    return f"generation {number}{best} after {metrics.get('evaluations', '?')} evaluations{cached}"


def _program(name: str) -> str:
    """A console script of this environment. Raises DemoError where it is missing."""
    beside = Path(sys.executable).with_name(name)
    if beside.exists():
        return str(beside)
    found = shutil.which(name)
    if found is None:
        raise DemoError(
            f"the command {name} is missing beside {sys.executable}: install the project first", 2
        )
    return found


def _real_gpus(count: Callable[[], int] | None = None) -> int:
    """How many GPUs NVML finds; 0 where there is no driver."""
    if count is not None:
        return count()
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return 0

"""The demo from first check to last line: start, run the pipeline, show the scoreboard, stay, stop."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emep.demo import models
from emep.demo.home import DemoHome, HomeLock, check_port, check_python, check_space, project_root
from emep.demo.processes import DemoError, Processes
from emep.demo.screen import Screen
from emep.demo.stack import MAY_END, Stack, real_gpus

if TYPE_CHECKING:
    from emep.demo.airflow_api import DemoApi

DAG_ID = "emep_pipeline"
RUN_PREFIX = "demo__"
MARGIN = 0.02
"""What the evolved merge must gain over the best uniform average, in the full demo."""


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
        """Everything. Returns 0, or 1 where the evolved merge gained too little. Raises DemoError."""
        check_python()
        project = project_root()
        self.home.create()
        lock = HomeLock(self.home)
        lock.acquire()
        check_space(self.home.root)
        check_port(self.options.port)
        self.screen.say(f"Everything of this demo lies in {self.home.root}")
        with Processes(self.home.logs) as processes:
            return self._with(Stack.of(self.home, project, self.options.port, processes))

    def _with(self, stack: Stack) -> int:
        self._train(stack)
        with self.screen.busy("Preparing Airflow's database"):
            stack.migrate()
        stack.start_airflow()
        api = stack.api()
        try:
            with self.screen.busy("Starting Airflow"):
                stack.wait_for_api(api)
                agents = self._start_agents(stack)
                stack.wait_until_ready(api, DAG_ID, agents)
            address = f"{api.url}  (user admin, password {stack.secrets.admin_password})"
            export = (
                f"For emep in another terminal: export EMEP_API_URL={api.url} EMEP_USERNAME=admin "
                f"EMEP_PASSWORD={stack.secrets.admin_password}"
            )
            self.screen.say(f"Airflow is ready after {self._seconds():.0f} s: {address}\n{export}")
            with self.screen.busy("Waiting for the models"):
                stack.finished("models")
            code = self._pipeline(api, stack.processes)
            if not self.options.exit:
                self.screen.say(
                    f"\nAirflow: {address}\n{export}\nCtrl-C ends the demo and every process it started."
                )
                self._stay(stack.processes)
            return code
        finally:
            api.close()

    def _train(self, stack: Stack) -> None:
        self.screen.say("Training small models beside it: a base and three fine-tunes, one of them harmful")
        command = models.command(sys.executable, self.home.models, self.options.small)
        env = models.environment(stack.env)
        # Airflow's start is the longer way, so it goes first where both want a core.
        stack.processes.start("models", command, env, stack.project, nice=5)

    def _start_agents(self, stack: Stack) -> int:
        """Two agents with simulated GPUs, or one with the real ones. Returns how many."""
        if real_gpus():
            stack.start_agent("gpu")
            return 1
        for name in ("node-a", "node-b"):
            stack.start_agent(name, "--simulate", "4", "--group-size", "4")
        return 2

    def _pipeline(self, api: DemoApi, processes: Processes) -> int:
        from emep.client import EmepApiError

        api.end_unfinished(DAG_ID, RUN_PREFIX)
        run_id = f"{RUN_PREFIX}{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
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

    def _follow(self, api: DemoApi, processes: Processes, run_id: str) -> str:
        from emep.demo.progress import DONE, Progress

        progress, shown = Progress(), set[int]()
        with self.screen.bar() as bar:
            while True:
                processes.check(MAY_END)
                state = api.run_state(DAG_ID, run_id)
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

    def _scoreboard(self, api: DemoApi, run_id: str) -> int:
        from emep.demo.scoreboard import as_text, read_scoreboard

        board = read_scoreboard(api.result(DAG_ID, run_id, "scoreboard")["metrics"])
        self.screen.say("\nScoreboard (on items that the search never saw, ± standard error)\n")
        self.screen.say(as_text(board))
        if board.gain is not None:
            self.screen.say(f"\nThe evolved merge gains {board.gain:+.3f} over the best uniform average.")
        self.screen.say(f"Done after {self._seconds():.0f} s.")
        if board.gain is not None and board.gain < MARGIN and not self.options.small:
            self.screen.say(f"That is less than the {MARGIN} that it should gain.")
            return 1
        return 0

    def _stay(self, processes: Processes) -> None:
        forever = threading.Event()
        while not forever.wait(1.0):
            processes.check(MAY_END)

    def _seconds(self) -> float:
        return time.monotonic() - self.started


def _told(number: int, result: Any) -> str:
    """One line about a generation, from the metrics of its tell."""
    metrics = (result or {}).get("metrics") or {}
    words = []
    for key, word in (
        ("generation_best", "best"),
        ("generation_mean", "mean"),
        ("best_score", "best so far"),
    ):
        if isinstance(metrics.get(key), int | float):
            words.append(f"{word} {metrics[key]:.3f}")
    if metrics.get("evaluations"):
        words.append(f"{metrics['evaluations']} evaluations")
    return f"generation {number}: {', '.join(words) or 'told'}"

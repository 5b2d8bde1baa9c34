"""Airflow, EMEP and agents on one machine: start them, wait until they are ready."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emep.demo.environment import environment
from emep.demo.home import DemoHome, Secrets
from emep.demo.policy import write_policy
from emep.demo.processes import DemoError, Ended, Processes

if TYPE_CHECKING:
    from emep.demo.airflow_api import DemoApi

AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer")
LOG_SERVERS = ("scheduler", "triggerer")
"""Processes that would serve logs on every interface; here the API server reads them from the disk."""
MAY_END = ("migrate", "models")
START_SECONDS = 300.0


@dataclass(frozen=True)
class Stack:
    """The processes of one home on one port, inside a context of ``Processes``."""

    home: DemoHome
    project: Path
    port: int
    processes: Processes
    secrets: Secrets
    env: Mapping[str, str]

    @classmethod
    def of(
        cls,
        home: DemoHome,
        project: Path,
        port: int,
        processes: Processes,
        more: Mapping[str, str] | None = None,
    ) -> Stack:
        """With the home's secrets and the demo's configuration; ``more`` overrides variables of it."""
        secrets = home.secrets()
        env = {**environment(home, project, secrets, port), **(more or {})}
        write_policy(home, project)
        return cls(home, project, port, processes, secrets, env)

    def api(self, user: str = "admin") -> DemoApi:
        """A client of Airflow's API for one of the two users."""
        from emep.demo.airflow_api import DemoApi

        password = self.secrets.admin_password if user == "admin" else self.secrets.service_password
        return DemoApi(self.env["EMEP_API_URL"], user, password)

    def migrate(self) -> None:
        """Create or upgrade the database, load ``airflow_settings.yaml``. Raises DemoError."""
        settings = str(self.project / "airflow_settings.yaml")
        command = [sys.executable, "-m", "emep.bootstrap", "--migrate", settings]
        self.processes.start("migrate", command, self.env, self.project)
        self.finished("migrate")

    def finished(self, name: str) -> Ended:
        """Wait for a step's good end. Raises DemoError where it or another process failed."""
        while (ended := self.processes.wait(name, 0.5)) is None:
            self.processes.check(MAY_END)
        if ended.code != 0:
            raise DemoError(ended.sentence())
        return ended

    def start_airflow(self) -> None:
        """Start Airflow's four processes."""
        for name in AIRFLOW:
            self.start_component(name)

    def start_component(self, name: str) -> None:
        """Start one of Airflow's processes."""
        flags = ["--skip-serve-logs"] if name in LOG_SERVERS else []
        self.processes.start(name, [program("airflow"), name, *flags], self.env, self.project)

    def start_agent(self, name: str, *flags: str) -> None:
        """Start an agent. It gets what it needs to call the API, and none of Airflow's secrets."""
        own = {key: value for key, value in self.env.items() if not key.startswith("AIRFLOW")}
        command = [program("emep"), "agent", "--name", name, "--state-dir", str(self.home.agents / name)]
        patience = ["--connect-timeout", "5m", "--stop-grace", "2s"]
        self.processes.start(f"agent-{name}", [*command, *patience, *flags], own, self.project)

    def wait_for_api(self, api: DemoApi) -> None:
        """Wait until the API server answers. Raises DemoError."""
        self._wait(api, lambda: "API server" if api.not_ready() == "API server" else "")
        api.warm_up()

    def wait_until_ready(self, api: DemoApi, dag_id: str, agents: int) -> None:
        """Wait for the API, the heartbeats of all, the DAG and the agents. Raises DemoError."""

        def missing() -> str:
            if (name := api.not_ready()) != "":
                return name
            if api.dag_missing(dag_id):
                return f"DAG {dag_id}"
            return "agents" if len(api.nodes()) < agents else ""

        self._wait(api, missing)

    def _wait(self, api: DemoApi, missing: Callable[[], str]) -> None:
        from emep.demo.airflow_api import wait_until

        last = [""]

        def ready() -> bool:
            last[0] = missing()
            return not last[0]

        if not wait_until(ready, START_SECONDS, lambda: self.processes.check(MAY_END)):
            raise DemoError(
                f"not ready after {START_SECONDS:.0f} s: the {last[0]}; look into {self.home.logs}"
            )


def program(name: str) -> str:
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


def real_gpus() -> int:
    """How many GPUs NVML finds; 0 where there is no driver."""
    try:
        with warnings.catch_warnings():
            # The package says on import that its maintained twin has another name.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return 0

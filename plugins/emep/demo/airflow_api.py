"""The demo's calls of Airflow's public API: health, the run, its tasks, their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from emep.client import AirflowLogin, Call, ClientSettings, EmepApiError, EmepClient, EmepConnectionError
from emep.client.config import normal_urls
from emep.client.retry import NO_RETRY
from emep.demo.processes import DemoError

_PAGE = 100


class DemoApi:
    """A client for one user of the demo's Airflow."""

    def __init__(self, url: str, username: str, password: str) -> None:
        api_url, airflow_url = normal_urls(url)
        self.url = airflow_url
        login = AirflowLogin(airflow_url, username, password)
        self._client = EmepClient(ClientSettings(api_url, airflow_url, login))
        # It does not answer while it starts: ask once, then check that all processes live.
        self._probe = EmepClient(ClientSettings(api_url, airflow_url, None), retry=NO_RETRY)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._probe.close()

    def not_ready(self) -> str:
        """What is still missing before Airflow is ready; empty once it is."""
        try:
            health = self._probe.raw(Call("GET", "/api/v2/monitor/health", airflow=True))
        except (EmepConnectionError, EmepApiError):
            return "API server"
        for name in ("scheduler", "dag_processor", "triggerer"):
            if (health.get(name) or {}).get("status") != "healthy":
                return name.replace("_", " ")
        return ""

    def warm_up(self) -> None:
        """Make the API server build the workers' API before the first task needs it.

        It does so at the first request, which takes seconds; on a busy machine a task would give up waiting.
        """
        call: Call[Any] = Call("GET", "/execution/health", wait=120, airflow=True)
        with suppress(EmepApiError, EmepConnectionError):
            self._probe.raw(call)

    def dag_missing(self, dag_id: str) -> bool:
        """Whether Airflow has not read the DAG yet. Raises DemoError where its file cannot be imported."""
        try:
            self._client.dag(dag_id)
        except EmepApiError as error:
            if error.status != 404:
                raise
        else:
            return False
        answer = self._client.raw(Call("GET", "/api/v2/importErrors", airflow=True))
        for entry in answer.get("import_errors", ()):
            last = str(entry.get("stack_trace", "")).strip().splitlines()[-1:]
            raise DemoError(f"{entry.get('filename')}: the DAG file cannot be imported: {''.join(last)}")
        return True

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes that have registered; none while EMEP's API is not there yet."""
        try:
            return list(self._client.nodes().items)
        except (EmepApiError, EmepConnectionError):
            return []

    def trigger(self, dag_id: str, conf: dict[str, Any], run_id: str) -> None:
        """Start a run. Raises EmepApiError with Airflow's sentence where the conf is refused."""
        self._client.trigger_dag(dag_id, conf, run_id)

    def end_unfinished(self, dag_id: str, prefix: str) -> None:
        """Fail the runs of an earlier demo that was interrupted, because their results are not needed."""
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns"
        call: Call[Any] = Call(
            "GET", path, params={"state": ["running", "queued"], "limit": _PAGE}, airflow=True
        )
        for run in self._client.raw(call)["dag_runs"]:
            run_id = str(run["dag_run_id"])
            if run_id.startswith(prefix):
                body = {"state": "failed"}
                self._client.raw(Call("PATCH", f"{path}/{quote(run_id, safe='')}", body=body, airflow=True))

    def run_state(self, dag_id: str, run_id: str) -> str:
        """State of the run: queued, running, success, failed."""
        return str(self._client.dag_run(dag_id, run_id)["state"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All task instances of the run."""
        return list(self._pages(dag_id, run_id))

    def _pages(self, dag_id: str, run_id: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            page = self._client.task_instances(dag_id, run_id, offset, _PAGE)
            yield from page["task_instances"]
            offset += _PAGE
            if offset >= page["total_entries"]:
                return

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """The value that a task returned; None where there is none."""
        path = "/".join(
            quote(part, safe="") for part in (dag_id, "dagRuns", run_id, "taskInstances", task_id)
        )
        try:
            entry = self._client.raw(
                Call("GET", f"/api/v2/dags/{path}/xcomEntries/return_value", airflow=True)
            )
        except EmepApiError as error:
            if error.status == 404:
                return None
            raise
        value = entry.get("value")
        return json.loads(value) if isinstance(value, str) else value

    def last_log(self, dag_id: str, run_id: str, task: dict[str, Any]) -> str:
        """The sentence that a failed task ended with, from its log; empty where there is none."""
        path = "/".join(
            quote(part, safe="") for part in (dag_id, "dagRuns", run_id, "taskInstances", task["task_id"])
        )
        params = {"map_index": task.get("map_index", -1), "full_content": True}
        call: Call[Any] = Call(
            "GET", f"/api/v2/dags/{path}/logs/{task['try_number']}", params=params, airflow=True
        )
        try:
            content = self._client.raw(call).get("content") or []
        except (EmepApiError, EmepConnectionError):
            return ""
        for entry in reversed(content):
            for detail in (entry.get("error_detail") or []) if isinstance(entry, dict) else []:
                return str(detail.get("exc_value", ""))
        return ""


def wait_until(
    ready: Callable[[], bool], seconds: float, check: Callable[[], None], pause: float = 0.5
) -> bool:
    """Wait for a condition, calling ``check`` (which raises if there is no more point) before each look."""
    until = time.monotonic() + seconds
    while True:
        check()
        if ready():
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(pause)

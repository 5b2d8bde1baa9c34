"""Follows a DAG run: a line whenever a task, or the job that a task waits for, changes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from emep.cli.table import printable
from emep.wire.units import format_duration

if TYPE_CHECKING:
    from emep.client import EmepClient

PAUSE = 2.0
"""Seconds between two looks."""
_ENDED = frozenset({"success", "failed"})
_SILENT = frozenset({None, "", "scheduled", "queued", "removed"})
"""Task states that say nothing to people."""
_TELLING = frozenset({"pending", "failed", "dead", "rejected", "expired", "cancelled"})
"""Job states whose reason people want to read."""


class Progress:
    """What was said so far, so that only news are printed."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._tasks: dict[tuple[str, int], str] = {}
        self._jobs: dict[str, tuple[str, str]] = {}
        self._begin = time.monotonic()

    def say(self, text: str) -> None:
        """One line with the time since the start."""
        elapsed = format_duration(time.monotonic() - self._begin)
        print(f"{elapsed:>7}  {printable(text)}", file=self._output, flush=True)

    def tasks(self, instances: list[dict[str, Any]]) -> None:
        """Tasks whose state is new."""
        for task in sorted(instances, key=lambda task: (task.get("start_date") or "~", task["map_index"])):
            key, state = (task["task_id"], task["map_index"]), task["state"]
            if state in _SILENT or self._tasks.get(key) == state:
                continue
            self._tasks[key] = state
            if state == "deferred":
                continue  # its job says more
            index = f"[{task['map_index']}]" if task["map_index"] >= 0 else ""
            self.say(f"{task['task_id']}{index}: {state.replace('_', ' ')}")

    def jobs(self, jobs: list[dict[str, Any]]) -> None:
        """Jobs of the run whose state, or reason to wait, is new."""
        for job in sorted(jobs, key=lambda job: job["submitted_at"]):
            task = job.get("airflow") or {}
            news = (job["state"], job["reason"] if job["state"] in _TELLING else "")
            if self._jobs.get(job["id"]) == news:
                continue
            self._jobs[job["id"]] = news
            index = f"[{task['map_index']}]" if task.get("map_index", -1) >= 0 else ""
            place = " on " + ", ".join(job["nodes"]) if job["nodes"] and job["state"] != "pending" else ""
            why = f": {job['reason']}" if news[1] else ""
            self.say(f"{task.get('task_id')}{index}: job {job['id']} {job['state']}{place}{why}")


def follow_run(
    client: EmepClient, dag_id: str, run_id: str, *, output: TextIO | None = None, pause: float = PAUSE
) -> dict[str, Any]:
    """Print what happens until the run has ended; returns the DAG run as Airflow answers it.

    It waits through an outage of the API, because the run goes on without this program.
    """
    from emep.client import EmepConnectionError, calls

    progress = Progress(output or sys.stdout)
    progress.say(f"{dag_id} {run_id}")
    away = False
    while True:
        try:
            dag_run: dict[str, Any] = client.raw(calls.dag_run(dag_id, run_id))
            progress.tasks(all_tasks(client, dag_id, run_id))
            progress.jobs(client.raw(calls.jobs(dag_id=dag_id, run_id=run_id, limit=1000))["items"])
            away = False
        except EmepConnectionError as error:
            if not away:
                progress.say(f"{error}; still trying")
            away = True
        else:
            if dag_run["state"] in _ENDED:
                progress.say(f"{dag_id} {run_id}: {dag_run['state']}")
                return dag_run
        time.sleep(pause)


def all_tasks(client: EmepClient, dag_id: str, run_id: str) -> list[dict[str, Any]]:
    """Every task instance of a run."""
    from emep.client import calls

    found: list[dict[str, Any]] = []
    while True:
        page = client.raw(calls.task_instances(dag_id, run_id, offset=len(found)))
        found += page["task_instances"]
        if not page["task_instances"] or len(found) >= page["total_entries"]:
            return found

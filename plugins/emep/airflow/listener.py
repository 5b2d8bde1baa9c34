"""Releases GPUs promptly when a task ends without its worker or trigger.

Such a task was marked by hand, lost with its worker, or skipped with a run that timed out. Airflow calls
these listeners in its API server and scheduler, which share the ledger's database. So they use the ledger
directly, and work even if no API server runs. This is an optimisation only: the reconciler, the leases' time
limits and the next try release the GPUs in any case. All calls run in a thread of their own and never raise.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from emep.ledger.service import LedgerService

log = logging.getLogger(__name__)

LOOKS = (1.0, 5.0)
"""Seconds after a run's end at which its tasks are looked at: Airflow calls before it commits."""


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """A task was failed by hand, or the scheduler has found its worker gone."""
    _release(task_instance, "its Airflow task was failed by hand, or has lost its worker")


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """A task was marked as success by hand."""
    _release(task_instance, "its Airflow task was marked as success by hand")


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """A task was marked as skipped by hand."""
    _release(task_instance, "its Airflow task was skipped")


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """A run has failed or timed out, or was failed by hand; Airflow does not report the tasks it ended."""
    _look_at_run(dag_run)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """A run has succeeded, or was marked so by hand."""
    _look_at_run(dag_run)


def _release(task_instance: Any, reason: str) -> None:
    """Call off the task's unfinished jobs, unless this is the task's own process.

    It keeps them if Airflow tries again after it lost a worker: the next try takes over the running job.
    """
    if type(task_instance).__name__ == "RuntimeTaskInstance":
        return
    try:
        if str(getattr(task_instance, "state", "")) == "up_for_retry" and not _was_cleared(task_instance):
            return
        # The ORM object must be read here: its session must not be used in the other thread.
        ti = task_instance
        key = (ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else int(ti.map_index))
        tries = int(ti.try_number or 0)
    except Exception as error:
        log.debug("a task instance cannot be read: %s", error)
        return
    _desk.put(0.0, lambda ledger: ledger.tasks.release(key, tries, reason, "airflow"))


def _was_cleared(task_instance: Any) -> bool:
    """Whether a person cleared the task while it ran, so that Airflow ended its worker on purpose.

    Airflow calls this before it writes, so the database still has the task's earlier state.
    """
    from sqlalchemy import inspect

    state = inspect(task_instance, raiseerr=False)
    return state is not None and "restarting" in map(str, state.attrs.state.history.deleted or ())


def _look_at_run(dag_run: Any) -> None:
    """Call off the jobs of tasks that have ended with their run (a teardown may still be at work)."""
    try:
        run = (str(dag_run.dag_id), str(dag_run.run_id))
    except Exception as error:
        log.debug("a run cannot be read: %s", error)
        return
    for seconds in LOOKS:
        _desk.put(seconds, lambda ledger: ledger.tasks.reconcile(run=run))


def settled(timeout: float = 30.0) -> bool:
    """Wait until all work that was queued so far is done; False if the time runs out."""
    done = threading.Event()
    _desk.put(max(LOOKS), lambda ledger: done.set())
    return done.wait(timeout)


@cache
def _ledger() -> LedgerService:
    """The ledger on this process's database."""
    from airflow.settings import get_engine

    from emep.ledger.policies.source import PolicySource
    from emep.ledger.service import LedgerService
    from emep.ledger.store.database import Database
    from emep.settings import get_settings

    settings = get_settings()
    database = Database(get_engine())  # type: ignore[no-untyped-call]
    return LedgerService(database, PolicySource(settings.policy_file), settings)


class _Desk:
    """One thread that runs queued work one after the other, each when it is due."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._order = itertools.count()
        self._open()

    def _open(self) -> None:
        self._due: queue.PriorityQueue[tuple[float, int, Callable[[Any], object]]] = queue.PriorityQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def put(self, seconds: float, work: Callable[[LedgerService], object]) -> None:
        """Queue ``work`` to run with the ledger after so many seconds or a little later; does not block."""
        with self._mutex:
            if self._process != os.getpid():
                # A forked process has the queue of its parent, and not the thread.
                self._open()
            self._due.put((time.monotonic() + seconds, next(self._order), work))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, args=(self._due,), name="emep release", daemon=True
                )
                self._thread.start()

    @staticmethod
    def _run(due: queue.PriorityQueue[tuple[float, int, Callable[[Any], object]]]) -> None:
        while True:
            at, _, work = due.get()
            time.sleep(max(0.0, at - time.monotonic()))
            try:
                work(_ledger())
            except Exception as error:
                log.warning("jobs of a task that has ended cannot be released now: %s", error)


_desk = _Desk()

"""Airflow's own tables beside the ledger's, plain tasks in its pools, and its scheduler's own queueing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, insert, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

DAG = "plain"
LOG = logging.getLogger("tests.airflow_scheduler")
LOG.setLevel(logging.WARNING)


class AirflowQueue:
    """An Airflow database in which tasks of one DAG are ready to be queued."""

    def __init__(self, engine: Engine) -> None:
        from airflow.models import import_all_models
        from airflow.models.base import Base
        from airflow.models.dag import DagModel
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.dagrun import DagRun

        import_all_models()
        Base.metadata.create_all(engine)
        self.engine = engine
        self.sessions = sessionmaker(engine)
        self._number = 0
        self._runner: Any = None
        now = datetime.now(UTC)
        run = {"dag_id": DAG, "run_id": "r", "state": "running", "run_type": "manual", "run_after": now}
        with self.sessions.begin() as session:
            session.execute(insert(DagBundleModel.__table__).values(name="b", active=True))
            session.execute(
                insert(DagModel.__table__).values(
                    dag_id=DAG,
                    bundle_name="b",
                    max_active_tasks=10_000,
                    max_active_runs=10_000,
                    is_paused=False,
                    is_stale=False,
                    has_task_concurrency_limits=False,
                    max_consecutive_failed_dag_runs=0,
                )
            )
            session.execute(insert(DagRun.__table__).values(**run, logical_date=now, start_date=now))

    # ---- tasks -----------------------------------------------------------------------------------------

    def task(self, slots: int = 1, pool: str = "gpu_default", state: str = "scheduled", **fields: Any) -> str:
        """A task instance of the run; its task id."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.state import TaskInstanceState

        self._number += 1
        name = f"t{self._number}"
        values = {
            "dag_id": DAG,
            "run_id": "r",
            "task_id": name,
            "map_index": -1,
            "state": TaskInstanceState(state),
            "pool": pool,
            "pool_slots": slots,
            "priority_weight": 1,
            "queue": "default",
            "max_tries": 0,
            "try_number": 0,
            "scheduled_dttm": datetime.now(UTC),
            **fields,
        }
        with self.sessions.begin() as session:
            session.execute(insert(TaskInstance.__table__).values(**values))
        return name

    def move(self, name: str, state: str, **fields: Any) -> None:
        """The task is in this state from now on."""
        from airflow.models.taskinstance import TaskInstance as TI
        from airflow.utils.state import TaskInstanceState

        with self.sessions.begin() as session:
            where = TI.__table__.c.task_id == name
            session.execute(
                update(TI.__table__).where(where).values(state=TaskInstanceState(state), **fields)
            )

    def in_state(self, *states: str) -> list[str]:
        """Task ids in these states, oldest first."""
        from airflow.models.taskinstance import TaskInstance as TI

        with self.sessions() as session:
            query = select(TI.__table__.c.task_id).where(TI.__table__.c.state.in_(states))
            return sorted(session.scalars(query), key=lambda name: int(name[1:]))

    def held(self, session: Session, pool: str = "gpu_default") -> int:
        """Slots that tasks of the pool have, in the eyes of this session."""
        from airflow.models.taskinstance import TaskInstance as TI

        table = TI.__table__
        states = ("queued", "running", "deferred")
        query = select(func.sum(table.c.pool_slots)).where(table.c.pool == pool, table.c.state.in_(states))
        return int(session.scalar(query) or 0)

    # ---- the scheduler ---------------------------------------------------------------------------------

    def queue(self, limit: int = 32, check: Callable[[Session], None] | None = None) -> list[str] | None:
        """One run of the scheduler's critical section, committed: what it queued; None where it was busy.

        ``check`` looks at what is about to be committed.
        """
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
        from airflow.utils.sqlalchemy import is_lock_not_available_error

        if self._runner is None:
            self._runner = SchedulerJobRunner(job=Job(), log=LOG)
        with self.sessions() as session:
            try:
                found = self._runner._executable_task_instances_to_queued(limit, session=session)
                names = [ti.task_id for ti in found]
                if check is not None:
                    check(session)
                session.commit()
            except OperationalError as error:
                session.rollback()
                if is_lock_not_available_error(error):
                    return None
                raise
        return names

    # ---- pools -----------------------------------------------------------------------------------------

    def pool(self, name: str = "gpu_default") -> tuple[int, bool, str] | None:
        """(slots, whether deferred tasks count, description) of a row; None where there is none."""
        from airflow.models.pool import Pool

        with self.sessions() as session:
            row = session.scalar(select(Pool).where(Pool.pool == name))
            return None if row is None else (row.slots, row.include_deferred, row.description or "")

    def open_slots(self, name: str = "gpu_default") -> float:
        """Open slots as Airflow counts them."""
        from airflow.models.pool import Pool

        with self.sessions() as session:
            return float(Pool.slots_stats(session=session)[name]["open"])

    def upsert_pool(self, slots: int, name: str = "gpu_default", include_deferred: bool = False) -> None:
        """What the REST API does for a person, and for Astro's loader at every start."""
        from airflow.models.pool import Pool

        with self.sessions.begin() as session:
            Pool.create_or_update_pool(
                name=name, slots=slots, description="", include_deferred=include_deferred, session=session
            )

    def delete_pool(self, name: str = "gpu_default") -> None:
        """A person deletes the row."""
        from airflow.models.pool import Pool

        with self.sessions.begin() as session:
            Pool.delete_pool(name=name, session=session)

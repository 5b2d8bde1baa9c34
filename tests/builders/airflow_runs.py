"""Runs of a real, serialized DAG in Airflow's own tables, whose tasks a test puts into any state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import sessionmaker

DAG_ID = "asks_for_gpus"


class AirflowRuns:
    """One DAG: ``prepare`` -> ``train[0..2]`` -> ``report``."""

    def __init__(self, engine: Engine) -> None:
        from airflow.models import import_all_models
        from airflow.models.base import Base
        from airflow.models.dag import DagModel
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.tasklog import LogTemplate
        from airflow.providers.standard.operators.bash import BashOperator
        from airflow.providers.standard.operators.empty import EmptyOperator
        from airflow.sdk import DAG
        from airflow.serialization.serialized_objects import LazyDeserializedDAG

        import_all_models()
        Base.metadata.create_all(engine)
        self.sessions = sessionmaker(engine, autoflush=False, expire_on_commit=False)
        with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            train = BashOperator.partial(task_id="train", retries=2).expand(bash_command=["a", "b", "c"])
            EmptyOperator(task_id="prepare") >> train >> EmptyOperator(task_id="report")
        with self.sessions.begin() as session:
            session.add(DagBundleModel(name="tests"))
            session.add(LogTemplate(filename="log", elasticsearch_id="log"))
            session.flush()
            session.add(DagModel(dag_id=DAG_ID, bundle_name="tests", is_paused=False, is_stale=False))
            session.flush()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "tests", session=session)

    def run(self, run_id: str = "r1", **states: str) -> str:
        """A run that has failed; ``train=`` and others give the states of its tasks."""
        from airflow.models.dagbag import DBDagBag
        from airflow.utils.state import DagRunState, TaskInstanceState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        states = {"prepare": "success", "train": "failed", "report": "upstream_failed", **states}
        with self.sessions.begin() as session:
            dag = DBDagBag().get_latest_version_of_dag(DAG_ID, session=session)
            assert dag is not None
            run = dag.create_dagrun(
                run_id=run_id,
                run_after=datetime.now(UTC),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )
            session.flush()
            for instance in run.get_task_instances(session=session):
                instance.state = TaskInstanceState(states[instance.task_id])
                instance.try_number = 1
            run.state = DagRunState.FAILED
        return run_id

    def move(self, task_id: str, state: str | None, run_id: str = "r1", map_index: int = -1) -> None:
        """A task of the run is in this state from now on."""
        with self.sessions.begin() as session:
            self._instance(session, run_id, task_id, map_index).state = state

    def states(self, run_id: str = "r1") -> dict[tuple[str, int], str | None]:
        """The state of every task of the run."""
        from airflow.models.taskinstance import TaskInstance

        query = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state).where(
            TaskInstance.dag_id == DAG_ID, TaskInstance.run_id == run_id
        )
        with self.sessions() as session:
            return {(task, index): state for task, index, state in session.execute(query)}

    def instance(self, task_id: str, map_index: int = -1, run_id: str = "r1") -> Any:
        """One task instance."""
        with self.sessions() as session:
            return self._instance(session, run_id, task_id, map_index)

    def run_state(self, run_id: str = "r1") -> str:
        """The state of the run."""
        from airflow.models.dagrun import DagRun

        with self.sessions() as session:
            return str(session.scalar(select(DagRun._state).where(DagRun.run_id == run_id)))

    @staticmethod
    def _instance(session: Any, run_id: str, task_id: str, map_index: int) -> Any:
        from airflow.models.taskinstance import TaskInstance

        return session.scalars(
            select(TaskInstance).where(
                TaskInstance.dag_id == DAG_ID,
                TaskInstance.run_id == run_id,
                TaskInstance.task_id == task_id,
                TaskInstance.map_index == map_index,
            )
        ).one()


def task(map_index: int = 0, run_id: str = "r1", **fields: Any) -> dict[str, Any]:
    """``airflow`` of the request that ``train[map_index]`` makes in its last try."""
    names = {"dag_id": DAG_ID, "run_id": run_id, "task_id": "train", "map_index": map_index}
    return {**names, "try_number": 1, "last_try": True, **fields}

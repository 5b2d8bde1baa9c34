"""A weight rule for Airflow's tasks: ``weight_rule="emep.priority.FairSharePriorityWeight"``.

Name it by that path, not by an instance: an instance on a mapped task makes its DAG untriggerable in Airflow
3.3. Airflow asks for a weight when a task instance is created and when it is cleared, and keeps it: it orders
requests on their way to EMEP. The order of the jobs themselves is EMEP's, planned anew at every change.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.task.priority_strategy import PriorityWeightStrategy

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

log = logging.getLogger(__name__)


class FairSharePriorityWeight(PriorityWeightStrategy):
    """EMEP's score as a weight: the class's value times the project's deficit, times 100.

    Class, project and queue are those that the task asks EMEP with; of a task that does not ask EMEP, the
    run's Params ``priority`` and ``project``. A task with neither keeps its own ``priority_weight``.
    """

    def get_weight(self, ti: TaskInstance) -> int:
        """The weight; never raises, opens no session, looks at nothing that is not loaded."""
        task = getattr(ti, "task", None)
        own = int(getattr(task, "priority_weight", 1) or 1)
        try:
            from emep.airflow.priority_weight import weights
            from emep.airflow.task_request import is_of_emep, wish_of

            run = ti.__dict__.get("dag_run")
            conf = getattr(run, "conf", None)
            if task is None or not (is_of_emep(task) or "priority" in {*(task.params or ()), *(conf or ())}):
                return own
            wish = wish_of(task, conf)
            return weights().weight(wish.priority, wish.queue, wish.project)
        except Exception:
            log.debug("the task keeps its own weight", exc_info=True)
            return own

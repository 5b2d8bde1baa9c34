"""Airflow's local settings: EMEP's cluster policy.

Airflow finds this file because the plugins folder is on its path. One of your own in ``config/`` comes
before it: then import the two functions there.
"""

from emep.airflow.cluster_policy import task_instance_mutation_hook, task_policy

__all__ = ["task_instance_mutation_hook", "task_policy"]

"""The engines that do a job's work: they merge, evolve, evaluate and compare language models.

They import no Airflow. ``contract`` lists them; ``cli`` and ``supervisor`` run them.
"""

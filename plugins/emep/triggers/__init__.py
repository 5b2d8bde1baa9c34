"""Airflow triggers that follow a deferred task's job, its pod, or the hardware, without a worker."""

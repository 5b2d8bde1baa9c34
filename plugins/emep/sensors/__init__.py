"""Airflow sensors of EMEP: the one that the GPU health DAG waits with."""

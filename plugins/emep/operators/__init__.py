"""Airflow operators whose tasks ask EMEP for GPUs, run an engine or a pod on them, and defer meanwhile."""

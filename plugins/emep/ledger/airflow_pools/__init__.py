"""Airflow's pools ``gpu_<pool>``, kept equal to what EMEP does not hold."""

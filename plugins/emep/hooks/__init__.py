"""Access to EMEP's API through an Airflow connection."""

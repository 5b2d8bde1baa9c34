"""EMEP's hooks in Airflow itself: cluster policy, listener, priority weights."""

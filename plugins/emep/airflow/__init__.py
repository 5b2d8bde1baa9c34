"""EMEP's hooks in Airflow itself: cluster policy, listener, links, priority weights."""

"""What no call announces: timeouts, absences, and Airflow tasks that want their jobs no more."""

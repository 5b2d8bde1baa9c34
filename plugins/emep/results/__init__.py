"""Results of jobs for people: tables for a task's log, a run's note, the job's page. No I/O, no Airflow."""

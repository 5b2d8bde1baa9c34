"""Periodic checks: timeouts, the control plane's own absences, and jobs that their Airflow tasks gave up."""

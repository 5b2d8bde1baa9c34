"""The HTTP API that Airflow's API server mounts at ``/emep``: authentication, limits, routes and errors."""

"""What Airflow's plugin loader executes; ``.airflowignore`` keeps the package beside it from the loader."""

from emep.plugin import EmepPlugin

__all__ = ["EmepPlugin"]

"""What Airflow's plugin loader executes; the package beside it is kept from the loader by ``.airflowignore``."""

from emep.plugin import EmepPlugin

__all__ = ["EmepPlugin"]

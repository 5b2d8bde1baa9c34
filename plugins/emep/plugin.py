"""The Airflow plugin of EMEP: API, listener, weight rule and links.

Every task process loads this, so nothing heavy is imported before it is used.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class _Lazy:
    """A class attribute that is computed each time it is read; in practice only the API server reads it."""

    def __init__(self, compute: Any) -> None:
        self._compute = compute

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._compute()


@cache
def _fastapi_apps() -> list[dict[str, Any]]:
    """The REST API; read several times while a server starts, made once. A server also checks forms."""
    from emep.api.app import create_app
    from emep.dagkit.formats import register

    register()
    return [{"app": create_app(), "url_prefix": "/emep", "name": "EMEP"}]


def _middlewares() -> list[dict[str, Any]]:
    """What keeps an API server on SQLite from waiting for itself."""
    from emep.airflow.sqlite_writes import middlewares

    return middlewares()


def _listeners() -> list[Any]:
    """Releases the GPUs of a task that ended without its worker."""
    from emep.airflow import listener

    return [listener]


def _weight_rules() -> list[Any]:
    """The weight rule by EMEP's score."""
    from emep.priority import FairSharePriorityWeight

    return [FairSharePriorityWeight]


def _links() -> list[Any]:
    """Links from a task to its job and its job's log."""
    from emep.operators.links import LINKS

    return list(LINKS)


class EmepPlugin(AirflowPlugin):
    """Mounts the API at ``/emep``; listens for tasks that end without their worker; adds a weight rule and
    links to jobs; orders the writes of an API server on SQLite.
    """

    name = "emep"
    fastapi_apps = _Lazy(_fastapi_apps)
    fastapi_root_middlewares = _Lazy(_middlewares)
    listeners = _Lazy(_listeners)
    priority_weight_strategies = _Lazy(_weight_rules)
    operator_extra_links = _Lazy(_links)

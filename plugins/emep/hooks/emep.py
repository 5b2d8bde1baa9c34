"""Clients for the API from an Airflow connection, for operators (sync) and triggers (async).

Everything heavy (httpx, pydantic) is imported when a client is made, so that DAG files and the triggerer's
loop stay fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient, EmepClient

DEFAULT_CONNECTION = "emep_default"


def client(conn_id: str = DEFAULT_CONNECTION) -> EmepClient:
    """The synchronous client for a connection; close it.

    Raises AirflowNotFoundException for an unknown connection and EmepConfigurationError for one that makes no
    sense.
    """
    from emep.client import EmepClient

    return EmepClient.from_connection(Connection.get(conn_id))


async def async_client(conn_id: str = DEFAULT_CONNECTION) -> AsyncEmepClient:
    """The asynchronous client for a connection; close it. Raises as ``client`` does."""
    from emep.client import AsyncEmepClient

    return AsyncEmepClient.from_connection(await Connection.async_get(conn_id))

"""EMEP's REST client, synchronous and asynchronous, with one definition of every call.

``EmepClient`` is for operators and the command line, ``AsyncEmepClient`` for triggers and the agent. Neither
imports Airflow. Every failure is an ``EmepError`` whose text is one sentence for people.
"""

from emep.client import calls, operator_calls
from emep.client.calls import Call
from emep.client.clients import AsyncEmepClient, EmepClient
from emep.client.config import ClientSettings, settings_from_connection, settings_from_environment
from emep.client.credentials import AirflowLogin, BearerToken, agent_token, lease_token
from emep.client.errors import EmepApiError, EmepConfigurationError, EmepConnectionError, EmepError
from emep.client.retry import Retry

__all__ = [
    "AirflowLogin",
    "AsyncEmepClient",
    "BearerToken",
    "Call",
    "ClientSettings",
    "EmepApiError",
    "EmepClient",
    "EmepConfigurationError",
    "EmepConnectionError",
    "EmepError",
    "Retry",
    "agent_token",
    "calls",
    "lease_token",
    "operator_calls",
    "settings_from_connection",
    "settings_from_environment",
]

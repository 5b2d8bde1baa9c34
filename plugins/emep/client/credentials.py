"""Who calls: an Airflow user, an agent, or the holder of a lease. Each an ``httpx.Auth``."""

from __future__ import annotations

from collections.abc import Generator

import httpx

from emep.client.errors import EmepApiError, EmepConfigurationError, api_error

AGENT_PREFIX = "emep-agent."
LEASE_PREFIX = "emep-lease."


class BearerToken(httpx.Auth):
    """A token that the caller already holds."""

    def __init__(self, token: str) -> None:
        # A header cannot carry line ends or other text; httpx's own complaint would show the secret.
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise EmepConfigurationError("the token is empty or has characters that a token cannot have")
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the request with the token."""
        request.headers["Authorization"] = self._header
        yield request


class AirflowLogin(httpx.Auth):
    """A user's name and password, exchanged for Airflow's token (``POST /auth/token``).

    The token is kept for the life of the object and fetched anew once when the API answers 401.
    """

    requires_response_body = True

    def __init__(self, airflow_url: str, username: str, password: str) -> None:
        self._url = f"{airflow_url.rstrip('/')}/auth/token"
        self._username, self._password = username, password
        self._token: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Log in where needed, send, and on 401 log in again and send once more. Raises EmepApiError."""
        fresh = self._token is None
        if fresh:
            yield from self._log_in()
        request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code == 401 and not fresh:
            yield from self._log_in()
            request.headers["Authorization"] = f"Bearer {self._token}"
            yield request

    def _log_in(self) -> Generator[httpx.Request, httpx.Response, None]:
        response = yield httpx.Request(
            "POST", self._url, json={"username": self._username, "password": self._password}
        )
        if response.status_code in (401, 403):
            raise EmepApiError(
                response.status_code,
                "Not logged in",
                f"{self._url} refused user {self._username!r}: check the user name and the password",
            )
        if response.status_code >= 400:
            raise api_error(response)
        try:
            self._token = str(response.json()["access_token"])
        except (ValueError, KeyError, TypeError):
            raise EmepApiError(
                response.status_code, "No token", f"{self._url} answered without an access_token"
            ) from None


def agent_token(secret: str) -> BearerToken:
    """Credentials of a node's agent; the prefix may be there already."""
    return BearerToken(secret if secret.startswith(AGENT_PREFIX) else AGENT_PREFIX + secret)


def lease_token(token: str) -> BearerToken:
    """Credentials of an allocation's holder; the prefix may be there already."""
    return BearerToken(token if token.startswith(LEASE_PREFIX) else LEASE_PREFIX + token)
